"""Ours beside the authors' release, each against the same plain models, with the same batches and sizes.

The release cannot run here: it needs timm 0.4.12 and a fork of transformers. It was measured once on a
machine of this kind, in lock-step with the plain models; `RELEASE` has what it took of their time. Only such
ratios are compared.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import WITHOUT_OBJECTIVES, gpt2, vit
from benchmarks.report import Row
from benchmarks.timing import FIRST_STEPS, compare
from seqpe_zoo.evaluation.model_loading import find_position_encoding

UNSHIFTED = {"shift_probability": 0.0}
"""The release shifts a whole batch or none of it, and was measured on a step that was not shifted."""
RELEASE_SIZES = {"num_pivots": 32, "num_candidates": 64, "num_starts": 32, "num_transfer": 64, **UNSHIFTED}
"""Positions that the release's image runs draw for the objectives of a step; the paper has half as many."""
EACH_CALL, PRECOMPUTED = "positions encoded in each call", "positions known"
BOTH, NONE = "both objectives, sizes of the release", "no objectives"
RELEASE = {
    "ViT-S forward": {EACH_CALL: 1.36, PRECOMPUTED: 1.30},
    "ViT-S training step": {BOTH: 4.49, NONE: 1.20},
    "GPT-2 forward": {EACH_CALL: 1.55, PRECOMPUTED: 1.12},
}


def run(full: bool) -> Iterator[Row]:
    """Measures what the release was measured by, in a full run only."""
    if full:
        yield from vit_forward(rounds=9)
        yield from vit_training(rounds=4)
        yield from gpt2_forward(rounds=7)


def vit_forward(rounds: int, batch: int = 8, size: int = 224) -> list[Row]:
    """A forward pass of ViT-S with AttnMul."""
    x = torch.randn(batch, 3, size, size)
    with torch.inference_mode():
        plain, ours = vit.build(vit.PLAIN, size), vit.build("ours seqpe mul", size)
        functions = {vit.PLAIN: lambda: plain(x), **_with_and_without_table(ours, lambda: ours(x))}
        return _rows("ViT-S forward", f"{size} x {size}, batch {batch}", functions, vit.PLAIN, rounds)


def vit_training(rounds: int, batch: int = 8, size: int = 224) -> list[Row]:
    """A training step of ViT-S with AttnMul."""
    x, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    functions = {
        vit.PLAIN: vit.training_step(vit.build(vit.PLAIN, size), x, labels),
        BOTH: vit.training_step(vit.build("ours seqpe mul", size, RELEASE_SIZES), x, labels),
        NONE: vit.training_step(
            vit.build("ours seqpe mul", size, {**WITHOUT_OBJECTIVES, **UNSHIFTED}), x, labels
        ),
    }
    return _rows(
        "ViT-S training step", f"{size} x {size}, batch {batch}", functions, vit.PLAIN, rounds, FIRST_STEPS
    )


def gpt2_forward(rounds: int, batch: int = 2, length: int = 512) -> list[Row]:
    """A forward pass of GPT-2 with AttnBias."""
    tokens = torch.randint(50257, (batch, length))
    with torch.inference_mode():
        plain, ours = gpt2.build(gpt2.BASELINE), gpt2.build("seqpe bias")
        functions = {
            gpt2.BASELINE: lambda: plain(tokens, use_cache=False),
            **_with_and_without_table(ours, lambda: ours(tokens, use_cache=False)),
        }
        return _rows("GPT-2 forward", f"{batch} x {length} tokens", functions, gpt2.BASELINE, rounds)


def _with_and_without_table(model: Any, forward: Callable[[], object]) -> dict[str, Callable[[], object]]:
    encoding: Any = find_position_encoding(model)

    def forget_first() -> None:
        encoding.drop_caches()
        forward()

    return {EACH_CALL: forget_first, PRECOMPUTED: forward}


def _rows(
    what: str,
    sizes: str,
    functions: dict[str, Callable[[], object]],
    baseline: str,
    rounds: int,
    warmup: int = 1,
) -> list[Row]:
    rows = []
    for ratio in compare(functions, baseline, rounds, warmup):
        theirs = RELEASE[what][ratio.name]
        row = Row.slower(f"{what}, {sizes}, {ratio.name}", ratio, None)
        words = (
            f"{row.measured}; the release {theirs:.2f}x: ours is {theirs / ratio.median:.2f} times as fast"
        )
        rows.append(Row(row.what, words))
    return rows
