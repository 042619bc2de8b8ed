"""timm's rotary ViTs and naver-ai's files become our ViT with equal logits."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

import seqpe_zoo  # noqa: F401 (registers the architectures)
from seqpe_zoo.convert.timm_rope import build_from_rope_file, build_from_timm_rope, convert_timm_rope
from seqpe_zoo.convert.zoo_checkpoint import ConversionError, write_checkpoint

STOCK = ["rope", "rope_mixed", "rope_ape", "rope_mixed_ape"]
TOLERANCE = {"atol": 1e-5, "rtol": 1e-4}


def small_eva(kind: str, **changes) -> nn.Module:
    """A timm model of that kind, small, with weights that make positions matter."""
    sizes = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}
    model = timm.create_model(f"vit_small_patch16_{kind}_224", dynamic_img_size=True, **{**sizes, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


@torch.no_grad()
def assert_equal_logits(ours: nn.Module, theirs: nn.Module, size: tuple[int, int]) -> None:
    x = torch.randn(2, 3, *size)
    torch.testing.assert_close(ours(x), theirs(x), **TOLERANCE)


@pytest.mark.parametrize("kind", STOCK)
def test_logits_equal_at_the_trained_size(kind: str) -> None:
    theirs = small_eva(kind)
    assert_equal_logits(build_from_timm_rope(theirs).model, theirs, (64, 64))


@pytest.mark.parametrize("size", [(96, 96), (160, 128)])
@pytest.mark.parametrize("kind", ["rope", "rope_mixed"])
def test_logits_equal_at_larger_sizes(kind: str, size: tuple[int, int]) -> None:
    theirs = small_eva(kind)
    assert_equal_logits(build_from_timm_rope(theirs).model, theirs, size)


@pytest.mark.parametrize("kind", ["rope_ape", "rope_mixed_ape"])
def test_logits_with_a_table_equal_at_a_larger_size_when_it_is_resized_plainly(kind: str) -> None:
    theirs = small_eva(kind)
    ours = build_from_timm_rope(theirs).model
    grid = theirs.pos_embed.detach().reshape(1, 4, 4, -1).permute(0, 3, 1, 2)
    resized = nn.functional.interpolate(grid, size=(6, 6), mode="bicubic", align_corners=False)
    theirs.pos_embed = nn.Parameter(resized.flatten(2).transpose(1, 2))
    theirs.patch_embed.set_input_size(96)
    assert_equal_logits(ours, theirs, (96, 96))


@pytest.mark.parametrize("kind", STOCK)
def test_converted_folder_loads_in_timm(kind: str, tmp_path: Path) -> None:
    theirs = small_eva(kind)
    write_checkpoint(build_from_timm_rope(theirs), tmp_path / "zoo")
    loaded = timm.create_model(f"local-dir:{tmp_path / 'zoo'}", pretrained=True).eval()
    assert_equal_logits(loaded, theirs, (64, 64))


@pytest.mark.parametrize("name", ["rope2d_axial", "rope2d_mixed"])
def test_table_beside_a_rotation_is_trained(name: str) -> None:
    options = {"pos_embed": name, "pos_embed_args": {"table": True}}
    model = timm.create_model("vit_pico_patch4_pe_32", depth=2, dynamic_img_size=True, **options)
    model(torch.randn(2, 3, 32, 32)).sum().backward()
    assert model.position_encoding.table.weight.grad.abs().sum() > 0


def naver_state(theirs: nn.Module) -> dict[str, torch.Tensor]:
    """timm's weights in the names of naver-ai/rope-vit (deit/models_v2_rope.py)."""
    state = theirs.state_dict()
    if "rope.freqs" in state:
        state["freqs"] = state.pop("rope.freqs").flatten(2)
        state["freqs_t_x"] = torch.arange(16.0) % 4
        state["freqs_t_y"] = torch.arange(16.0) // 4
    return {name: tensor.contiguous() for name, tensor in state.items()}


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("kind", STOCK)
def test_files_of_naver_ai_are_read(kind: str, suffix: str, tmp_path: Path) -> None:
    theirs = small_eva(kind)
    path = tmp_path / f"model.{suffix}"
    state = naver_state(theirs)
    save_file(state, path) if suffix == "safetensors" else torch.save({"model": state}, path)
    converted = build_from_rope_file(path, image_size=64)
    assert_equal_logits(converted.model, theirs, (64, 64))
    assert converted.record["left_out"] == (["freqs_t_x", "freqs_t_y"] if "mixed" in kind else [])


@pytest.mark.parametrize("size", ["small", "base"])
def test_named_sizes_are_found_without_arguments(size: str) -> None:
    with torch.device("meta"):
        theirs = timm.create_model(f"vit_{size}_patch16_rope_mixed_224", depth=12)
    theirs.to_empty(device="cpu")
    converted = build_from_timm_rope(theirs)
    assert converted.model.pretrained_cfg["architecture"] == f"vit_{size}_patch16_pe_224"
    assert set(converted.model_args) == {
        *("init_values", "dynamic_img_size", "pos_embed", "pos_embed_args", "num_classes")
    }


def test_models_that_differ_in_more_than_names_are_refused() -> None:
    sizes = {"img_size": 64, "embed_dim": 128, "depth": 2, "num_heads": 2, "num_classes": 5}
    others = timm.create_model("vit_medium_patch16_rope_reg1_gap_256", **sizes)
    with pytest.raises(ConversionError, match="grid_indexing") as caught:
        build_from_timm_rope(others)
    assert any("ref_feat_shape" in problem for problem in caught.value.problems)
    with pytest.raises(ConversionError, match="rotary embedding is NoneType"):
        build_from_timm_rope(timm.create_model("vit_tiny_patch16_224", **sizes))


def test_sources_that_are_no_models_are_explained(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="timm does not give 'vit_nowhere'"):
        convert_timm_rope("vit_nowhere")
    torch.save({"model": {"weight": torch.ones(2)}}, tmp_path / "other.pth")
    with pytest.raises(ConversionError, match="no Vision Transformer"):
        convert_timm_rope(str(tmp_path / "other.pth"))
