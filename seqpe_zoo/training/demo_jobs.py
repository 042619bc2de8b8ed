"""What the demo trains: tiny models on data that every installation has, alike but for the encoding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

TEXT_LENGTH = 64
TEXT_MULTIPLES = (1, 2, 4, 8, 16)
TEXT_STEPS = 480
IMAGE_RESOLUTION = 16
IMAGE_MULTIPLES = (1.0, 1.5, 2.0, 3.0)
IMAGE_STEPS = 1000

# With the paper's settings a model this small needs more than these few steps before its encoder has learned
# to count. Without dropout in the encoder and with position scores weighted four times it learns about as
# fast as its rivals; with ten times the paper's weight of the distance objective, and 24 pivots, the curve is
# flat beyond the training length. Chosen on validation text (docs/reproduction).
_TEXT_SEQPE = {
    "num_digits": 4,
    "max_position": 2000,
    "num_pivots": 24,
    "num_candidates": 24,
    "num_starts": 8,
    "num_transfer": 24,
    "dropout": 0.0,
    "bias_scale": 4.0,
    "distance_weight": 1.0,
}
_IMAGE_SEQPE = {
    "num_digits": 2,
    "max_position": 40,
    "num_pivots": 24,
    "num_candidates": 24,
    "num_starts": 8,
    "num_transfer": 16,
    "dropout": 0.0,
    "integration": "bias",
    "bias_scale": 4.0,
    "distance_weight": 1.0,
}
_NO_OBJECTIVES = {"distance_weight": 0.0, "ood_weight": 0.0, "shift_probability": 0.0}


@dataclass(frozen=True)
class DemoJob:
    """One model of the demo.

    Attributes:
        name: of its folder.
        label: in tables.
        kind: "text" or "images".
        encoding: name of the registry.
        options: of the encoding.
    """

    name: str
    label: str
    kind: str
    encoding: str
    options: dict[str, Any]


DEMO_JOBS = (
    DemoJob("text_seqpe", "SeqPE", "text", "seqpe", _TEXT_SEQPE),
    DemoJob(
        "text_seqpe_plain", "SeqPE without objectives", "text", "seqpe", {**_TEXT_SEQPE, **_NO_OBJECTIVES}
    ),
    DemoJob("text_rope", "RoPE", "text", "rope", {}),
    DemoJob("text_alibi", "ALiBi", "text", "alibi", {}),
    DemoJob("vit_seqpe", "SeqPE", "images", "seqpe", _IMAGE_SEQPE),
    DemoJob("vit_ape_learn", "APE-learn, interpolated", "images", "ape_learn", {}),
    DemoJob("vit_rope2d", "RoPE2D", "images", "rope2d_axial", {}),
)


def demo_recipe(job: DemoJob, output: str, scale: float, seed: int) -> dict[str, Any]:
    """Returns the recipe of a model, as a YAML file would hold it.

    Args:
        job: which model.
        output: its run folder.
        scale: share of the steps.
        seed: of the run.
    """
    is_text = job.kind == "text"
    steps = max(2, round((TEXT_STEPS if is_text else IMAGE_STEPS) * scale))
    training = {
        "output": output,
        "steps": steps,
        "batch_size": 32,
        "evaluation_batch_size": 64,
        "learning_rate": 3e-3 if is_text else 1e-3,
        "schedule": "linear" if is_text else "cosine",
        "warmup_steps": max(1, steps // 20),
        "weight_decay": 0.01 if is_text else 0.05,
        "clip": 1.0,
        "position_clip": 1.0,
        "seed": seed,
        "log_every": max(1, steps // 20),
        "save_every": steps,
        "threads": 1,
    }
    if is_text:
        return {"task": "train_gpt2", **_text_sections(job), "training": training}
    return {"task": "train_vit", **_image_sections(job), "training": training}


def _text_sections(job: DemoJob) -> dict[str, Any]:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "initializer_range": 0.08}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return {
        "model": {
            "position_encoding": job.encoding,
            "position_encoding_args": job.options,
            "tokenizer": "bytes",
            "architecture": {**sizes, **no_dropout},
        },
        "data": {"source": "stdlib", "length": TEXT_LENGTH, "max_validation_tokens": 4096},
        "evaluation": {"lengths": [TEXT_LENGTH * n for n in TEXT_MULTIPLES], "max_tokens": 65536},
    }


def _image_sections(job: DemoJob) -> dict[str, Any]:
    return {
        "model": {
            "name": "vit_pico_patch4_pe_32",
            "position_encoding": job.encoding,
            "position_encoding_args": job.options,
            "architecture": {},
        },
        "data": {"source": "digits", "resolution": IMAGE_RESOLUTION},
        "augmentation": {"mixup": 0.0, "cutmix": 0.0, "smoothing": 0.1},
        "evaluation": {
            "resolutions": [int(IMAGE_RESOLUTION * n) for n in IMAGE_MULTIPLES],
            "split": "test",
        },
    }
