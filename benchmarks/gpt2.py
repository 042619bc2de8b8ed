"""GPT-2 with position encodings against transformers' `GPT2LMHeadModel`: 124M, CPU, float32, sdpa.

A short run takes part of the sizes and few rounds. Memory is that of fresh processes, one after the other.
"""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

from benchmarks import WITHOUT_OBJECTIVES
from benchmarks.report import Row
from benchmarks.timing import compare, peak_memory_of
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel

BASELINE = "GPT2LMHeadModel"
FORWARD_BARS = {"seqpe mul": 1.05, "seqpe bias": 1.25, "alibi": 1.10, "rope": 1.10}
SEQPE = ("seqpe mul", "seqpe bias")
"""What is measured where a round takes minutes."""
FUSED_GELU = "GPT2LMHeadModel with PyTorch's GELU"
"""The baseline with PyTorch's kernel for its activation, as ours has in training; by default it takes eight
passes over memory. In inference ours has a quicker form (`gelu.py`)."""
OTHERS = (FUSED_GELU, "nope", "ape_learn", "ape_sin", "seqpe sum", "seqpe input")
LONG = 8192
"""Tokens from which on a pass takes so long that an untimed one before it is no use."""
DECODE_BAR, TRAIN_BAR, MEMORY_BAR = 1.10, 1.20, 1.5


def run(full: bool) -> Iterator[Row]:
    """Measures forward passes, decoding and, in a full run, training steps."""
    for length, rounds in ((512, 9), (2048, 3)) if full else ((512, 3),):
        yield from forward_rows(length, rounds)
    for batch in (1, 8) if full else (1,):
        yield from decode_rows(batch, rounds=11 if full else 3, context=512)
    if full:
        yield from train_rows(rounds=3, batch=8)


def run_others(full: bool) -> Iterator[Row]:
    """Measures the encodings that have no bar, in a full run only."""
    for length, rounds in ((512, 9), (2048, 3)) if full else ():
        yield from forward_rows(length, rounds, OTHERS)


def run_long(full: bool) -> Iterator[Row]:
    """Measures long contexts, in a full run only."""
    if not full:
        return
    yield from forward_rows(4096, rounds=3)
    for context, batch in ((4096, 1), (4096, 8), (16384, 1)):
        yield from decode_rows(batch, rounds=5, context=context)


def run_longest(full: bool) -> Iterator[Row]:
    """Measures what takes minutes a round, in a full run only."""
    if not full:
        return
    yield from decode_rows(batch=8, rounds=3, context=16384, new=2)  # a token moves tens of gigabytes
    yield from forward_rows(8192, 1, last_logits=True)
    yield from forward_rows(16384, 1, SEQPE, last_logits=True)


def run_memory(full: bool) -> Iterator[Row]:
    """Measures peaks of memory of a long pass, in a full run only."""
    if full:
        yield from memory_rows(list(FORWARD_BARS), 16384)


def run_caches(full: bool) -> Iterator[Row]:
    """Measures peaks of memory of decoding, in a full run only."""
    for context, batch in itertools.product((512, 4096, 16384), (1, 8)) if full else ():
        yield decoding_memory_row(list(SEQPE), context, batch)


def build(name: str, options: dict[str, Any] | None = None, positions: int = 16896) -> Any:
    """Builds the baseline, or the same model with a position encoding; names as "seqpe bias" or "rope"."""
    torch.manual_seed(0)
    if name in (BASELINE, FUSED_GELU):
        activation = "gelu_new" if name == BASELINE else "gelu_pytorch_tanh"
        plain = GPT2Config(n_positions=positions, activation_function=activation, attn_implementation="sdpa")
        return GPT2LMHeadModel(plain).eval()
    encoding, *integration = name.split()
    args = {**({"integration": integration[0]} if integration else {}), **(options or {})}
    config = SeqPEGPT2Config.paper(position_encoding=encoding, position_encoding_args=args)
    return SeqPEGPT2LMHeadModel(config).eval()


@torch.inference_mode()
def forward_rows(
    length: int, rounds: int, names: Sequence[str] = tuple(FORWARD_BARS), last_logits: bool = False
) -> list[Row]:
    """A forward pass over one row of tokens, positions known; bars are those of up to 4,096 tokens."""
    tokens, keep = torch.randint(50257, (1, length)), int(last_logits)
    functions = {}
    for name in (BASELINE, *names):
        model = build(name)
        if name not in (BASELINE, FUSED_GELU):
            model.transformer.wpe.prepare_range(0, length)
        functions[name] = lambda model=model: model(tokens, use_cache=False, logits_to_keep=keep)
    what = f"forward of {length:,} tokens{', last logits' if last_logits else ''}"
    return [
        Row.slower(f"{what}, {ratio.name}", ratio, None if last_logits else FORWARD_BARS.get(ratio.name))
        for ratio in compare(functions, BASELINE, rounds, warmup=int(length < LONG), shortest=0)
    ]


