"""ViT-S with position encodings against timm's own models: forward passes and training steps (float32)."""

from collections.abc import Callable
from typing import Any

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import seqpe_zoo  # noqa: F401  (tells timm of our models)
from benchmarks.report import Row
from benchmarks.timing import Ratio, compare

PLAIN, ROPE = "vit_small_patch16_224", "vit_small_patch16_rope_224"
FORWARD_BARS = {"mul": 1.03, "sum": 1.03, "bias": 1.15}
TRAINING_BAR = 1.15


def run(full: bool) -> list[Row]:
    """Measures all bars; the short way takes fewer sizes and rounds."""
    sizes = (224, 448, 672) if full else (224, 448)
    rows = []
    for size in sizes:
        for batch in (1, 8) if full or size == 224 else (1,):
            rows += forward_rows(size, batch, rounds=_rounds(size, batch, full))
    return rows + training_rows(batch=32, rounds=5 if full else 3)


def forward_rows(size: int, batch: int, rounds: int) -> list[Row]:
    """A forward pass with warm tables against timm's plain and rotary models."""
    x = torch.randn(batch, 3, size, size)
    candidates = {PLAIN: _stock(PLAIN, size), ROPE: _stock(ROPE, size)}
    candidates |= {integration: _seqpe(size, integration) for integration in FORWARD_BARS}
    ratios = _compare_models(candidates, x, PLAIN, rounds)
    title = f"forward, {size} x {size}, batch {batch}"
    rows = [Row.slower(f"{title}: seqpe {name}", ratios[name], bar) for name, bar in FORWARD_BARS.items()]
    rows.append(Row.slower(f"{title}: {ROPE}", ratios[ROPE], None))
    against_rope = _compare_models({ROPE: candidates[ROPE], "mul": candidates["mul"]}, x, ROPE, rounds)
    rows.append(Row.slower(f"{title}: seqpe mul", against_rope["mul"], 1.0))
    return rows


def training_rows(batch: int, rounds: int, size: int = 224) -> list[Row]:
    """A training step with AdamW; SeqPE with its random shift and both objectives, of the paper's sizes."""
    x, labels = torch.randn(batch, 3, size, size), torch.randint(1000, (batch,))
    steps = {"seqpe mul": _training_step(_seqpe(size, "mul"), x, labels)}
    steps[PLAIN] = _training_step(_stock(PLAIN, size), x, labels)
    return [
        Row.slower(f"training step, {size} x {size}, batch {batch}: {ratio.name}", ratio, TRAINING_BAR)
        for ratio in compare(steps, PLAIN, rounds)
    ]


def _stock(name: str, size: int) -> nn.Module:
    return timm.create_model(name, img_size=size).eval()


def _seqpe(size: int, integration: str) -> nn.Module:
    options = {"integration": integration}
    return timm.create_model(
        "vit_small_patch16_seqpe_224", img_size=size, pos_embed_args=options, dynamic_img_size=False
    ).eval()


def _compare_models(models: dict[str, nn.Module], x: Tensor, baseline: str, rounds: int) -> dict[str, Ratio]:
    def forward(model: nn.Module) -> Callable[[], Tensor]:
        return lambda: model(x)

    with torch.inference_mode():
        functions = {name: forward(model) for name, model in models.items()}
        return {ratio.name: ratio for ratio in compare(functions, baseline, rounds, warmup=2)}


def _training_step(model: Any, x: Tensor, labels: Tensor) -> Callable[[], None]:
    optimizer = torch.optim.AdamW(model.train().parameters(), lr=1e-4)

    def step() -> None:
        loss = F.cross_entropy(model(x), labels)
        if hasattr(model, "position_losses"):
            loss = loss + model.position_losses().weighted
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def _rounds(size: int, batch: int, full: bool) -> int:
    seconds = batch * (size / 224) ** 2.3 * 0.1  # of one forward pass, roughly
    return max(5, min(41, int((60 if full else 20) / (6 * seconds))))
