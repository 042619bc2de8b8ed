"""Vision encoders of transformers: positions of the image grid, at any resolution."""

from typing import Any

import pytest
import torch
import transformers

import seqpe_zoo
from tests.hosts.cases import (
    ENCODINGS,
    enlarge_weights,
    hosts,
    largest_difference,
    native_model,
    tiny_config,
    tiny_model,
)

HOSTS = hosts("vision encoder")
FOR_IMAGES = {
    **{name: given for name, given in ENCODINGS.items() if name != "alibi"},
    "rope2d_axial": {"name": "rope2d_axial"},
    "rope2d_mixed": {"name": "rope2d_mixed"},
}
every_encoding = pytest.mark.parametrize("encoding", FOR_IMAGES)


def image_model(host: str, encoding: str, auto_class: Any = transformers.AutoModel, **changes: Any) -> Any:
    config = seqpe_zoo.with_position_encoding(tiny_config(host, **changes), **FOR_IMAGES[encoding])
    torch.manual_seed(0)
    model = auto_class.from_config(config).eval()
    enlarge_weights(model)
    return model


def tokens_of(model: Any, images: torch.Tensor, order: torch.Tensor | None = None) -> torch.Tensor:
    """Outputs (B, prefix + patches, C); a masked autoencoder keeps all patches, in the order of the image."""
    given: dict[str, Any] = {}
    if "noise" in model.argument_names:
        model.config.mask_ratio = 0.0
        count = images.shape[2] * images.shape[3] // 16
        given["noise"] = torch.arange(count).expand(images.shape[0], count).float()
    with torch.no_grad():
        return model(images, **given).last_hidden_state


def cut(images: torch.Tensor) -> torch.Tensor:
    """Patches (B, 16, 3, 4, 4) of images of 16 x 16."""
    return images.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3).transpose(1, 2)


def paste(patches: torch.Tensor) -> torch.Tensor:
    grid = patches.transpose(1, 2).unflatten(2, (4, 4))  # (B, 3, rows, columns, 4, 4)
    return grid.transpose(3, 4).reshape(patches.shape[0], 3, 16, 16)


@every_encoding
@pytest.mark.parametrize("host", HOSTS)
def test_order_of_patches_is_seen_by_the_encoding_alone(host: str, encoding: str) -> None:
    model, images, order = image_model(host, encoding), torch.randn(2, 3, 16, 16), torch.randperm(16)
    plain, moved = tokens_of(model, images), tokens_of(model, paste(cut(images)[:, order]))
    prefix = plain.shape[1] - 16
    difference = largest_difference(moved[:, prefix:], plain[:, prefix:][:, order])
    assert difference < 2e-5 if encoding == "nope" else difference > 1e-4


@every_encoding
@pytest.mark.parametrize("host", HOSTS)
def test_any_resolution(host: str, encoding: str) -> None:
    model = image_model(host, encoding)
    for height, width in ((8, 8), (16, 24), (32, 20)):
        outputs = tokens_of(model, torch.randn(1, 3, height, width))
        assert outputs.isfinite().all()
        assert outputs.shape[1] >= height * width // 16


@every_encoding
@pytest.mark.parametrize("host", HOSTS)
def test_gradients_reach_every_position_parameter(host: str, encoding: str) -> None:
    model = image_model(host, encoding).train()
    model(torch.randn(2, 3, 16, 16)).last_hidden_state.square().mean().backward()
    for name, parameter in model.position_host.position_encoding.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("encoding", ["seqpe_bias", "seqpe_mul", "seqpe_sum", "seqpe_input"])
@pytest.mark.parametrize("host", HOSTS)
def test_kept_positions_start_as_they_were(host: str, encoding: str) -> None:
    native, images = native_model(host), torch.randn(2, 3, 16, 16)
    native.argument_names = ("noise",) if host == "vit_mae" else ()
    expected = tokens_of(native, images)
    model = seqpe_zoo.set_position_encoding(native, keep_native=True, **ENCODINGS[encoding])
    del model.argument_names
    torch.testing.assert_close(tokens_of(model, images), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("host", HOSTS)
def test_objectives_of_a_training_step_without_labels(host: str) -> None:
    model = image_model(host, "seqpe_bias").train()
    model.wants_objectives = True
    model(torch.randn(2, 3, 16, 16))
    assert model.step_losses.weighted > 0


def test_image_classification_trains_with_the_objectives() -> None:
    auto_class = transformers.AutoModelForImageClassification
    model = image_model("dinov2", "seqpe_mul", auto_class, num_labels=3).train()
    outputs = model(torch.randn(2, 3, 16, 16), labels=torch.tensor([0, 2]))
    plain = torch.nn.functional.cross_entropy(outputs.logits, torch.tensor([0, 2]))
    assert outputs.position_distance_loss > 0
    assert outputs.loss > plain
    outputs.loss.backward()


def test_table_of_the_host_is_neither_used_nor_trained() -> None:
    model, images = tiny_model("dinov2", "rope"), torch.randn(1, 3, 16, 16)
    before = tokens_of(model, images)
    table = model.embeddings.position_embeddings
    assert not table.requires_grad
    with torch.no_grad():
        table.add_(1.0)
    torch.testing.assert_close(tokens_of(model, images), before, atol=0, rtol=0)
