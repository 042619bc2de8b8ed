"""The position objectives as a part of the loss: when they are added, how they weigh, what they cost."""

import pytest
import torch

from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel
from tests.gpt2.cases import pad_left, random_tokens, tiny_model

NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


def seqpe_model(**options) -> SeqPEGPT2LMHeadModel:
    args = {
        "num_digits": 4,
        "num_pivots": 4,
        "num_candidates": 8,
        "num_starts": 4,
        "num_transfer": 8,
        "dropout": 0.0,
        **options,
    }
    return tiny_model("seqpe_bias_shared", position_encoding_args=args, **NO_DROPOUT)


def main_loss(model: SeqPEGPT2LMHeadModel, tokens: torch.Tensor, **kwargs) -> torch.Tensor:
    logits = model(tokens, **kwargs).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def test_training_loss_is_the_main_loss_and_the_weighted_objectives() -> None:
    model, tokens = (
        seqpe_model(distance_weight=0.3, ood_weight=0.7, shift_probability=0.0),
        random_tokens(2, 12),
    )
    expected = main_loss(model, tokens)
    output = model.train()(tokens, labels=tokens)
    weighted = 0.3 * output.position_distance_loss + 0.7 * output.position_ood_loss
    torch.testing.assert_close(output.loss, expected + weighted)
    assert output.position_distance_loss > 0
    assert output.position_ood_loss > 0


def test_evaluation_loss_is_the_main_loss_alone() -> None:
    model, tokens = seqpe_model(), random_tokens(2, 12)
    output = model(tokens, labels=tokens)
    torch.testing.assert_close(output.loss, main_loss(model, tokens))
    assert "position_distance_loss" not in output
    assert "position_ood_loss" not in output


def test_training_without_labels_draws_no_objectives() -> None:
    model, tokens = seqpe_model(shift_probability=0.0).train(), random_tokens(2, 12)
    state = torch.get_rng_state()
    logits = model(tokens).logits
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(logits, model.eval()(tokens).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("integration", ["bias", "mul"])
def test_text_continued_in_training_is_not_shifted(integration: str) -> None:
    """Its keys were placed in another pass, and could not follow."""
    model, tokens = seqpe_model(shift_probability=1.0, integration=integration), random_tokens(2, 12)
    with torch.no_grad():
        full = model(tokens).logits[:, 8:]
        cache = model(tokens[:, :8], use_cache=True).past_key_values
        continued = model.train()(tokens[:, 8:], past_key_values=cache).logits
    torch.testing.assert_close(continued, full, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("integration", ["bias", "mul"])
def test_shift_moves_queries_and_keys_together(integration: str) -> None:
    model, tokens = seqpe_model(shift_probability=1.0, integration=integration).train(), random_tokens(3, 12)
    logits = []
    for use_cache in (True, False):
        torch.manual_seed(5)
        logits.append(model(tokens, use_cache=use_cache).logits)
    torch.testing.assert_close(*logits, atol=2e-5, rtol=1e-4)


def test_objectives_of_weight_zero_cost_nothing() -> None:
    model = seqpe_model(distance_weight=0.0, ood_weight=0.0, shift_probability=0.0).train()
    tokens, encoded, state = random_tokens(2, 12), [], torch.get_rng_state()
    model.transformer.position_encoding.encoder.register_forward_hook(
        lambda module, args, output: encoded.append(args[0])
    )
    output = model(tokens, labels=tokens)
    assert torch.equal(torch.get_rng_state(), state)
    assert [positions.numel() for positions in encoded] == [12]
    assert "position_distance_loss" not in output


def test_one_encoder_call_serves_the_main_task_and_both_objectives() -> None:
    model, tokens, calls = seqpe_model().train(), random_tokens(2, 12), []
    model.transformer.position_encoding.encoder.register_forward_hook(
        lambda module, args, output: calls.append(1)
    )
    model(tokens, labels=tokens)
    assert len(calls) == 1


def test_random_shift_moves_the_start() -> None:
    model, tokens = seqpe_model(shift_probability=1.0).train(), random_tokens(4, 12)
    seen = []
    model.transformer.position_encoding.encoder.register_forward_hook(
        lambda module, args, output: seen.append(args[0])
    )
    model(tokens, labels=tokens)
    assert seen[0].max() > 100


def test_left_padded_rows_are_trained_at_their_own_positions() -> None:
    model = seqpe_model(distance_weight=0.0, ood_weight=1e-9, shift_probability=0.0).train()
    tokens, mask = pad_left(random_tokens(2, 12), [0, 5])
    labels = tokens.masked_fill(mask == 0, -100)
    trained = model(tokens, attention_mask=mask, labels=labels).logits
    alone = model.eval()(tokens[1:, 5:]).logits
    torch.testing.assert_close(trained[1:, 5:], alone, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["labels", "shift_labels"])
def test_accumulated_steps_weigh_the_objectives_as_one_step(name: str) -> None:
    """The objectives of all micro-batches add up to one mean, whatever their sizes."""
    model = seqpe_model(shift_probability=0.0).train()
    tokens, labels = random_tokens(3, 12), random_tokens(3, 12)
    labels[0, 4:] = -100
    given = {"labels": labels} if name == "labels" else {"labels": labels, "shift_labels": labels}
    counted = (labels if name == "shift_labels" else labels[:, 1:]) != -100
    total, added, parts = counted.sum(), 0.0, []
    for row in range(3):
        micro = {key: value[row : row + 1] for key, value in given.items()}
        torch.manual_seed(11)  # the same positions in each micro-batch
        output = model(tokens[row : row + 1], num_items_in_batch=total, **micro)
        without = model.eval()(tokens[row : row + 1], num_items_in_batch=total, **micro).loss
        model.train()
        added += output.loss - without
        parts.append(0.1 * output.position_distance_loss + 0.1 * output.position_ood_loss)
    torch.testing.assert_close(added, parts[0], atol=1e-5, rtol=1e-4)


def test_same_seed_draws_the_same_positions() -> None:
    model, tokens, losses = seqpe_model(shift_probability=0.5).train(), random_tokens(2, 12), []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        losses.append(float(model(tokens, labels=tokens).loss))
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("length", [1, 2, 5])
def test_short_texts_train(length: int) -> None:
    model, tokens = seqpe_model().train(), random_tokens(2, length)
    labels = torch.nn.functional.pad(tokens[:, 1:], (0, 1), value=0)
    loss = model(tokens, labels=labels, shift_labels=labels).loss
    loss.backward()
    assert torch.isfinite(loss)


def test_context_that_fills_all_positions_names_the_remedy() -> None:
    model, tokens = seqpe_model(num_digits=2).train(), random_tokens(1, 100)
    with pytest.raises(ValueError, match=r"max_position=100; .*ood_weight=0"):
        model(tokens, labels=tokens)


@pytest.mark.parametrize("integration", ["mul", "sum", "bias", "input"])
def test_a_few_steps_lower_the_loss(integration: str) -> None:
    model = seqpe_model(integration=integration).train()
    tokens = torch.arange(1, 25).repeat(4, 1)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(12):
        output = model(tokens, labels=tokens)
        optimizer.zero_grad()
        output.loss.backward()
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < 0.8 * losses[0]
