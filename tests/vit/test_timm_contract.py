"""The contract of a timm ViT, for every position encoding of images."""

import copy
import pickle
from typing import Any

import accelerate
import pytest
import timm
import torch
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from timm.utils import ModelEmaV3

from seqpe_zoo.portable.vit import PositionVisionTransformer

from .small_models import ENCODINGS, NAMES_2D, SIZES, enliven, images, small_vit

encodings = pytest.mark.parametrize(("name", "options"), ENCODINGS)


@encodings
def test_logits_have_their_shape_and_all_parameters_a_gradient(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options).train()
    logits = model(images())
    logits.mean().backward()
    assert logits.shape == (2, 5)
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@encodings
def test_static_and_dynamic_models_agree_and_take_any_size(name: str, options: dict[str, Any]) -> None:
    static = small_vit(name, options)
    dynamic = small_vit(name, options, dynamic_img_size=True)
    dynamic.load_state_dict(static.state_dict())
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(dynamic(x), static(x))
        assert dynamic(images(40, 24)).shape == (2, 5)


@encodings
def test_cached_inference_equals_plain_computation(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options, dynamic_img_size=True)
    x = images(24, 20)
    plain = model(x)  # gradients are on, so nothing is kept
    with torch.no_grad():
        first, second = model(x), model(x)
    torch.testing.assert_close(first, plain.detach(), atol=1e-5, rtol=1e-5)
    assert torch.equal(first, second)


@encodings
def test_gradient_checkpointing_changes_no_gradient(name: str, options: dict[str, Any]) -> None:
    no_shift = {"shift_probability": 0.0, "dropout": 0.0} if name == "seqpe" else {}
    model = small_vit(name, {**options, **no_shift}).train()
    x = images()
    gradients = []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        model(x).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, checkpointed in zip(*gradients, strict=True):
        torch.testing.assert_close(checkpointed, plain)


@encodings
def test_state_dict_round_trip(name: str, options: dict[str, Any]) -> None:
    model, other = small_vit(name, options), small_vit(name, options)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    other.load_state_dict(model.state_dict())
    x = images()
    with torch.no_grad():
        assert torch.equal(other(x), model(x))


@encodings
def test_model_built_on_the_meta_device_loads(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options)
    hollow = small_vit(name, options, device="meta")
    assert {parameter.device.type for parameter in hollow.parameters()} == {"meta"}
    hollow.to_empty(device="cpu").load_state_dict(model.state_dict())
    x = images()
    with torch.no_grad():
        assert torch.equal(hollow(x), model(x))


@encodings
def test_model_whose_weights_accelerate_moved_away(name: str, options: dict[str, Any]) -> None:
    model, x = small_vit(name, options), images()
    with torch.no_grad():
        expected = model(x)
        moved = accelerate.cpu_offload(copy.deepcopy(model), torch.device("cpu"))
        assert moved.blocks[0].attn.qkv.weight.is_meta
        for _ in range(2):
            torch.testing.assert_close(moved(x), expected)


@pytest.mark.parametrize("name", NAMES_2D)
def test_emptied_model_can_be_initialised(name: str) -> None:
    model = timm.create_model("vit_pico_patch4_pe_32", pos_embed=name, device="meta", **SIZES)
    model = model.to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, float("nan"))
    model.init_weights()
    with torch.no_grad():
        assert model.eval()(images()).isfinite().all()


