"""ViT-S with position encodings against timm's and transformers' own models, on a CPU in float32.

Forward passes with warm tables at several resolutions and batch sizes, and training steps.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import seqpe_zoo  # noqa: F401  (tells timm of our models)
from benchmarks import WITHOUT_OBJECTIVES
from benchmarks.report import Row, within
from benchmarks.timing import ENOUGH, FIRST_STEPS, SHORTEST, compare, seconds_of

PLAIN, ROPE = "timm vit_small_patch16_224", "timm vit_small_patch16_rope_224"
ROPE_MIXED, HUGGING_FACE = "timm vit_small_patch16_rope_mixed_224", "transformers ViT"
NOPE, NOPE_AGAIN = "ours nope", "ours nope (a second time)"
BARS_AGAINST_PLAIN = {"ours seqpe mul": 1.03, "ours seqpe sum": 1.03, "ours seqpe bias": 1.15}
COST_BARS = {"ours seqpe mul": 1.01, "ours seqpe sum": 1.01}
PEERS = (ROPE, ROPE_MIXED, HUGGING_FACE)
OTHERS = (
    "ours seqpe input",
    "ours ape_learn",
    "ours ape_sin",
    "ours rope",
    "ours rope2d_axial",
    "ours rope2d_mixed",
)
TRAINING_BAR = 1.15


def run_224(full: bool) -> Iterator[Row]:
    """Forward passes against plain timm; the short way takes fewer encodings and rounds."""
    return rows_of_size(224, full)


def run_448(full: bool) -> Iterator[Row]:
    """The same at twice the size, in a full run only."""
    return rows_of_size(448, full) if full else iter(())


def run_672(full: bool) -> Iterator[Row]:
    """The same at three times the size, in a full run only."""
    return rows_of_size(672, full) if full else iter(())


def rows_of_size(size: int, full: bool) -> Iterator[Row]:
    """Forward passes of one resolution, batch 1 and 8."""
    names = PEERS + OTHERS if full else (ROPE,)
    for batch in (1, 8) if full else (8,):
        rounds = rounds_for(size, batch, full)
        yield from forward_rows(size, batch, rounds, (*names, NOPE))
        # What has a bar is timed more often: five rounds can be off by a few percent.
        often = {224: (24, 16), 448: (12, 5), 672: (6, 5)}[size][batch > 1]
        more = max(often, rounds) if full else rounds
        yield from forward_rows(size, batch, more, tuple(BARS_AGAINST_PLAIN))


def run_cost(full: bool) -> Iterator[Row]:
    """What positions cost in the same model: SeqPE against no encoding, and against timm's rotary ViT."""
    for size, pairs, rounds in ((224, 400, 12), (448, 150, 6), (672, 100, 4)) if full else ((224, 60, 5),):
        yield from cost_rows(size, 8, pairs)
        yield from forward_rows(size, 8, rounds, ("ours seqpe mul",), ROPE, {"ours seqpe mul": 1.0})


def run_training(full: bool) -> Iterator[Row]:
    """Training steps."""
    yield from training_rows(batch=32, rounds=9 if full else 1, warmup=FIRST_STEPS if full else 1)


def run_large(full: bool) -> Iterator[Row]:
    """Batches of 32, in a full run only; the largest take most of a minute a pass and have one round."""
    for size, rounds in ((224, 3), (448, 1), (672, 1)) if full else ():
        yield from forward_rows(size, 32, rounds, (*PEERS, *OTHERS, NOPE))
        yield from forward_rows(size, 32, {224: 5, 448: 2, 672: 1}[size], tuple(BARS_AGAINST_PLAIN))


def forward_rows(
    size: int,
    batch: int,
    rounds: int,
    names: Sequence[str],
    baseline: str = PLAIN,
    bars: Mapping[str, float] = BARS_AGAINST_PLAIN,
) -> list[Row]:
    """A forward pass of each model on the same images."""
    x = torch.randn(batch, 3, size, size)
    with torch.inference_mode():
        models = {}
        for name in (baseline, *names):
            model = build(name, size)
            model(x[:1])  # prepares positions, and costs less than a pass of a large batch
            models[name] = _forward(model, x)
        return [
            Row.slower(
                f"forward, {size} x {size}, batch {batch}: {ratio.name}",
                ratio,
                bars.get(ratio.name),
            )
            for ratio in compare(models, baseline, rounds, warmup=int(batch < 32))
        ]


