"""What every text model of transformers must do with every encoding: written once, run for all hosts."""

import pytest
import torch

import seqpe_zoo
from seqpe_zoo.portable import transformers_host
from tests.hosts.cases import (
    ENCODINGS,
    hosts,
    kind_of,
    largest_difference,
    native_model,
    one_layer,
    outputs_of,
    random_tokens,
    tiny_model,
)

DECODERS, TEXT_ENCODERS = hosts("decoder"), hosts("text encoder")
IN_ATTENTION = [name for name in ENCODINGS if name not in ("seqpe_input", "ape_learn", "nope")]
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def skip_unsuitable(host: str, encoding: str) -> None:
    if encoding == "alibi" and kind_of(host) != "decoder":
        pytest.skip("ALiBi needs causal attention")


@every_encoding
@pytest.mark.parametrize("host", DECODERS)
def test_cached_forward_equals_full_forward(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 24)
    full = outputs_of(model, tokens)
    with torch.no_grad():
        parts = [model(tokens[:, :13], use_cache=True)]
        for piece in (tokens[:, 13:20], *tokens[:, 20:].split(1, dim=1)):
            parts.append(model(piece, past_key_values=parts[-1].past_key_values, use_cache=True))
    torch.testing.assert_close(torch.cat([part.logits for part in parts], dim=1), full, atol=2e-5, rtol=1e-5)


