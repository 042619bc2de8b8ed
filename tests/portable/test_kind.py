"""Weights say what they are: they load into the encoding and options they were trained with, and no other."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from seqpe_zoo import build_position_encoding
from seqpe_zoo.portable.position_encoding import KIND_BYTES

HOST = {"num_heads": 2, "num_layers": 2, "causal": True, "train_shape": (16,)}
IMAGE = {**HOST, "num_dims": 2, "causal": False, "train_shape": (4, 4)}

OTHERS = [
    # Shapes of parameters are equal in all of these: only what is recorded tells them apart.
    ("rope", {}, "nope", {}),
    ("rope", {}, "alibi", {}),
    ("rope", {}, "rope", {"base": 500.0}),
    ("alibi", {}, "alibi", {"scaled": True}),
    ("ape_sin", {}, "ape_sin", {"base": 100.0}),
    ("ape_sin", {}, "ape_sin", {"scale": 0.1}),
    ("seqpe", {"integration": "mul"}, "seqpe", {"integration": "sum"}),
    ("seqpe", {"integration": "mul"}, "seqpe", {"integration": "bias"}),
    ("seqpe", {"integration": "input"}, "seqpe", {"integration": "mul", "projection": "none"}),
    ("seqpe", {}, "seqpe", {"encoder_heads": 4}),
    ("seqpe", {}, "seqpe", {"encoder_causal": False}),
    ("seqpe", {}, "seqpe", {"mask_padding": True}),
    ("seqpe", {}, "seqpe", {"bias_scale": 2.0}),
    ("seqpe", {}, "seqpe", {"temperature": 0.5}),
]
OTHER_IMAGES = [
    ("rope2d_axial", {}, "rope2d_axial", {"base": 50.0}),
    ("rope2d_axial", {}, "nope", {}),
]
OF_ANOTHER_SHAPE = [
    {"base": 8},
    {"num_digits": 6},
    {"projection": "per_layer"},
    {"final_norm": False},
    {"encoder_layers": 3},
]


def build(name, options, host=HOST):
    return build_position_encoding(name, 16, **host, **options)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("name", "options", "other", "changed", "host"),
    [(*case, HOST) for case in OTHERS] + [(*case, IMAGE) for case in OTHER_IMAGES],
)
def test_weights_of_another_kind_are_refused(name, options, other, changed, host, strict):
    weights = build(name, options, host).state_dict()
    target = build(other, changed, host)
    with pytest.raises(RuntimeError, match=f"these weights are of position encoding '{name}"):
        target.load_state_dict(weights, strict=strict)


@pytest.mark.parametrize("changed", OF_ANOTHER_SHAPE, ids=str)
def test_weights_of_another_shape_are_refused(changed):
    with pytest.raises(RuntimeError, match=r"size mismatch|Missing key|Unexpected key"):
        build("seqpe", changed).load_state_dict(build("seqpe", {}).state_dict())


@pytest.mark.parametrize(
    "changed",
    [
        {"dropout": 0.0},
        {"distance_weight": 0.0},
        {"max_position": 999},
        {"extrapolation": "interpolate"},
        {"init": "release"},
    ],
    ids=str,
)
def test_options_that_do_not_change_the_meaning_of_weights_may_differ(changed):
    weights = build("seqpe", {}).state_dict()
    target = build("seqpe", changed)
    target.load_state_dict(weights)
    assert torch.equal(target.encoder.digit_embedding, weights["encoder.digit_embedding"])


def test_weights_of_0_1_do_not_say_it_and_load():
    source, target = build("rope2d_mixed", {}, IMAGE), build("rope2d_mixed", {}, IMAGE)
    weights = {name: tensor for name, tensor in source.state_dict().items() if name != "kind"}
    target.load_state_dict(weights)
    assert torch.equal(target.freqs, source.freqs)
    target.check_kind()


def test_the_kind_survives_files_and_other_precisions(tmp_path):
    source = build("seqpe", {}).half()
    save_file(source.state_dict(), tmp_path / "weights.safetensors")
    target = build("seqpe", {}).bfloat16()
    target.load_state_dict(load_file(tmp_path / "weights.safetensors"))
    target.check_kind()
    assert target.kind.dtype == torch.uint8


@pytest.mark.parametrize(
    ("name", "host"), [("seqpe", HOST), ("seqpe", IMAGE), ("rope2d_mixed", IMAGE), ("ape_sin", HOST)]
)
def test_the_kind_is_readable_and_has_room(name, host):
    pe = build(name, {}, host)
    assert bytes(pe.kind.tolist()).decode().strip() == pe.kind_name()
    assert pe.kind_name().split()[0] == name
    assert len(pe.kind_name()) < KIND_BYTES == len(pe.kind)
