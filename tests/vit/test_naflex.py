"""NaFlexViT with position encodings: images of different sizes and shapes in one batch."""

from typing import Any

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_naflex_loader
from timm.data.naflex_dataset import NaFlexCollator
from torch import Tensor

import seqpe_zoo

from .small_models import enliven

NAME = "naflexvit_base_patch16_gap"
SMALL: dict[str, Any] = {"patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
ENCODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "seqpe-mul": ("seqpe", {"integration": "mul"}),
    "seqpe-sum": ("seqpe", {"integration": "sum"}),
    "seqpe-bias": ("seqpe", {"integration": "bias"}),
    "seqpe-input": ("seqpe", {"integration": "input"}),
    "shared": ("seqpe", {"projection": "shared"}),
    "rope2d_axial": ("rope2d_axial", {}),
    "rope2d_mixed": ("rope2d_mixed", {}),
    "nope": ("nope", {}),
}
ROPES = [{}, {"rope_type": "axial"}, {"rope_type": "dinov3"}]
"""Rotations of timm; of images of different sizes, timm 1.0.30 itself cannot rotate "mixed" ones."""
encodings = pytest.mark.parametrize("encoding", ENCODINGS)
STILL = {"dropout": 0.0, "shift_probability": 0.0}


def build(encoding: str = "seqpe-mul", **kwargs: Any) -> Any:
    name, options = ENCODINGS[encoding]
    arguments = {"pos_embed_args": options, **SMALL, **kwargs}
    return enliven(timm.create_model(NAME, pos_embed=name, **arguments)).eval()


def patches_of(x: Tensor, side: int = 8) -> dict[str, Tensor]:
    """An image (C, H, W) as timm's data pipeline hands it on."""
    channels, height, width = x.shape
    rows, columns = height // side, width // side
    patches = (
        x.reshape(channels, rows, side, columns, side).permute(1, 3, 2, 4, 0).reshape(rows * columns, -1)
    )
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    return {
        "patches": patches,
        "patch_coord": torch.stack([y, x], dim=-1).reshape(-1, 2),
        "patch_valid": torch.ones(rows * columns, dtype=torch.bool),
    }


def collate(images: list[Tensor], length: int = 40) -> dict[str, Any]:
    batch, _ = NaFlexCollator(length)([(patches_of(image), 0) for image in images])
    return batch