@encodings
def test_bfloat16_stays_close_to_float32(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options)
    x = images()
    half = small_vit(name, options, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    half.load_state_dict(model.state_dict())
    with torch.no_grad():
        expected = model(x)
        torch.testing.assert_close(half(x.bfloat16()).float(), expected, atol=0.15, rtol=0.1)
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(model(x).float(), expected, atol=0.15, rtol=0.1)


@encodings
def test_intermediates_are_the_outputs_of_blocks(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options, reg_tokens=2)
    x = images()
    with torch.no_grad():
        final, taken = model.forward_intermediates(x, norm=True)
        features = model.forward_features(x)
        pairs = model.forward_intermediates(
            x, indices=1, return_prefix_tokens=True, norm=True, output_fmt="NLC", intermediates_only=True
        )
        as_dict = model.forward_intermediates(x, output_dict=True, return_prefix_tokens=True)
        layers = model.get_intermediate_layers(x, n=[0], reshape=True)
        stopped = model.forward_intermediates(x, [0], stop_early=True, intermediates_only=True)
    torch.testing.assert_close(final, features)
    assert [tuple(y.shape) for y in taken] == [(2, 32, 4, 4)] * 2
    spatial, prefix = pairs[0]
    torch.testing.assert_close(torch.cat([prefix, spatial], dim=1), features)
    assert set(as_dict) == {"image_intermediates", "image_intermediates_prefix", "image_features"}
    assert torch.equal(layers[0], stopped[0])


@pytest.mark.parametrize("name", NAMES_2D)
def test_features_only_models_return_maps(name: str) -> None:
    model = timm.create_model(
        "vit_pico_patch4_pe_32", pos_embed=name, features_only=True, out_indices=(0,), **SIZES
    )
    with torch.no_grad():
        maps = model.eval()(images())
    assert [tuple(y.shape) for y in maps] == [(2, 32, 4, 4)]
    assert model.feature_info.channels() == [32]


@pytest.mark.parametrize("name", NAMES_2D)
def test_pruned_model_gives_the_features_of_the_whole(name: str) -> None:
    model = small_vit(name)
    x = images()
    with torch.no_grad():
        expected = model.forward_intermediates(x, [0], intermediates_only=True)[0]
        assert model.prune_intermediate_layers([0]) == [0]
        pruned = model.forward_intermediates(x, [0], intermediates_only=True)[0]
    torch.testing.assert_close(pruned, expected)
    model.train()(x).mean().backward()
    used = [key for key, parameter in model.named_parameters() if parameter.grad is None]
    assert used == []


@pytest.mark.parametrize("pool", ["token", "avg", "avgmax", "max", "map", "prr", ""])
def test_all_poolings_and_classifier_resets(pool: str) -> None:
    model = small_vit(global_pool=pool)
    x = images()
    with torch.no_grad():
        logits = model(x)
        model.reset_classifier(7)
        assert model(x).shape[-1] == 7
        model.reset_classifier(0)
        assert model(x).shape[-1] == 32
    assert logits.shape == ((2, 17, 5) if pool == "" else (2, 5))


@pytest.mark.parametrize("name", NAMES_2D)
def test_models_without_class_token_and_with_registers(name: str) -> None:
    bare = small_vit(name, class_token=False, global_pool="avg")
    registers = small_vit(name, class_token=False, reg_tokens=3, global_pool="avg")
    with torch.no_grad():
        assert bare.forward_features(images()).shape == (2, 16, 32)
        assert registers.forward_features(images()).shape == (2, 19, 32)


@pytest.mark.parametrize("name", NAMES_2D)
def test_non_square_images_padding_and_new_input_sizes(name: str) -> None:
    wide = small_vit(name, img_size=(8, 24), in_chans=1)
    padded = small_vit(name, dynamic_img_size=True, dynamic_img_pad=True)
    resized = small_vit(name)
    resized.set_input_size((32, 12))
    with torch.no_grad():
        assert wide(images(8, 24, channels=1)).shape == (2, 5)
        assert padded(images(18, 13)).shape == (2, 5)
        maps = padded.forward_intermediates(images(18, 13), intermediates_only=True)
        assert maps[0].shape[-2:] == (5, 4)
        assert resized(images(32, 12)).shape == (2, 5)


@pytest.mark.parametrize("name", NAMES_2D)
def test_set_input_size_equals_a_dynamic_model(name: str) -> None:
    resized, dynamic = small_vit(name), small_vit(name, dynamic_img_size=True)
    dynamic.load_state_dict(resized.state_dict())
    resized.set_input_size((24, 32))
    x = images(24, 32)
    with torch.no_grad():
        torch.testing.assert_close(resized(x), dynamic(x))


@encodings
def test_positions_are_dropped_with_their_patches(name: str, options: dict[str, Any]) -> None:
    still = {"dropout": 0.0, "shift_probability": 0.0} if name == "seqpe" else {}
    model = small_vit(name, {**options, **still}, patch_drop_rate=0.5)
    x = images()
    with torch.no_grad():
        torch.manual_seed(3)
        dropped = model.train()(x)
        torch.manual_seed(3)
        kept = torch.argsort(torch.randn(2, 16), dim=-1)[:, :8]
        visible = torch.zeros(2, 17, dtype=torch.bool).scatter(1, kept + 1, True)
        visible[:, 0] = True
        masked = model.eval()(x, attn_mask=visible[:, None, None, :])  # dropped patches are seen by nobody
    torch.testing.assert_close(dropped, masked)


@pytest.mark.parametrize("name", NAMES_2D)
def test_patch_dropout_trains(name: str) -> None:
    model = small_vit(name, patch_drop_rate=0.5).train()
    model(images()).mean().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


def test_position_encoding_has_no_weight_decay() -> None:
    model = small_vit()
    groups = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    decayed, free = sorted(groups, key=lambda group: -group["weight_decay"])
    free_ids = {id(parameter) for parameter in free["params"]}
    assert decayed["weight_decay"] == 0.05
    assert all(id(parameter) in free_ids for parameter in model.position_encoding.parameters())


def test_layer_decay_gives_the_position_encoding_the_rate_of_the_last_block() -> None:
    model = small_vit()
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    assert {scale[id(p)] for p in model.position_encoding.parameters()} == {0.5}
    blocks = [scale[id(block.norm1.weight)] for block in model.blocks]
    assert [scale[id(model.patch_embed.proj.weight)], *blocks] == [0.125, 0.25, 0.5]


@encodings
def test_averaged_copied_and_pickled_models(name: str, options: dict[str, Any]) -> None:
    model = small_vit(name, options).train()
    model(images())  # leaves losses behind, which are part of a graph
    x = images()
    with torch.no_grad():
        average = ModelEmaV3(model, decay=0.5)
        average.update(model)
        model.eval()
        expected = model(x)
        torch.testing.assert_close(average.module.eval()(x), expected, atol=1e-5, rtol=1e-5)
        assert torch.equal(copy.deepcopy(model)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(model))(x), expected)


