"""The objectives against ten lines of NumPy each, and how SeqPE uses them."""

import numpy as np
import pytest
import torch

from seqpe_zoo import Positions, SeqPE
from seqpe_zoo.portable.objectives import distance_contrastive_loss, ood_distillation_loss


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_contrastive_loss_is_the_papers_formula():
    pivot, candidates = torch.randn(3, 8), torch.randn(3, 5, 8)
    nearest = torch.tensor([0, 4, 2])
    scores = np.einsum("bp,bmp->bm", pivot.numpy(), candidates.numpy())
    expected = -np.log(softmax(scores)[np.arange(3), nearest.numpy()]).mean()
    assert float(distance_contrastive_loss(pivot, candidates, nearest)) == pytest.approx(expected, rel=1e-5)


def test_distillation_loss_is_the_papers_formula():
    teacher, student = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
    rows = []
    for t, s in zip(teacher.numpy(), student.numpy()):
        for head in (slice(0, 4), slice(4, 8)):
            p, q = softmax(t[:, head] @ t[:, head].T), softmax(s[:, head] @ s[:, head].T)
            rows.append((p * (np.log(p) - np.log(q))).sum(-1))
    ours = ood_distillation_loss(teacher, student, num_heads=2)
    assert float(ours) == pytest.approx(np.mean(rows), rel=1e-4)


def test_the_teacher_receives_no_gradient():
    for form in ("paper", "release", "release_mse"):
        teacher = torch.randn(2, 6, 8, requires_grad=True)
        student = torch.randn(2, 6, 8, requires_grad=True)
        ood_distillation_loss(teacher, student, form=form).backward()
        assert teacher.grad is None or not teacher.grad.any()
        assert student.grad.any()


def test_equal_relations_cost_nothing():
    teacher = torch.randn(2, 6, 8)
    assert float(ood_distillation_loss(teacher, teacher.clone())) == pytest.approx(0, abs=1e-6)


def test_unknown_forms_are_refused():
    with pytest.raises(ValueError, match="ood_form='both' is unknown; choose one of paper, release"):
        ood_distillation_loss(torch.randn(1, 2, 4), torch.randn(1, 2, 4), form="both")


def build(**options):
    return SeqPE(
        dim=16, num_heads=2, num_layers=2, train_shape=(12,), num_digits=3, integration="mul", **options
    ).train()


def count_encoder_calls(pe, monkeypatch):
    calls = []
    original = pe.encoder.forward
    monkeypatch.setattr(
        pe.encoder, "forward", lambda positions: calls.append(positions) or original(positions)
    )
    return calls


def test_everything_of_a_training_step_is_one_encoder_call(monkeypatch):
    pe = build()
    calls = count_encoder_calls(pe, monkeypatch)
    losses = pe(Positions((12,)), batch_size=4, objectives=True).losses
    assert len(calls) == 1
    assert (
        calls[0].shape[0] >= 12 + 32 + 32 * 32 + 2 * 32 * 12
    )  # main, pivots, candidates, teachers, students
    assert losses.distance > 0
    assert losses.ood >= 0
    torch.testing.assert_close(losses.weighted, 0.1 * losses.distance + 0.1 * losses.ood)


def test_zero_weights_draw_and_cost_nothing(monkeypatch):
    pe = build(distance_weight=0.0, ood_weight=0.0, shift_probability=0.0, dropout=0.0)
    calls = count_encoder_calls(pe, monkeypatch)
    state = torch.get_rng_state()
    inputs = pe(Positions((12,)), batch_size=4, objectives=True)
    assert inputs.losses is None
    assert inputs.layers[0].shape == (12, 32)
    assert calls[0].shape[0] == 12
    assert torch.equal(torch.get_rng_state(), state)


def test_evaluation_neither_shifts_nor_adds_losses():
    pe = build(shift_probability=1.0).eval()
    inputs = pe(Positions((12,)), batch_size=4, objectives=True)
    assert inputs.losses is None
    assert inputs.layers[0].shape == (12, 32)


def test_shifted_examples_have_positions_of_their_own():
    pe = build(shift_probability=0.5, dropout=0.0, distance_weight=0.0, ood_weight=0.0)
    pe.generator = torch.Generator().manual_seed(3)
    encoded = pe(Positions((12,)), batch_size=8).encoded
    assert encoded.shape == (8, 12, 16)
    unshifted = pe.encoder(torch.arange(12)[:, None])
    is_unshifted = torch.tensor([torch.allclose(row, unshifted, atol=1e-5) for row in encoded])
    assert 0 < int(is_unshifted.sum()) < 8
    shifted = encoded[~is_unshifted]
    assert len(shifted) == 1 or not torch.allclose(shifted[0], shifted[1], atol=1e-3)


def test_given_positions_are_shifted_row_by_row():
    pe = build(shift_probability=1.0, dropout=0.0, distance_weight=0.0, ood_weight=0.0)
    positions = torch.arange(12)[None, :, None].expand(3, -1, -1)
    encoded = pe(Positions(ids=positions), batch_size=3).encoded
    assert encoded.shape == (3, 12, 16)
    assert not torch.allclose(encoded[0], encoded[1])


def test_the_global_seed_decides_and_can_be_repeated():
    pe = build(dropout=0.0)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(float(pe.position_losses().weighted.detach()))
    assert losses[0] == losses[1] != losses[2]


def test_a_users_generator_is_used():
    pe = build(dropout=0.0)
    values = []
    for _ in range(2):
        pe.generator = torch.Generator().manual_seed(7)
        values.append(float(pe.position_losses().weighted.detach()))
    assert values[0] == values[1]


def test_absent_coordinates_are_not_shifted():
    """A word (t, absent, absent) and a patch (t, row, column): a shift moves what is there."""
    pe = SeqPE(
        dim=16,
        num_dims=3,
        num_digits=2,
        allow_absent=True,
        dropout=0.0,
        shift_probability=1.0,
        ood_weight=0.0,
    ).train()
    seen = []
    forward = pe.encoder.forward
    pe.encoder.forward = lambda positions: seen.append(positions) or forward(positions)
    ids = torch.tensor([[[0, -1, -1], [1, 0, 0], [1, 0, 1]]])
    pe(Positions(ids=ids), batch_size=1)
    found = seen[0].reshape(1, 3, 3)
    assert torch.equal(found < 0, ids < 0)
    assert (found != ids)[ids >= 0].any()


def test_a_batch_in_which_all_tokens_lack_a_coordinate_has_finite_objectives():
    pe = SeqPE(dim=16, num_dims=2, num_digits=2, allow_absent=True).train()
    losses = pe(Positions(ids=torch.tensor([[[0, -1], [1, -1]]])), batch_size=1, objectives=True).losses
    assert all(bool(loss.isfinite()) for loss in losses)