@torch.no_grad()
@encodings
@pytest.mark.parametrize("native", ROPES)
@pytest.mark.parametrize("keep_native", [False, True])
def test_images_of_different_sizes_share_a_batch(
    encoding: str, native: dict[str, Any], keep_native: bool
) -> None:
    model = build(encoding, keep_native=keep_native, **native)
    images = [torch.randn(3, height, width) for height, width in ((32, 32), (48, 24), (16, 72), (40, 56))]
    together = model(collate(images))
    alone = torch.cat([model(image.unsqueeze(0)) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@encodings
def test_very_wide_and_very_high_images_share_a_batch(encoding: str) -> None:
    model = build(encoding)
    images = [torch.randn(3, 8, 320), torch.randn(3, 320, 8)]
    together = model(collate(images))
    alone = torch.cat([model(image.unsqueeze(0)) for image in images])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@torch.no_grad()
@encodings
def test_padding_changes_nothing(encoding: str) -> None:
    model = build(encoding)
    images = [torch.randn(3, 32, 32), torch.randn(3, 48, 24)]
    short, long = collate(images, 18), collate(images, 40)
    long["patches"][~long["patch_valid"]] = 7.0
    long["patch_coord"][~long["patch_valid"]] = 3
    torch.testing.assert_close(model(long), model(short), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_patches_may_come_in_any_order() -> None:
    model = build("seqpe-mul")
    batch = collate([torch.randn(3, 32, 32), torch.randn(3, 48, 24)], 18)
    expected, order = model(batch), torch.randperm(18)
    shuffled = {key: value[:, order] for key, value in batch.items() if key != "seq_len"}
    torch.testing.assert_close(model(shuffled), expected, atol=1e-5, rtol=1e-5)


@encodings
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_training_step_of_a_mixed_batch(encoding: str, drop: float) -> None:
    model = build(encoding, patch_drop_rate=drop).train()
    batch = collate([torch.randn(3, 32, 32), torch.randn(3, 48, 24), torch.randn(3, 16, 72)])
    for _ in range(2):
        logits = model(batch)
        losses = model.position_losses()
        (logits.square().sum() + losses.weighted).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert (losses.weighted > 0) == (ENCODINGS[encoding][0] == "seqpe")


@pytest.mark.parametrize("encoding", ["seqpe-mul", "seqpe-bias", "seqpe-input"])
def test_positions_are_dropped_with_their_patches(encoding: str) -> None:
    options = {**ENCODINGS[encoding][1], **STILL}
    model = build(encoding, patch_drop_rate=0.5, pos_embed_args=options)
    batch = collate([torch.randn(3, 32, 32), torch.randn(3, 48, 24)], 18)
    torch.manual_seed(3)
    with torch.no_grad():
        dropped = model.train().forward_intermediates(batch, output_fmt="NLC", output_dict=True)
        torch.manual_seed(3)
        kept = torch.argsort(torch.randn(2, 18), dim=-1)[:, :9]
        left = {key: value.gather(1, kept) for key, value in batch.items() if key == "patch_valid"}
        for key in ("patches", "patch_coord"):
            left[key] = batch[key].gather(1, kept[..., None].expand(-1, -1, batch[key].shape[-1]))
        expected = model.eval().forward_intermediates(left, output_fmt="NLC", output_dict=True)
    assert torch.equal(dropped["patch_valid"], left["patch_valid"])
    valid = left["patch_valid"]
    for found, wanted in zip(dropped["image_intermediates"], expected["image_intermediates"], strict=True):
        torch.testing.assert_close(found[valid], wanted[valid], atol=1e-4, rtol=1e-4)


@torch.no_grad()
@encodings
def test_features_of_a_mixed_batch(encoding: str) -> None:
    model = build(encoding)
    images = [torch.randn(3, 32, 32), torch.randn(3, 48, 24)]
    features = model.forward_intermediates(
        collate(images, 18), indices=[1], output_fmt="NLC", output_dict=True
    )
    alone = model.forward_intermediates(
        images[1][None], indices=[1], output_fmt="NLC", intermediates_only=True
    )
    torch.testing.assert_close(features["image_intermediates"][0][1:], alone[0], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_patches_of_another_size() -> None:
    model = build("seqpe-bias", enable_patch_interpolator=True)
    patches = torch.randn(2, 12, 16, 16, 3)  # 16 x 16 pixels instead of 8 x 8
    coordinates = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(4), indexing="ij"), -1)
    batch = {
        "patches": patches,
        "patch_coord": coordinates.reshape(1, 12, 2).expand(2, -1, -1),
        "patch_valid": torch.ones(2, 12, dtype=torch.bool),
    }
    assert model(batch).shape == (2, 5)
    moved = {**batch, "patch_coord": batch["patch_coord"] + 5}
    assert not torch.allclose(model(moved), model(batch), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ape_learn", {}),
        ("ape_sin", {}),
        ("rope", {}),
        ("rope2d_axial", {"table": True}),
        ("seqpe", {"extrapolation": "interpolate"}),
    ],
)
def test_encodings_that_depend_on_the_size_of_an_image_are_refused(
    name: str, options: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=r"depends on the size of an image.*'seqpe'.*'rope2d_axial'"):
        timm.create_model(NAME, pos_embed=name, pos_embed_args=options, **SMALL)


def test_a_mixed_rotation_is_replaced_and_not_kept() -> None:
    replaced = build("seqpe-mul", rope_type="mixed")
    batch = collate([torch.randn(3, 32, 32), torch.randn(3, 48, 24)])
    assert replaced(batch).shape == (2, 5)
    plain = timm.create_model(NAME, rope_type="mixed", **SMALL).eval()
    attributes, kind = set(vars(plain)), type(plain)
    with pytest.raises(ValueError, match="cannot rotate images of different sizes with rope_type='mixed'"):
        seqpe_zoo.set_position_encoding(plain, "seqpe", keep_native=True)
    assert (set(vars(plain)), type(plain)) == (attributes, kind)


@pytest.mark.parametrize(
    "stock", ["vit_tiny_patch16_224", "eva02_tiny_patch14_224", "vit_small_patch16_dinov3"]
)
@pytest.mark.parametrize("keep_native", [False, True])
def test_models_that_timm_builds_as_naflexvit(stock: str, keep_native: bool) -> None:
    arguments = {"pos_embed": "seqpe", "keep_native": keep_native, "depth": 1, "num_classes": 5}
    model = timm.create_model(stock, use_naflex=True, img_size=56, **arguments).eval()
    assert isinstance(model, timm.models.NaFlexVit)
    side = model.embeds.patch_size[0]
    with torch.no_grad():
        assert model(torch.randn(1, 3, 2 * side, 3 * side)).shape == (1, 5)


@torch.no_grad()
@pytest.mark.parametrize(
    "stock",
    ["naflexvit_base_patch16_par_gap", "naflexvit_base_patch16_parfac_gap", "naflexvit_base_patch16_map"],
)
def test_other_names(stock: str) -> None:
    plain = enliven(timm.create_model(stock, **SMALL)).eval()
    batch = collate([torch.randn(3, 32, 32), torch.randn(3, 48, 24)])
    expected = plain(batch)
    kept = timm.create_model(stock, pos_embed="seqpe", keep_native=True, **SMALL).eval()
    missing, unexpected = kept.load_state_dict(plain.state_dict(), strict=False)
    assert unexpected == []
    assert {name.split(".")[0] for name in missing} == {"position_encoding", "keeps_native_positions"}
    torch.testing.assert_close(kept(batch), expected, atol=1e-5, rtol=1e-5)
    seqpe_zoo.set_position_encoding(plain, "seqpe")
    assert not any("pos_embed" in name for name in plain.state_dict())
    assert plain(batch).shape == (2, 5)


class Pictures(torch.utils.data.Dataset):
    """Pictures of three shapes for timm's loader."""

    transform = None
    sizes = ((40, 64), (96, 32), (48, 48))

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Any, int]:
        picture = Image.new("RGB", self.sizes[index % 3][::-1], (20 * index, 100, 200))
        return (self.transform(picture) if self.transform else picture), index % 5


def test_timms_loader_feeds_a_training_step() -> None:
    loader = create_naflex_loader(
        Pictures(),
        patch_size=8,
        train_seq_lens=(16, 36),
        max_seq_len=36,
        batch_size=4,
        is_training=True,
        num_workers=0,
        device=torch.device("cpu"),
    )
    model = build("seqpe-mul").train()
    shapes = set()
    for batch, target in loader:
        shapes.add(batch["patch_coord"].shape[1])
        logits = model(batch)
        losses = model.position_losses()
        (torch.nn.functional.cross_entropy(logits, target) + losses.weighted).backward()
    assert shapes <= {16, 36}
    assert shapes
    assert model.position_encoding.encoder.out.weight.grad.abs().sum() > 0