def cost_rows(size: int, batch: int, pairs: int) -> Iterator[Row]:
    """What a forward pass costs with positions, computed from the time of one attention layer.

    The rest of the pass is the same code for all encodings, but for preparing positions, which is timed too.
    The model without an encoding is also built a second time, to show how well equal models measure equal.
    """
    x = torch.randn(batch, 3, size, size)
    names, whole = (NOPE, NOPE_AGAIN, *COST_BARS), "the whole pass"
    with torch.inference_mode():
        models: dict[str, Any] = {name: build(name, size) for name in names}
        layers = {name: _first_attention(model, x) for name, model in models.items()}
        ratios = compare(layers, NOPE, pairs, shortest=0)
        (in_layers,) = compare({NOPE: layers[NOPE], whole: _forward(models[NOPE], x)}, NOPE, ENOUGH)
        preparing = {name: seconds_of(_preparation(model, x), 1000) for name, model in models.items()}
    share = len(models[NOPE].blocks) / in_layers.median
    where = f"{size} x {size}, batch {batch}"
    for ratio in ratios:
        low, high = ratio.interval
        spread = f"[{low:.3f} to {high:.3f}, {ratio.rounds} pairs]"
        yield Row(f"an attention layer, {where}: {ratio.name}", f"{ratio.median:.3f}x {NOPE} {spread}")
        prepared = (preparing[ratio.name] - preparing[NOPE]) / in_layers.seconds
        cost, low, high = (1 + (value - 1) * share + prepared for value in (ratio.median, low, high))
        bar = COST_BARS.get(ratio.name)
        title, measured = f"forward, {where}: {ratio.name}", f"{cost:.3f}x {NOPE} [{low:.3f} to {high:.3f}]"
        if bar is None:
            yield Row(title, measured)
        else:
            yield Row(title, measured, f"at most {bar:.2f}x", within(low, high, bar))


def _first_attention(model: Any, x: Tensor) -> Callable[[], object]:
    """Returns a call of the first attention layer as a forward pass makes it."""
    calls: list[tuple[Any, ...]] = []
    layer = model.blocks[0].attn
    hook = layer.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
    model(x)
    hook.remove()
    return lambda: layer(*calls[0])


def _preparation(model: Any, x: Tensor) -> Callable[[], object]:
    grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
    return lambda: model.position_encoding.prepare_grid(grid, (0, 0), prefix, x.device)


def training_rows(batch: int, rounds: int, size: int = 224, warmup: int = FIRST_STEPS) -> list[Row]:
    """A training step with AdamW; SeqPE with its random shift, with and without objectives."""
    x, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    ours, without = "ours seqpe mul", "ours seqpe mul without objectives"
    steps = {name: training_step(build(name, size), x, labels) for name in (PLAIN, ours)}
    steps[without] = training_step(build(ours, size, WITHOUT_OBJECTIVES), x, labels)
    return [
        Row.slower(
            f"training step, {size} x {size}, batch {batch}: {ratio.name}",
            ratio,
            TRAINING_BAR if batch == 32 and ratio.name == ours else None,
        )
        for ratio in compare(steps, PLAIN, rounds, warmup)
    ]


def build(name: str, size: int, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Builds a ViT-S by the name it has in the results, ours with options of its encoding."""
    library, model, *integration = name.partition(" (")[0].split()
    if library == "timm":
        return timm.create_model(model, img_size=size).eval()
    if library == "transformers":
        shape = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
        return ViTForImageClassification(ViTConfig(image_size=size, num_labels=1000, **shape)).eval()
    settings: dict[str, Any] = {"img_size": size, "dynamic_img_size": False, "pos_embed": model}
    settings["pos_embed_args"] = {
        **({"integration": integration[0]} if integration else {}),
        **(options or {}),
    }
    return timm.create_model("vit_small_patch16_pe_224", **settings).eval()


def _forward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: model(x)


def training_step(model: Any, x: Tensor, labels: Tensor) -> Callable[[], None]:
    """Returns a function that makes one step with AdamW."""
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)

    def step() -> None:
        loss = F.cross_entropy(model(x), labels)
        if hasattr(model, "position_losses"):
            loss = loss + model.position_losses().weighted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def rounds_for(size: int, batch: int, full: bool) -> int:
    """Fewer rounds for heavier cases, so that each case takes a minute where that is possible."""
    seconds = max(SHORTEST, batch * (size / 224) ** 2.3 * 0.07)  # of one timing, roughly
    return max(2, int((50 if full else 30) / (18 * seconds)))
