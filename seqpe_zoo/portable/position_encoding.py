"""The contract of a position encoding, and what attention does with it.

Letters used for tensor shapes in this package:
    B batch, L tokens, S keys, n dimensions of a position, C width of the transformer, H its heads, D the
    width of a head, P prefix tokens, W width of what is encoded for a token, T width of what one layer needs
    of it.

A host asks once a forward pass, `encoding(Positions(...))`, and gets what to add to the input and a tensor of
position inputs for each layer. In attention it applies the encoding's `AttentionOperation`, which may change
queries and keys and may add low-rank scores. Hosts never ask which encoding they serve.
"""

import contextlib
import difflib
import inspect
import math
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .positions import Positions, check_grid, check_positions, range_positions

PORTABLE_VERSION = "2"
"""Version of the code that travels with published checkpoints. A change in this folder changes published
models: raise the number, add a line to CHANGELOG.md and run `seqpe-zoo sync-code` on what is published."""

MAX_GRIDS = 8
"""Image grids whose position inputs are kept in inference; a service sees few resolutions."""

TABLE_GROWTH = 128
"""Rows computed ahead when the table of a text grows: decoding asks for one more position at a time."""

KNOWN_MODULES = ("torch.nn.modules.", __name__.rpartition(".")[0])
"""Where classes live that compute what they did when they were made."""

KIND_BYTES = 256
"""Room for `PositionEncoding.kind`."""


# Options and the host.


def option(
    default: Any,
    *,
    least: float | None = None,
    most: float | None = None,
    choices: Any = None,
    kind: bool = False,
) -> Any:
    """Declares an option of an encoding: its default and what it may be.

    `kind` marks options that decide what trained weights mean, beyond what their shapes tell; they are saved
    with the weights.
    """
    return field(default=default, metadata={"least": least, "most": most, "choices": choices, "kind": kind})


@dataclass(frozen=True)
class Options:
    """Base of the options of an encoding: every field is checked against its type and bounds."""

    def __post_init__(self) -> None:
        for one in fields(self):
            bounds = {name: value for name, value in one.metadata.items() if name != "kind"}
            value = getattr(self, one.name)
            check_value(one.name, value, one.type, **bounds)
            if one.type is float:  # so that 10000 and 10000.0 are one option
                object.__setattr__(self, one.name, float(value))

    def resolve(self, host: "HostSpec") -> "Options":
        """Returns the options with defaults that depend on the host filled in."""
        return self


