"""Weights of ViTs: from a file, a state dict, a folder and the Hub's cache, ours and timm's own."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models import save_for_hf

from .small_models import SIZES, enliven, images, small_vit

ARCHITECTURE = "vit_pico_patch4_pe_32"
ENCODINGS = ["seqpe", "ape_learn", "rope2d_mixed"]
CFG = {"num_classes": 5, "input_size": (3, 16, 16)}


def reload(name: str, overlay: dict[str, Any], **kwargs: Any) -> Any:
    arguments = {**SIZES, "pos_embed": name, **kwargs}
    return timm.create_model(
        ARCHITECTURE, pretrained=True, pretrained_cfg_overlay={**CFG, **overlay}, **arguments
    ).eval()


def folder_of(model: Any, name: str, folder: Path, **model_args: Any) -> Path:
    save_for_hf(
        model,
        folder,
        model_config=dict(CFG),
        model_args={**SIZES, "pos_embed": name, **model_args},
        safe_serialization=True,
    )
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"].update(CFG)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("name", ENCODINGS)
def test_state_dict_and_files_load_bit_exactly(name: str, tmp_path: Path) -> None:
    model = small_vit(name)
    torch.save(model.state_dict(), tmp_path / "model.pth")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    x = images()
    with torch.no_grad():
        expected = model(x)
        for overlay in (
            {"state_dict": model.state_dict()},
            {"file": str(tmp_path / "model.pth")},
            {"file": str(tmp_path / "model.safetensors")},
        ):
            assert torch.equal(reload(name, overlay)(x), expected)
        checkpoint = timm.create_model(
            ARCHITECTURE, pos_embed=name, checkpoint_path=str(tmp_path / "model.pth"), **SIZES
        )
        assert torch.equal(checkpoint.eval()(x), expected)


@pytest.mark.parametrize("name", ENCODINGS)
def test_other_classes_channels_and_image_sizes_load(name: str) -> None:
    model = small_vit(name)
    overlay = {"state_dict": model.state_dict()}
    with torch.no_grad():
        assert reload(name, overlay, num_classes=3)(images()).shape == (2, 3)
        assert reload(name, overlay, num_classes=0)(images()).shape == (2, 32)
        assert reload(name, overlay, in_chans=1)(images(channels=1)).shape == (2, 5)
        larger = reload(name, overlay, img_size=24)
        dynamic = reload(name, overlay, dynamic_img_size=True)
        x = images(24, 24)
        torch.testing.assert_close(larger(x), dynamic(x))


def test_table_of_another_grid_is_resampled_when_told_so() -> None:
    model = small_vit("ape_learn")
    larger = reload("ape_learn", {"state_dict": model.state_dict()}, img_size=24, train_img_size=24)
    assert larger.position_encoding.weight.shape == (36, 32)


@pytest.mark.parametrize("name", ENCODINGS)
def test_local_folder_loads_with_its_own_arguments(name: str, tmp_path: Path) -> None:
    model = small_vit(name)
    folder = folder_of(model, name, tmp_path / "repo")
    x = images()
    with torch.no_grad():
        loaded = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
        assert torch.equal(loaded(x), model(x))
        assert loaded.position_encoding.name == name
        other = timm.create_model(f"local-dir:{folder}", pretrained=True, num_classes=2, img_size=24).eval()
        assert other(images(24, 24)).shape == (2, 2)
        features = timm.create_model(
            f"local-dir:{folder}", pretrained=True, features_only=True, out_indices=(1,)
        )
        assert features(x)[0].shape == (2, 32, 4, 4)


@pytest.mark.parametrize("name", ENCODINGS)
def test_hub_repository_loads_from_the_cache_offline(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_vit(name)
    commit = "0" * 40
    repository = tmp_path / "models--org--name"
    folder_of(model, name, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    x = images()
    with torch.no_grad():
        loaded = timm.create_model("hf-hub:org/name", pretrained=True, cache_dir=tmp_path).eval()
        assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize(
    "stock",
    [
        "vit_tiny_patch16_224",
        "deit_tiny_patch16_224",
        "deit_tiny_distilled_patch16_224",
        "deit3_small_patch16_224",
        "vit_small_patch14_reg4_dinov2",
    ],
)
def test_plain_timm_weights_load_by_name_with_equal_logits(stock: str) -> None:
    sizes = {"depth": 1, "img_size": 56, "num_classes": 3}
    plain = enliven(timm.create_model(stock, **sizes)).eval()
    overlay = {"state_dict": plain.state_dict(), "num_classes": 3, "input_size": (3, 56, 56)}
    ours = timm.create_model(
        stock, pretrained=True, pos_embed="ape_learn", pretrained_cfg_overlay=overlay, **sizes
    )
    x = images(56, 56)
    with torch.no_grad():
        assert torch.equal(ours.eval()(x), plain(x))


def test_plain_timm_weights_load_into_our_named_models() -> None:
    plain = enliven(timm.create_model("vit_tiny_patch16_224", depth=1, num_classes=3)).eval()
    ours = timm.create_model(
        "vit_tiny_patch16_pe_224",
        pos_embed="ape_learn",
        depth=1,
        num_classes=3,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": plain.state_dict(), "num_classes": 3},
    )
    x = images(224, 224, batch=1)
    with torch.no_grad():
        assert torch.equal(ours.eval()(x), plain(x))


def test_plain_weights_under_another_encoding_keep_it_fresh_and_say_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    plain = timm.create_model("vit_tiny_patch16_224", depth=1)
    overlay = {"state_dict": plain.state_dict()}
    ours = timm.create_model(
        "vit_tiny_patch16_224", depth=1, pretrained=True, pos_embed="seqpe", pretrained_cfg_overlay=overlay
    )
    assert torch.equal(ours.blocks[0].attn.qkv.weight, plain.blocks[0].attn.qkv.weight)
    assert "starts untrained" in caplog.text


def test_missing_weights_of_an_encoding_are_an_error() -> None:
    state = {key: value for key, value in small_vit().state_dict().items() if "encoder.out" not in key}
    with pytest.raises(RuntimeError, match=r"position_encoding\.encoder\.out\.weight"):
        reload("seqpe", {"state_dict": state})
