"""What holds for every encoding in GPT-2: positions, caches, padding, precision, saving, gradients."""

import pytest
import torch
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel, StaticCache

from seqpe_zoo import build_position_encoding
from seqpe_zoo.portable import transformers_host
from seqpe_zoo.portable.encoder import PositionEncoder
from seqpe_zoo.portable.encodings import alibi_slopes
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel, SeqPEGPT2Model
from seqpe_zoo.portable.position_encoding import position_scores
from tests.gpt2.cases import ENCODINGS, pad_left, random_tokens, tiny_config, tiny_model

CLOSE = {"atol": 2e-5, "rtol": 1e-4}
all_encodings = pytest.mark.parametrize("case", ENCODINGS)


def step_by_step(model, tokens, cache, mask=None, start=None):
    """Logits of tokens fed one by one through a cache."""
    logits = []
    for place in range(tokens.shape[1]):
        output = model(
            tokens[:, place : place + 1],
            attention_mask=None if mask is None else mask[:, : place + 1],
            position_ids=None if start is None else torch.full((tokens.shape[0], 1), start + place),
            past_key_values=cache,
            use_cache=True,
        )
        cache = output.past_key_values
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


@all_encodings
@torch.no_grad()
def test_implicit_positions_equal_explicit_ones(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 9)
    explicit = model(tokens, position_ids=torch.arange(9).expand(2, -1)).logits
    one_row = model(tokens, position_ids=torch.arange(9).unsqueeze(0)).logits
    masked = model(tokens, attention_mask=torch.ones_like(tokens)).logits
    for logits in (explicit, one_row, masked):
        torch.testing.assert_close(logits, model(tokens).logits, **CLOSE)


@pytest.mark.parametrize("case", [case for case in ENCODINGS if case != "nope"])
@torch.no_grad()
def test_positions_matter(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 12)
    stretched = model(tokens, position_ids=torch.arange(0, 36, 3).unsqueeze(0)).logits
    assert (stretched - model(tokens).logits).abs().max() > 1e-3


@pytest.mark.parametrize("case", ["nope", "rope", "alibi"])
@torch.no_grad()
def test_relative_encodings_ignore_the_start(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    shifted = model(tokens, position_ids=torch.arange(30, 42).unsqueeze(0)).logits
    torch.testing.assert_close(shifted, model(tokens).logits, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("case", [case for case in ENCODINGS if case not in ("nope", "rope", "alibi")])
@torch.no_grad()
def test_absolute_encodings_see_the_start(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    shifted = model(tokens, position_ids=torch.arange(30, 42).unsqueeze(0)).logits
    assert (shifted - model(tokens).logits).abs().max() > 1e-3


@all_encodings
@pytest.mark.parametrize("start", [None, 0, 17, 40])
@torch.no_grad()
def test_steps_through_a_cache_equal_the_full_forward(case: str, start: int | None) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 10)
    position_ids = None if start is None else torch.arange(start, start + 10).unsqueeze(0)
    full = model(tokens, position_ids=position_ids).logits
    torch.testing.assert_close(step_by_step(model, tokens, None, start=start), full, **CLOSE)


@all_encodings
@torch.no_grad()
def test_steps_through_a_cache_of_fixed_size_equal_the_full_forward(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 10)
    cache = StaticCache(config=model.config, max_cache_len=16)
    torch.testing.assert_close(step_by_step(model, tokens, cache), model(tokens).logits, **CLOSE)


@all_encodings
@torch.no_grad()
def test_chunks_through_a_cache_equal_the_full_forward(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=20)):
        parts = [
            model(chunk, past_key_values=cache, use_cache=True).logits
            for chunk in tokens.split([5, 4, 3], dim=1)
        ]
        torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens).logits, **CLOSE)


