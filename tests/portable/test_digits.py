import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqpe_zoo.portable.positions import positions_to_digits, real_digit_mask


def read_digits(digits, base, num_digits):
    """Numbers written by digits (..., n * k), in Python."""
    coordinates = digits.unflatten(-1, (-1, num_digits)).tolist()
    return [[sum(d * base**p for p, d in enumerate(reversed(c))) for c in row] for row in coordinates]


@pytest.mark.parametrize(
    ("position", "base", "num_digits", "digits"),
    [
        ([123], 10, 5, [0, 0, 1, 2, 3]),
        ([2, 3], 10, 2, [0, 2, 0, 3]),
        ([2, 30, 99], 10, 2, [0, 2, 3, 0, 9, 9]),
        ([255], 16, 3, [0, 15, 15]),
        ([5], 2, 4, [0, 1, 0, 1]),
        ([0], 10, 3, [0, 0, 0]),
    ],
)
def test_digits_by_hand(position, base, num_digits, digits):
    assert positions_to_digits(torch.tensor([position]), base, num_digits)[0].tolist() == digits


@given(st.data())
def test_digits_round_trip_in_any_base(data):
    base = data.draw(st.integers(2, 300))
    num_digits = data.draw(st.integers(1, 7))
    num_dims = data.draw(st.integers(1, 4))
    largest = min(base**num_digits, 2**62) - 1
    rows = data.draw(
        st.lists(
            st.lists(st.integers(0, largest), min_size=num_dims, max_size=num_dims), min_size=1, max_size=5
        )
    )
    digits = positions_to_digits(torch.tensor(rows), base, num_digits)
    assert digits.shape == (len(rows), num_dims * num_digits)
    assert digits.min() >= 0
    assert digits.max() < base
    assert read_digits(digits, base, num_digits) == rows


def test_digits_keep_leading_axes():
    assert positions_to_digits(torch.zeros(2, 3, 2, dtype=torch.long), 10, 4).shape == (2, 3, 8)


def test_padding_zeros_are_not_real_but_the_number_zero_is():
    digits = positions_to_digits(torch.tensor([[7, 0], [10, 100]]), 10, 3)
    assert real_digit_mask(digits, 3).long().tolist() == [[0, 0, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]]


def test_digits_can_be_compiled_and_traced():
    positions = torch.randint(0, 1000, (6, 2))
    expected = positions_to_digits(positions, 10, 3)
    compiled = torch.compile(positions_to_digits, backend="eager", fullgraph=True)
    assert torch.equal(compiled(positions, 10, 3), expected)

    class Digits(torch.nn.Module):
        def forward(self, x):
            return positions_to_digits(x, 10, 3)

    assert torch.equal(torch.fx.symbolic_trace(Digits())(positions), expected)