@pytest.mark.parametrize("fused", [True, False])
@encodings
def test_masks_and_both_kinds_of_attention(name: str, options: dict[str, Any], fused: bool) -> None:
    model = small_vit(name, options)
    x = images()
    mask = torch.rand(17, 17) > 0.3
    mask.fill_diagonal_(True)
    with torch.no_grad():
        expected = [model(x), model(x, attn_mask=mask), model(x, is_causal=True)]
        for block in model.blocks:
            block.attn.fused_attn = fused
        actual = [model(x), model(x, attn_mask=mask), model(x, is_causal=True)]
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("block", ["ResPostBlock", "ParallelThingsBlock", "ParallelScalingBlock"])
def test_blocks_that_take_no_positions_are_refused(block: str) -> None:
    block_fn = getattr(timm.models.vision_transformer, block)
    with pytest.raises(ValueError, match=f"{block} take no position encoding; those that do are Block"):
        PositionVisionTransformer(block_fn=block_fn, **SIZES)


def test_qk_norm_register_and_layer_scale_models_keep_their_parameters() -> None:
    extra = {"qk_norm": True, "reg_tokens": 2, "init_values": 0.1, "pre_norm": True, "no_embed_class": True}
    stock = timm.models.VisionTransformer(pos_embed="none", **SIZES, **extra).eval()
    ours = PositionVisionTransformer(pos_embed="nope", **SIZES, **extra).eval()
    ours.load_state_dict(enliven(stock).state_dict())
    x = images()
    with torch.no_grad():
        torch.testing.assert_close(ours(x), stock(x))