@every_encoding
@pytest.mark.parametrize("host", DECODERS + TEXT_ENCODERS)
def test_left_padded_batch_equals_single_rows(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding), random_tokens(2, 20)
    mask = torch.ones_like(tokens)
    mask[0, :6] = tokens[0, :6] = 0
    batch = outputs_of(model, tokens, attention_mask=mask)
    torch.testing.assert_close(batch[:1, 6:], outputs_of(model, tokens[:1, 6:]), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(batch[1:], outputs_of(model, tokens[1:]), atol=2e-5, rtol=1e-5)


@every_encoding
@pytest.mark.parametrize("host", DECODERS)
def test_one_decoder_layer_sees_order_by_the_encoding_alone(host: str, encoding: str) -> None:
    """The last output of one layer changes with the order of the tokens before it by positions alone."""
    model, tokens = tiny_model(host, encoding, **one_layer(host)), random_tokens(2, 12)
    order = torch.cat([torch.arange(11).flip(0), torch.tensor([11])])
    moved = largest_difference(outputs_of(model, tokens[:, order])[:, -1], outputs_of(model, tokens)[:, -1])
    assert moved < 1e-5 if encoding == "nope" else moved > 1e-4


@every_encoding
@pytest.mark.parametrize("host", TEXT_ENCODERS)
def test_text_encoder_sees_order_by_the_encoding_alone(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding), random_tokens(2, 12)
    order = torch.randperm(12)
    moved = largest_difference(outputs_of(model, tokens[:, order]), outputs_of(model, tokens)[:, order])
    assert moved < 1e-5 if encoding == "nope" else moved > 1e-4


@every_encoding
@pytest.mark.parametrize("host", DECODERS + TEXT_ENCODERS)
def test_shift_of_all_positions(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding), random_tokens(2, 16)
    if "position_ids" not in model.argument_names:
        pytest.skip("the model takes no position_ids")
    shifted = outputs_of(model, tokens, position_ids=torch.arange(16)[None] + 9)
    moved = largest_difference(shifted, outputs_of(model, tokens))
    assert moved < 1e-4 if encoding in ("rope", "alibi", "nope") else moved > 1e-4


@every_encoding
@pytest.mark.parametrize("host", DECODERS + TEXT_ENCODERS)
def test_text_longer_than_the_training_texts(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding), random_tokens(1, 100)
    assert outputs_of(model, tokens).isfinite().all()


@every_encoding
@pytest.mark.parametrize("host", DECODERS + TEXT_ENCODERS)
def test_gradients_reach_every_position_parameter(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding).train(), random_tokens(2, 16)
    if kind_of(host) == "decoder":
        loss = model(tokens, labels=tokens).loss
    else:
        loss = model(tokens).last_hidden_state.square().mean()
    loss.backward()
    for name, parameter in model.position_host.position_encoding.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize("encoding", ["seqpe_bias", "seqpe_mul", "seqpe_sum", "seqpe_input"])
@pytest.mark.parametrize("host", [name for name in DECODERS + TEXT_ENCODERS if name != "gpt2"])
def test_kept_positions_start_as_they_were_and_learn(host: str, encoding: str) -> None:
    native, tokens = native_model(host), random_tokens(2, 16)
    expected = outputs_of(native, tokens)
    model = seqpe_zoo.set_position_encoding(native, keep_native=True, **ENCODINGS[encoding])
    torch.testing.assert_close(outputs_of(model, tokens), expected, atol=1e-5, rtol=1e-5)
    parameters = dict(model.position_host.position_encoding.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    optimizer = torch.optim.Adam(parameters.values(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(tokens)
        (outputs.logits if "logits" in outputs else outputs.last_hidden_state).square().mean().backward()
        optimizer.step()
    unchanged = [name for name, parameter in parameters.items() if torch.equal(parameter, before[name])]
    assert unchanged == []


@pytest.mark.parametrize("host", [name for name in DECODERS if name != "gpt2"])
def test_kept_positions_and_an_encoding_with_a_cache_and_padding(host: str) -> None:
    model, tokens = tiny_model(host, "seqpe_bias", keep_native=True), random_tokens(2, 20)
    native = native_model(host)
    native.load_state_dict(model.state_dict(), strict=False)
    assert largest_difference(outputs_of(model, tokens), outputs_of(native, tokens)) > 1e-3
    mask = torch.ones_like(tokens)
    mask[0, :6] = tokens[0, :6] = 0
    ids = (mask.cumsum(1) - 1).clamp(min=0)
    full = outputs_of(model, tokens, attention_mask=mask, position_ids=ids)
    torch.testing.assert_close(full[:1, 6:], outputs_of(model, tokens[:1, 6:]), atol=2e-5, rtol=1e-5)
    with torch.no_grad():
        cache = model(tokens[:, :12], attention_mask=mask[:, :12], position_ids=ids[:, :12], use_cache=True)
        rest = model(
            tokens[:, 12:],
            attention_mask=mask,
            position_ids=ids[:, 12:],
            past_key_values=cache.past_key_values,
        )
    torch.testing.assert_close(rest.logits, full[:, 12:], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("host", ["llama", "qwen3", "gemma3_text"])
def test_set_and_from_config_give_the_same_model(host: str) -> None:
    tokens = random_tokens(2, 12)
    built = tiny_model(host, "seqpe_bias")
    changed = seqpe_zoo.set_position_encoding(native_model(host), **ENCODINGS["seqpe_bias"])
    assert type(changed) is type(built)
    assert changed.config.to_dict() == built.config.to_dict()
    missing = changed.load_state_dict(built.state_dict())
    assert not missing.missing_keys
    torch.testing.assert_close(outputs_of(changed, tokens), outputs_of(built, tokens), atol=0, rtol=0)


@pytest.mark.parametrize("wider_heads", [False, True])
@pytest.mark.parametrize(
    "host", ["gpt2", "llama", "opt", *(pytest.param(h, marks=pytest.mark.slow) for h in ("granite", "gemma"))]
)
def test_alibi_adds_its_slopes_to_the_scaled_scores(
    host: str, wider_heads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a model multiplies its scores by, and wherever: softmax(scores - slope * distance)."""
    model, tokens = tiny_model(host, "nope", **one_layer(host)), random_tokens(2, 12)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(tokens, output_attentions=True).attentions[0]
        changed = tiny_model(host, "alibi", **one_layer(host))
        changed.set_attn_implementation("eager")
        if wider_heads:
            monkeypatch.setattr(transformers_host, "fits_in_mask", lambda *args: False)
        found = changed(tokens, output_attentions=True).attentions[0]
    slopes = 2.0 ** (-8 * torch.arange(1, 5) / 4)
    distance = torch.arange(12)[:, None] - torch.arange(12)
    expected = plain * torch.exp(-slopes[:, None, None] * distance.clamp(min=0))
    expected = expected / expected.sum(-1, keepdim=True)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("encoding", IN_ATTENTION)
@pytest.mark.parametrize("host", DECODERS + TEXT_ENCODERS)
def test_eager_equals_sdpa(host: str, encoding: str) -> None:
    skip_unsuitable(host, encoding)
    model, tokens = tiny_model(host, encoding), random_tokens(2, 20)
    mask = torch.ones_like(tokens)
    mask[0, :6] = tokens[0, :6] = 0
    found = {}
    for implementation in ("eager", "sdpa"):
        try:
            model.set_attn_implementation(implementation)
        except ValueError:
            pytest.skip(f"the model does not support {implementation}")
        found[implementation] = outputs_of(model, tokens, attention_mask=mask)
    torch.testing.assert_close(found["eager"][0, 6:], found["sdpa"][0, 6:], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(found["eager"][1], found["sdpa"][1], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", IN_ATTENTION)
@pytest.mark.parametrize("host", DECODERS)
def test_bfloat16_stays_close_to_float32(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 20)
    mask = torch.ones_like(tokens)
    mask[0, :6] = tokens[0, :6] = 0
    expected = outputs_of(model, tokens, attention_mask=mask)[:, 6:]
    rounded = outputs_of(model.bfloat16(), tokens, attention_mask=mask)
    assert rounded.isfinite().all()
    error = (rounded[:, 6:].float() - expected).norm() / expected.norm()
    assert error < 0.15
