"""What the demo trains: tiny models on data that every installation has, alike but for the encoding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TEXT_LENGTH = 64
TEXT_MULTIPLES = (1, 2, 4, 8, 16)
TEXT_STEPS = 500
IMAGE_RESOLUTION = 16
IMAGE_SIZES = (16, 24, 32, 48, 64)
IMAGE_STEPS = 700

# As in the mini recipes: defaults but for sizes that suit short contexts, more pivots and no dropout.
_TEXT_SEQPE = {
    "num_digits": 4,
    "max_position": 2000,
    "num_pivots": 64,
    "num_candidates": 24,
    "num_starts": 8,
    "num_transfer": 24,
    "dropout": 0.0,
}
_IMAGE_SEQPE = {
    "integration": "sum",
    "num_digits": 2,
    "max_position": 20,
    "num_pivots": 24,
    "num_candidates": 24,
    "num_starts": 8,
    "num_transfer": 16,
    "dropout": 0.0,
}
_NO_OBJECTIVES = {"distance_weight": 0.0, "ood_weight": 0.0, "shift_probability": 0.0}


@dataclass(frozen=True)
class DemoJob:
    """One row of the demo.

    Attributes:
        name: of its folder.
        label: in tables.
        kind: "text" or "images".
        encoding: name of the registry, or "native" for the rotation of the Llama itself.
        options: of the encoding.
        position_rate: learning rate of the position encoding, by default that of the model.
        keep_native: add the encoding to the Llama's own rotation.
        weights_of: name of the row whose model is measured again, with `scaling`; nothing is trained.
        scaling: as of `scale_context`.
    """

    name: str
    label: str
    kind: str
    encoding: str
    options: dict[str, Any] = field(default_factory=dict)
    position_rate: float | None = None
    keep_native: bool = False
    weights_of: str | None = None
    scaling: str | None = None


DEMO_JOBS = (
    DemoJob("text_rope_seqpe", "RoPE + SeqPE", "text", "seqpe", _TEXT_SEQPE, keep_native=True),
    DemoJob("text_seqpe", "SeqPE", "text", "seqpe", _TEXT_SEQPE),
    DemoJob("text_seqpe_plain", "SeqPE without objectives", "text", "seqpe", _TEXT_SEQPE | _NO_OBJECTIVES),
    DemoJob("text_rope", "RoPE", "text", "native"),
    DemoJob("text_rope_scaled", "RoPE, NTK base", "text", "native", weights_of="text_rope", scaling="ntk"),
    DemoJob("text_alibi", "ALiBi", "text", "alibi"),
    DemoJob("vit_seqpe", "SeqPE", "images", "seqpe", _IMAGE_SEQPE, position_rate=6e-4),
    DemoJob(
        "vit_seqpe_stretched", "SeqPE stretched", "images", "seqpe", weights_of="vit_seqpe", scaling="stretch"
    ),
    DemoJob("vit_rope2d", "RoPE2D mixed", "images", "rope2d_mixed"),
    DemoJob(
        "vit_rope2d_scaled",
        "RoPE2D, positions scaled",
        "images",
        "rope2d_mixed",
        weights_of="vit_rope2d",
        scaling="linear",
    ),
    DemoJob("vit_ape_learn", "APE-learn, stretched", "images", "ape_learn"),
    DemoJob("vit_nope", "NoPE", "images", "nope"),
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
        "batch_size": 32 if is_text else 64,
        "evaluation_batch_size": 64,
        "learning_rate": 3e-3 if is_text else 2e-3,
        "position_learning_rate": job.position_rate,
        "schedule": "linear" if is_text else "cosine",
        "warmup_steps": max(1, steps // 14),
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
    return {
        "model": {
            "model_type": "llama",
            "position_encoding": job.encoding,
            "position_encoding_args": job.options,
            "keep_native": job.keep_native,
            "tokenizer": "bytes",
            "architecture": {
                "hidden_size": 64,
                "intermediate_size": 192,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
            },
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
            "architecture": {"in_chans": 1},
        },
        "data": {"source": "glyphs", "resolution": IMAGE_RESOLUTION},
        "augmentation": {"mixup": 0.0, "cutmix": 0.0, "smoothing": 0.1},
        "evaluation": {"resolutions": list(IMAGE_SIZES), "split": "test"},
    }
