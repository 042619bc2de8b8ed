"""Image models are written for transformers too, with equal logits."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageClassification

import seqpe_zoo  # noqa: F401 (registers the models)
from seqpe_zoo.convert.authors_release import load_authors
from seqpe_zoo.convert.graft import graft_vit
from seqpe_zoo.convert.shared_checkpoint import vit_for_transformers
from seqpe_zoo.convert.timm_rope import build_from_timm_rope
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, write_checkpoint

from .release import read_fixture, write_image_run
from .test_commands import run
from .test_graft import VIT, strong_vit
from .test_timm_rope import small_eva


@pytest.mark.parametrize("name", ["vit_seqpe_attn_mul_multi", "vit_baseline_rotary_mixed_b10"])
def test_release_gives_the_authors_logits_in_transformers(name: str, tmp_path: Path) -> None:
    source = write_image_run(tmp_path / "run", name)
    assert run("convert", source, tmp_path / "zoo", "--library", "transformers") == 0
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "zoo").eval()
    config, tensors = read_fixture(name)
    assert model.config.num_labels == config["num_classes"]
    for grid in config["grids"]:
        size = grid * config["patch"]
        with torch.no_grad():
            logits = model(tensors[f"pixels_{size}"]).logits
        torch.testing.assert_close(logits, tensors[f"logits_{size}"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["rope", "rope_mixed_ape"])
def test_rotary_models_are_equal_in_both_libraries(kind: str, tmp_path: Path) -> None:
    converted = build_from_timm_rope(small_eva(kind))
    write_checkpoint(vit_for_transformers(converted), tmp_path / "zoo")
    model = AutoModelForImageClassification.from_pretrained(tmp_path / "zoo").eval()
    x = torch.randn(1, 3, 96, 64)
    with torch.no_grad():
        torch.testing.assert_close(model(x).logits, converted.model(x))


def test_models_that_transformers_does_not_have_are_refused(tmp_path: Path) -> None:
    name = "deit_tiny_distilled_patch16_224"
    converted, _ = graft_vit(strong_vit(name), name, VIT, fit_steps=1)
    with pytest.raises(ConversionError, match="no counterpart in transformers"):
        vit_for_transformers(converted)
    run_of = load_authors(str(write_image_run(tmp_path / "run", "vit_seqpe_attn_mul_multi")))
    run_of.model.reset_classifier(0)
    with pytest.raises(ConversionError, match="no classes"):
        vit_for_transformers(run_of)
