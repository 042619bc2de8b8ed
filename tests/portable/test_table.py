"""Tables are used, grow, and are dropped when they should be; encoder calls are counted to prove it."""

import copy
import pickle

import numpy as np
import pytest
import torch

from seqpe_zoo import SeqPE, build_position_encoding
from seqpe_zoo.portable.positions import grid_positions
from seqpe_zoo.portable.table import PositionTable


@pytest.fixture
def pe():
    return SeqPE(dim=16, num_heads=2, num_layers=2, num_digits=3).eval()


@pytest.fixture
def encoded(pe, monkeypatch):
    """The positions that the encoder was asked for, call by call."""
    calls = []
    original = pe.encoder.forward

    def counting(positions):
        calls.append(positions.reshape(-1, pe.num_dims).tolist())
        return original(positions)

    monkeypatch.setattr(pe.encoder, "forward", counting)
    return calls


@torch.no_grad()
def test_a_position_is_encoded_once(pe, encoded):
    first = pe(torch.tensor([[1], [2]]))
    again = pe(torch.tensor([[2], [1], [2]]))
    assert encoded == [[[1], [2]]]
    assert torch.equal(again, first[[1, 0, 1]])


@torch.no_grad()
def test_growth_encodes_the_new_positions_alone(pe, encoded):
    pe.prepare_range(0, 10)
    pe.prepare_range(0, 12)
    seen = [position for call in encoded for position in call]
    assert len(encoded) == 2
    assert len(seen) == len({tuple(position) for position in seen})


@torch.no_grad()
def test_decoding_token_by_token_calls_the_encoder_rarely(pe, encoded):
    pe.prepare_range(0, 10)
    for step in range(10, 130):
        pe.prepare_range(step, step + 1)
    assert len(encoded) == 2


@torch.no_grad()
def test_ranges_are_views_of_the_table(pe):
    a = pe.prepare_range(0, 20).layers[0]
    b = pe.prepare_range(5, 9).layers[0]
    assert b.data_ptr() == a[5:].data_ptr()


@torch.no_grad()
def test_tables_never_ask_beyond_capacity(pe, encoded):
    pe.prepare_range(0, 990)
    pe.prepare_range(0, 1000)
    assert max(position[0] for call in encoded for position in call) == 999


def test_a_table_with_gaps_finds_its_rows():
    table = PositionTable(
        lambda positions: [positions[:, :1] * 10 + positions[:, 1:]], num_dims=2, capacity=10
    )
    for asked in ([[3, 4], [0, 1]], [[9, 9]], [[0, 0], [3, 5], [3, 4]]):
        positions = torch.tensor(asked)
        assert table.lookup(positions)[0].flatten().tolist() == [a * 10 + b for a, b in asked]
    assert len(table) == 5


def test_tables_are_not_used_where_gradients_are_wanted(pe, encoded):
    pe(torch.tensor([[1]])).sum().backward()
    pe(torch.tensor([[1]]))
    assert len(encoded) == 2
    assert pe.encoder.digit_embedding.grad is not None


def test_a_frozen_encoder_uses_its_table_while_others_train(pe, encoded):
    pe.requires_grad_(False)
    x = torch.randn(1, 16, requires_grad=True)
    with torch.inference_mode():
        pe(torch.tensor([[1]]))
    (pe(torch.tensor([[1]])) * x).sum().backward()
    assert len(encoded) == 1
    assert x.grad is not None


def update(pe):
    with torch.no_grad():
        pe.encoder.digit_embedding += 1.0


def optimise(pe):
    with torch.enable_grad():
        optimiser = torch.optim.AdamW(pe.parameters(), lr=0.1)
        pe(torch.tensor([[1]])).square().sum().backward()
        optimiser.step()


def load(pe):
    pe.load_state_dict({name: tensor * 1.5 for name, tensor in pe.state_dict().items()})


EVENTS = {
    "train": lambda pe: pe.train().eval(),
    "parameter update": update,
    "optimiser step": optimise,
    "loading weights": load,
    "moving": lambda pe: pe.to(torch.float64),
}


