"""One folder for both libraries: whichever wrote the model, the other loads it with equal logits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models import save_for_hf
from transformers import AutoImageProcessor, AutoModelForImageClassification

import seqpe_zoo  # noqa: F401 (registers the models)
from seqpe_zoo.convert.shared_checkpoint import share_config
from seqpe_zoo.convert.zoo_checkpoint import ConversionError
from seqpe_zoo.hub.config_rules import config_problems
from seqpe_zoo.hub.stage import add_prefix
from seqpe_zoo.portable.configuration_seqpe_vit import SeqPEViTConfig
from seqpe_zoo.portable.modeling_seqpe_vit import SeqPEViTForImageClassification

from .test_commands import run
from .test_graft import strong_vit
from .test_timm_rope import naver_state, small_eva

SIZE = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
SMALL = {"num_digits": 2, "num_candidates": 8}
SMALL_BIAS = {**SMALL, "integration": "bias"}
AVERAGE = {"global_pool": "avg"}


def write_timm_run(folder: Path, architecture: str, args: dict[str, Any], **names: Any) -> torch.nn.Module:
    """Writes a model as our training does."""
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=3, **args).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=3, mean=(0.1, 0.2, 0.3), std=(0.4,) * 3)
    save_for_hf(model, folder, model_config=names, model_args=args, safe_serialization=True)
    return model


def share(folder: Path) -> dict[str, Any]:
    """Completes a folder as `stage` does, in this process."""
    config, processor = share_config(json.loads((folder / "config.json").read_text()))
    add_prefix(folder / "model.safetensors", "vit.")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return config


def logits_of_both(folder: Path, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    by_timm = timm.create_model(f"local-dir:{folder}", pretrained=True, dynamic_img_size=True).eval()
    by_transformers, info = AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    with torch.no_grad():
        return by_timm(x), by_transformers.eval()(x).logits


@pytest.mark.parametrize(
    ("architecture", "args"),
    [
        ("vit_tiny_patch16_seqpe_224", {"pos_embed_args": SMALL}),
        (
            "vit_tiny_patch16_pe_224",
            {"pos_embed": "rope2d_mixed", "class_token": False, **AVERAGE},
        ),
        ("vit_small_patch16_224", {"pos_embed": "ape_learn", "reg_tokens": 2, "qkv_bias": False}),
        (
            "deit3_small_patch16_224",
            {"pos_embed": "seqpe", "pos_embed_args": SMALL_BIAS},
        ),
    ],
)
def test_a_folder_of_timm_is_loaded_by_both(architecture: str, args: dict[str, Any], tmp_path: Path) -> None:
    model = write_timm_run(tmp_path, architecture, {**SIZE, **args}, label_names=["cat", "dog", "owl"])
    config = share(tmp_path)
    assert config_problems(config) == []
    torch.testing.assert_close(*logits_of_both(tmp_path, torch.randn(2, 3, 64, 48)))
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(logits_of_both(tmp_path, x)[1], model(x))
    assert config["id2label"] == {"0": "cat", "1": "dog", "2": "owl"}
    assert config["image_mean"] == [0.1, 0.2, 0.3]


def test_channels_are_those_of_the_weights(tmp_path: Path) -> None:
    args = {**SIZE, "in_chans": 1, "pos_embed_args": SMALL}
    write_timm_run(tmp_path, "vit_tiny_patch16_seqpe_224", args)  # its pretrained_cfg says three
    config = share(tmp_path)
    assert config_problems(config) == []
    assert (config["pretrained_cfg"]["input_size"], config["num_channels"]) == ([1, 32, 32], 1)
    torch.testing.assert_close(*logits_of_both(tmp_path, torch.randn(1, 1, 32, 32)))


def test_a_folder_of_transformers_is_loaded_by_both(tmp_path: Path) -> None:
    names = {"id2label": {0: "cat", 1: "dog", 2: "owl"}, "label2id": {"cat": 0, "dog": 1, "owl": 2}}
    config = SeqPEViTConfig.tiny(image_size=[16, 32], num_labels=3, vit_args={"init_values": 0.1}, **names)
    model = SeqPEViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path)
    shared = share(tmp_path)
    assert config_problems(shared) == []
    assert shared["pretrained_cfg"]["input_size"] == [3, 16, 32]
    x = torch.randn(2, 3, 24, 40)
    by_timm, by_transformers = logits_of_both(tmp_path, x)
    torch.testing.assert_close(by_timm, by_transformers)
    with torch.no_grad():
        torch.testing.assert_close(by_transformers, model(x).logits)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True)
    assert loaded.pretrained_cfg["label_names"] == ["cat", "dog", "owl"]


def test_the_image_processor_makes_the_pictures_of_timm(tmp_path: Path) -> None:
    model = write_timm_run(tmp_path, "vit_tiny_patch16_seqpe_224", {**SIZE, "pos_embed_args": SMALL})
    share(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((90, 60), Image.Resampling.BICUBIC)  # smooth
    processor = AutoImageProcessor.from_pretrained(tmp_path)
    pixels = processor(picture, return_tensors="pt")["pixel_values"][0]
    wanted = create_transform(**resolve_data_config(model.pretrained_cfg), is_training=False)(picture)
    assert pixels.shape == wanted.shape == (3, 32, 32)
    step = 1 / 255 / 0.4  # of eight bits, to which the two resizings round differently
    assert (pixels - wanted).abs().max() < 3 * step


def test_models_that_differ_in_more_than_names_are_refused(tmp_path: Path) -> None:
    """CLIP's ViT has layer norms with another epsilon, for which transformers' fields have no word."""
    args = {**SIZE, "pos_embed": "seqpe", "pos_embed_args": SMALL}
    write_timm_run(tmp_path, "vit_base_patch16_clip_224", args)
    with pytest.raises(ConversionError, match="instead of"):
        share_config(json.loads((tmp_path / "config.json").read_text()))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_args": SIZE}, "VisionTransformer has no counterpart"),
        ({"architecture": "vit_of_nobody"}, "timm does not build 'vit_of_nobody'"),
        ({"num_classes": 0}, "no classes"),
    ],
)
def test_what_the_other_library_does_not_have_is_named(change: dict[str, Any], words: str) -> None:
    config = {
        "architecture": "vit_small_patch16_224",
        "num_classes": 3,
        "model_args": {**SIZE, "pos_embed": "nope"},
        "pretrained_cfg": {},
    }
    with pytest.raises(ConversionError, match=words):
        share_config(config | change)


def test_converted_models_are_written_for_both(tmp_path: Path) -> None:
    theirs = small_eva("rope_mixed_ape")
    torch.save(naver_state(theirs), tmp_path / "rope.pth")
    assert run("convert", tmp_path / "rope.pth", tmp_path / "zoo", "--image-size", 64) == 0
    x = torch.randn(1, 3, 64, 64)
    by_timm, by_transformers = logits_of_both(tmp_path / "zoo", x)
    torch.testing.assert_close(by_timm, by_transformers)
    with torch.no_grad():
        torch.testing.assert_close(by_timm, theirs(x), atol=1e-4, rtol=1e-4)


def test_grafted_models_are_written_for_both_and_say_so(tmp_path: Path, capsys: Any) -> None:
    theirs = strong_vit()
    theirs.pretrained_cfg.update(input_size=(3, 32, 32), num_classes=5)
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    save_for_hf(theirs, tmp_path / "source", model_args=args, safe_serialization=True)
    assert run("graft", f"local-dir:{tmp_path / 'source'}", tmp_path / "zoo", "--fit-steps", "5") == 0
    said = capsys.readouterr().out
    assert "timm.create_model" in said
    assert "AutoModelForImageClassification" in said
    torch.testing.assert_close(*logits_of_both(tmp_path / "zoo", torch.randn(1, 3, 40, 32)))
