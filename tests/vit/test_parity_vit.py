"""Our ViT gives the numbers of the authors' release, and its rotary encodings those of timm's own layers."""

import re
from typing import Any

import pytest
import timm
import torch
from timm.layers import apply_rot_embed_cat
from timm.layers.pos_embed_sincos import RotaryEmbeddingCat, RotaryEmbeddingMixed
from torch import Tensor

from seqpe_zoo import build_position_encoding
from seqpe_zoo.portable.position_encoding import PositionEncoding
from seqpe_zoo.portable.positions import Positions

from .authors_models import assert_parity, build_from_authors, encoding_of, read_fixture, vit_fixtures

LOGITS = re.compile(r"logits_(\d+)")


@pytest.mark.parametrize("name", vit_fixtures())
def test_logits_parity_at_all_resolutions(name: str) -> None:
    config, tensors = read_fixture(name)
    model = build_from_authors(config, tensors)
    sizes = [match[1] for key in tensors if (match := LOGITS.fullmatch(key))]
    assert len(sizes) == len(config["grids"])
    for size in sizes:
        with torch.no_grad():
            logits = model(tensors[f"pixels_{size}"])
        assert_parity(logits, tensors[f"logits_{size}"])


@pytest.mark.parametrize("name", vit_fixtures())
def test_logits_parity_without_tables(name: str) -> None:
    config, tensors = read_fixture(name)
    model = build_from_authors(config, tensors)
    size = max(int(match[1]) for key in tensors if (match := LOGITS.fullmatch(key)))
    pixels, expected = tensors[f"pixels_{size}"], tensors[f"logits_{size}"]
    assert_parity(model(pixels).detach(), expected)


@pytest.mark.parametrize("name", vit_fixtures("vit_seqpe_"))
def test_logits_parity_at_a_shifted_start(name: str) -> None:
    config, tensors = read_fixture(name)
    model = build_from_authors(config, tensors)
    size, start = config["img_size"], tuple(config["shifted_start"])
    with torch.no_grad():
        model.set_grid_start(start)
        assert_parity(model(tensors[f"pixels_{size}"]), tensors[f"logits_{size}_shifted"])


@pytest.mark.parametrize("name", vit_fixtures("vit_seqpe_"))
def test_logits_parity_with_interpolation(name: str) -> None:
    config, tensors = read_fixture(name)
    model = build_from_authors(config, tensors, extrapolation="interpolate")
    sizes = [match[1] for key in tensors if (match := re.fullmatch(r"logits_(\d+)_interp_bicubic", key))]
    assert sizes
    for size in sizes:
        with torch.no_grad():
            logits = model(tensors[f"pixels_{size}"])
        assert_parity(logits, tensors[f"logits_{size}_interp_bicubic"])


