"""What SeqPE costs on paper: operations, bytes and launches, counted from sizes. Nothing here is timed.

python -m benchmarks.scaling     # prints the tables of docs/explanation/scaling.md

Operations count a multiplication and an addition as two. Times are operations or bytes divided by what the
data sheet of an H100 (SXM) promises, and so are lower bounds.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

import seqpe_zoo

H100_OPERATIONS = 989e12
"""A second, bfloat16, dense."""
H100_BYTES = 3.35e12
"""A second, from its memory."""
HALF = 2
"""Bytes of a number in bfloat16."""


@dataclass(frozen=True)
class Host:
    """A model and what SeqPE is in it by default.

    Attributes:
        weights: of the model, without position embeddings.
        sides: positions of one example: (length,) or (rows, columns).
        digits: for each coordinate.
        copies: of W_PE, one or one a layer.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    weights: float
    sides: tuple[int, ...]
    digits: int
    encoder_dim: int
    copies: int

    @property
    def tokens(self) -> int:
        return math.prod(self.sides)

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    @property
    def vector(self) -> int:
        """Width of a position vector: the heads of the keys."""
        return self.kv_heads * self.head_dim


VIT = Host("ViT-S/16, 224 pixels", 12, 384, 6, 6, 22.0e6, (14, 14), 2, 384, 12)
GPT2 = Host("GPT-2, 512 tokens", 12, 768, 12, 12, 123.7e6, (512,), 5, 768, 1)
LLAMA = Host("Llama 1B, 131,072 tokens", 16, 2048, 32, 8, 1236e6, (131072,), 6, 768, 1)
HOSTS = (
    VIT,
    Host("ViT-S/16, 672 pixels", 12, 384, 6, 6, 22.0e6, (42, 42), 2, 384, 12),
    GPT2,
    Host("GPT-2, 16,384 tokens", 12, 768, 12, 12, 123.7e6, (16384,), 5, 768, 1),
    LLAMA,
)


# The table: every position encoded once.


def count_prefixes(sides: tuple[int, ...], digits: int, base: int = 10) -> int:
    """Different digit prefixes of all positions of a grid that starts at zero."""
    prefixes, before = 0, 1
    for side in sides:
        prefixes += sum(before * math.ceil(side / base**left) for left in range(digits))
        before *= side
    return prefixes


def encoder_operations(host: Host, shared: bool = True, base: int = 10) -> float:
    """Operations of the encoder (two layers) for all positions of a host.

    With shared prefixes, the first layer's projections run on the vocabulary of digits alone, and in the last
    layer only [CLS] is carried on.
    """
    d, positions, places = host.encoder_dim, host.tokens, len(host.sides) * host.digits
    project, attend, finish = 6 * d * d, 4 * d * (places + 1), 18 * d * d
    out = 2 * d * host.vector * positions
    if not shared:
        tokens = positions * (places + 1)
        first = tokens * (project + attend + finish)
        return first + tokens * project + positions * (attend + finish) + out
    vocabulary = places * base + 1
    rows = count_prefixes(host.sides, host.digits, base) + positions
    first = vocabulary * project + 2 * vocabulary * vocabulary * d + rows * (2 * vocabulary * d + finish)
    return first + rows * project + positions * (attend + finish) + out


def projection_operations(host: Host) -> float:
    """Operations of W_PE for all positions."""
    return 4.0 * host.vector**2 * host.copies * host.tokens


def table_bytes(host: Host) -> float:
    """Memory of the vectors and of what W_PE makes of them for queries and keys."""
    return float(host.tokens * host.vector * (1 + 2 * host.copies) * HALF)


# A forward pass and a decoded token.


def attention_operations(host: Host, columns: int | None = None) -> float:
    """Operations of scores and mixed values; half of them where attention is causal."""
    share = 0.5 if len(host.sides) == 1 else 1.0
    return share * 4 * host.layers * host.tokens**2 * host.heads * (columns or host.head_dim)


def forward_operations(host: Host) -> float:
    """Operations of the model without positions."""
    return 2 * host.weights * host.tokens + attention_operations(host)


def elementwise_bytes(host: Host, read_a_token: int) -> float:
    """Bytes moved to change queries and keys in place once, and to read what they are changed with."""
    changed = 2 * (host.heads + host.kv_heads) * host.head_dim
    return float(host.layers * host.tokens * (changed + read_a_token) * HALF)


def decode_bytes(host: Host) -> dict[str, float]:
    """Bytes read to decode a token after all others: weights and cache, and what "bias" adds.

    Scores of all layers with one W_PE are made once, (heads, tokens), and every layer reads them.
    """
    cache = host.layers * host.tokens * 2 * host.vector * HALF
    scores = host.tokens * (host.vector + host.heads * (1 + host.layers)) * HALF
    return {"model": host.weights * HALF + cache, "bias": float(scores)}


# A training step of the paper's runs, both objectives in it.


def encoded_positions(
    context: int, examples: int, pivots: int, candidates: int, starts: int, transfer: int
) -> float:
    """Positions of a step and process: the context, a tenth of the examples shifted, and both objectives."""
    return context * (1 + 0.1 * examples) + pivots * (1 + candidates) + 2 * starts * transfer


