"""Where tokens and keys are: from the caller, the padding mask and the cache."""

import pytest
import torch

from seqpe_zoo.portable.transformers_host import (
    TextPositions,
    key_positions,
    packed_positions,
    prepare_positions,
    query_positions,
)
from tests.gpt2.cases import tiny_model

CPU = torch.device("cpu")


def listed(positions: TextPositions) -> list[list[int]]:
    return positions.tensor(CPU).tolist()


def test_positions_follow_the_cache() -> None:
    assert query_positions(3, 5, None, None, CPU) == TextPositions(3, 5, None)
    assert query_positions(1, torch.tensor(5), None, None, CPU).start == 5


def test_given_positions_have_the_last_word() -> None:
    mask = torch.tensor([[0, 1, 1]])
    assert listed(query_positions(3, 0, torch.tensor([[7, 8, 9]]), mask, CPU)) == [[7, 8, 9]]


def test_equal_ranges_of_all_rows_are_known_as_integers() -> None:
    ids = torch.arange(4, 8).expand(3, -1)
    assert query_positions(4, 0, ids, None, CPU).start == 4
    ids = ids.clone()
    ids[1] += 1
    assert query_positions(4, 0, ids, None, CPU).start is None


def test_positions_are_counted_over_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    assert listed(query_positions(5, 0, None, mask, CPU)) == [
        [0, 0, 0, 1, 2],
        [0, 1, 2, 3, 4],
        [0, 1, 2, 2, 2],
    ]
    assert listed(query_positions(1, 4, None, mask, CPU)) == [[2], [4], [2]]


def test_mask_that_hides_nothing_leaves_a_range() -> None:
    assert query_positions(2, 3, None, torch.ones(4, 5), CPU) == TextPositions(2, 3, None)


def test_keys_of_a_first_pass_are_its_queries() -> None:
    queries = query_positions(4, 0, torch.tensor([[3, 9, 10, 40]]), None, CPU)
    assert key_positions(queries, 0, 4, None, CPU) is queries


@pytest.mark.parametrize("mask", [None, torch.ones(2, 6)])
def test_keys_of_a_cache_end_at_the_last_query(mask: torch.Tensor | None) -> None:
    queries = query_positions(2, 4, torch.tensor([[14, 15]]), mask, CPU)
    assert key_positions(queries, 4, 6, mask, CPU) == TextPositions(6, 10, None)


def test_keys_skip_padding_on_the_left() -> None:
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    queries = query_positions(1, 4, None, mask, CPU)
    assert listed(key_positions(queries, 4, 5, mask, CPU)) == [[0, 0, 0, 1, 2], [0, 1, 2, 3, 4]]


def test_keys_skip_padding_of_shifted_rows() -> None:
    """The release counts positions over the padding: the last of five tokens is at 4 in both rows."""
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    queries = query_positions(1, 4, torch.tensor([[4], [4]]), mask, CPU)
    assert listed(key_positions(queries, 4, 5, mask, CPU)) == [[1, 1, 2, 3, 4], [0, 1, 2, 3, 4]]


@pytest.mark.parametrize("kind", ["none", "two dimensions", "four dimensions", "additive"])
def test_free_places_of_a_fixed_cache_get_legal_positions(kind: str) -> None:
    mask = {
        "none": None,
        "two dimensions": torch.ones(1, 4),
        "four dimensions": torch.tensor([True, True, True, True, False, False]).view(1, 1, 1, 6),
        "additive": torch.tensor([0.0, 0.0, 0.0, 0.0, -1e30, -1e30]).view(1, 1, 1, 6),
    }[kind]
    queries = query_positions(1, torch.tensor(3), torch.tensor([[3]]), mask, CPU)
    assert listed(key_positions(queries, torch.tensor(3), 6, mask, CPU)) == [[0, 1, 2, 3, 3, 3]]


def test_branches_after_a_shared_beginning_keep_their_positions() -> None:
    """Two continuations of three cached tokens in one row, as in tree-like decoding."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 1, 1]], dtype=torch.bool)
    mask = mask.repeat_interleave(2, dim=0).view(1, 1, 4, 7)
    queries = query_positions(4, 3, torch.tensor([[3, 4, 3, 4]]), mask, CPU)
    assert listed(key_positions(queries, 3, 7, mask, CPU)) == [[0, 1, 2, 3, 4, 3, 4]]


def test_texts_in_one_row_are_told_apart_by_positions_that_start_again() -> None:
    again = packed_positions(torch.tensor([[0, 1, 2, 0, 1, 0]]))
    assert again is not None
    assert again.tolist() == [[0, 1, 2, 0, 1, 0]]
    assert packed_positions(torch.tensor([[5, 6, 9, 30]])) is None


def test_tables_answer_ranges_with_views() -> None:
    encoding = tiny_model("seqpe_bias_shared").transformer.position_encoding
    with torch.no_grad():
        whole = prepare_positions(encoding, TextPositions(10, 0, None), CPU)
        part = prepare_positions(encoding, TextPositions(3, 4, None), CPU)
    assert part.layers[0].data_ptr() == whole.layers[0][4:].data_ptr()
