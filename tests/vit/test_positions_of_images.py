"""Where patches are: grid origins, sizes beyond training, limits, tables of inference, and objectives."""

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqpe_zoo.portable.encoder import PositionEncoder

from .small_models import SIZES, images, small_vit


def count_encoder_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lists the number of positions of each run of the encoder."""
    runs: list[int] = []
    original = PositionEncoder.forward

    def counted(self: PositionEncoder, positions: torch.Tensor) -> torch.Tensor:
        runs.append(positions.shape[:-1].numel())
        return original(self, positions)

    monkeypatch.setattr(PositionEncoder, "forward", counted)
    return runs


def test_encoder_runs_once_per_resolution(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = count_encoder_runs(monkeypatch)
    model = small_vit(dynamic_img_size=True)
    with torch.no_grad():
        for size in (16, 16, 24, 16, 24):
            model(images(size, size))
    assert runs == [16, 36]


@pytest.mark.parametrize("integration", ["mul", "sum"])
@pytest.mark.parametrize("qk_norm", [False, True])
def test_queries_and_keys_are_overwritten_only_when_nobody_else_reads_them(
    integration: str, qk_norm: bool
) -> None:
    model = small_vit("seqpe", {"integration": integration}, qk_norm=qk_norm)
    x, heard = images(), []
    with torch.no_grad():
        overwritten = model(x)
        attention = model.blocks[0].attn
        attention.qkv.register_forward_hook(lambda _, inputs, output: heard.append((inputs[0], output)))
        listened_to = model(x)
        torch.testing.assert_close(F.linear(heard[0][0], *attention.qkv.parameters()), heard[0][1])
    torch.testing.assert_close(overwritten, listened_to)
    torch.testing.assert_close(overwritten, model(x).detach())


@torch.no_grad()
def test_global_and_inner_hooks_hear_what_the_projection_made() -> None:
    model = small_vit("seqpe", {"integration": "sum"})
    qkv = model.blocks[0].attn.qkv
    heard: list[Any] = []
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, inputs, output: heard.append((inputs[0], output)) if module is qkv else None
    )
    model(images())
    hook.remove()
    model.blocks[0].attn.qkv = nn.Sequential(qkv)  # as adapters wrap a layer
    qkv.register_forward_hook(lambda _, inputs, output: heard.append((inputs[0], output)))
    model(images())
    assert len(heard) == 2
    for x, output in heard:
        torch.testing.assert_close(F.linear(x, *qkv.parameters()), output)


@torch.no_grad()
def test_norms_with_hooks_are_called() -> None:
    model = small_vit("seqpe", {"integration": "sum"})
    calls: list[int] = []
    model.blocks[0].attn.q_norm.register_forward_pre_hook(lambda *_: calls.append(1))
    model(images())
    assert calls == [1]


def test_threads_may_share_a_model_and_ask_for_different_sizes() -> None:
    model = small_vit("seqpe", {"integration": "bias"}, dynamic_img_size=True)
    pictures = {size: images(size, size) for size in (16, 24, 32, 40)}
    sizes = [*pictures] * 50

    @torch.no_grad()
    def answer(size: int) -> Tensor:
        return model(pictures[size])

    expected = {size: answer(size) for size in pictures}
    model.position_encoding.clear_cache()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # threads disturb each other at every step
    try:
        with ThreadPoolExecutor(4) as threads:
            for size, found in zip(sizes, threads.map(answer, sizes), strict=True):
                torch.testing.assert_close(found, expected[size])
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("integration", ["mul", "sum", "bias", "input"])
def test_update_of_a_weight_is_seen(integration: str) -> None:
    model = small_vit("seqpe", {"integration": integration})
    x = images()
    with torch.no_grad():
        before = model(x)
        model.position_encoding.encoder.out.weight.mul_(2.0)
        assert not torch.allclose(model(x), before)


@pytest.mark.parametrize("name", ["rope2d_axial", "rope2d_mixed", "seqpe"])
def test_start_matters_where_positions_are_absolute_only(name: str) -> None:
    model = small_vit(name, class_token=False, global_pool="avg")
    x = images()
    with torch.no_grad():
        at_origin = model(x)
        model.set_grid_start((3, 9))
        same = torch.allclose(model(x), at_origin, atol=1e-4)
    assert same == name.startswith("rope")


def test_start_can_be_set_for_features() -> None:
    model = small_vit()
    x = images()
    with torch.no_grad():
        at_origin, _ = model.forward_intermediates(x)
        model.set_grid_start((3, 9))
        features, _ = model.forward_intermediates(x)
        assert torch.equal(features, model.forward_features(x))
    assert not torch.allclose(features, at_origin, atol=1e-4)


def test_a_part_of_an_image_starts_where_it_was_cut() -> None:
    # Without attention between patches (one token sees itself alone) a crop with its start equals the crop
    # of the whole: positions travel with the pixels.
    model = small_vit(
        "seqpe", {"integration": "input"}, dynamic_img_size=True, class_token=False, global_pool=""
    )
    whole = images(32, 32)
    with torch.no_grad():
        everywhere = model(whole, attn_mask=torch.eye(64, dtype=torch.bool)).reshape(2, 8, 8, -1)
        model.set_grid_start((2, 1))
        part = model(whole[:, :, 8:24, 4:20], attn_mask=torch.eye(16, dtype=torch.bool))
    torch.testing.assert_close(part.reshape(2, 4, 4, -1), everywhere[:, 2:6, 1:5])


def test_interpolation_differs_from_extension_only_beyond_training() -> None:
    extend = small_vit("seqpe", {"extrapolation": "extend"}, dynamic_img_size=True)
    interpolate = small_vit("seqpe", {"extrapolation": "interpolate"}, dynamic_img_size=True)
    interpolate.load_state_dict(extend.state_dict())
    with torch.no_grad():
        x = images()
        torch.testing.assert_close(interpolate(x), extend(x))
        x = images(24, 24)
        assert not torch.allclose(interpolate(x), extend(x), atol=1e-3)


def test_weights_trained_at_one_size_interpolate_at_another() -> None:
    options = {"extrapolation": "interpolate"}
    dynamic = small_vit("seqpe", options, dynamic_img_size=True)
    overlay = {"state_dict": dynamic.state_dict(), "input_size": (3, 16, 16), "num_classes": 5}
    larger = timm.create_model(
        "vit_pico_patch4_pe_32",
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        pos_embed_args=options,
        **{**SIZES, "img_size": 24},
    ).eval()
    x = images(24, 24)
    with torch.no_grad():
        torch.testing.assert_close(larger(x), dynamic(x))


def test_largest_grid_works_and_one_more_patch_is_an_error() -> None:
    model = small_vit(dynamic_img_size=True, depth=1)
    with torch.no_grad():
        assert model(images(4, 400, batch=1)).shape == (1, 5)
        with pytest.raises(ValueError, match=r"position 100 .* largest allowed position is 99.*num_digits=3"):
            model(images(4, 404, batch=1))
        model.set_grid_start((97, 0))
        with pytest.raises(ValueError, match="largest allowed position is 99"):
            model(images())
    model.set_grid_start((0, 0))
    with pytest.raises(ValueError, match="largest allowed position is 99"):
        model.train()(images(404, 4, batch=1))


def test_more_digits_number_more_patches() -> None:
    model = small_vit("seqpe", {"num_digits": 3}, dynamic_img_size=True, depth=1)
    with torch.no_grad():
        assert model(images(4, 404, batch=1)).shape == (1, 5)


@pytest.mark.parametrize("start", [(-1, 0), (1,), (1, 2, 3), (0.5, 1)])
def test_bad_starts_are_refused(start: Any) -> None:
    with pytest.raises(ValueError, match="row and the column of the first patch"):
        small_vit().set_grid_start(start)


def test_encodings_that_number_patches_have_no_start() -> None:
    model = small_vit("rope")
    model.set_grid_start((1, 0))
    with pytest.raises(ValueError, match="cannot start at"):
        model(images())


# Objectives.


def test_training_forward_and_losses_share_one_encoder_call(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit().train()
    runs = count_encoder_runs(monkeypatch)
    model(images())
    model.position_losses()  # whoever asks once is given them by the next forward pass
    runs.clear()
    logits = model(images())
    losses = model.position_losses()
    assert len(runs) == 1
    (logits.mean() + losses.weighted).backward()
    assert losses.distance > 0
    assert losses.ood > 0
    torch.testing.assert_close(losses.weighted, 0.1 * losses.distance + 0.1 * losses.ood)


def test_a_loop_that_never_asks_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit(options={"shift_probability": 0.0}).train()
    runs = count_encoder_runs(monkeypatch)
    for _ in range(2):
        model(images())
    assert runs == [16, 16]


def test_losses_are_given_once_and_then_drawn_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_vit().train()
    model(images())
    first = model.position_losses()
    runs = count_encoder_runs(monkeypatch)
    second = model.position_losses()
    assert len(runs) == 1
    assert first.distance != second.distance


def test_losses_without_a_forward_pass() -> None:
    losses = small_vit().train().position_losses()
    losses.weighted.backward()
    assert losses.distance.requires_grad


@pytest.mark.parametrize("name", ["nope", "rope2d_mixed", "ape_learn"])
def test_losses_of_encodings_without_objectives_are_zero(name: str) -> None:
    model = small_vit(name).train()
    model(images())
    assert [float(loss) for loss in model.position_losses()] == [0.0, 0.0, 0.0]


def test_random_shift_is_drawn_per_example_in_training_only() -> None:
    still = {"dropout": 0.0, "distance_weight": 0.0, "ood_weight": 0.0}
    model = small_vit("seqpe", {**still, "shift_probability": 0.5})
    x = images(batch=1).expand(16, -1, -1, -1)
    with torch.no_grad():
        expected = model(x[:1])
        shifted = (model.train()(x) - expected).abs().amax(dim=1) > 1e-4
        assert 0 < int(shifted.sum()) < 16
        model.position_encoding.options.__dict__["shift_probability"] = 0.0
        torch.testing.assert_close(model(x)[:1], expected)


def test_given_start_is_not_shifted_in_training() -> None:
    model = small_vit("seqpe", {"dropout": 0.0, "shift_probability": 1.0}).train()
    x = images()
    model.set_grid_start((4, 4))
    assert torch.equal(model(x), model(x))