@pytest.mark.parametrize("name", vit_fixtures("vit_seqpe_"))
def test_encoder_parity_of_pe_main(name: str) -> None:
    config, tensors = read_fixture(name)
    encoding = build_from_authors(config, tensors).position_encoding
    size = config["img_size"]
    grid = (size // config["patch"],) * 2
    for suffix, start in (("", (0, 0)), ("_shifted", tuple(config["shifted_start"]))):
        with torch.no_grad():
            encoded = encoding.compute_inputs(Positions(grid, start)).encoded[1:]
        assert_parity(encoded, tensors[f"pe_main_{size}{suffix}"].reshape(encoded.shape))


def authors_rotation(config: dict[str, Any], tensors: dict[str, Tensor]) -> Tensor:
    """Cosines and sines of the release: (layers or 1, heads or 1, L, 2, D/2)."""
    table = tensors[f"pe_main_{config['img_size']}"]
    if config["pe_apply_method"] == "rotary":
        return torch.stack(table.chunk(2, dim=-1)[::-1], dim=-2)[None, None]  # sines come first
    rotation = table.transpose(-2, -1)
    return rotation if rotation.ndim == 5 else rotation.reshape(1, 1, *rotation.shape[-3:])


@pytest.mark.parametrize("name", vit_fixtures("vit_baseline_rotary"))
def test_rotation_parity_of_pe_main(name: str) -> None:
    config, tensors = read_fixture(name)
    encoding = build_from_authors(config, tensors).position_encoding
    expected = authors_rotation(config, tensors)
    side = config["img_size"] // config["patch"]
    with torch.no_grad():
        layers = encoding.compute_inputs(Positions((side, side), (0, 0))).layers
    layers = layers[: expected.shape[0]]
    actual = torch.stack(layers)[:, -expected.shape[2] :].unflatten(-1, (expected.shape[1], 2, -1))
    assert_parity(actual.transpose(1, 2), expected)


@pytest.mark.parametrize("name", vit_fixtures("vit_baseline_sin"))
def test_sinusoid_parity_of_pe_main(name: str) -> None:
    config, tensors = read_fixture(name)
    encoding = build_from_authors(config, tensors).position_encoding
    side = config["img_size"] // config["patch"]
    encoded = encoding.compute_inputs(Positions((side, side), (0, 0))).encoded
    expected = tensors[f"pe_main_{config['img_size']}"]
    assert_parity(encoded, expected.reshape(encoded.shape))


def test_every_fixture_is_read_as_an_encoding() -> None:
    names = {encoding_of(read_fixture(name)[0])[0] for name in vit_fixtures()}
    assert "seqpe" in names


# timm's own rotary layers.


def rotate_with(encoding: PositionEncoding, q: Tensor, grid: tuple[int, int], layer: int) -> Tensor:
    with torch.no_grad():
        inputs = encoding.compute_inputs(Positions(grid, (0, 0))).layers[layer]
        return encoding.make_operation().on_query(q, inputs)


@pytest.mark.parametrize("grid", [(4, 4), (3, 7)])
def test_axial_rotation_parity_with_timm(grid: tuple[int, int]) -> None:
    head_dim = 16
    ours = build_position_encoding("rope2d_axial", 32, num_heads=2, num_dims=2, base=100.0)
    theirs = RotaryEmbeddingCat(
        head_dim, temperature=100.0, in_pixels=False, feat_shape=grid, ref_feat_shape=None, grid_indexing="xy"
    )
    q = torch.randn(2, 2, grid[0] * grid[1], head_dim)
    assert_parity(rotate_with(ours, q, grid, 0), apply_rot_embed_cat(q, theirs.get_embed()))


@pytest.mark.parametrize("grid", [(4, 4), (3, 7)])
def test_mixed_rotation_parity_with_timm(grid: tuple[int, int]) -> None:
    ours = build_position_encoding("rope2d_mixed", 32, num_heads=2, num_layers=3, num_dims=2)
    theirs = RotaryEmbeddingMixed(
        32, depth=3, num_heads=2, temperature=10.0, feat_shape=grid, grid_indexing="xy"
    )
    with torch.no_grad():
        theirs.freqs.copy_(ours.freqs)
    q = torch.randn(2, 2, grid[0] * grid[1], 16)
    for layer in range(3):
        expected = apply_rot_embed_cat(q, theirs.get_embed()[layer])
        assert_parity(rotate_with(ours, q, grid, layer), expected)


@pytest.mark.parametrize(
    ("stock", "name"),
    [("vit_small_patch16_rope_224", "rope2d_axial"), ("vit_small_patch16_rope_mixed_224", "rope2d_mixed")],
)
def test_whole_model_parity_with_timms_rope_vits(stock: str, name: str) -> None:
    sizes = {
        "img_size": 64,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "num_classes": 5,
        "init_values": 1.0,
    }
    theirs = timm.create_model(stock, **sizes).eval()
    ours = timm.create_model("vit_small_patch16_pe_224", pos_embed=name, **sizes).eval()
    state = {
        re.sub(r"gamma_(\d)", r"ls\1.gamma", key): value for key, value in theirs.state_dict().items()
    }  # layer scale has other names there
    if "rope.freqs" in state:
        state["position_encoding.freqs"] = state.pop("rope.freqs")
    ours.load_state_dict(state)
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert_parity(ours(x), theirs(x))
