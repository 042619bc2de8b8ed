"""Generation with decoders of transformers, and texts whose positions are given."""

from typing import Any

import pytest
import torch
import transformers

from tests.hosts.cases import hosts, outputs_of, random_tokens, tiny_model

DECODERS = hosts("decoder")
WAYS = ["seqpe_bias", "seqpe_mul", "alibi", "rope"]
"""One encoding for each way positions enter attention."""
every_way = pytest.mark.parametrize("encoding", WAYS)
LENGTHS = {"max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0}


def greedy(model: Any, tokens: torch.Tensor, count: int = 8, **given: Any) -> torch.Tensor:
    """Greedy decoding without a cache, one row."""
    for _ in range(count):
        logits = outputs_of(model, tokens, use_cache=False, **given)[:, -1]
        logits[:, [0, 1, 2]] = -torch.inf
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens


def generate(model: Any, tokens: torch.Tensor, **given: Any) -> torch.Tensor:
    return model.generate(tokens, do_sample=False, suppress_tokens=[0, 1, 2], **{**LENGTHS, **given})


@every_way
@pytest.mark.parametrize("host", DECODERS)
def test_greedy_generation_with_a_cache(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(1, 14)
    assert torch.equal(generate(model, tokens), greedy(model, tokens))


@every_way
@pytest.mark.parametrize("host", DECODERS)
def test_left_padded_batch_generates_as_single_rows(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 14)
    mask = torch.ones_like(tokens)
    mask[0, :5] = tokens[0, :5] = 0
    batch = generate(model, tokens, attention_mask=mask)
    assert torch.equal(batch[0, 5:], greedy(model, tokens[:1, 5:])[0])
    assert torch.equal(batch[1], greedy(model, tokens[1:])[0])


@every_way
@pytest.mark.parametrize("host", DECODERS)
def test_static_cache(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 14)
    mask = torch.ones_like(tokens)
    mask[0, :5] = tokens[0, :5] = 0
    static = generate(model, tokens, attention_mask=mask, cache_implementation="static", disable_compile=True)
    assert torch.equal(static, generate(model, tokens, attention_mask=mask))


@every_way
@pytest.mark.parametrize("host", DECODERS)
def test_beams(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 14)
    mask = torch.ones_like(tokens)
    mask[0, :5] = tokens[0, :5] = 0
    cached = generate(model, tokens, attention_mask=mask, num_beams=3)
    assert torch.equal(cached, generate(model, tokens, attention_mask=mask, num_beams=3, use_cache=False))


@every_way
@pytest.mark.parametrize("host", [name for name in DECODERS if name != "gemma3_text"])
def test_assisted_generation(host: str, encoding: str) -> None:
    model, assistant, tokens = tiny_model(host, encoding), tiny_model(host, "nope"), random_tokens(1, 14)
    assert torch.equal(generate(model, tokens, assistant_model=assistant), greedy(model, tokens))


@every_way
@pytest.mark.parametrize("host", ["llama", "qwen3", "gpt2"])
def test_packed_rows_equal_single_texts(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(1, 20)
    ids = torch.cat([torch.arange(8), torch.arange(12)])[None]
    packed = outputs_of(model, tokens, position_ids=ids, use_cache=False)
    torch.testing.assert_close(packed[:, :8], outputs_of(model, tokens[:, :8]), atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(packed[:, 8:], outputs_of(model, tokens[:, 8:]), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("encoding", [*WAYS, "ape_learn"])
@pytest.mark.parametrize("host", ["llama", "gemma3_text", "gpt2"])
def test_positions_with_gaps_and_a_cache(host: str, encoding: str) -> None:
    model, tokens = tiny_model(host, encoding), random_tokens(2, 12)
    ids = torch.tensor([[0, 1, 2, 5, 6, 9, 10, 11, 30, 31, 40, 41]])
    full = outputs_of(model, tokens, position_ids=ids, use_cache=False)
    with torch.no_grad():
        first = model(tokens[:, :7], position_ids=ids[:, :7], use_cache=True)
        rest = model(tokens[:, 7:], position_ids=ids[:, 7:], past_key_values=first.past_key_values)
    torch.testing.assert_close(first.logits, full[:, :7], atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(rest.logits, full[:, 7:], atol=2e-5, rtol=1e-5)
    if encoding in ("seqpe_bias", "alibi"):
        assert (full - outputs_of(model, tokens)).abs().max() > 1e-4


@pytest.mark.parametrize("encoding", ["alibi", "rope"])
@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_decoding_reads_no_values_from_a_device(kind: str, padding: bool, encoding: str) -> None:
    """Tensors of the meta device have no values: whatever asks for one raises an error."""
    model, mask = tiny_model("llama", encoding), torch.ones(2, 32, dtype=torch.long)
    model.set_attn_implementation("eager")  # transformers reads a padding mask for sdpa
    mask[0, :3] = 1 - int(padding)
    given = {"past_key_values": transformers.DynamicCache(config=model.config), "use_cache": True}
    if kind == "static":
        given["past_key_values"] = transformers.StaticCache(config=model.config, max_cache_len=32)
    cache = given["past_key_values"]
    with torch.no_grad():
        model(random_tokens(2, 8), attention_mask=mask[:, :8], **given)
        model.to("meta")
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys.to("meta"), layer.values.to("meta")
            if kind == "static":
                layer.cumulative_length, layer.device = (
                    layer.cumulative_length.to("meta"),
                    torch.device("meta"),
                )
        for length in (9, 10):
            given["attention_mask"] = mask[:, :length].to("meta") if padding else None
            logits = model(torch.ones(2, 1, dtype=torch.long, device="meta"), **given).logits
    assert logits.shape == (2, 1, 128)


def test_first_positions_of_a_given_cache_are_those_of_its_text() -> None:
    model, tokens = tiny_model("llama", "seqpe_bias"), random_tokens(1, 12)
    with torch.no_grad():
        cache = model(tokens[:, :9], use_cache=True).past_key_values
    del cache.key_positions
    with pytest.raises(ValueError, match="does not continue the 9 keys of the cache"):
        model(tokens[:, 9:], position_ids=torch.tensor([[20, 21, 22]]), past_key_values=cache)