TRAINING = (
    ("GPT-2, 100,000 steps of 128 x 512", GPT2, 100_000, 4, 32, encoded_positions(512, 32, 16, 32, 16, 32)),
    (
        "ViT-S/16, 400 epochs in steps of 1,024",
        VIT,
        500_800,
        4,
        256,
        encoded_positions(196, 256, 32, 64, 32, 64),
    ),
)
"""(run, host, steps, processes, examples of a process, positions of a process)."""


def training_operations(
    host: Host, steps: int, processes: int, examples: int, positions: float
) -> tuple[float, float]:
    """Operations of the model, and of the encoder for whole sequences of digits; backward costs twice."""
    encoder = encoder_operations(host, shared=False) / host.tokens * positions
    return 3 * steps * processes * examples * forward_operations(host), 3 * steps * processes * encoder


# Launches, counted by running the code.


class CountLaunches(TorchDispatchMode):
    """Counts operations that compute something; views launch nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


def launches_of_layer(host: type[Any], make: Callable[[Any], Any]) -> int:
    """Launches of one layer in a forward pass with positions known: half of what two more layers add."""
    counts = []
    for layers in (2, 4):
        sizes = {"hidden_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4, "vocab_size": 32}
        more = {"intermediate_size": 64} if host is LlamaConfig else {}
        config = make(host(**sizes, **more))
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
        tokens = torch.zeros(1, 512, dtype=torch.long)
        with torch.inference_mode():
            model(tokens, use_cache=False)
            with CountLaunches() as mode:
                model(tokens, use_cache=False)
        counts.append(mode.count)
    return (counts[1] - counts[0]) // 2


def with_encoding(name: str, **options: Any) -> Callable[[Any], Any]:
    """Returns a function that gives a configuration a position encoding."""
    return lambda config: seqpe_zoo.with_position_encoding(config, name, train_length=512, **options)


def main() -> None:
    """Prints the tables."""
    print("| host | positions | encoder | each position by itself | W_PE | least time, H100 | table |")
    print("|---|---|---|---|---|---|---|")
    for host in HOSTS:
        encoder, projection = encoder_operations(host), projection_operations(host)
        cells = [f"{host.tokens:,}", f"{encoder:.1e}", f"{encoder_operations(host, shared=False):.1e}"]
        cells += [f"{projection:.1e}", f"{1e3 * (encoder + projection) / H100_OPERATIONS:.3f} ms"]
        print(f"| {host.name} | {' | '.join(cells)} | {table_bytes(host) / 1e6:,.1f} MB |")

    print("\n| host | model | RoPE moves | mul and sum move | bias of rank D | bias of rank 16 |")
    print("|---|---|---|---|---|---|")
    for host in HOSTS:
        total = forward_operations(host)
        rope, mul = elementwise_bytes(host, 2 * host.head_dim), elementwise_bytes(host, 2 * host.vector)
        cells = [f"{total:.1e}, {1e3 * total / H100_OPERATIONS:.2f} ms"]
        cells += [f"{moved / 1e9:.3f} GB, {1e3 * moved / H100_BYTES:.2f} ms" for moved in (rope, mul)]
        for rank in (host.head_dim, 16):
            cells.append(f"+{100 * attention_operations(host, rank) / total:.0f} %")
        print(f"| {host.name} | {' | '.join(cells)} |")

    print("\n| host | a token reads | bias reads more |")
    print("|---|---|---|")
    for host in (one for one in HOSTS if len(one.sides) == 1):
        read = decode_bytes(host)
        more = f"{read['bias'] / 1e6:,.1f} MB, +{100 * read['bias'] / read['model']:.1f} %"
        print(f"| {host.name} | {read['model'] / 1e9:.2f} GB | {more} |")

    print("\n| positions | GPT-2 | Llama |")
    print("|---|---|---|")
    encodings = {
        "its own": lambda config: config,
        "none": with_encoding("nope"),
        "RoPE": with_encoding("rope"),
    }
    for integration in ("mul", "sum", "bias"):
        encodings[f"SeqPE {integration}"] = with_encoding("seqpe", integration=integration)
    for name, make in encodings.items():
        launches = (launches_of_layer(host, make) for host in (GPT2Config, LlamaConfig))
        print(f"| {name} | {' | '.join(map(str, launches))} |")

    print("\n| run | model | positions a step and process | encoder, at most | share | 8 H100 at 40 % |")
    print("|---|---|---|---|---|---|")
    for run, host, steps, processes, examples, positions in TRAINING:
        model, encoder = training_operations(host, steps, processes, examples, positions)
        hours = (model + encoder) / (8 * 0.4 * H100_OPERATIONS) / 3600
        cells = [f"{model:.1e}", f"{positions:,.0f}", f"{encoder:.1e}", f"{100 * encoder / model:.0f} %"]
        print(f"| {run} | {' | '.join(cells)} | {hours:.1f} h |")


if __name__ == "__main__":
    main()
