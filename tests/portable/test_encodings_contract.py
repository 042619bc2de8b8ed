"""What every position encoding of the registry promises, in one and in two dimensions."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from seqpe_zoo import build_position_encoding, list_position_encodings
from seqpe_zoo.portable.attention import attend, score_bias, widen_heads
from seqpe_zoo.portable.encodings import ALiBi, alibi_slopes
from seqpe_zoo.portable.encodings import POSITION_ENCODINGS

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


def attention_scores(pe, prepared, layer, q, k):
    stage = pe.make_stage()
    q, k = stage.on_query_key(q, k, prepared.layers[layer])
    scores = q @ k.transpose(-2, -1)
    factors = stage.score_factors(prepared.layers[layer], prepared.layers[layer])
    assert (factors is not None) == stage.has_scores
    return scores if factors is None else scores + factors[0] @ factors[1].transpose(-2, -1)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_stages_keep_shapes_and_every_parameter_is_used(name, options, num_dims):
    pe = build(name, options, num_dims, num_prefix=2 if num_dims == 2 else 0)
    size, prefix = ((6,), 0) if num_dims == 1 else ((3, 4), 2)
    length = math.prod(size) + prefix
    prepared = pe.prepare_grid(size, num_prefix=prefix)
    x = pe.on_input(torch.randn(2, length, 16), prepared.encoded)
    total = x.square().sum()
    for layer in range(3):
        q, k = torch.randn(2, 2, 2, length, 8)
        scores = attention_scores(pe, prepared, layer, q, k)
        assert scores.shape == (2, 2, length, length)
        total = total + scores.square().sum()
    assert x.shape == (2, length, 16)
    total.backward() if total.requires_grad else None
    assert all(parameter.grad is not None for parameter in pe.parameters())


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_a_larger_context_runs(name, options, num_dims):
    pe = build(name, options, num_dims)
    size = (24,) if num_dims == 1 else (9, 7)
    prepared = pe.prepare_grid(size)
    assert prepared.encoded.shape[0] == math.prod(size)
    assert all(torch.isfinite(terms).all() for terms in prepared.layers)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1))
def test_a_range_equals_explicit_positions(name, options, num_dims):
    pe = build(name, options, num_dims)
    with torch.no_grad():
        implicit = pe.prepare_range(2, 6)
        explicit = pe.prepare(torch.arange(2, 6)[None, :, None].expand(2, -1, -1))
    for a, b in zip(implicit.layers, explicit.layers):
        torch.testing.assert_close(a.expand_as(b), b)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1))
@pytest.mark.parametrize("start", [1, 40])
def test_shift_changes_nothing_for_relative_encodings(name, options, num_dims, start):
    pe = build(name, options, num_dims)
    q, k = torch.randn(2, 1, 2, 5, 8)
    with torch.no_grad():
        probabilities = [
            attention_scores(pe, pe.prepare_range(first, first + 5), 1, q, k).softmax(-1)
            for first in (0, start)
        ]
    same = torch.allclose(*probabilities, atol=1e-5)
    in_attention = name not in ("nope", "ape_sin", "ape_learn") and options.get("integration") != "input"
    assert same == (name in ("rope", "alibi") or not in_attention)


@given(name=st.sampled_from(["rope", "alibi"]), start=st.integers(0, 60_000), length=st.integers(2, 12))
def test_shift_is_a_no_op_for_rope_and_alibi(name, start, length):
    pe = build(name, {}, num_dims=1).double()
    q, k = torch.randn(2, 1, 2, length, 8, dtype=torch.float64)
    here, there = (
        attention_scores(pe, pe.prepare_range(first, first + length), 0, q, k).softmax(-1)
        for first in (0, start)
    )
    # Angles are float32: an angle of 60,000 radians is known to 0.004.
    torch.testing.assert_close(there, here, atol=1e-6 + 2e-6 * start, rtol=0)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_construction_on_the_meta_device(name, options, num_dims):
    pe = build(name, options, num_dims)
    arguments = {"num_heads": 2, "num_layers": 3, "num_dims": num_dims, "causal": num_dims == 1}
    with torch.device("meta"):
        twin = build_position_encoding(name, 16, train_shape=pe.train_shape, **arguments, **options)
    assert all(parameter.is_meta for parameter in twin.parameters())
    twin.to_empty(device="cpu").load_state_dict(pe.state_dict())
    size = (6,) if num_dims == 1 else (3, 4)
    for a, b in zip(twin.eval().prepare_grid(size).layers, pe.prepare_grid(size).layers):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_bfloat16_stays_close(name, options, num_dims):
    pe = build(name, options, num_dims)
    size = (6,) if num_dims == 1 else (3, 4)
    exact = pe.prepare_grid(size)
    rounded = copy.deepcopy(pe).to(torch.bfloat16).prepare_grid(size)
    for a, b in zip(rounded.layers, exact.layers):
        torch.testing.assert_close(a.float(), b, atol=0.1, rtol=0.1)


@pytest.mark.parametrize(("name", "options", "num_dims"), cases_for(1, 2))
def test_encodings_can_be_scripted(name, options, num_dims):
    class Host(torch.nn.Module):
        def __init__(self, pe):
            super().__init__()
            self.pe = pe
            self.stage = pe.make_stage()

        def forward(self, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            prepared = self.pe.prepare(positions, 0, [int(positions.max()) + 1] * positions.shape[-1])
            terms = prepared.layers[1]
            q, k = self.stage.on_query_key(q, k, terms)
            scores = q @ k.transpose(-2, -1)
            factors = self.stage.score_factors(terms, terms)
            if factors is not None:
                scores = scores + factors[0] @ factors[1].transpose(-2, -1)
            return scores

    pe = build(name, options, num_dims)
    host = Host(pe).eval()
    positions = pe.grid((6,) if num_dims == 1 else (3, 4), (0,) * num_dims)
    q, k = torch.randn(2, 1, 2, len(positions), 8)
    torch.testing.assert_close(
        torch.jit.script(host)(positions, q, k), host(positions, q, k), atol=1e-4, rtol=1e-4
    )


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
        (lambda: build_position_encoding("seqpe", 16, temperature=0), ValueError, "must be positive"),
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
    q, k = torch.randn(2, 1, 2, 5, 8)
    rotated, _ = pe.make_stage().on_query_key(q, k, pe.prepare_range(3, 8).layers[0])
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
    terms = pe.prepare_range(0, 300).layers[0]
    bias = score_bias(pe.make_stage().score_factors(terms, terms), 8**-0.5, torch.float32)
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
    torch.testing.assert_close(image.prepare_grid((6, 8)).encoded, expected)


def test_learned_rows_are_untouched_within_the_training_context():
    pe = build("ape_learn", {}, num_dims=1)
    assert torch.equal(pe.prepare_range(1, 4).encoded, pe.weight[1:4])


def test_interpolating_seqpe_stretches_the_trained_vectors():
    pe = build("seqpe", {"extrapolation": "interpolate"}, num_dims=2)
    with torch.no_grad():
        trained = pe.encoder(pe.grid((3, 4), (0, 0)))
        expected = (
            F.interpolate(trained.t().reshape(1, 16, 3, 4), size=(6, 8), mode="bicubic").flatten(2)[0].t()
        )
        torch.testing.assert_close(pe.prepare_grid((6, 8)).encoded, expected, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(pe.prepare_grid((3, 4)).encoded, trained, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("largest", [0, 2**40], ids=["widened heads", "bias matrix"])
@pytest.mark.parametrize("masking", ["none", "causal", "bool", "additive"])
def test_attention_with_factors_is_the_formula(monkeypatch, largest, masking):
    monkeypatch.setattr("seqpe_zoo.portable.attention.LARGEST_BIAS", largest)
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    factors = (torch.randn(2, 5, 3), torch.randn(1, 5, 3))
    scores = (q @ k.transpose(-2, -1) + factors[0] @ factors[1].transpose(-2, -1)) / 8**0.5
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    mask = {"bool": allowed, "additive": torch.where(allowed, 0.0, -torch.inf)}.get(masking)
    if masking != "none":
        scores = scores.masked_fill(~allowed, -torch.inf)
    ours = attend(q, k, v, factors, mask, is_causal=masking == "causal")
    torch.testing.assert_close(ours, scores.softmax(-1) @ v, atol=1e-5, rtol=1e-5)


def test_widened_heads_have_one_width_that_kernels_like():
    q, k, v = torch.randn(3, 2, 2, 5, 8)
    wide = widen_heads(q, k, v, (torch.randn(2, 5, 3), torch.randn(1, 5, 3)))
    assert {tensor.shape[-1] for tensor in wide} == {16}
