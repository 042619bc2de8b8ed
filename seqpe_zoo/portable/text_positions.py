"""Where the tokens of a text are, and where the keys of its cache are.

Positions come from the caller, from the padding mask or from the length of the cache. Wherever they are one
range for the whole batch, as in nearly all use, that range is kept as Python integers: then encodings answer
with views of their tables, and sizes are checked without waiting for a device.
"""

from typing import NamedTuple, Optional, Union

import torch
from torch import Tensor

from .pe_base import PositionEncoding, Prepared
from .positions import positions_from_mask
from .tracing import is_traced


class TextPositions(NamedTuple):
    """Positions of L tokens: a range that all rows share, or a tensor."""

    length: int
    start: Optional[int]
    """First position of the range; None when only the tensor is known."""
    ids: Optional[Tensor]
    """(1 or B, L); may be None for a range."""

    def tensor(self, device: torch.device) -> Tensor:
        """Returns the positions as (1 or B, L)."""
        if self.ids is not None:
            return self.ids
        assert self.start is not None
        return torch.arange(self.start, self.start + self.length, device=device).unsqueeze(0)


def all_real(attention_mask: Tensor) -> bool:
    """Whether a mask is known to hide nothing; while a graph is recorded, that is not known."""
    return not is_traced() and bool((attention_mask != 0).all())


def hides_nothing(attention_mask: Optional[Tensor], key_length: Union[int, Tensor]) -> bool:
    """Whether a padding mask covers exactly all keys and is known to hide none."""
    if attention_mask is None or attention_mask.ndim != 2 or is_traced():
        return False
    return bool(attention_mask.shape[-1] == key_length) and all_real(attention_mask)


def query_positions(
    length: int,
    past_length: Union[int, Tensor],
    position_ids: Optional[Tensor],
    attention_mask: Optional[Tensor],
    device: torch.device,
) -> TextPositions:
    """Decides the positions of new tokens.

    Args:
        length: new tokens in a row.
        past_length: tokens in the cache, a tensor for caches of fixed size.
        position_ids: (1 or B, L), what the caller says; has the last word.
        attention_mask: (B, past + L), nonzero for real tokens; positions are counted over those. Masks of
            four dimensions, prepared or made by the caller, say nothing about positions.
        device: where tokens are.
    """
    if position_ids is not None:
        if position_ids.shape[-1] != length:
            raise ValueError(
                f"position_ids of shape {tuple(position_ids.shape)} must have an entry for each of the "
                f"{length} tokens"
            )
        return _recognise_range(position_ids.reshape(-1, length))
    if attention_mask is not None and attention_mask.ndim == 2 and not all_real(attention_mask):
        return _recognise_range(positions_from_mask(attention_mask)[:, -length:, 0])
    if isinstance(past_length, Tensor):
        if is_traced():
            return TextPositions(
                length, None, (torch.arange(length, device=device) + past_length).unsqueeze(0)
            )
        past_length = int(past_length)
    return TextPositions(length, past_length, None)


def key_positions(
    queries: TextPositions,
    past_length: Union[int, Tensor],
    key_length: int,
    attention_mask: Optional[Tensor],
    device: torch.device,
) -> TextPositions:
    """Decides the positions of all keys that the queries meet, those in the cache included.

    A cache does not remember positions, so they are counted over the visible keys, backwards from the last
    query. This is exact for padding on the left, shifted starts, and caches that grow, have a fixed size or
    were cropped.

    Args:
        queries: positions of the new tokens.
        past_length: tokens in the cache.
        key_length: keys; more than past and new tokens in a cache of fixed size.
        attention_mask: (B, S) or (B, 1, L, key_length), bool or additive; None when all tokens are real.
        device: where tokens are.

    Raises:
        ValueError: a position would be negative.
    """
    known = past_length + queries.length
    is_full = not isinstance(known, Tensor) and known == key_length  # no free places of a cache of fixed size
    if is_full and key_length == queries.length:
        return queries
    if attention_mask is None or (attention_mask.ndim == 2 and all_real(attention_mask)):
        if is_full and queries.start is not None:
            start = queries.start + queries.length - key_length
            if not is_traced() and start < 0:
                raise ValueError(_NEGATIVE.format(last=queries.start + queries.length - 1, keys=key_length))
            return TextPositions(key_length, start, None)
        visible = (torch.arange(key_length, device=device) < known).long().unsqueeze(0)
    else:
        visible = _visible_keys(attention_mask, key_length)
    new = queries.tensor(device)
    last = new[:, -1:]
    counted = visible.cumsum(dim=-1)
    ids = last - counted[:, -1:] + counted  # the last query is the last visible key
    # New tokens keep the positions that they have as queries, whatever the last of them sees of the others.
    place = torch.arange(key_length, device=device) - past_length
    is_new = (place >= 0) & (place < queries.length)
    ids = torch.where(is_new, new[:, place.clamp(0, queries.length - 1)], ids)
    if not is_traced() and ids.device.type == "cpu" and bool(((ids < 0) & (counted > 0) & ~is_new).any()):
        raise ValueError(_NEGATIVE.format(last=int(last.min()), keys=int(counted.max())))
    return TextPositions(key_length, None, ids.clamp(min=0))


