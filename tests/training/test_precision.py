from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from seqpe_zoo.training.image_jobs import train_vit_job
from seqpe_zoo.training.job import run_job
from seqpe_zoo.training.run_config import load_run
from seqpe_zoo.training.text_jobs import train_gpt2_job

from .helpers import TINY_SEQPE, TINY_TEXT, image_recipe, logged_losses, text_recipe

STILL = {**TINY_SEQPE, "dropout": 0.0}
TEXT = {
    "model__position_encoding_args": STILL,
    "model__architecture": {**TINY_TEXT, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
IMAGES = {
    "model__position_encoding_args": {**STILL, "num_digits": 2, "integration": "bias"},
    "augmentation__mixup": 0.0,
    "augmentation__cutmix": 0.0,
}


@pytest.mark.parametrize(
    ("recipe", "changes", "build"),
    [(text_recipe, TEXT, train_gpt2_job), (image_recipe, IMAGES, train_vit_job)],
    ids=["text", "images"],
)
def test_bfloat16_trains_close_to_float32(tmp_path: Path, recipe: Any, changes: dict, build: Any) -> None:
    # Dropout draws otherwise in another precision; without it both see the same numbers.
    common = {**changes, "training__log_every": 1, "training__steps": 4, "training__evaluate_every": 0}
    folders = {}
    for precision in ("fp32", "bf16"):
        path = recipe(tmp_path / precision, **common, training__precision=precision)
        folders[precision] = run_job(build(load_run(path)), listener=lambda *_: None).folder
    assert logged_losses(folders["bf16"]) == pytest.approx(logged_losses(folders["fp32"]), rel=0.02)
    exact, rounded = (load_file(folders[name] / "model.safetensors") for name in ("fp32", "bf16"))
    assert {value.dtype for value in rounded.values() if value.is_floating_point()} == {torch.float32}
    assert any(not value.equal(exact[name]) for name, value in rounded.items())
