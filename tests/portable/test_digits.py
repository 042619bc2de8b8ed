import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from seqpe_zoo.portable.positions import digits_to_positions, positions_to_digits, real_digit_mask


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
    positions = torch.tensor(rows)
    digits = positions_to_digits(positions, base, num_digits)
    assert digits.shape == (len(rows), num_dims * num_digits)
    assert digits.min() >= 0
    assert digits.max() < base
    assert torch.equal(digits_to_positions(digits, base, num_digits), positions)


@pytest.mark.parametrize(
    ("base", "num_digits"), [(2, 22), (3, 13), (7, 7), (10, 6), (10, 7), (100, 3), (2047, 2), (2048, 2)]
)
def test_division_by_floats_is_exact_for_every_number(base, num_digits):
    numbers = torch.arange(min(base**num_digits, 2**22)).unsqueeze(-1)
    digits = positions_to_digits(numbers, base, num_digits)
    assert digits.dtype == torch.long
    assert 0 <= digits.min() <= digits.max() < base
    assert torch.equal(digits_to_positions(digits, base, num_digits), numbers)


def test_digits_keep_leading_axes():
    assert positions_to_digits(torch.zeros(2, 3, 2, dtype=torch.long), 10, 4).shape == (2, 3, 8)


def test_padding_zeros_are_not_real_but_the_number_zero_is():
    digits = positions_to_digits(torch.tensor([[7, 0], [10, 100]]), 10, 3)
    assert real_digit_mask(digits, 3).long().tolist() == [[0, 0, 1, 0, 0, 1], [0, 1, 1, 1, 1, 1]]


def test_digits_can_be_scripted_compiled_and_traced():
    positions = torch.randint(0, 1000, (6, 2))
    expected = positions_to_digits(positions, 10, 3)
    assert torch.equal(torch.jit.script(positions_to_digits)(positions, 10, 3), expected)
    compiled = torch.compile(positions_to_digits, backend="eager", fullgraph=True)
    assert torch.equal(compiled(positions, 10, 3), expected)

    class Digits(torch.nn.Module):
        def forward(self, x):
            return positions_to_digits(x, 10, 3)

    assert torch.equal(torch.fx.symbolic_trace(Digits())(positions), expected)
