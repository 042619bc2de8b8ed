"""ViT-S with position encodings against timm's and transformers' own models, on a CPU in float32.

Forward passes with warm tables at several resolutions and batch sizes, and training steps.
"""

from collections.abc import Callable, Iterator
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

import seqpe_zoo  # noqa: F401  (tells timm of our models)
from benchmarks.report import Row
from benchmarks.timing import compare

PLAIN, ROPE = "timm vit_small_patch16_224", "timm vit_small_patch16_rope_224"
ROPE_MIXED, HUGGING_FACE = "timm vit_small_patch16_rope_mixed_224", "transformers ViT"
NOPE = "ours nope"
BARS_AGAINST_PLAIN = {"ours seqpe mul": 1.03, "ours seqpe sum": 1.03, "ours seqpe bias": 1.15}
PEERS = (ROPE, ROPE_MIXED, HUGGING_FACE)
OTHERS = ("ours ape_learn", "ours rope2d_axial", "ours rope2d_mixed")
TRAINING_BAR = 1.15


def run(full: bool) -> Iterator[Row]:
    """Measures all bars; the short way takes fewer sizes, encodings and rounds."""
    cases = [(224, 1), (224, 8), (448, 1), *([(448, 8), (672, 1), (672, 8)] if full else [])]
    for size, batch in cases:
        yield from forward_rows(size, batch, rounds_for(size, batch, full), all_encodings=full)
    yield from training_rows(batch=32, rounds=5 if full else 2)


def run_large(full: bool) -> Iterator[Row]:
    """Measures what no bar names: batches of 32, and training steps of small batches."""
    for size in (224, 448, 672) if full else ():
        yield from forward_rows(size, 32, rounds=3, all_encodings=False)
    if full:
        yield from training_rows(batch=8, rounds=5)


def forward_rows(size: int, batch: int, rounds: int, all_encodings: bool) -> list[Row]:
    """A forward pass of each model on the same images, against plain timm; SeqPE also against two others."""
    x = torch.randn(batch, 3, size, size)
    names = [PLAIN, *PEERS, NOPE, *BARS_AGAINST_PLAIN, *(OTHERS if all_encodings else ())]
    title = f"forward, {size} x {size}, batch {batch}"
    with torch.inference_mode():
        models = {name: _forward(build(name, size), x) for name in names}
        rows = [
            Row.slower(f"{title}: {ratio.name}", ratio, BARS_AGAINST_PLAIN.get(ratio.name))
            for ratio in compare(models, PLAIN, rounds)
        ]
        bars = {ROPE: {"ours seqpe mul": 1.0}, NOPE: {"ours seqpe mul": 1.01, "ours seqpe sum": 1.01}}
        for baseline, by_name in bars.items():
            pair = {name: models[name] for name in (baseline, *by_name)}
            for ratio in compare(pair, baseline, rounds, warmup=0):
                bar = None if baseline == NOPE and batch != 8 else by_name[ratio.name]
                rows.append(Row.slower(f"{title}: {ratio.name}", ratio, bar))
    return rows


def training_rows(batch: int, rounds: int, size: int = 224) -> list[Row]:
    """A training step with AdamW; SeqPE with its random shift, with and without objectives."""
    x, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    ours, without = "ours seqpe mul", "ours seqpe mul without objectives"
    steps = {name: _training_step(build(name, size), x, labels) for name in (PLAIN, ours)}
    steps[without] = _training_step(build(ours, size), x, labels, objectives=False)
    return [
        Row.slower(
            f"training step, {size} x {size}, batch {batch}: {ratio.name}",
            ratio,
            TRAINING_BAR if batch == 32 and ratio.name == ours else None,
        )
        for ratio in compare(steps, PLAIN, rounds)
    ]


def build(name: str, size: int) -> nn.Module:
    """Builds a ViT-S by the name it has in the results."""
    library, model, *integration = name.split()
    if library == "timm":
        return timm.create_model(model, img_size=size).eval()
    if library == "transformers":
        shape = {"hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1536}
        return ViTForImageClassification(ViTConfig(image_size=size, num_labels=1000, **shape)).eval()
    settings: dict[str, Any] = {"img_size": size, "dynamic_img_size": False, "pos_embed": model}
    if integration:
        settings["pos_embed_args"] = {"integration": integration[0]}
    return timm.create_model("vit_small_patch16_pe_224", **settings).eval()


def _forward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    return lambda: model(x)


def _training_step(model: Any, x: Tensor, labels: Tensor, objectives: bool = True) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)

    def step() -> None:
        loss = F.cross_entropy(model(x), labels)
        if objectives and hasattr(model, "position_losses"):
            loss = loss + model.position_losses().weighted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def rounds_for(size: int, batch: int, full: bool) -> int:
    """Fewer rounds for heavier cases, so that each case takes one or two minutes where that is possible."""
    seconds = batch * (size / 224) ** 2.3 * 0.1  # of one forward pass, roughly
    return max(3, min(41, int((120 if full else 40) / (18 * seconds))))
