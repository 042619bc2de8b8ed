"""Contestants that are not trained: models of another one that read longer contexts with scaled positions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..evaluation.context_scaling import scale_context
from ..evaluation.measure import measure_images, measure_text
from ..evaluation.model_loading import load_image_model, load_language_model
from ..evaluation.report import Measurement


def measure_scaled(folder: Path, recipe: Mapping[str, Any], scaling: str, label: str) -> list[Measurement]:
    """Measures a finished run at each size of its recipe, positions scaled from the trained size to that one.

    Args:
        folder: of the run.
        recipe: of the run, whose data and evaluation sections are used.
        scaling: as of `scale_context`.
        label: of the contestant, for the measurements.
    """
    data, evaluation = recipe["data"], recipe["evaluation"]
    measurements = []
    for length in evaluation.get("lengths", ()):
        model = load_language_model(str(folder))
        scale_context(model.model, scaling, length / data["length"])
        what = (data["source"], evaluation.get("split", "test"), [length], evaluation.get("max_tokens"))
        measurements += measure_text(model, label, *what)
    for resolution in evaluation.get("resolutions", ()):
        image_model = load_image_model(str(folder))
        scale_context(image_model.model, scaling, resolution / data["resolution"])
        split, most = evaluation.get("split") or "validation", evaluation.get("max_images")
        measurements += measure_images(
            image_model, label, data["source"], split, [resolution], max_images=most
        )
    return measurements
