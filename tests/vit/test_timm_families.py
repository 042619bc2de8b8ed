"""The contract of a host, for one tiny model of each family of timm and several encodings."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers import create_feature_extractor
from timm.models import save_for_hf
from torch import Tensor

import seqpe_zoo

from .small_models import enliven

SMALL = {"embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
IMAGE = {"img_size": 32, "patch_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": IMAGE,
    "deit_tiny_distilled_patch16_224": IMAGE,
    "naflexvit_base_patch16_gap": {"patch_size": 8},
    "eva02_tiny_patch14_224": IMAGE,
    "vit_small_patch16_rope_mixed_224": {**IMAGE, "init_values": 0.1},
    "vit_small_patch16_dinov3": IMAGE,
}
DYNAMIC = {name: {} if "naflex" in name else {"dynamic_img_size": True} for name in FAMILIES}
ENCODINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "seqpe-mul": ("seqpe", {"integration": "mul"}),
    "seqpe-bias": ("seqpe", {"integration": "bias"}),
    "seqpe-input": ("seqpe", {"integration": "input"}),
    "rope2d_axial": ("rope2d_axial", {}),
    "nope": ("nope", {}),
}
families = pytest.mark.parametrize("family", FAMILIES)
encodings = pytest.mark.parametrize("encoding", ENCODINGS)


def build(family: str, encoding: str | None = None, **kwargs: Any) -> Any:
    """A tiny model by way of timm.create_model, in evaluation mode, with large random weights."""
    arguments = {**SMALL, **FAMILIES[family], **kwargs}
    if encoding is not None:
        name, options = ENCODINGS[encoding]
        arguments = {"pos_embed": name, "pos_embed_args": options, **arguments}
    return enliven(timm.create_model(family, **arguments)).eval()


def pictures(height: int = 32, width: int = 32, batch: int = 2) -> Tensor:
    return torch.randn(batch, 3, height, width)


def permute_patches(x: Tensor, order: Tensor, patch: int = 8) -> Tensor:
    """Images whose patches stand in another order."""
    patches = F.unfold(x, patch, stride=patch)[:, :, order]
    return F.fold(patches, x.shape[-2:], patch, stride=patch)


@torch.no_grad()
@families
@encodings
def test_order_of_patches_matters_to_all_but_nope(family: str, encoding: str) -> None:
    model = build(family, encoding)
    x, order = pictures(), torch.randperm(16)
    features = model.forward_features(x)
    shuffled = model.forward_features(permute_patches(x, order))
    prefix = model.num_prefix_tokens
    same = torch.allclose(features[:, :prefix], shuffled[:, :prefix], atol=1e-4)
    same &= torch.allclose(features[:, prefix:][:, order], shuffled[:, prefix:], atol=1e-4)
    assert same == (encoding == "nope")


@families
@encodings
def test_training_step_reaches_all_parameters(family: str, encoding: str) -> None:
    model = build(family, encoding).train()
    for _ in range(2):  # from the second step on, objectives are drawn in the forward pass
        output = model(pictures())
        output = sum(output) if isinstance(output, tuple) else output
        losses = model.position_losses()
        (output.square().sum() + losses.weighted).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    assert (losses.weighted > 0) == encoding.startswith("seqpe")


@torch.no_grad()
@families
@encodings
def test_saved_weights_give_the_same_outputs(family: str, encoding: str) -> None:
    model, other = build(family, encoding), build(family, encoding)
    enliven(other)
    other.load_state_dict(model.state_dict())
    x = pictures()
    assert torch.equal(other.eval()(x), model(x))


@torch.no_grad()
@families
def test_weights_of_another_integration_or_encoding_are_refused(family: str) -> None:
    state = build(family, "seqpe-mul").state_dict()
    with pytest.raises(RuntimeError, match=r"weights are of position encoding 'seqpe.*mul.*has 'seqpe.*bias"):
        build(family, "seqpe-bias").load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"weights are of position encoding 'seqpe.*has 'nope'"):
        build(family, "nope").load_state_dict(state)


@torch.no_grad()
@families
@encodings
def test_images_of_other_sizes(family: str, encoding: str) -> None:
    model = build(family, encoding, **DYNAMIC[family])
    assert model(pictures(48, 24)).shape == (2, 5)
    _, maps = model.forward_intermediates(pictures(48, 24))
    assert [tuple(one.shape) for one in maps] == [(2, 32, 6, 3)] * 2
    assert model(pictures()).shape == (2, 5)


@torch.no_grad()
@families
@pytest.mark.parametrize("encoding", ["seqpe-mul", "seqpe-bias", "seqpe-input", "rope2d_axial"])
def test_the_first_patch_may_be_anywhere(family: str, encoding: str) -> None:
    model = build(family, encoding)
    x = pictures()
    at_origin = model(x)
    model.set_grid_start((30, 7))
    moved = model(x)
    # A rotation is relative, but class tokens are not rotated.
    assert not torch.allclose(moved, at_origin, atol=1e-4) or encoding == "rope2d_axial"
    model.set_grid_start((0, 0))
    assert torch.equal(model(x), at_origin)


@families
@encodings
def test_gradient_checkpointing_changes_no_gradient(family: str, encoding: str) -> None:
    name, options = ENCODINGS[encoding]
    still = {"dropout": 0.0, "shift_probability": 0.0, "distance_weight": 0.0, "ood_weight": 0.0}
    still = still if name == "seqpe" else {}
    model = build(family, encoding, pos_embed_args={**options, **still}).train()
    x, gradients = pictures(), []
    for enable in (False, True):
        model.set_grad_checkpointing(enable)
        model.zero_grad()
        output = model(x)
        (sum(output) if isinstance(output, tuple) else output).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


@families
@pytest.mark.parametrize("encoding", ["seqpe-mul", "seqpe-bias", "seqpe-input"])
@pytest.mark.parametrize("keep_native", [False, True])
def test_positions_are_dropped_with_their_patches(family: str, encoding: str, keep_native: bool) -> None:
    still = {**ENCODINGS[encoding][1], "dropout": 0.0, "shift_probability": 0.0}
    extra = {"patch_drop_rate": 0.5, "pos_embed_args": still, "keep_native": keep_native}
    if "dinov3" in family:  # moves its own coordinates at random
        extra |= {"rope_rescale_coords": None, "rope_jitter_coords": None, "rope_shift_coords": None}
    model = build(family, encoding, **extra).train()
    x = pictures()
    with torch.no_grad():
        torch.manual_seed(3)
        dropped = model.forward_features(x)
        torch.manual_seed(3)
        kept = torch.argsort(torch.randn(2, 16), dim=-1)[:, :8]
        # In evaluation mode nothing is dropped, but what is not kept can be hidden from all others.
        prefix = model.num_prefix_tokens
        rows = torch.cat([torch.arange(prefix).expand(2, -1), kept + prefix], dim=1)
        visible = torch.zeros(2, prefix + 16, dtype=torch.bool).scatter(1, rows, True)
        mask = torch.zeros(2, 1, 1, prefix + 16).masked_fill(~visible[:, None, None], -1e9)
        hidden = model.eval().forward_features(x, attn_mask=mask.expand(-1, -1, prefix + 16, -1))
    torch.testing.assert_close(dropped, hidden.gather(1, rows[..., None].expand(-1, -1, 32)))


@families
def test_a_loop_that_ignores_the_objectives_is_told_once(family: str) -> None:
    model = build(family, "seqpe-mul").train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            model(pictures())
    assert ["trains without the objectives" in str(one.message) for one in caught] == [True]


@families
def test_position_encoding_learns_without_weight_decay_at_the_rate_of_the_last_block(family: str) -> None:
    from timm.optim import param_groups_layer_decay

    model = build(family, "seqpe-mul")
    own = {name for name, _ in model.named_parameters() if name.startswith("position_encoding.")}
    assert own <= model.no_weight_decay()
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    last = scale[id(model.blocks[-1].norm1.weight)]
    assert {scale[id(p)] for p in model.position_encoding.parameters()} == {last}


@torch.no_grad()
@families
@encodings
def test_features_only(family: str, encoding: str) -> None:
    model = build(family, encoding, features_only=True, out_indices=(0, 1), **DYNAMIC[family])
    assert [tuple(one.shape) for one in model(pictures(40, 24))] == [(2, 32, 5, 3)] * 2


@families
@encodings
@pytest.mark.parametrize("keep_native", [False, True])
def test_traced_graph_equals_the_model(family: str, encoding: str, keep_native: bool) -> None:
    if "naflex" in family:
        pytest.skip("the values of patch_coord are read, which torch.fx cannot trace")
    dynamic = {} if keep_native else DYNAMIC[family]  # timm's own tables and rotations are traced at one size
    model = build(family, encoding, keep_native=keep_native, **dynamic)
    graph = create_feature_extractor(model, ["head"])
    for x in (pictures(), pictures(24, 48))[: 1 + (not keep_native)]:
        expected: list[Tensor] = []
        hook = model.head.register_forward_hook(lambda *given, kept=expected: kept.append(given[-1]))
        model(x)
        hook.remove()
        torch.testing.assert_close(graph(x)["head"], expected[0])


@pytest.mark.slow
@families
@encodings
def test_exported_and_compiled_models_equal_eager_ones(family: str, encoding: str) -> None:
    torch._dynamo.reset()
    model, x = build(family, encoding), pictures()
    with torch.no_grad():
        expected = model(x)
        exported = torch.export.export(model, (x,)).module()
        torch.testing.assert_close(exported(x), expected, atol=1e-5, rtol=1e-5)
        compiled = torch.compile(model, backend="aot_eager")
        torch.testing.assert_close(compiled(x), expected, atol=1e-5, rtol=1e-5)


# One call.


@torch.no_grad()
@families
@encodings
@pytest.mark.parametrize("keep_native", [False, True])
def test_one_call_equals_create_model(family: str, encoding: str, keep_native: bool) -> None:
    name, options = ENCODINGS[encoding]
    built = build(family, encoding, keep_native=keep_native)
    changed = build(family)
    returned = seqpe_zoo.set_position_encoding(changed, name, keep_native=keep_native, **options)
    assert returned is changed
    assert changed.state_dict().keys() == built.state_dict().keys()
    changed.load_state_dict(built.state_dict())
    x = pictures()
    assert torch.equal(changed(x), built(x))


@torch.no_grad()
@families
@pytest.mark.parametrize("encoding", ["seqpe-mul", "seqpe-bias", "nope"])
def test_added_to_a_trained_model_seqpe_changes_nothing_at_first(family: str, encoding: str) -> None:
    model, x = build(family), pictures()
    expected = model(x)
    name, options = ENCODINGS[encoding]
    seqpe_zoo.set_position_encoding(model, name, keep_native=True, **options)
    torch.testing.assert_close(model(x), expected, atol=1e-5, rtol=1e-5)


@families
def test_positions_added_to_a_trained_model_learn(family: str) -> None:
    model = seqpe_zoo.set_position_encoding(build(family), "seqpe", keep_native=True).train()
    output = model(pictures())
    (sum(output) if isinstance(output, tuple) else output).square().sum().backward()
    gradients = [parameter.grad for parameter in model.position_encoding.parameters()]
    assert all(gradient is not None for gradient in gradients)
    assert any(bool((gradient != 0).any()) for gradient in gradients)


@torch.no_grad()
@families
def test_a_kept_rotation_or_table_still_counts(family: str) -> None:
    model = build(family, "nope", keep_native=True)
    x = pictures()
    shuffled = model(permute_patches(x, torch.randperm(16)))
    assert not torch.allclose(model(x), shuffled, atol=1e-4)


@families
def test_a_failed_call_leaves_the_model_as_it_was(family: str) -> None:
    model = build(family)
    kind, names = type(model), list(model.state_dict())
    for name, options, error in (
        ("alibi", {}, ValueError),
        ("seqpe", {"integation": "mul"}, TypeError),
        ("seqpe", {"integration": "add"}, ValueError),
        (["seqpe"], {}, TypeError),
    ):
        with pytest.raises(error):
            seqpe_zoo.set_position_encoding(model, name, **options)
    assert type(model) is kind
    assert list(model.state_dict()) == names
    assert {type(block.attn).__module__.split(".")[0] for block in model.blocks} == {"timm"}
    model(pictures())


@families
def test_a_second_encoding_is_refused(family: str) -> None:
    with pytest.raises(ValueError, match="has position encoding 'seqpe' already"):
        seqpe_zoo.set_position_encoding(build(family, "seqpe-mul"), "nope")


# Weights and timm's own tools.


@torch.no_grad()
@families
@pytest.mark.parametrize("encoding", ["seqpe-bias", "rope2d_axial"])
@pytest.mark.parametrize("keep_native", [False, True])
@pytest.mark.parametrize("by_call", [False, True])
def test_saved_without_arguments_it_comes_back_equal(
    family: str, encoding: str, keep_native: bool, by_call: bool, tmp_path: Path
) -> None:
    name, options = ENCODINGS[encoding]
    options = {"base": 30.0} if encoding == "rope2d_axial" else options
    if by_call:
        model = build(family)
        seqpe_zoo.set_position_encoding(model, name, keep_native=keep_native, **options)
        enliven(model)
    else:
        model = build(family, encoding, pos_embed_args=options, keep_native=keep_native)
    # Sizes are timm's affair: without them it builds the model that the name stands for.
    save_for_hf(model, tmp_path, model_args={**SMALL, **FAMILIES[family]}, safe_serialization=True)
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    x = pictures()
    assert loaded.position_encoding.name == name
    assert torch.equal(loaded(x), model(x))


@pytest.mark.parametrize("family", ["vit_tiny_patch16_224", "naflexvit_base_patch16_gap"])
@pytest.mark.parametrize("stock", ["", "none", "learn", "learned"])
def test_saved_weights_do_not_load_into_timms_own_positions(family: str, stock: str, tmp_path: Path) -> None:
    model = build(family, "seqpe-mul")
    save_for_hf(model, tmp_path, model_args={**SMALL, **FAMILIES[family]}, safe_serialization=True)
    with pytest.raises((RuntimeError, AssertionError)):  # an assertion of timm: not one of its values
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True, pos_embed=stock)


@torch.no_grad()
@families
def test_saved_weights_in_a_model_that_keeps_its_positions_or_not_are_refused(
    family: str, tmp_path: Path
) -> None:
    model = build(family, "seqpe-mul", keep_native=True)
    save_for_hf(model, tmp_path, model_args={**SMALL, **FAMILIES[family]}, safe_serialization=True)
    with pytest.raises(ValueError, match="trained with keep_native=True"):
        timm.create_model(f"local-dir:{tmp_path}", pretrained=True, pos_embed="seqpe", keep_native=False)
    with pytest.raises(RuntimeError, match="keeps_native_positions"):
        build(family, "seqpe-mul").load_state_dict(model.state_dict())


@torch.no_grad()
@families
@pytest.mark.parametrize("keep_native", [False, True])
def test_published_weights_load(family: str, keep_native: bool, tmp_path: Path) -> None:
    plain = build(family)
    overlay = {
        "state_dict": plain.state_dict(),
        "num_classes": 5,
        "input_size": (3, 32, 32),
        "custom_load": False,
    }
    model = timm.create_model(
        family,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        pos_embed="seqpe",
        keep_native=keep_native,
        **SMALL,
        **FAMILIES[family],
    ).eval()
    mine, theirs = model.state_dict(), plain.state_dict()
    shared = mine.keys() & theirs.keys()
    assert shared >= {name for name in theirs if name.startswith(("blocks.", "head."))}
    assert all(torch.equal(mine[name], theirs[name]) for name in shared)
    if keep_native:
        assert mine.keys() >= theirs.keys()
        x = pictures()
        torch.testing.assert_close(model(x), plain(x), atol=1e-5, rtol=1e-5)