@all_encodings
@torch.no_grad()
def test_cropped_cache_continues_where_it_was_cut(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 10)
    cache = model(random_tokens(1, 4), use_cache=True).past_key_values
    cache.crop(-4)
    cache = model(tokens[:, :6], past_key_values=cache, use_cache=True).past_key_values
    cache = model(random_tokens(1, 3), past_key_values=cache, use_cache=True).past_key_values
    cache.crop(-3)
    logits = model(tokens[:, 6:], past_key_values=cache, use_cache=True).logits
    torch.testing.assert_close(logits, model(tokens).logits[:, 6:], **CLOSE)


@all_encodings
@torch.no_grad()
def test_left_padded_batch_equals_single_rows(case: str) -> None:
    model, (tokens, mask) = tiny_model(case), pad_left(random_tokens(3, 12), [0, 3, 7])
    logits = model(tokens, attention_mask=mask).logits
    for row, zeros in enumerate([0, 3, 7]):
        alone = model(tokens[row : row + 1, zeros:]).logits[0]
        torch.testing.assert_close(logits[row, zeros:], alone, **CLOSE)


@all_encodings
@pytest.mark.parametrize("kind", ["dynamic", "static"])
@torch.no_grad()
def test_left_padded_batch_equals_single_rows_through_a_cache(case: str, kind: str) -> None:
    model, (tokens, mask) = tiny_model(case), pad_left(random_tokens(3, 12), [0, 3, 5])
    cache = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=15)
    first = model(tokens[:, :7], attention_mask=mask[:, :7], past_key_values=cache, use_cache=True).logits
    second = model(tokens[:, 7:10], attention_mask=mask[:, :10], past_key_values=cache, use_cache=True).logits
    steps = [
        model(
            tokens[:, i : i + 1], attention_mask=mask[:, : i + 1], past_key_values=cache, use_cache=True
        ).logits
        for i in (10, 11)
    ]
    logits = torch.cat([first, second, *steps], dim=1)
    for row, zeros in enumerate([0, 3, 5]):
        alone = model(tokens[row : row + 1, zeros:]).logits[0]
        torch.testing.assert_close(logits[row, zeros:], alone, **CLOSE)


@all_encodings
@torch.no_grad()
def test_right_padding_changes_nothing(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 12)
    mask = torch.ones_like(tokens)
    mask[:, 9:] = 0
    padded = model(tokens, attention_mask=mask).logits[:, :9]
    torch.testing.assert_close(padded, model(tokens[:, :9]).logits, **CLOSE)


@all_encodings
@torch.no_grad()
def test_mask_of_four_dimensions_works(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 8)
    mask = torch.ones(8, 8, dtype=torch.bool).tril().expand(2, 1, 8, 8)
    torch.testing.assert_close(model(tokens, attention_mask=mask).logits, model(tokens).logits, **CLOSE)


@all_encodings
@pytest.mark.parametrize("cached", [False, True])
@torch.no_grad()
def test_branches_in_one_row_equal_separate_continuations(case: str, cached: bool) -> None:
    model, begun, branches = tiny_model(case), random_tokens(1, 3), random_tokens(2, 2)
    tokens = torch.cat([begun, branches.reshape(1, 4)], dim=1)
    positions = torch.tensor([[0, 1, 2, 3, 4, 3, 4]])
    mask = torch.ones(7, 7, dtype=torch.bool).tril()
    mask[5:, 3:5] = False
    if cached:
        cache = model(begun, use_cache=True).past_key_values
        logits = model(
            tokens[:, 3:],
            attention_mask=mask[None, None, 3:],
            position_ids=positions[:, 3:],
            past_key_values=cache,
        ).logits
    else:
        logits = model(tokens, attention_mask=mask[None, None], position_ids=positions).logits[:, 3:]
    for branch in range(2):
        alone = model(torch.cat([begun, branches[branch : branch + 1]], dim=1)).logits[:, 3:]
        torch.testing.assert_close(logits[:, 2 * branch : 2 * branch + 2], alone, **CLOSE)