def check_value(
    name: str,
    value: Any,
    kind: Any,
    least: float | None = None,
    most: float | None = None,
    choices: Iterable[str] | None = None,
) -> None:
    """Checks a value that a user gives: its type, that it is finite, and its bounds.

    Raises:
        TypeError: the value is of another type.
        ValueError: the value is not finite, out of bounds, or none of the choices.
    """
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return
    accepted = tuple(kinds) + ((int,) if float in kinds else ())
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
        wanted = " or ".join(one.__name__ for one in kinds if one is not type(None))
        raise TypeError(f"{name}={value!r} must be of type {wanted}, not {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}={value!r} must be a finite number")
    if least is not None and value < least:
        raise ValueError(f"{name}={value!r} must be at least {least:g}")
    if most is not None and value > most:
        raise ValueError(f"{name}={value!r} must be at most {most:g}")
    if choices is not None and value not in tuple(choices):
        raise ValueError(f"{name}={value!r} is unknown; choose one of {', '.join(map(repr, choices))}")


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Words that point to the name most like a mistyped one; nothing when none is like it."""
    nearest = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def parse_options(name: str, options_class: type[Any], given: dict[str, Any]) -> Any:
    """Builds the options of an encoding; raises TypeError for those that it does not have."""
    known = [one.name for one in fields(options_class)]
    unknown = [f"{option}{did_you_mean(option, known)}" for option in sorted(set(given) - set(known))]
    if unknown:
        listed = ", ".join(known) if known else "none"
        raise TypeError(
            f"position encoding {name!r} has no option {', '.join(unknown)}; its options are: {listed}"
        )
    return options_class(**given)


@dataclass(frozen=True)
class HostSpec:
    """What an encoding knows of the transformer that hosts it.

    Attributes:
        dim: width C of the transformer.
        num_heads: its attention heads; None for hosts that only add vectors to their input.
        num_kv_heads: heads of its keys, fewer with grouped-query attention; by default num_heads.
        head_dim: width D of a head, by default dim / num_heads.
        num_layers: its layers.
        num_dims: dimensions of its data: 1 for text, 2 for images.
        train_shape: size of the training context, (length,) or (rows, columns).
        num_prefix: class and register tokens, which come first and have no position.
        causal: whether its attention is causal.
        scaling: what its attention multiplies scores by, by default 1 / sqrt(D).
    """

    dim: int
    num_heads: int | None = None
    num_kv_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    num_layers: int = 1
    num_dims: int = 1
    train_shape: tuple[int, ...] | None = None
    num_prefix: int = 0
    causal: bool = False
    scaling: float = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, most in (("dim", 2**20), ("num_layers", 10_000), ("num_dims", 16)):
            check_value(name, getattr(self, name), int, least=1, most=most)
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            check_value(name, getattr(self, name), int | None, least=1, most=2**20)
        check_value("num_prefix", self.num_prefix, int, least=0, most=2**20)
        check_value("causal", self.causal, bool)
        check_value("scaling", self.scaling, float | None, least=1e-6, most=2**20)
        heads, shape = self.num_heads, self.train_shape
        if heads is not None and not self.head_dim and self.dim % heads:
            raise ValueError(
                f"dim={self.dim} is not divisible by num_heads={heads}; choose heads that divide it"
            )
        if heads is not None and heads % (self.num_kv_heads or heads):
            raise ValueError(f"num_kv_heads={self.num_kv_heads} must divide num_heads={heads}")
        if shape is not None:
            if not isinstance(shape, (tuple, list)) or len(shape) != self.num_dims:
                raise ValueError(f"train_shape={shape} must be a tuple of num_dims={self.num_dims} entries")
            for side in shape:
                check_value("an entry of train_shape", side, int, least=1)
            object.__setattr__(self, "train_shape", tuple(shape))
        object.__setattr__(self, "head_dim", self.head_dim or self.dim // (heads or 1))
        object.__setattr__(self, "num_kv_heads", self.num_kv_heads or heads or 1)
        object.__setattr__(self, "scaling", self.scaling or self.head_dim**-0.5)


class PositionLosses(NamedTuple):
    """The two position objectives of a training step, unweighted, and their weighted sum; all scalars."""

    distance: Tensor
    ood: Tensor
    weighted: Tensor


class PositionInputs(NamedTuple):
    """What a forward pass needs of its positions."""

    encoded: Tensor
    """(..., L, W), for `on_input`; encodings that do nothing there may put anything."""
    layers: list[Tensor]
    """Position inputs of each layer, (L, T) or (B, L, T), for the attention operation."""
    losses: PositionLosses | None = None

    def map(self, change: Any) -> "PositionInputs":
        """Applies a function of a tensor to all; layers that share a tensor share the result too."""
        changed = {id(inputs): change(inputs) for inputs in self.layers}
        return PositionInputs(change(self.encoded), [changed[id(one)] for one in self.layers], self.losses)


# What attention does with positions.


class AttentionOperation:
    """What attention does with the position inputs of its layer; this one does nothing.

    Queries and keys are (B, H, L, D), inputs (L, T) or (B, L, T). With grouped-query attention keys have
    fewer heads than queries; vectors are made for the heads of keys, and `groups` queries share each.
    `inplace` allows an operation to overwrite queries or keys, where nothing else reads them.
    """

    has_scores = False
    """Whether `score_factors` adds to the scores; then attention must know the positions of all keys."""

    def __init__(self, num_heads: int = 1, groups: int = 1) -> None:
        self.num_heads, self.groups = num_heads, groups

    def on_query(self, q: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        """Changes queries."""
        return q

    def on_key(self, k: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        """Changes keys, before they enter a cache."""
        return k

    def score_factors(self, query_inputs: Tensor, key_inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Returns f_q (..., H, L, R) and f_k (..., H or 1, S, R); their product is added to q k^T unscaled.

        H is the number of key heads. A low rank R keeps the L x S matrix out of memory:
        (q ++ f_q) (k ++ f_k)^T = q k^T + f_q f_k^T.
        """
        raise NotImplementedError(f"{type(self).__name__} adds no scores")

    def split(self, inputs: Tensor, part: int, groups: int = 1) -> Tensor:
        """The part of queries (0) or keys (1) in inputs (..., L, 2 * H * D), as (..., H, L, D)."""
        # One unbind, whose gradient is one stack; two selects would each fill a tensor with zeros in
        # backward.
        by_head = inputs.unflatten(-1, (2, self.num_heads, -1)).unbind(-3)[part].transpose(-3, -2)
        return by_head if groups == 1 else share_heads(by_head, groups)


