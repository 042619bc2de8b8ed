"""A classifier as the trainer wants it: pictures and labels in, a loss out, the position objectives in it.

Works with models of timm and of transformers, ours or not. Saving writes the classifier itself, not this
wrapper.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn


class ImageTask(nn.Module):
    """Computes the loss of a classifier.

    Args:
        model: takes pictures and returns logits, or an output with `logits`.
        smoothing: of labels that are class numbers; mixed labels are smoothed where they are mixed.
    """

    def __init__(self, model: nn.Module, smoothing: float = 0.0) -> None:
        super().__init__()
        self.model, self.smoothing = model, smoothing

    def forward(self, pixel_values: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Classifies, and compares with labels (B,) or with shares of classes (B, classes)."""
        host = self._host_of_objectives() if self.training and labels is not None else None
        if host is not None:
            host.wants_objectives = True  # also in the first pass after a resume
        output = self.model(pixel_values)
        logits = output if isinstance(output, Tensor) else output.logits
        result = {"logits": logits}
        if labels is None:
            return result
        smoothing = self.smoothing if self.training and labels.ndim == 1 else 0.0
        result["loss"] = F.cross_entropy(logits.float(), labels, label_smoothing=smoothing)
        if host is not None:
            losses = host.position_losses()
            result["loss"] = result["loss"] + losses.weighted
            result["position_distance_loss"] = losses.distance.detach()
            result["position_ood_loss"] = losses.ood.detach()
        return result

    def _host_of_objectives(self) -> Any | None:
        """Returns our transformer inside of the model when its encoding has objectives to train."""
        for module in self.model.modules():
            if hasattr(module, "position_losses") and hasattr(module, "position_encoding"):
                has_objectives = getattr(module.position_encoding, "has_objectives", bool)
                return module if has_objectives() else None
        return None

    @property
    def _no_split_modules(self) -> list[str]:
        """Class names of the layers that FSDP shards one by one, where transformers and accelerate look."""
        named = getattr(self.model, "_no_split_modules", None)
        if named is not None:
            return list(named)
        return sorted({type(block).__name__ for block in getattr(self.model, "blocks", ())})

    def gradient_checkpointing_enable(self, **kwargs: Any) -> None:
        """Trades time for memory, in the words of either library."""
        if hasattr(self.model, "set_grad_checkpointing"):
            self.model.set_grad_checkpointing(True)
        else:
            self.model.gradient_checkpointing_enable(**kwargs)


def save_image_model(
    model: nn.Module,
    folder: Path,
    model_args: dict[str, Any],
    labels: Sequence[str] | None,
    resolution: int,
    mean: Sequence[float],
    std: Sequence[float],
    crop_pct: float = 0.875,
) -> None:
    """Writes a classifier so that timm (`local-dir:`) and transformers load it again.

    Args:
        model: of timm or of transformers.
        folder: exists.
        model_args: arguments that its architecture name does not imply.
        labels: names of the classes.
        resolution: of training.
        mean: of the pixels.
        std: of the pixels; one value a channel.
        crop_pct: share of the picture that evaluation sees; by default the paper's.
    """
    if hasattr(model, "save_pretrained"):
        model.save_pretrained(folder)
        return
    from timm.models import save_for_hf

    cfg = {
        **(getattr(model, "pretrained_cfg", {}) or {}),
        "input_size": [len(mean), resolution, resolution],
        "num_classes": model.num_classes,
        "mean": list(mean),
        "std": list(std),
        "crop_pct": crop_pct,
    }
    # Where the weights came from, and the classes of the checkpoint they were tuned from.
    for key in "url file hf_hub_id source tag custom_load label_names label_descriptions".split():
        cfg.pop(key, None)
    model.pretrained_cfg = cfg
    names = {"label_names": list(labels)} if labels is not None else {}
    save_for_hf(
        model, str(folder), model_config=names, model_args=model_args or None, safe_serialization=True
    )
    path = folder / "config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