@all_encodings
@torch.no_grad()
def test_packed_texts_equal_separate_texts(case: str) -> None:
    model, first, second = tiny_model(case), random_tokens(1, 5), random_tokens(1, 7)
    positions = torch.cat([torch.arange(5), torch.arange(7)]).unsqueeze(0)
    packed = model(torch.cat([first, second], dim=1), position_ids=positions, use_cache=False).logits
    separate = torch.cat([model(first).logits, model(second).logits], dim=1)
    torch.testing.assert_close(packed, separate, **CLOSE)


@torch.no_grad()
def test_positions_with_gaps_are_one_text() -> None:
    """transformers takes any jump of position_ids for another text."""
    model, tokens = tiny_model("nope"), random_tokens(2, 6)
    gaps = torch.tensor([[0, 2, 5, 9, 30, 31]])
    torch.testing.assert_close(
        model(tokens, position_ids=gaps, use_cache=False).logits, model(tokens).logits, **CLOSE
    )


@all_encodings
@torch.no_grad()
def test_all_roads_of_attention_agree(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (tokens, mask) = tiny_model(case), pad_left(random_tokens(2, 12), [0, 4])
    shown = mask.bool()
    expected = model(tokens, attention_mask=mask).logits[shown]
    monkeypatch.setattr(transformers_host, "MAX_SCORE_MASK", 0)
    torch.testing.assert_close(model(tokens, attention_mask=mask).logits[shown], expected, **CLOSE)
    torch.testing.assert_close(model(tokens).logits[0], model(tokens[:1], attention_mask=mask[:1]).logits[0])
    steps = step_by_step(model, tokens, None, mask)
    torch.testing.assert_close(steps[shown], expected, **CLOSE)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(tokens, attention_mask=mask).logits[shown], expected, **CLOSE)