@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@torch.no_grad()
def test_tables_are_dropped(pe, encoded, event):
    positions = torch.tensor([[1], [2]])
    pe(positions)
    pe.prepare_range(0, 3)
    event(pe)
    encoded.clear()
    pe(positions)
    terms = pe.prepare_range(0, 3).layers[0]
    assert len(encoded) == 2
    expected = pe.layer_terms(pe.encoder.encode_each(torch.arange(3)[:, None]))[0]
    torch.testing.assert_close(terms, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_evaluating_again_keeps_tables(pe, encoded):
    pe(torch.tensor([[1]]))
    pe.eval()
    pe(torch.tensor([[1]]))
    assert len(encoded) == 1


@torch.no_grad()
def test_tables_are_invisible(pe):
    before = set(pe.state_dict())
    pe.prepare_range(0, 50)
    pe.prepare_grid((5,))
    assert set(pe.state_dict()) == before
    assert len(pickle.dumps(pe)) == len(
        pickle.dumps(SeqPE(dim=16, num_heads=2, num_layers=2, num_digits=3).eval())
    )
    twin = copy.deepcopy(pe)
    update(twin)
    torch.testing.assert_close(twin(torch.tensor([[1]])), twin.encoder.encode_each(torch.tensor([[1]])))


@torch.no_grad()
def test_a_grid_is_prepared_once(encoded, pe):
    image = SeqPE(dim=16, num_heads=2, num_layers=2, num_dims=2, num_prefix=1).eval()
    a = image.prepare_grid((4, 5), num_prefix=1)
    b = image.prepare_grid((4, 5), num_prefix=1)
    assert all(x is y for x, y in zip(a.layers, b.layers))
    assert a.layers[0].shape == (21, 32)
    update(image)
    assert image.prepare_grid((4, 5), num_prefix=1).layers[0] is not a.layers[0]


@torch.no_grad()
def test_a_row_of_patches_does_not_stand_for_a_square():
    image = SeqPE(dim=16, num_heads=2, num_dims=2).eval()
    image.prepare_grid((1, 14))
    square = image.prepare_grid((14, 14)).encoded
    torch.testing.assert_close(square, image.encoder.encode_each(grid_positions((14, 14))))


@torch.no_grad()
def test_a_range_after_absent_positions():
    mixed = SeqPE(dim=16, num_heads=2, num_digits=3, allow_absent=True).eval()
    mixed.prepare(torch.tensor([[-1], [0], [1]]))
    terms = mixed.layer_terms(mixed.encoder.encode_each(torch.tensor([[0], [1]])))[0]
    torch.testing.assert_close(mixed.prepare_range(0, 2).layers[0], terms)


@torch.no_grad()
def test_nothing_is_looked_up_and_then_something(pe):
    assert pe(torch.empty(0, 1, dtype=torch.long)).shape == (0, 16)
    torch.testing.assert_close(pe(torch.tensor([[7]])), pe.encoder.encode_each(torch.tensor([[7]])))


@torch.no_grad()
def test_weights_that_come_and_go_at_one_address_are_told_apart(pe):
    position, random = torch.tensor([[5]]), np.random.default_rng(0)
    memory = {name: np.empty(p.shape, np.float32) for name, p in pe.named_parameters()}
    for _ in range(3):
        for array in memory.values():
            random.standard_normal(out=array, dtype=np.float32)
        weights = {name: torch.from_numpy(array) for name, array in memory.items()}
        found = torch.func.functional_call(pe, weights, (position,))
        pe.drop_caches()
        torch.testing.assert_close(found, torch.func.functional_call(pe, weights, (position,)))


@pytest.mark.parametrize("name", ["seqpe", "rope2d_mixed", "ape_learn"])
@torch.no_grad()
def test_autocast_does_not_leak_into_grids(name):
    image = build_position_encoding(
        name, 16, num_heads=2, num_layers=2, num_dims=2, train_shape=(6, 6)
    ).eval()
    expected = [terms.clone() for terms in image.prepare_grid((6, 40)).layers]
    image.drop_caches()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = image.prepare_grid((6, 40)).layers
    torch.testing.assert_close(found, expected)


def test_autocast_does_not_round_learned_rotations():
    image = build_position_encoding("rope2d_mixed", 16, num_heads=2, num_dims=2).train()
    expected = image.prepare_grid((6, 40)).layers[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(image.prepare_grid((6, 40)).layers[0], expected)


@torch.no_grad()
def test_autocast_does_not_leak_into_tables(pe):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = pe(torch.tensor([[1]]))
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(pe(torch.tensor([[1]])), pe.encoder.encode_each(torch.tensor([[1]])))


@torch.no_grad()
def test_frozen_table_gives_equal_vectors(pe):
    positions = torch.randint(0, 50, (3, 4, 1))
    expected = pe(positions)
    pe.freeze_to_table(50)
    assert pe.frozen_table.shape == (50, 16)
    assert "frozen_table" not in pe.state_dict()
    torch.testing.assert_close(pe(positions), expected)
    pe.unfreeze()
    torch.testing.assert_close(pe(positions), expected)


@torch.no_grad()
def test_a_frozen_table_ends_where_weights_may_change(pe):
    position, other = torch.tensor([[5]]), SeqPE(dim=16, num_heads=2, num_layers=2, num_digits=3).eval()
    pe.freeze_to_table(50).load_state_dict(other.state_dict())
    torch.testing.assert_close(pe(position), other(position))
    pe.freeze_to_table(50).train()
    update(pe)
    torch.testing.assert_close(pe.eval()(position), pe.encoder.encode_each(position))


def test_freezing_beyond_capacity_is_refused(pe):
    with pytest.raises(ValueError, match="largest allowed position is 999"):
        pe.freeze_to_table(1001)