class MultiplyOperation(AttentionOperation):
    """AttnMul: (q * e_q) (k * e_k)^T."""

    combine = staticmethod(torch.mul)

    def on_query(self, q: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        e_q = self.split(inputs.to(q.dtype), 0, self.groups)
        return self.combine(q, e_q, out=q if inplace else None)

    def on_key(self, k: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        e_k = self.split(inputs.to(k.dtype), 1)
        return self.combine(k, e_k, out=k if inplace else None)


class AddOperation(MultiplyOperation):
    """AttnSum: (q + e_q) (k + e_k)^T."""

    combine = staticmethod(torch.add)


class BiasOperation(AttentionOperation):
    """AttnBias: q k^T + c e_q e_k^T, inside the division by sqrt(D) as in the release."""

    has_scores = True

    def __init__(self, num_heads: int = 1, groups: int = 1, scale: float = 1.0) -> None:
        super().__init__(num_heads, groups)
        self.scale = scale

    def score_factors(self, query_inputs: Tensor, key_inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(query_inputs, 0) * self.scale, self.split(key_inputs, 1)


class RotateOperation(AttentionOperation):
    """RoPE: rotates neighbouring pairs (x0, x1), (x2, x3), ... by angles that grow with the position.

    Inputs are (..., L, H * D): for each head D / 2 cosines and D / 2 sines. Pairs are interleaved as in
    RoFormer, timm and the authors' release; checkpoints that pair halves (GPT-NeoX, Llama) need their
    projections permuted. Rotation is counter-clockwise.
    """

    def on_query(self, q: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        return self._rotate(q, inputs, self.groups)

    def on_key(self, k: Tensor, inputs: Tensor, inplace: bool = False) -> Tensor:
        return self._rotate(k, inputs, 1)

    def _rotate(self, x: Tensor, inputs: Tensor, groups: int) -> Tensor:
        by_head = inputs.to(x.dtype).unflatten(-1, (self.num_heads, 2, -1)).transpose(-4, -3)
        cos, sin = by_head.unbind(-2)  # (..., H, L, D/2)
        cos, sin = share_heads(cos, groups), share_heads(sin, groups)
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([even * cos - odd * sin, odd * cos + even * sin], dim=-1).flatten(-2)


def join_rotation(angles: Tensor) -> Tensor:
    """Turns angles (..., L, H, D/2) into the inputs of `RotateOperation` (..., L, H * D)."""
    return torch.cat([angles.cos(), angles.sin()], dim=-1).flatten(-2)


def share_heads(vectors: Tensor, groups: int) -> Tensor:
    """Repeats vectors (..., H, ., .) of key heads for the queries that share them."""
    return vectors if groups == 1 else vectors.repeat_interleave(groups, dim=-3)


def position_scores(factors: tuple[Tensor, Tensor], scaling: float, groups: int = 1) -> Tensor:
    """Multiplies factors out to the bias (1 or B, H, L, S) that is added to scaled scores."""
    f_q, f_k = factors
    with without_autocast(f_q.device):
        scores = share_heads(torch.matmul(f_q * scaling, f_k.transpose(-2, -1)), groups)
    return scores if scores.ndim == 4 else scores.unsqueeze(0)


def widen_heads(
    q: Tensor, k: Tensor, v: Tensor, factors: tuple[Tensor, Tensor], groups: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Appends factors to queries and keys, and zeros to values: scores without a matrix of them in memory.

    Values are padded, because kernels for long sequences want heads of one width, a multiple of 8.
    """
    rank = factors[0].shape[-1]
    padding = -(q.shape[-1] + rank) % 8

    def widen(x: Tensor, added: Tensor) -> Tensor:
        added = F.pad(added.to(x.dtype), (0, padding))
        return torch.cat([x, added.expand(*x.shape[:-1], rank + padding)], dim=-1)

    return widen(q, share_heads(factors[0], groups)), widen(k, factors[1]), F.pad(v, (0, rank + padding))


# Encodings.


class PositionEncoding(nn.Module):
    """How a transformer learns where its tokens are. Override only what the method uses.

    Args:
        dim: width C of the host transformer.
        **kwargs: what the encoding must know of its host, the fields of `HostSpec`, and the method's options,
            the fields of the class's `Options`.
    """

    name: ClassVar[str]
    supported_dims: ClassVar[frozenset[int]] = frozenset()
    """Dimensions of data that the method handles; empty means any."""
    flattens: ClassVar[bool] = False
    """Whether data of more dimensions is numbered through in row-major order, prefix tokens first."""
    needs_causal: ClassVar[bool] = False
    Options: ClassVar[type[Any]] = Options
    changes_input: bool = False
    """Whether `on_input` adds what is encoded, or does something else."""
    capacity: int | None = None
    """What coordinates must be below; None where there is no limit."""
    allow_absent: bool = False
    """Whether a coordinate may be -1, "not there"."""
    has_table: bool = False
    """Whether inputs of 1-D positions do not depend on the size of the context, and are worth a table."""
    kind: Tensor
    """What the weights are for, as bytes; saved with them, see `kind_name`."""
    _grids: dict[Any, PositionInputs]
    _table: PositionInputs | None
    _state: Any
    _values: Any

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__signature__ = _signature(cls.Options)  # type: ignore[attr-defined]

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__()
        of_host = {one.name: kwargs.pop(one.name) for one in fields(HostSpec) if one.name in kwargs}
        self.host = HostSpec(dim, **of_host)
        unsuitable = self.unsuitable(self.host.num_dims, self.host.causal)
        if unsuitable:
            raise ValueError(f"position encoding {self.name!r} {unsuitable}")
        self.options = parse_options(self.name, self.Options, kwargs).resolve(self.host)
        self.dim, self.train_shape = dim, self.host.train_shape
        self.groups = (self.host.num_heads or 1) // self.host.num_kv_heads
        """Queries that share a key head."""
        self.num_dims = 1 if self.flattens else self.host.num_dims
        """Coordinates of the positions that `encode` takes: 1 for a method that numbers a grid through."""
        self.prefix: nn.Parameter | None = None
        """Learned rows of class and register tokens; see `encode_prefix`."""
        self.register_buffer("kind", self._kind_as_bytes())
        self.clear_cache()

    @classmethod
    def unsuitable(cls, num_dims: int, causal: bool) -> str:
        """Says why the method does not suit such data or attention; nothing when it does."""
        if cls.supported_dims and num_dims not in cls.supported_dims and not cls.flattens:
            example = {1: " such as text", 2: " such as images"}.get(num_dims, "")
            handled = sorted(cls.supported_dims)
            return f"handles {handled}-dimensional data, not {num_dims}-dimensional data{example}"
        if cls.needs_causal and not causal:
            return "needs causal attention, as in a language model; this model attends in both directions"
        return ""

    # What a method overrides. Defaults do nothing.

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        """Turns positions into what the rest needs; runs once per forward pass.

        Args:
            positions: (..., L, n).
            limit: what all coordinates are below, when it is known. Methods that interpolate stretch their
                training context over it.

        Returns:
            (..., L, W).
        """
        return torch.zeros((*positions.shape[:-1], 0), device=positions.device)

    def encode_prefix(self, encoded: Tensor) -> Tensor:
        """Puts the rows of class and register tokens before those of the other tokens: (..., P + L, W)."""
        count = self.host.num_prefix
        if count == 0:
            return encoded
        if self.flattens:
            return prepend_rows(self.encode(range_positions(count, device=encoded.device)), encoded)
        zeros = encoded.new_zeros(count, encoded.shape[-1])
        return prepend_rows(zeros if self.prefix is None else self.prefix, encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Changes the embedded tokens (B, L, C) before the first layer."""
        return x + encoded.to(x.dtype) if self.changes_input else x

    def layer_inputs(self, encoded: Tensor) -> list[Tensor]:
        """Returns for each layer what its attention operation needs, (..., L, T)."""
        return [encoded] * self.host.num_layers

    def make_operation(self) -> AttentionOperation:
        """Returns what attention does with the inputs of its layer."""
        return AttentionOperation()

    def check_limit(self, limit: Sequence[int]) -> None:
        """Raises ValueError when positions up to `limit` cannot be encoded."""

    def reset_parameters(self, std: float = 0.02) -> None:
        """Gives parameters their first values; `std` is that of the host's weights."""

    def has_objectives(self) -> bool:
        """Whether training should add objectives of the encoding to the loss."""
        return False

    def keep_layers(self, num_layers: int) -> None:
        """Forgets what belongs to layers beyond the first `num_layers`, which the host has cut off."""
        self.host = HostSpec(**{**vars(self.host), "num_layers": num_layers})
        self.clear_cache()

    def training_inputs(
        self, positions: Positions, batch_size: int, objectives: bool, device: Any
    ) -> PositionInputs:
        """`forward` of a training step; methods with objectives of their own override it."""
        return self.compute_inputs(positions, device)

    # What hosts call.

    def forward(
        self,
        positions: Positions | Tensor,
        batch_size: int = 1,
        device: Any = None,
        objectives: bool = False,
    ) -> Any:
        """Returns what a forward pass needs of its positions.

        Args:
            positions: those of the tokens, without prefix tokens. A plain tensor (..., n) is only encoded.
            batch_size: examples, which training may shift one by one; 0 where a cached text continues.
            device: where the positions of a grid are made.
            objectives: whether a training step computes the position objectives too.

        Returns:
            `PositionInputs`; their rows include prefix tokens. For a plain tensor, vectors (..., W).

        Raises:
            ValueError: a position is negative or too large for the encoding.
        """
        if isinstance(positions, Tensor) or not hasattr(positions, "ids"):  # a tensor, or what should be one
            checked, limit = self._checked(Positions(ids=positions))  # type: ignore[arg-type]
            return self.encode(checked.tensor(), limit)
        if self.training:
            return self.training_inputs(positions, batch_size, objectives, device)
        if self._may_look_up(read_values=batch_size > 0):
            return self._look_up(positions, device)
        return self.compute_inputs(positions, device)

    def compute_inputs(self, positions: Positions, device: Any = None) -> PositionInputs:
        """`forward` without a table."""
        positions, limit = self._checked(positions)
        encoded = self.encode_prefix(self.encode(positions.tensor(device), limit))
        return PositionInputs(encoded, self.layer_inputs(encoded))

    def initialize(self, std: float = 0.02) -> None:
        """Gives parameters and buffers their first values, once memory for them is there."""
        self.reset_parameters(std)
        if not getattr(self.kind, "_is_hf_initialized", False):  # else transformers has loaded it
            self.kind = self._kind_as_bytes().to(self.kind.device)

    def _checked(self, positions: Positions) -> tuple[Positions, list[int]]:
        """Checks positions; returns them, and what their coordinates are below.

        Values of a tensor are unknown in a graph; there the limit is the training context.
        """
        if positions.ids is None:
            positions = self._numbered(positions)
        elif positions.bound is None and not is_traced():
            limits = (self.num_dims, self.capacity, self.allow_absent)
            positions = check_positions(positions.ids, *limits, device=self.kind.device)
        limit = positions.limit() or list(self.train_shape or [0] * self.num_dims)
        self.check_limit(limit)
        return positions, limit

    def _numbered(self, positions: Positions) -> Positions:
        """Checks a grid, and numbers its cells through, prefix tokens first, for methods that `flattens`."""
        if not is_traced():
            check_grid(positions.size, positions.start, self.host.num_dims)
        if self.num_dims == self.host.num_dims:
            return positions
        if any(positions.start):
            raise ValueError(
                f"position encoding {self.name!r} numbers the cells of a grid through and cannot start at "
                f"{tuple(positions.start)}; use an encoding with a coordinate per dimension, such as 'seqpe'"
            )
        return Positions((math.prod(positions.size),), (self.host.num_prefix,))  # type: ignore[arg-type]

    # In inference inputs are kept: those of a few image grids, or a table of positions that grows on demand.

    def _may_look_up(self, read_values: bool) -> bool:
        """Whether inputs may be those that were kept; drops them when the weights have changed."""
        if is_traced() or (torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters())):
            return False
        state = parameter_state(self)
        if state is None:
            self.clear_cache()
            return False
        if state != self._state or (read_values and not torch.equal(sample_values(self), self._values)):
            self.clear_cache()
            self._state, self._values = state, sample_values(self)
        return True

    def _look_up(self, positions: Positions, device: Any) -> PositionInputs:
        if self.has_table:
            return self._inputs_from_table(positions, device)
        if self.host.num_dims == 1 or positions.ids is not None:
            return self.compute_inputs(positions, device)
        key = (positions, device)
        if key not in self._grids:
            with as_constants(device):
                inputs = self.compute_inputs(positions, device)
            self._grids = {**dict(list(self._grids.items())[1 - MAX_GRIDS :]), key: inputs}
        return self._grids[key]

    def _inputs_from_table(self, positions: Positions, device: Any) -> PositionInputs:
        """Reads rows of a table of the first positions; a few that are far away are computed instead."""
        rows = 0 if self._table is None else self._table.encoded.shape[0]
        if not positions.within(rows):
            positions, (limit,) = self._checked(positions)
            count = math.prod(positions.size or positions.ids.shape)  # type: ignore[union-attr]
            if limit > 4 * (rows + count + TABLE_GROWTH):
                return self.compute_inputs(positions, device)
            if self._table is None or limit > rows:
                self._grow_table(rows, limit, device)
        table, ids = self._table, positions.ids
        assert table is not None
        if ids is None:
            first = positions.origin()[0]
            return table.map(lambda inputs: inputs[first : first + positions.size[0]])  # type: ignore[index]
        return table.map(lambda inputs: F.embedding(ids[..., 0], inputs))

    def _grow_table(self, rows: int, stop: int, device: Any) -> None:
        """Adds the positions from `rows` to `stop`, and some more where there is a table already."""
        table = self._table
        if table is not None:
            stop = max(stop, min(stop + rows // 4 + TABLE_GROWTH, self.capacity or stop))
        with as_constants(device):
            new = self.compute_inputs(Positions((stop - rows,), (rows,)), device)
            if table is not None:
                pairs = [(table.encoded, new.encoded), *zip(table.layers, new.layers, strict=True)]
                joined = {id(old): torch.cat([old, more]) for old, more in pairs}
                new = table.map(lambda inputs: joined[id(inputs)])
        self._table = new

    def clear_cache(self) -> None:
        """Drops everything that was computed for inference."""
        self._grids, self._table, self._state, self._values = {}, None, None, None

    def train(self, mode: bool = True) -> "PositionEncoding":
        if mode:
            self.clear_cache()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "PositionEncoding":
        self.clear_cache()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_grids": {}, "_table": None, "_state": None, "_values": None}

    # Weights say what they are.

    def kind_name(self) -> str:
        """What weights of this encoding are for: they would load into another, and mean something else."""
        of_kind = [one.name for one in fields(self.options) if one.metadata.get("kind")]
        return " ".join([self.name, *(f"{name}={getattr(self.options, name)}" for name in of_kind)])

    def _kind_as_bytes(self) -> Tensor:
        return torch.tensor(list(self.kind_name().encode().ljust(KIND_BYTES)), dtype=torch.uint8)

    def check_kind(self, kind: Tensor | None = None) -> None:
        """Raises ValueError when loaded weights are of another encoding, or of other options that matter."""
        found = self.kind if kind is None else kind
        if found.is_meta:
            return
        name = bytes(found.tolist()).decode(errors="replace").strip()
        if name != self.kind_name():
            raise ValueError(
                f"these weights are of position encoding {name!r}, and the model has {self.kind_name()!r}; "
                "build the model with the encoding and the options of the weights"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self.clear_cache()
        try:  # weights of version 0.1 do not say it
            self.check_kind(state_dict.setdefault(f"{prefix}kind", self._kind_as_bytes()))
        except ValueError as error:
            args[-1].append(str(error))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        shown = [f"dim={self.dim}", f"num_dims={self.host.num_dims}"]
        for one in fields(self.options):
            value = getattr(self.options, one.name)
            if one.default is MISSING or value != one.default:
                shown.append(f"{one.name}={value!r}")
        return ", ".join(shown)


def _signature(options_class: type[Any]) -> inspect.Signature:
    """The signature of an encoding's constructor, for `help` and completion: its host, then its options."""
    parameters = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD if one.name == "dim" else inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is MISSING else one.default,
            annotation=one.type,
        )
        for one in (*fields(HostSpec), *fields(options_class))
    ]
    return inspect.Signature(parameters)


def prepend_rows(rows: Tensor, encoded: Tensor) -> Tensor:
    """Puts (P, W) rows before (..., L, W), repeating them over leading axes."""
    return torch.cat([rows.to(encoded.dtype).expand(*encoded.shape[:-2], *rows.shape), encoded], dim=-2)


# Parameters, graphs and precision.


def parameter_state(encoding: PositionEncoding) -> list[Any] | None:
    """Identity, version and address of an encoding's parameters and buffers, and the modules that hold them.

    Equal states mean equal results, but for writes through `.data` and fused optimizers, which leave
    versions as they are (see `sample_values`). None where this cannot be told: a part is wrapped, hooked,
    parametrised, quantised, in training, or on the meta device.
    """
    parts, known = list(encoding.modules()), (*KNOWN_MODULES, type(encoding).__module__)
    parameters = [p for part in parts for p in part._parameters.values() if p is not None]
    tensors = parameters + [b for part in parts for b in part._buffers.values() if b is not None]
    if any(
        [
            *nn.modules.module._global_forward_hooks.values(),
            *nn.modules.module._global_forward_pre_hooks.values(),
            *(part.training for part in parts),
            *(part._forward_hooks or part._forward_pre_hooks for part in parts),
            *("forward" in part.__dict__ for part in parts),
            *(not type(part).__module__.startswith(known) for part in parts),
            *(type(parameter) is not nn.Parameter for parameter in parameters),
            *(tensor.is_meta for tensor in tensors),
        ]
    ):
        return None
    # Tensors made in inference mode have no version.
    versions = [(id(t), t.is_inference() or t._version, t.data_ptr()) for t in tensors]
    return [*((id(part), type(part)) for part in parts), *versions]


def sample_values(encoding: PositionEncoding, count: int = 4096) -> Tensor:
    """Up to some thousand values of each parameter and buffer, spread over all rows and columns."""
    sampled = []
    for tensor in (*encoding.parameters(), *encoding.buffers()):
        step, columns = tensor.numel() // count + 1, tensor.shape[-1] if tensor.ndim else 1
        while math.gcd(step, columns) > 1:  # else the same columns would be met in every row
            step += 1
        sampled.append(tensor.detach().flatten()[::step].float())
    return torch.cat(sampled)


def is_traced() -> bool:
    """Whether torch.compile, torch.export, torch.fx or torch.jit.trace records what runs.

    Then nothing may be kept for later, and nothing may depend on the values of tensors.
    """
    return torch.compiler.is_compiling() or _is_fx_tracing() or torch.jit.is_tracing()


# Newer versions of PyTorch log a warning in `is_fx_tracing`.
_is_fx_tracing = getattr(
    torch.fx._symbolic_trace, "is_fx_symbolic_tracing", torch.fx._symbolic_trace.is_fx_tracing
)


def without_autocast(device: torch.device) -> Any:
    """Switches autocast off, where it is on: positions are large numbers, which half precision rounds."""
    if device.type != "meta" and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()


@contextlib.contextmanager
def as_constants(device: Any) -> Any:
    """Computes without gradients and in full precision, whatever mode the caller is in.

    Normal tensors even inside inference_mode, so that a frozen encoder can serve a model that trains.
    """
    home = torch.device(device or torch.get_default_device())
    with torch.inference_mode(False), torch.no_grad(), without_autocast(home):
        yield
