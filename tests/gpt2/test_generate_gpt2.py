"""All ways to generate, for every encoding: each must agree with decoding without a cache."""

import pytest
import torch
from transformers import DynamicCache, StaticCache

from tests.gpt2.cases import ENCODINGS, pad_left, random_tokens, tiny_model

all_encodings = pytest.mark.parametrize("case", ENCODINGS)
NEW = 8


def generate(model, tokens, **kwargs):
    kwargs = {"max_new_tokens": NEW, "min_new_tokens": NEW, "do_sample": False, "pad_token_id": 0, **kwargs}
    return model.generate(tokens, **kwargs)


@torch.no_grad()
def greedy_without_cache(model, tokens, start: int = 0):
    """Greedy decoding by full forward passes; token 0 ends a text and is not allowed, as in `generate`."""
    for _ in range(NEW):
        positions = torch.arange(start, start + tokens.shape[1]).unsqueeze(0)
        logits = model(tokens, position_ids=positions, use_cache=False).logits[:, -1]
        logits[:, 0] = float("-inf")
        tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
    return tokens


@all_encodings
def test_greedy_generation_equals_full_forwards(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(3, 6)
    expected = greedy_without_cache(model, tokens)
    assert torch.equal(generate(model, tokens), expected)
    assert torch.equal(generate(model, tokens, use_cache=False), expected)
    assert torch.equal(generate(model, tokens, cache_implementation="static"), expected)


@all_encodings
def test_generated_scores_equal_full_forward(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    output = generate(model, tokens, output_logits=True, return_dict_in_generate=True)
    with torch.no_grad():
        full = model(output.sequences).logits[:, 5:-1]
    torch.testing.assert_close(torch.stack(output.logits, dim=1), full, atol=2e-5, rtol=1e-4)


@all_encodings
@pytest.mark.parametrize("cache", [None, "static"])
def test_left_padded_generation_equals_single_rows(case: str, cache: str | None) -> None:
    model, (tokens, mask) = tiny_model(case), pad_left(random_tokens(3, 9), [0, 2, 5])
    together = generate(model, tokens, attention_mask=mask, cache_implementation=cache)
    for row, zeros in enumerate([0, 2, 5]):
        alone = generate(model, tokens[row : row + 1, zeros:])
        assert torch.equal(together[row, zeros:], alone[0])


@all_encodings
def test_left_padded_beams_equal_single_rows(case: str) -> None:
    model, (tokens, mask) = tiny_model(case), pad_left(random_tokens(2, 9), [0, 4])
    together = generate(model, tokens, attention_mask=mask, num_beams=3)
    for row, zeros in enumerate([0, 4]):
        assert torch.equal(
            together[row, zeros:], generate(model, tokens[row : row + 1, zeros:], num_beams=3)[0]
        )


@all_encodings
def test_beams_are_the_same_with_and_without_cache(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    expected = generate(model, tokens, num_beams=4, use_cache=False)
    assert torch.equal(generate(model, tokens, num_beams=4), expected)
    assert torch.equal(generate(model, tokens, num_beams=4, cache_implementation="static"), expected)


@all_encodings
def test_sampling_is_the_same_with_and_without_cache(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    sampled = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        sampled.append(generate(model, tokens, do_sample=True, top_k=20, use_cache=use_cache))
    assert torch.equal(*sampled)


@all_encodings
def test_assisted_generation_equals_greedy(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 6)
    assistant = tiny_model(case, n_layer=1)
    assert torch.equal(generate(model, tokens, assistant_model=assistant), generate(model, tokens))


@all_encodings
def test_prompt_lookup_equals_greedy(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 4).repeat(1, 3)
    assert torch.equal(generate(model, tokens, prompt_lookup_num_tokens=3), generate(model, tokens))


@all_encodings
def test_generation_from_a_shifted_start(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    positions = torch.arange(30, 36).expand(2, -1)
    assert torch.equal(
        generate(model, tokens, position_ids=positions), greedy_without_cache(model, tokens, 30)
    )


@all_encodings
def test_generation_continues_a_cache(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 10)
    expected = generate(model, tokens)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=32)):
        with torch.no_grad():
            model(tokens[:, :6], past_key_values=cache, use_cache=True)
        assert torch.equal(generate(model, tokens, past_key_values=cache), expected)


@all_encodings
def test_generation_from_embeddings_equals_tokens(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    embedded = model.get_input_embeddings()(tokens)
    output = model.generate(
        inputs_embeds=embedded, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0
    )
    assert torch.equal(output, generate(model, tokens)[:, 6:])


@pytest.mark.parametrize("case", ["alibi", "seqpe_bias_shared", "seqpe_mul_shared"])
def test_long_generation_leaves_the_training_context(case: str) -> None:
    model, tokens = tiny_model(case, n_positions=16), random_tokens(1, 12)
    generated = generate(model, tokens, max_new_tokens=40, min_new_tokens=40)
    assert generated.shape == (1, 52)
    with torch.no_grad():
        logits = model(generated[:, :-1]).logits[:, 11:]
    logits[..., 0] = float("-inf")
    assert torch.equal(logits.argmax(-1), generated[:, 12:])


@pytest.mark.parametrize("case", ["alibi", "seqpe_bias_shared", "seqpe_bias_per_layer"])
def test_generation_with_eager_attention_and_attentions(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 6)
    expected = generate(model, tokens)
    model.set_attn_implementation("eager")
    output = generate(model, tokens, output_attentions=True, return_dict_in_generate=True)
    assert torch.equal(output.sequences, expected)
    assert tuple(output.attentions[-1][0].shape) == (2, model.config.n_head, 1, 6 + NEW - 1)
