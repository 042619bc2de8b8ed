"""The encoder's shared computation equals the plain one, whatever the options."""

import pytest
import torch

from seqpe_zoo import SeqPE
from seqpe_zoo.portable import encoder as encoder_module
from seqpe_zoo.portable.encoder import build_prefix_tree, sort_unique_positions
from seqpe_zoo.portable.positions import positions_to_digits

VARIANTS = {
    "causal": {},
    "one layer": {"encoder_layers": 1},
    "three layers": {"encoder_layers": 3},
    "padding masked": {"mask_padding": True},
    "bidirectional": {"encoder_causal": False},
    "bidirectional, padding masked": {"encoder_causal": False, "mask_padding": True},
    "base 3": {"base": 3, "num_digits": 4},
    "no norm, cold": {"final_norm": False, "temperature": 0.5},
}


def build(num_dims=2, **options):
    settings = {"num_digits": 2, "encoder_dim": 32, "encoder_heads": 4, **options}
    encoder = SeqPE(24, num_dims=num_dims, **settings).encoder
    encoder.reset_parameters(std=0.3)  # large weights, so that differences would show
    return encoder.eval()


def random_positions(encoder, count=60):
    return torch.randint(0, encoder.capacity, (count, encoder.num_dims))


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("num_dims", [1, 2, 3])
def test_shared_prefixes_give_equal_vectors_and_gradients(options, num_dims):
    encoder = build(num_dims, **options)
    positions = random_positions(encoder)
    weight = torch.randn(60, 24)

    shared = encoder(positions)
    (shared * weight).sum().backward()
    gradients = {name: p.grad.clone() for name, p in encoder.named_parameters()}
    encoder.zero_grad()
    plain = encoder.encode_each(positions)
    (plain * weight).sum().backward()

    torch.testing.assert_close(shared, plain, atol=1e-4, rtol=1e-4)  # without a norm values reach hundreds
    for name, parameter in encoder.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_vocabularies_too_large_for_a_score_table_give_equal_vectors(monkeypatch):
    encoder = build(encoder_layers=2)
    positions = random_positions(encoder)
    with_table = encoder(positions)
    monkeypatch.setattr(encoder_module, "MAX_SCORE_TABLE", 0)
    torch.testing.assert_close(encoder(positions), with_table, atol=1e-5, rtol=1e-5)


def test_large_bases_work():
    encoder = build(1, base=1000, num_digits=2)
    positions = torch.tensor([[999_999], [0], [1000]])
    torch.testing.assert_close(encoder(positions), encoder.encode_each(positions), atol=1e-5, rtol=1e-5)


def test_chunks_change_nothing(monkeypatch):
    encoder = build(1, num_digits=3)
    positions = torch.randperm(900)[:, None]
    with torch.no_grad():
        whole = encoder(positions)
        monkeypatch.setattr(encoder_module, "CHUNK_SIZE", 64)
        torch.testing.assert_close(encoder(positions), whole, atol=1e-6, rtol=1e-5)


def test_equal_positions_get_equal_vectors_in_training_too():
    encoder = build(1, num_digits=3, dropout=0.5).train()
    vectors = encoder(torch.tensor([[5], [7], [5]]))
    assert torch.equal(vectors[0], vectors[2])
    assert not torch.equal(vectors[0], vectors[1])


def test_dropout_is_active_in_training_alone():
    encoder = build(1, num_digits=3, dropout=0.5)
    position = torch.tensor([[123]])
    assert torch.equal(encoder(position), encoder(position))
    encoder.train()
    assert not torch.equal(encoder(position), encoder(position))


def test_prefixes_are_counted_as_promised():
    """0..19999 in five digits: 120,000 tokens with [CLS], 22,222 different prefixes."""
    tree = build_prefix_tree(positions_to_digits(torch.arange(20000)[:, None], 10, 5))
    assert tree.place.numel() == 2 + 20 + 200 + 2000 + 20000
    assert tree.place.bincount().tolist() == [2, 20, 200, 2000, 20000]


def test_sorting_keeps_what_is_sorted_already():
    positions = torch.tensor([[0, 5], [1, 0], [1, 2]])
    unique, inverse = sort_unique_positions(positions, 100)
    assert torch.equal(unique, positions)
    assert inverse.tolist() == [0, 1, 2]


@pytest.mark.parametrize("capacity", [100, 10**40])
def test_sorting_restores_the_input_also_where_integers_cannot_number_positions(capacity):
    positions = torch.tensor([[3, 1], [0, 9], [3, 1], [-1, 4]])
    unique, inverse = sort_unique_positions(positions, capacity)
    assert unique.shape[0] == 3
    assert torch.equal(unique[inverse], positions)


def test_no_positions_give_no_vectors():
    assert build(1)(torch.empty(0, 1, dtype=torch.long)).shape == (0, 24)


@pytest.mark.parametrize("mask_padding", [False, True])
def test_absent_coordinates_are_not_read(mask_padding):
    """A word has no row and column: (7, absent, absent) is one position, whatever stands beside it."""
    encoder = build(3, allow_absent=True, mask_padding=mask_padding)
    mixed = torch.tensor([[7, -1, -1], [7, 0, 0], [7, 9, 9], [7, 99, 99], [8, -1, -1]])
    vectors = encoder(mixed)
    assert torch.cdist(vectors, vectors).fill_diagonal_(1).min() > 1e-3  # all different
    torch.testing.assert_close(vectors, encoder.encode_each(mixed), atol=1e-5, rtol=1e-5)

    embedding = encoder.dimension_embedding
    with torch.no_grad():
        embedding[1:] += torch.randn_like(
            embedding[1:]
        )  # what the absent dimensions' embeddings are does not matter
    torch.testing.assert_close(encoder(mixed[:1]), vectors[:1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(encoder(mixed[1:2]), vectors[1:2], atol=1e-3)


def test_a_graph_does_not_wrap_positions_that_are_too_large():
    """Values are unknown where a graph is made: 100 in two digits must not become 00."""
    encoder = build(2)
    with torch.no_grad():
        program = torch.export.export(encoder, (torch.tensor([[5, 99], [0, 7]]),)).module()
        positions = torch.tensor([[99, 0], [1, 2]])
        torch.testing.assert_close(program(positions), encoder(positions), atol=1e-5, rtol=1e-5)
        for too_large in ([[100, 0], [1, 2]], [[0, 100], [1, 2]]):
            with pytest.raises((IndexError, RuntimeError), match=r"out of|range"):
                program(torch.tensor(too_large))


@pytest.mark.parametrize(("dim", "heads"), [(64, 1), (200, 2), (320, 5), (384, 6), (100, 1), (8, 1)])
def test_heads_by_default_divide_the_width(dim, heads):
    assert SeqPE(dim).encoder.model.num_heads == heads
