"""What `torch.compile` and bfloat16 make of our models and of the plain ones.

A compiled model encodes its positions in every call, because a graph keeps nothing between calls. Freezing
them to a table first (`freeze_to_table`, as for export) leaves a look-up and the projections. bfloat16 is
measured where the CPU computes it; others emulate it.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import gpt2, vit
from benchmarks.report import Row
from benchmarks.timing import compare
from seqpe_zoo.evaluation.model_loading import find_position_encoding

VIT, GPT2 = "ours seqpe mul", "seqpe bias"


def run(full: bool) -> Iterator[Row]:
    """Measures both models in a full run; compiling takes minutes, so a short one leaves them out."""
    if not full:
        return
    x = torch.randn(8, 3, 224, 224)
    yield from rows_of(
        "ViT-S, 224 x 224, batch 8", lambda name: Call(vit.build(name, 224), x), vit.PLAIN, VIT
    )
    tokens = torch.randint(50257, (1, 512))
    yield from rows_of(
        "GPT-2 124M, 512 tokens",
        lambda name: Call(gpt2.build(name), tokens, use_cache=False),
        gpt2.BASELINE,
        GPT2,
    )


def rows_of(title: str, build: Callable[[str], "Call"], plain: str, ours: str, rounds: int = 9) -> list[Row]:
    """A forward pass of the plain model as it is, compiled and in bfloat16, and of ours."""
    known = build(ours)
    encoding: Any = find_position_encoding(known.model)
    encoding.freeze_to_table(512 if encoding.num_dims == 1 else 14)
    functions = {
        plain: build(plain),
        ours: build(ours),
        f"{plain}, compiled": build(plain).compiled(),
        f"{ours}, compiled": build(ours).compiled(),
        f"{ours}, positions frozen to a table, compiled": known.compiled(),
    }
    with torch.inference_mode():
        ratios = compare(functions, plain, rounds, 3)
        if has_bfloat16():
            half, ours_half = f"{plain}, bf16", f"{ours}, bf16"
            rounded = {half: build(plain).in_bfloat16(), ours_half: build(ours).in_bfloat16()}
            ratios += compare({plain: functions[plain], half: rounded[half]}, plain, rounds, 3)
            ratios += compare(rounded, half, rounds, 3)
    rows = [Row.slower(f"{title}: {ratio.name}", ratio, None) for ratio in ratios]
    if not has_bfloat16():
        rows.append(Row(f"{title}: bf16", "not measured: this CPU has no bf16 arithmetic"))
    return rows


def has_bfloat16() -> bool:
    """Whether the CPU computes in bfloat16."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Call:
    """A model and what it is called with."""

    def __init__(self, model: Any, *inputs: Any, **options: Any) -> None:
        self.model, self.inputs, self.options = model, inputs, options
        self.function = model

    def __call__(self) -> object:
        return self.function(*self.inputs, **self.options)

    def compiled(self) -> "Call":
        self.function = torch.compile(self.model)
        return self

    def in_bfloat16(self) -> "Call":
        self.model.to(torch.bfloat16)
        self.inputs = tuple(x.to(torch.bfloat16) if x.is_floating_point() else x for x in self.inputs)
        return self