@all_encodings
@torch.no_grad()
def test_context_far_beyond_training_runs(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(1, 200)
    full = model(tokens).logits
    assert torch.isfinite(full).all()
    if case == "ape_learn":
        return  # its rows are stretched over the whole context, which a step does not know
    cache = model(tokens[:, :190], use_cache=True).past_key_values
    last = model(tokens[:, 190:], past_key_values=cache).logits
    torch.testing.assert_close(last, full[:, 190:], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("hides", [None, "bool", "additive"])
def test_half_precision_tells_neighbours_apart_far_into_a_text(autocast: bool, hides: str | None) -> None:
    """ALiBi's scores of far keys are large numbers, whose neighbours bfloat16 rounds to one."""
    length, heads = 5000, 8
    encoding = build_position_encoding("alibi", 64, num_heads=heads, causal=True)
    terms = encoding.encode(torch.arange(length).unsqueeze(-1))
    shown = length if hides is None else length - 2
    hidden = torch.arange(length) >= shown
    mask = None if hides is None else ~hidden[None, None, None]
    if hides == "additive":
        mask = torch.zeros(1, 1, 1, length, dtype=torch.bfloat16).masked_fill(
            hidden, torch.finfo(torch.bfloat16).min
        )
    factors = encoding.make_operation().score_factors(terms[-1:], terms)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        scores = position_scores(factors, 8**-0.5)
        scores = transformers_host.mask_with_scores(scores, mask, torch.bfloat16)
    assert scores.dtype == torch.bfloat16
    nearest = scores[0, :, 0, shown - 8 : shown].float()
    slopes = torch.tensor(alibi_slopes(heads)).unsqueeze(1)
    torch.testing.assert_close(nearest, slopes * torch.arange(-7.0, 1.0), atol=2e-3, rtol=0.01)


@all_encodings
@torch.no_grad()
def test_bfloat16_stays_close_to_float32(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    expected = model(tokens).logits.log_softmax(-1).exp()
    got = model.to(torch.bfloat16)(tokens).logits
    assert got.dtype == torch.bfloat16
    assert (got.float().log_softmax(-1).exp() - expected).abs().max() < 0.05


@all_encodings
def test_half_precision_of_autocast_trains(case: str) -> None:
    model, tokens = tiny_model(case).train(), random_tokens(2, 12)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = model(tokens, labels=tokens).loss
    loss.backward()
    assert torch.isfinite(loss)


@all_encodings
@torch.no_grad()
def test_saved_model_loads_with_equal_logits(case: str, tmp_path) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    model.save_pretrained(tmp_path)
    loaded, report = SeqPEGPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert loaded.config.to_diff_dict() == model.config.to_diff_dict()
    torch.testing.assert_close(loaded(tokens).logits, model(tokens).logits, atol=0, rtol=0)
    base = SeqPEGPT2Model.from_pretrained(tmp_path)
    torch.testing.assert_close(base(tokens)[0], model.transformer(tokens)[0], atol=0, rtol=0)


@all_encodings
def test_model_built_without_memory_gets_all_its_weights(case: str, tmp_path) -> None:
    """from_pretrained builds on the meta device: nothing computed at construction may be lost."""
    with torch.device("meta"):
        empty = SeqPEGPT2LMHeadModel(tiny_config(case))
    assert all(parameter.is_meta for parameter in empty.parameters())
    model = tiny_model(case)
    model.save_pretrained(tmp_path)
    for name, tensor in SeqPEGPT2LMHeadModel.from_pretrained(tmp_path).state_dict().items():
        torch.testing.assert_close(tensor, model.state_dict()[name], atol=0, rtol=0)


def plain_gpt2() -> GPT2LMHeadModel:
    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, vocab_size=128))


@all_encodings
def test_missing_weights_are_initialised_and_others_are_kept(case: str, tmp_path) -> None:
    donor = plain_gpt2()
    donor.save_pretrained(tmp_path)
    model = SeqPEGPT2LMHeadModel.from_pretrained(tmp_path, config=tiny_config(case))
    torch.testing.assert_close(model.transformer.wte.weight, donor.transformer.wte.weight)
    for name, parameter in model.transformer.position_encoding.named_parameters():
        assert torch.isfinite(parameter).all(), name
        if parameter.ndim == 2:
            assert 0.005 < parameter.std() < 1.0, name


def test_missing_projection_starts_as_its_option_says(tmp_path) -> None:
    plain_gpt2().save_pretrained(tmp_path)
    args = {"integration": "mul", "init": "fan_in"}
    config = tiny_config("nope", position_encoding="seqpe", position_encoding_args=args)
    for model in (
        SeqPEGPT2LMHeadModel.from_pretrained(tmp_path, config=config),
        SeqPEGPT2LMHeadModel(config),
    ):
        wpe = model.transformer.position_encoding
        assert (wpe.projection[0].bias == 1).all()


@all_encodings
def test_gradients_reach_every_parameter(case: str) -> None:
    model, tokens = tiny_model(case).train(), random_tokens(4, 12)
    model(tokens, labels=tokens).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name


def test_reentrant_gradient_checkpointing_is_refused() -> None:
    with pytest.raises(ValueError, match="'use_reentrant': False"):
        tiny_model("seqpe_bias_shared").gradient_checkpointing_enable({"use_reentrant": True})


@all_encodings
def test_gradient_checkpointing_gives_equal_gradients(case: str) -> None:
    tokens, gradients = random_tokens(3, 12), []
    for checkpointing in (False, True):
        model = tiny_model(case).train()
        if checkpointing:
            model.gradient_checkpointing_enable()
            model.enable_input_require_grads()
        torch.manual_seed(3)
        model(tokens, labels=tokens).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(
            gradients[1][name], gradient, msg=lambda text, name=name: f"{name}: {text}"
        )


@all_encodings
@torch.no_grad()
def test_logits_to_keep_selects_places(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    full = model(tokens).logits
    torch.testing.assert_close(model(tokens, logits_to_keep=3).logits, full[:, -3:])
    chosen = torch.tensor([1, 4])
    torch.testing.assert_close(model(tokens, logits_to_keep=chosen).logits, full[:, chosen])


@all_encodings
@torch.no_grad()
def test_embedded_inputs_equal_tokens(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    embedded = model.get_input_embeddings()(tokens)
    torch.testing.assert_close(model(inputs_embeds=embedded).logits, model(tokens).logits)


@all_encodings
@torch.no_grad()
def test_hidden_states_and_attentions_have_standard_shapes(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 12)
    config = model.config
    model.set_attn_implementation("eager")
    output = model(tokens, output_hidden_states=True, output_attentions=True)
    assert [tuple(states.shape) for states in output.hidden_states] == [(2, 12, config.n_embd)] * (
        config.n_layer + 1
    )
    assert [tuple(weights.shape) for weights in output.attentions] == [
        (2, config.n_head, 12, 12)
    ] * config.n_layer
    for weights in output.attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, config.n_head, 12))
        assert weights.triu(1).abs().max() == 0


@all_encodings
@torch.no_grad()
def test_cache_has_standard_shapes(case: str) -> None:
    model = tiny_model(case)
    config, cache = model.config, model(random_tokens(2, 9), use_cache=True).past_key_values
    assert isinstance(cache, DynamicCache)
    for layer in cache.layers:
        assert layer.keys.shape == layer.values.shape == (2, config.n_head, 9, config.n_embd // config.n_head)


@all_encodings
@torch.no_grad()
def test_embeddings_can_be_resized(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 9)
    before = model(tokens).logits
    model.resize_token_embeddings(140)
    after = model(tokens).logits
    assert after.shape[-1] == model.config.vocab_size == 140
    assert model.lm_head.weight is model.transformer.wte.weight
    torch.testing.assert_close(after[..., :128], before)


@all_encodings
def test_tuple_output_equals_named_output(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 9)
    named = model(tokens, labels=tokens, use_cache=False)
    loss, logits = model(tokens, labels=tokens, use_cache=False, return_dict=False)
    torch.testing.assert_close(logits, named.logits)
    torch.testing.assert_close(loss, named.loss)


@all_encodings
def test_evaluation_is_deterministic_and_copies_agree(case: str) -> None:
    import copy

    model, tokens = tiny_model(case), random_tokens(2, 9)
    twin = copy.deepcopy(model)
    torch.testing.assert_close(twin(tokens).logits, model(tokens).logits, atol=0, rtol=0)


@pytest.mark.parametrize("case", ["seqpe_mul_shared", "seqpe_bias_shared", "seqpe_bias_per_layer"])
@torch.no_grad()
def test_no_position_is_encoded_twice(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokens, encoded = tiny_model(case), random_tokens(2, 30), []
    forward = PositionEncoder.forward

    def counted(encoder: PositionEncoder, positions: torch.Tensor) -> torch.Tensor:
        encoded.extend(positions.flatten().tolist())
        return forward(encoder, positions)

    monkeypatch.setattr(PositionEncoder, "forward", counted)
    model.generate(tokens, max_new_tokens=20, min_new_tokens=20, do_sample=False, pad_token_id=0)
    model(tokens)
    assert len(encoded) == len(set(encoded))


def test_table_is_dropped_when_weights_change() -> None:
    model, tokens = tiny_model("seqpe_bias_shared"), random_tokens(1, 9)
    with torch.no_grad():
        before = model(tokens).logits
        model.transformer.position_encoding.encoder.digit_embedding.mul_(0.5)
        after = model(tokens).logits
    assert (after - before).abs().max() > 1e-4


@pytest.mark.parametrize("case", ["seqpe_bias_shared", "ape_learn"])
def test_model_built_in_inference_mode_works(case: str) -> None:
    """Parameters made there track no version, which tables otherwise watch."""
    tokens = random_tokens(1, 9)
    with torch.inference_mode():
        logits = tiny_model(case)(tokens).logits
    torch.testing.assert_close(logits, tiny_model(case)(tokens).logits)
