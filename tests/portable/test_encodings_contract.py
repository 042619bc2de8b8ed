"""What every position encoding of the registry promises, in one and in two dimensions."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from seqpe_zoo import Positions, build_position_encoding, grid_positions, list_position_encodings
from seqpe_zoo.portable.encodings import POSITION_ENCODINGS, ALiBi, RotateOperation, alibi_slopes
from seqpe_zoo.portable.position_encoding import HostSpec, position_scores, share_heads, widen_heads

SEQPE_FORMS = [
    {"integration": integration, "projection": projection, "multi_head": multi_head}
    for integration in ("mul", "sum", "bias")
    for projection in ("per_layer", "shared", "none")
    for multi_head in (True, False)
] + [{"integration": "input"}]
CASES = [(name, {}) for name in POSITION_ENCODINGS if name != "seqpe"] + [
    ("seqpe", form) for form in SEQPE_FORMS
]


def cases_for(*dims):
    """All encodings and forms of SeqPE for data of these dimensions; 1-D is text, 2-D are images."""
    return [
        pytest.param(
            name, options, num_dims, id="-".join([f"{num_dims}d", name, *map(str, options.values())])
        )
        for num_dims in dims
        for name, options in CASES
        if name in list_position_encodings(num_dims, causal=num_dims == 1)
    ]


def build(name, options, num_dims, num_prefix=0, **extra):
    shape = (6,) if num_dims == 1 else (3, 4)
    pe = build_position_encoding(
        name,
        16,
        num_heads=2,
        num_layers=3,
        num_dims=num_dims,
        train_shape=shape,
        num_prefix=num_prefix,
        causal=num_dims == 1,
        **options,
        **extra,
    )
    for parameter in pe.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return pe.eval()


def size_of(num_dims):
    return (6,) if num_dims == 1 else (3, 4)


def attention_scores(pe, inputs, layer, q, k):
    """Scores before scaling, (B, H, L, S)."""
    operation, own = pe.make_operation(), inputs.layers[layer]
    scores = operation.on_query(q, own) @ share_heads(operation.on_key(k, own), pe.groups).transpose(-2, -1)
    if operation.has_scores:
        scores = scores + position_scores(operation.score_factors(own, own), 1.0, operation.groups)
    return scores


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_operations_keep_shapes_and_every_parameter_is_used(name, options, num_dims, kv_heads):
    prefix = 2 if num_dims == 2 else 0
    pe = build(name, options, num_dims, num_prefix=prefix, num_kv_heads=kv_heads)
    length = math.prod(size_of(num_dims)) + prefix
    inputs = pe(Positions(size_of(num_dims)))
    x = pe.on_input(torch.randn(2, length, 16), inputs.encoded)
    total = x.square().sum()
    for layer in range(3):
        q, k = torch.randn(2, 2, length, 8), torch.randn(2, kv_heads, length, 8)
        scores = attention_scores(pe, inputs, layer, q, k)
        assert scores.shape == (2, 2, length, length)
        total = total + scores.square().sum()
    assert x.shape == (2, length, 16)
    total.backward() if total.requires_grad else None
    assert all(parameter.grad is not None for parameter in pe.parameters())


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_what_is_changed_in_place_is_the_same(name, options, num_dims):
    pe = build(name, options, num_dims)
    operation, own = pe.make_operation(), pe(Positions(size_of(num_dims))).layers[1].detach()
    x = torch.randn(2, 2, math.prod(size_of(num_dims)), 8)
    for change in (operation.on_query, operation.on_key):
        torch.testing.assert_close(change(x.clone(), own, inplace=True), change(x, own))


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_a_larger_context_runs(name, options, num_dims):
    pe = build(name, options, num_dims)
    size = (24,) if num_dims == 1 else (9, 7)
    inputs = pe(Positions(size))
    assert inputs.encoded.shape[0] == math.prod(size)
    assert all(torch.isfinite(layer).all() for layer in inputs.layers)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1))
def test_a_range_equals_explicit_positions(name, options, num_dims):
    pe = build(name, options, num_dims)
    ids = torch.arange(2, 6)[None, :, None].expand(2, -1, -1)
    with torch.no_grad():
        implicit, explicit = pe(Positions((4,), (2,))), pe(Positions(ids=ids))
    for a, b in zip(implicit.layers, explicit.layers, strict=True):
        torch.testing.assert_close(a.expand_as(b), b)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(2))
def test_a_part_of_an_image_has_the_positions_of_the_part(name, options, num_dims):
    pe = build(name, options, num_dims)
    part = Positions((2, 2), (1, 2))
    if pe.flattens:
        with pytest.raises(ValueError, match=r"cannot start at \(1, 2\)"):
            pe(part)
        return
    rows = [6, 7, 10, 11]
    whole = pe(Positions((3, 4)))
    for a, b in zip(pe(part).layers, whole.layers, strict=True):
        torch.testing.assert_close(a, b[rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1))
@pytest.mark.parametrize("start", [1, 40])
def test_shift_changes_nothing_for_relative_encodings(name, options, num_dims, start):
    pe = build(name, options, num_dims)
    q, k = torch.randn(2, 1, 2, 5, 8)
    with torch.no_grad():
        probabilities = [
            attention_scores(pe, pe(Positions((5,), (first,))), 1, q, k).softmax(-1) for first in (0, start)
        ]
    same = torch.allclose(*probabilities, atol=1e-5)
    in_attention = name not in ("nope", "ape_sin", "ape_learn") and options.get("integration") != "input"
    assert same == (name in ("rope", "alibi") or not in_attention)


@given(name=st.sampled_from(["rope", "alibi"]), start=st.integers(0, 60_000), length=st.integers(2, 12))
def test_shift_is_a_no_op_for_rope_and_alibi(name, start, length):
    pe = build(name, {}, num_dims=1).double()
    q, k = torch.randn(2, 1, 2, length, 8, dtype=torch.float64)
    here, there = (
        attention_scores(pe, pe(Positions((length,), (first,))), 0, q, k).softmax(-1) for first in (0, start)
    )
    # Angles are float32: an angle of 60,000 radians is known to 0.004.
    torch.testing.assert_close(there, here, atol=1e-6 + 2e-6 * start, rtol=0)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_construction_on_the_meta_device(name, options, num_dims):
    pe = build(name, options, num_dims)
    arguments = {"num_heads": 2, "num_layers": 3, "num_dims": num_dims, "causal": num_dims == 1}
    with torch.device("meta"):
        twin = build_position_encoding(name, 16, train_shape=pe.train_shape, **arguments, **options)
    assert all(tensor.is_meta for tensor in twin.state_dict().values())
    twin.to_empty(device="cpu").load_state_dict(pe.state_dict())
    for a, b in zip(twin.eval()(Positions(pe.train_shape)).layers, pe(Positions(pe.train_shape)).layers):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_bfloat16_stays_close(name, options, num_dims):
    pe = build(name, options, num_dims)
    exact = pe(Positions(size_of(num_dims)))
    rounded = copy.deepcopy(pe).to(torch.bfloat16)(Positions(size_of(num_dims)))
    for a, b in zip(rounded.layers, exact.layers):
        torch.testing.assert_close(a.float(), b, atol=0.1, rtol=0.1)


def test_the_registry_names_are_those_of_the_design():
    assert list_position_encodings() == [
        "nope", "ape_sin", "ape_learn", "rope", "rope2d_axial", "rope2d_mixed", "alibi", "seqpe"
    ]  # fmt: skip
    assert list_position_encodings(1) == ["nope", "ape_sin", "ape_learn", "rope", "alibi", "seqpe"]
    assert "alibi" not in list_position_encodings(2, causal=False)
    assert all(encoding.name == name for name, encoding in POSITION_ENCODINGS.items())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: build_position_encoding("roap", 16),
            ValueError,
            r"unknown position encoding 'roap' \(did you mean rope\?\); the known ones are: nope, ape_sin",
        ),
        (
            lambda: build_position_encoding("rope", 16, num_heads=2, theta=3),
            TypeError,
            "'rope' has no option theta; its options are: base",
        ),
        (
            lambda: build_position_encoding("seqpe", 16, num_digit=3),
            TypeError,
            r"no option num_digit \(did you mean num_digits\?\); its options are: num_digits, base",
        ),
        (lambda: build_position_encoding("nope", 16, base=3), TypeError, "its options are: none"),
        (
            lambda: build_position_encoding("rope2d_axial", 16, num_heads=2),
            ValueError,
            "not 1-dimensional data such as text; choose one of nope, ape_sin, ape_learn, rope, seqpe",
        ),
        (
            lambda: build_position_encoding("rope2d_axial", 12, num_heads=2, num_dims=2),
            ValueError,
            "multiple of 4",
        ),
        (
            lambda: build_position_encoding("seqpe", 16, num_heads=3),
            ValueError,
            "not divisible by num_heads=3",
        ),
        (
            lambda: build_position_encoding("alibi", 16, num_heads=2, num_dims=2),
            ValueError,
            "not 2-dimensional data such as images; choose one of nope, ape_sin, ape_learn, rope, rope2d",
        ),
        (
            lambda: build_position_encoding("alibi", 16, num_heads=2),
            ValueError,
            "needs causal attention.*; choose one of nope, ape_sin, ape_learn, rope, seqpe",
        ),
        (lambda: ALiBi(16, num_heads=2), ValueError, "needs causal attention"),
        (lambda: build_position_encoding("ape_learn", 16), ValueError, "give train_shape"),
        (
            lambda: build_position_encoding("seqpe", 16, integration="times"),
            ValueError,
            "'mul', 'sum', 'bias'",
        ),
        (lambda: build_position_encoding("seqpe", 16, integration="mul"), ValueError, "give num_heads"),
        (lambda: build_position_encoding("seqpe", 16, base=1), ValueError, "base=1 must be at least 2"),
        (
            lambda: build_position_encoding("seqpe", 16, num_digits=2, max_position=101),
            ValueError,
            "max_position=101 does not fit.*up to 99",
        ),
        (
            lambda: build_position_encoding("seqpe", 16, encoder_dim=10, encoder_heads=3),
            ValueError,
            "encoder_heads=3",
        ),
        (
            lambda: build_position_encoding("seqpe", 16, temperature=0),
            ValueError,
            "temperature=0 must be at least",
        ),
        (
            lambda: build_position_encoding("seqpe", 16, num_dims=0),
            ValueError,
            "num_dims=0 must be at least 1",
        ),
    ],
)
def test_bad_settings_are_refused_with_the_remedy(call, error, message):
    with pytest.raises(error, match=message):
        call()


# Each method against an independent implementation.


def rotate_like_roformer(x, positions, base):
    """RoFormer's interleaved rotation as complex multiplication, in NumPy."""
    half = x.shape[-1] // 2
    angles = positions[:, None] * base ** (-np.arange(half) / half)
    turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)
    return np.stack([turned.real, turned.imag], -1).reshape(x.shape)