_NEGATIVE = (
    "the last token has position {last}, but it is token number {keys} of its row, so the first one would "
    "have a negative position; give position_ids that continue those of the cache"
)


def prepare_positions(encoding: PositionEncoding, positions: TextPositions, device: torch.device) -> Prepared:
    """Runs the encoding on positions; tensors of the result are (L, .), or (B, L, .) where rows differ.

    Raises:
        ValueError: a position is negative or too large for the encoding.
    """
    if positions.start is not None:
        return encoding.prepare_range(positions.start, positions.start + positions.length, device)
    ids = positions.tensor(device)
    extent = None
    if not is_traced():
        smallest, largest = (int(value) for value in ids.aminmax())
        if smallest < 0:
            raise ValueError(f"position {smallest} is negative; the first position is 0")
        encoding.check_size(largest)
        extent = [largest + 1]
    elif encoding.train_shape is not None:
        extent = list(encoding.train_shape)  # a graph has one shape: learned tables are not stretched in it
    return encoding.prepare((ids[0] if ids.shape[0] == 1 else ids).unsqueeze(-1), extent=extent)


def packed_positions(position_ids: Tensor) -> Optional[Tensor]:
    """Recognises several texts in one row by positions that start again; returns places within each text.

    transformers takes every jump for a new text. Here a jump forwards is what it says, another position:
    SeqPE is probed with positions that leave gaps.

    Args:
        position_ids: (B, L).

    Returns:
        (B, L), counting from 0 in each text; None when every row is one text.
    """
    again = torch.diff(position_ids, dim=-1) <= 0
    if not is_traced() and not bool(again.any()):
        return None
    places = torch.arange(position_ids.shape[-1], device=position_ids.device).expand_as(position_ids)
    starts = torch.where(torch.nn.functional.pad(again, (1, 0)), places, 0).cummax(dim=-1).values
    return places - starts


def _recognise_range(ids: Tensor) -> TextPositions:
    length = ids.shape[-1]
    if ids.device.type != "cpu" or is_traced() or ids.numel() == 0:
        return TextPositions(length, None, ids)
    start = int(ids[0, 0])
    if length == 1:
        is_range = ids.shape[0] == 1 or bool((ids == start).all())
    else:
        is_range = bool((ids == torch.arange(start, start + length)).all())
    return TextPositions(length, start if is_range and start >= 0 else None, ids)


def _visible_keys(mask: Tensor, key_length: int) -> Tensor:
    """Tells which keys the last query sees, (1 or B, key_length) of 0 and 1."""
    if mask.ndim == 4:
        mask = mask[:, 0, -1, :key_length]
        if mask.dtype != torch.bool and mask.dtype.is_floating_point:
            mask = mask >= 0  # additive: zero where visible
    elif mask.ndim != 2:
        raise ValueError(f"attention_mask must have 2 or 4 dimensions, got shape {tuple(mask.shape)}")
    visible = (mask[:, :key_length] != 0).long()
    return torch.nn.functional.pad(visible, (0, key_length - visible.shape[-1]))
