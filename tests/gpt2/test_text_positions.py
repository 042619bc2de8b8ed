"""Where tokens and keys are: from the caller, the padding mask and the cache."""

import pytest
import torch
from transformers import DynamicCache

from seqpe_zoo.portable.positions import Positions
from seqpe_zoo.portable.transformers_host import key_positions, query_positions
from tests.gpt2.cases import random_tokens, tiny_model

CPU = torch.device("cpu")
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def listed(positions: Positions) -> list:
    return positions.tensor()[..., 0].tolist()


def test_positions_follow_the_cache() -> None:
    assert query_positions(3, 5, None, None, CPU) == Positions((3,), (5,))
    assert listed(query_positions(1, torch.tensor(5), None, None, CPU)) == [5]


def test_given_positions_have_the_last_word() -> None:
    mask = torch.tensor([[0, 1, 1]])
    assert listed(query_positions(3, 0, torch.tensor([[7, 9, 10]]), mask, CPU)) == [7, 9, 10]


def test_equal_ranges_of_all_rows_are_known_as_integers() -> None:
    ids = torch.arange(4, 8).expand(3, -1)
    assert query_positions(4, 0, ids, None, CPU) == Positions((4,), (4,))
    assert query_positions(4, 0, ids + torch.tensor([[0], [1], [0]]), None, CPU).size is None


def test_positions_are_counted_over_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert listed(query_positions(5, 0, None, mask, CPU)) == [
        [0, 0, 0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 2, 2],
    ]
    assert listed(query_positions(1, 4, None, mask, CPU)) == [[2], [4], [2]]


def test_mask_that_hides_nothing_leaves_a_range() -> None:
    assert query_positions(2, 3, None, torch.ones(4, 5), CPU) == Positions((2,), (3,))


def test_keys_of_a_first_pass_are_its_queries() -> None:
    queries = query_positions(4, 0, torch.tensor([[3, 9, 10, 40]]), None, CPU)
    assert key_positions(DynamicCache(), queries, 0, None, 4) is queries


def test_keys_are_remembered_on_the_cache() -> None:
    cache = DynamicCache()
    key_positions(cache, query_positions(3, 0, torch.tensor([[3, 9, 40]]), None, CPU), 0, None, 3)
    keys = key_positions(cache, query_positions(1, 3, torch.tensor([[41]]), None, CPU), 3, None, 4)
    assert listed(keys) == [[3, 9, 40, 41]]


def test_a_range_stays_a_range() -> None:
    cache = DynamicCache()
    key_positions(cache, Positions((4,), (10,)), 0, None, 4)
    assert key_positions(cache, Positions((2,), (14,)), 4, None, 6) == Positions((6,), (10,))


def test_keys_of_a_cache_of_another_model_are_counted_over_the_mask() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    queries = query_positions(1, 4, None, mask, CPU)
    assert listed(key_positions(DynamicCache(), queries, 4, mask, 5)) == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_positions_that_do_not_continue_such_a_cache_are_refused() -> None:
    with pytest.raises(ValueError, match="does not continue the 4 keys of the cache"):
        key_positions(DynamicCache(), Positions((1,), (9,)), 4, None, 5)


def test_rows_of_a_cache_are_repeated_for_beams() -> None:
    cache, ids = DynamicCache(), torch.tensor([[0, 1], [5, 6]])
    key_positions(cache, Positions(ids=ids.unsqueeze(-1)), 0, None, 2)
    new = Positions(ids=torch.tensor([[2], [2], [7], [7]]).unsqueeze(-1))
    assert listed(key_positions(cache, new, 2, None, 3)) == [[0, 1, 2], [0, 1, 2], [5, 6, 7], [5, 6, 7]]


@pytest.mark.parametrize("case", ["seqpe_bias_shared", "seqpe_mul_shared", "alibi", "rope"])
@torch.no_grad()
def test_positions_with_gaps_continue_through_a_cache(case: str) -> None:
    model, tokens = tiny_model(case), random_tokens(2, 8)
    gaps = torch.tensor([[0, 3, 4, 20, 21, 30, 55, 57]])
    full = model(tokens, position_ids=gaps, use_cache=False).logits
    cache = model(tokens[:, :5], position_ids=gaps[:, :5], use_cache=True).past_key_values
    rest = model(tokens[:, 5:], position_ids=gaps[:, 5:], past_key_values=cache).logits
    torch.testing.assert_close(rest, full[:, 5:], **CLOSE)


@torch.no_grad()
def test_tables_answer_ranges_with_views() -> None:
    encoding = tiny_model("seqpe_bias_shared").transformer.position_encoding
    whole = encoding(Positions((10,), (0,)), device=CPU)
    part = encoding(Positions((3,), (4,)), device=CPU)
    assert part.layers[0].data_ptr() == whole.layers[0][4:].data_ptr()