def test_rope_is_complex_multiplication():
    pe = build("rope", {"base": 100.0}, num_dims=1)
    q = torch.randn(1, 2, 5, 8)
    rotated = pe.make_operation().on_query(q, pe(Positions((5,), (3,))).layers[0])
    expected = rotate_like_roformer(q.numpy(), np.arange(3, 8), 100.0)
    np.testing.assert_allclose(rotated.numpy(), expected, atol=1e-5)


def test_sinusoidal_is_the_original_transformers_table():
    pe = build("ape_sin", {}, num_dims=1)
    angles = np.arange(7)[:, None] / 10000 ** (np.arange(0, 16, 2) / 16)
    expected = np.stack([np.sin(angles), np.cos(angles)], -1).reshape(7, 16)
    np.testing.assert_allclose(pe.encode(torch.arange(7)[:, None]).numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("heads", [2, 8, 12])
def test_alibi_slopes_are_those_of_transformers(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    reference = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(alibi_slopes(heads)), reference)


@pytest.mark.parametrize("scaled", [False, True])
def test_alibi_takes_slope_times_distance_from_the_scores(scaled):
    pe = build("alibi", {"scaled": scaled}, num_dims=1)
    inputs = pe(Positions((300,))).layers[0]
    bias = position_scores(pe.make_operation().score_factors(inputs, inputs), 8**-0.5)[0]
    distance = torch.arange(300)[:, None] - torch.arange(300)
    slopes = torch.tensor(alibi_slopes(2))[:, None, None] / (8**0.5 if scaled else 1)
    visible = distance >= 0
    expected = torch.where(visible, -slopes * distance, -torch.inf).softmax(-1)
    torch.testing.assert_close(
        torch.where(visible, bias, -torch.inf).softmax(-1), expected, atol=1e-5, rtol=1e-4
    )


def test_alibi_positions_are_exact_in_bfloat16():
    pe = build("alibi", {}, num_dims=1)
    positions = torch.arange(65536)[:, None]
    rounded = pe.encode(positions).to(torch.bfloat16).double().sum(-1)
    assert torch.equal(rounded, positions[:, 0].double())


def test_learned_table_is_stretched_linearly_for_text_and_bicubically_for_images():
    text = build("ape_learn", {}, num_dims=1)
    expected = F.interpolate(text.weight.t()[None], size=15, mode="linear")[0].t()
    torch.testing.assert_close(text.encode(torch.arange(15)[:, None]), expected)
    image = build("ape_learn", {}, num_dims=2)
    volume = image.weight.t().reshape(1, 16, 3, 4)
    expected = F.interpolate(volume, size=(6, 8), mode="bicubic").flatten(2)[0].t()
    torch.testing.assert_close(image(Positions((6, 8))).encoded, expected)


def test_learned_rows_are_untouched_within_the_training_context():
    pe = build("ape_learn", {}, num_dims=1)
    assert torch.equal(pe(Positions((3,), (1,))).encoded, pe.weight[1:4])


def test_interpolating_seqpe_stretches_the_trained_vectors():
    pe = build("seqpe", {"extrapolation": "interpolate"}, num_dims=2)
    with torch.no_grad():
        trained = pe.encoder(grid_positions((3, 4)))
        expected = (
            F.interpolate(trained.t().reshape(1, 16, 3, 4), size=(6, 8), mode="bicubic").flatten(2)[0].t()
        )
        torch.testing.assert_close(pe(Positions((6, 8))).encoded, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pe(Positions((3, 4))).encoded, trained, atol=1e-5, rtol=1e-5)


def test_wider_heads_give_the_scores_of_the_matrix():
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    factors = (torch.randn(2, 5, 3), torch.randn(1, 5, 3))
    scores = (q @ k.transpose(-2, -1) + factors[0] @ factors[1].transpose(-2, -1)) / 8**0.5
    expected = scores.softmax(-1) @ v
    wide = widen_heads(q, k, v, factors)
    assert {tensor.shape[-1] for tensor in wide} == {16}  # one width, a multiple of 8, as kernels like it
    ours = F.scaled_dot_product_attention(*wide, scale=8**-0.5)[..., :8]
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    matrix = position_scores(factors, 8**-0.5)
    ours = F.scaled_dot_product_attention(q, k, v, matrix)
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


# Options are typed and bounded.

BAD_OPTIONS = [
    ("seqpe", {"temperature": float("nan")}, ValueError, "temperature=nan must be a finite number"),
    ("seqpe", {"temperature": -1.0}, ValueError, "temperature=-1.0 must be at least"),
    ("seqpe", {"num_transfer": 0}, ValueError, "num_transfer=0 must be at least 1"),
    ("seqpe", {"encoder_heads": -1}, ValueError, "encoder_heads=-1 must be at least 1"),
    ("seqpe", {"encoder_layers": 0}, ValueError, "encoder_layers=0 must be at least 1"),
    ("seqpe", {"dropout": 1.5}, ValueError, "dropout=1.5 must be at most 1"),
    ("seqpe", {"distance_weight": float("inf")}, ValueError, "distance_weight=inf must be a finite number"),
    ("seqpe", {"num_digits": "5"}, TypeError, "num_digits='5' must be of type int, not str"),
    ("seqpe", {"num_digits": 5.0}, TypeError, "num_digits=5.0 must be of type int, not float"),
    ("seqpe", {"base": True}, TypeError, "base=True must be of type int, not bool"),
    ("seqpe", {"mask_padding": 1}, TypeError, "mask_padding=1 must be of type bool, not int"),
    ("seqpe", {"integration": ["mul"]}, TypeError, "integration=.* must be of type str, not list"),
    ("seqpe", {"base": 10**6}, ValueError, "base=1000000 must be at most 65536"),
    ("seqpe", {"max_position": 10**10, "num_digits": 12}, ValueError, "more than 64-bit integers can number"),
    (
        "seqpe",
        {"extrapolation": "interpolate", "allow_absent": True},
        ValueError,
        "needs extrapolation='extend'",
    ),
    ("rope", {"base": -3}, ValueError, "base=-3 must be at least 1"),
    ("rope", {"base": "1e4"}, TypeError, "base='1e4' must be of type float, not str"),
    ("rope", {"base": float("inf")}, ValueError, "base=inf must be a finite number"),
    ("ape_sin", {"scale": float("nan")}, ValueError, "scale=nan must be a finite number"),
    ("alibi", {"scaled": "yes"}, TypeError, "scaled='yes' must be of type bool"),
    ("rope", {"num_heads": 0}, ValueError, "num_heads=0 must be at least 1"),
    ("rope", {"num_heads": 2.0}, TypeError, "num_heads=2.0 must be of type int"),
    ("rope", {"num_layers": -2}, ValueError, "num_layers=-2 must be at least 1"),
    ("rope", {"num_prefix": -1}, ValueError, "num_prefix=-1 must be at least 0"),
    ("rope", {"scaling": 0.0}, ValueError, "scaling=0.0 must be at least"),
    ("rope", {"num_kv_heads": 3}, ValueError, "num_kv_heads=3 must divide num_heads=2"),
    ("rope", {"train_shape": (0,)}, ValueError, "an entry of train_shape=0 must be at least 1"),
    ("rope", {"train_shape": (3, 4)}, ValueError, "must be a tuple of num_dims=1 entries"),
    ("rope", {"train_shape": 512}, ValueError, "must be a tuple of num_dims=1 entries"),
    ("ape_learn", {"train_shape": (10**9,)}, ValueError, "too large a table"),
    (["seqpe"], {}, TypeError, "named by a string such as 'seqpe'"),
]


@pytest.mark.parametrize(("name", "options", "error", "message"), BAD_OPTIONS)
def test_options_are_typed_and_bounded(name, options, error, message):
    with pytest.raises(error, match=message) as caught:
        build_position_encoding(name, 16, **{"num_heads": 2, "causal": True, "train_shape": (8,), **options})
    assert "\n" not in str(caught.value)


def test_the_width_of_the_host_is_checked():
    for dim, error in ((0, ValueError), (-8, ValueError), ("8", TypeError), (8.0, TypeError)):
        with pytest.raises(error, match="dim="):
            build_position_encoding("nope", dim)
    assert HostSpec(64, num_heads=4).scaling == 0.25


def test_a_whole_number_is_the_same_option():
    whole, real = (build_position_encoding("rope", 16, num_heads=2, base=base) for base in (100, 100.0))
    assert whole.kind_name() == real.kind_name() == "rope base=100.0"


# Rotation.


def test_rotation_of_heads_that_share_keys_is_that_of_their_key():
    operation, inputs = RotateOperation(2, groups=3), torch.randn(5, 2 * 8)
    x = torch.randn(1, 2, 5, 8)
    queries = operation.on_query(x.repeat_interleave(3, dim=1), inputs)
    assert torch.equal(queries, operation.on_key(x, inputs).repeat_interleave(3, dim=1))