@torch.inference_mode()
def decode_rows(batch: int, rounds: int, context: int, new: int = 8) -> list[Row]:
    """Greedy steps after a context, with a growing cache; what fills it does not change the time.

    All models take the same cache in turn: 8 x 16,384 tokens are 9.7 GB.
    """
    cache = _filled_cache(batch, context)
    functions = {name: _decoder(build(name), cache, batch, new) for name in (BASELINE, *FORWARD_BARS)}
    return [
        Row.slower(f"decoding a token after {context:,}, batch {batch}, {ratio.name}", ratio, DECODE_BAR)
        for ratio in compare(functions, BASELINE, rounds)
    ]


def train_rows(rounds: int, batch: int, length: int = 512) -> list[Row]:
    """Forward, backward and AdamW, with both position objectives or none; a step takes half a minute."""
    tokens = torch.randint(50257, (batch, length))
    ours, without = "seqpe bias", "seqpe bias without objectives"
    functions = {name: _step(build(name), tokens) for name in (BASELINE, FUSED_GELU, ours)}
    functions[without] = _step(build(ours, WITHOUT_OBJECTIVES), tokens)
    return [
        Row.slower(
            f"training step of {batch} x {length}, {ratio.name}",
            ratio,
            None if ratio.name == FUSED_GELU else TRAIN_BAR,
        )
        for ratio in compare(functions, BASELINE, rounds, warmup=2)
    ]


def memory_rows(names: list[str], length: int) -> Iterator[Row]:
    """Peak memory of building a model and a first pass with `logits_to_keep=1`, and the time of that pass."""
    peak, seconds = _in_fresh_process(_first_pass, BASELINE, length)
    for name in names:
        own_peak, own_seconds = _in_fresh_process(_first_pass, name, length)
        ratio = own_peak / peak
        title = f"forward of {length:,} tokens, last logits, {name}"
        words = f"{ratio:.3f}x {BASELINE} ({peak / 1e9:.2f} GB)"
        yield Row(f"peak memory of a {title}", words, f"at most {MEMORY_BAR:.2f}x", ratio <= MEMORY_BAR)
        yield Row(f"first {title}", f"{own_seconds / seconds:.2f}x {BASELINE} (one pass)")


def decoding_memory_row(names: list[str], context: int, batch: int) -> Row:
    """Peak memory of building a model, filling a cache and decoding."""
    peak = _in_fresh_process(_decoding_peak, BASELINE, context, batch)
    own = [f"{name} {_in_fresh_process(_decoding_peak, name, context, batch) / peak:.3f}x" for name in names]
    title = f"peak memory of decoding after {context:,}, batch {batch}"
    return Row(title, f"{', '.join(own)} {BASELINE} ({peak / 1e9:.2f} GB)")


def _decoder(model: Any, cache: DynamicCache, batch: int, new: int) -> Callable[[], object]:
    first = torch.zeros(batch, 1, dtype=torch.long)

    def decode() -> None:
        token = first
        for _ in range(new):
            token = model(token, past_key_values=cache, use_cache=True).logits[:, -1:].argmax(-1)
        cache.crop(-new)

    return decode


def _step(model: Any, tokens: torch.Tensor) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        model(tokens, labels=tokens, use_cache=False).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _filled_cache(batch: int, context: int) -> DynamicCache:
    layers, heads, width = 12, 12, 64
    cache = DynamicCache()
    for number in range(layers):
        keys, values = (torch.randn(batch, heads, context, width) for _ in range(2))
        cache.update(keys, values, number)
    return cache


def _in_fresh_process(function: Callable[..., Any], *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def _decoding_peak(name: str, context: int, batch: int) -> float:
    torch.set_num_threads(2)

    @torch.inference_mode()
    def decode() -> None:
        _decoder(build(name), _filled_cache(batch, context), batch, new=4)()

    return float(peak_memory_of(decode))


def _first_pass(name: str, length: int) -> tuple[float, float]:
    torch.set_num_threads(2)
    passes = []

    @torch.inference_mode()
    def forward() -> None:
        model, tokens = build(name, positions=length), torch.randint(50257, (1, length))
        begin = time.perf_counter()
        model(tokens, use_cache=False, logits_to_keep=1)
        passes.append(time.perf_counter() - begin)

    return float(peak_memory_of(forward)), passes[0]
