"""The encodings that SeqPE is compared with, and all encodings by name.

Angles and other position arithmetic is float32, because bfloat16 cannot tell 257 from 258. The 1-D methods
number the cells of an image through in row-major order with prefix tokens first, as the authors' release
does. A new encoding is one class and a line in `POSITION_ENCODINGS`, or `register_position_encoding` from
outside.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .position_encoding import (
    AttentionOperation,
    Options,
    PositionEncoding,
    RotateOperation,
    did_you_mean,
    join_rotation,
    option,
)
from .seqpe import MAX_TABLE_ROWS, SeqPE, read_stretched


class NoPositionEncoding(PositionEncoding):
    """No position encoding ("NoPE"): causal attention alone tells order; in a ViT, nothing does."""

    name = "nope"


@dataclass(frozen=True)
class SinusoidalOptions(Options):
    """Options of `ape_sin`.

    Attributes:
        base: longest wavelength is 2 pi times it.
        scale: amplitude. With 1.0, as in the release, the table drowns embeddings initialised at 0.02; the
            original transformer multiplied its embeddings by sqrt(C) instead.
    """

    base: float = option(10000.0, least=1, most=1e18, kind=True)
    scale: float = option(1.0, least=-1e6, most=1e6, kind=True)


class SinusoidalEmbedding(PositionEncoding):
    """Adds fixed sines (even columns) and cosines (odd columns) to the input (Vaswani et al. 2017)."""

    name = "ape_sin"
    supported_dims = frozenset({1})
    flattens = True
    changes_input = True
    Options = SinusoidalOptions

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        columns = torch.arange(self.dim, device=positions.device)
        exponent = torch.div(columns, 2, rounding_mode="floor") * (2.0 / self.dim)
        angles = positions.float() * torch.pow(float(self.options.base), -exponent)
        return torch.where(columns % 2 == 0, angles.sin(), angles.cos()) * self.options.scale


class LearnedEmbedding(PositionEncoding):
    """Adds a learned row for each position of the training context (GPT-2, ViT); needs `train_shape`.

    Beyond that the table is stretched, linearly for text and bicubically for images, as in the paper.
    """

    name = "ape_learn"
    changes_input = True

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        if self.train_shape is None:
            raise ValueError(
                "position encoding 'ape_learn' is a table of the training context: give train_shape, "
                "as (512,) for text or (14, 14) for images of 14 x 14 patches"
            )
        if math.prod(self.train_shape) > MAX_TABLE_ROWS:
            raise ValueError(
                f"train_shape={self.train_shape} is too large a table; {MAX_TABLE_ROWS} rows are allowed"
            )
        self.weight = nn.Parameter(torch.empty(math.prod(self.train_shape), dim))
        if self.host.num_prefix:
            self.prefix = nn.Parameter(torch.empty(self.host.num_prefix, dim))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialises with normal weights of `std`."""
        nn.init.normal_(self.weight, std=std)
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=std)

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        assert self.train_shape is not None
        return read_stretched(self.weight, self.train_shape, positions, limit)


@dataclass(frozen=True)
class RotaryOptions(Options):
    """Options of `rope`.

    Attributes:
        base: frequencies are base ** (-2 i / D). The paper trains 1e4, 1e6 and 1e8.
    """

    base: float = option(10000.0, least=1, most=1e18, kind=True)


class Rotary(PositionEncoding):
    """Rotates queries and keys by angles proportional to the position (Su et al. 2021)."""

    name = "rope"
    supported_dims = frozenset({1})
    flattens = True
    Options = RotaryOptions
    multiple: ClassVar[int] = 2
    """What the width of a head must be a multiple of: a pair for each coordinate."""

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        if self.host.head_dim % self.multiple:
            raise ValueError(
                f"{self.name} rotates pairs: the head width {self.host.head_dim} (dim / num_heads) must be a "
                f"multiple of {self.multiple}; choose another number of heads"
            )

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        frequencies = inverse_frequencies(self.options.base, self.host.head_dim // 2, positions.device)
        return join_rotation((positions.float() * frequencies).unsqueeze(-2))

    def make_operation(self) -> AttentionOperation:
        return RotateOperation()


@dataclass(frozen=True)
class AxialOptions(RotaryOptions):
    """Options of `rope2d_axial`.

    Attributes:
        base: frequencies are base ** (-4 i / D); 100 as in Heo et al.
        table: add a learned row for each patch of the training context to the input too; needs `train_shape`.
    """

    base: float = option(100.0, least=1, most=1e18, kind=True)
    table: bool = option(False, kind=True)


class RotaryAxial2D(Rotary):
    """Rotates half of the pairs by the column and half by the row (Heo et al. 2024, "RoPE2D").

    Class and register tokens are not rotated. With `table=True` a learned table is added to the input as
    well, as in the "ape" models of Heo et al.
    """

    name = "rope2d_axial"
    supported_dims = frozenset({2})
    flattens = False
    Options = AxialOptions
    multiple = 4

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        self.changes_input = self.options.table
        shape = self.train_shape
        self.table = LearnedEmbedding(dim, num_dims=2, train_shape=shape) if self.options.table else None

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        place = positions.flip(-1).float()  # (..., L, 2): column, row
        if self.table is None:
            return place
        return torch.cat([place, self.table.encode(positions, limit).float()], dim=-1)  # (..., L, 2 + C)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        return x if self.table is None else x + encoded[..., 2:].to(x.dtype)

    def layer_inputs(self, encoded: Tensor) -> list[Tensor]:
        frequencies = inverse_frequencies(self.options.base, self.host.head_dim // 4, encoded.device)
        angles = torch.cat([encoded[..., :1] * frequencies, encoded[..., 1:2] * frequencies], dim=-1)
        return [join_rotation(angles.unsqueeze(-2))] * self.host.num_layers


@dataclass(frozen=True)
class MixedOptions(AxialOptions):
    """Options of `rope2d_mixed`.

    Attributes:
        base: magnitudes start at base ** (-4 i / D), in directions drawn for each layer and head.
        table: add a learned row for each patch of the training context to the input too; needs `train_shape`.
    """

    base: float = option(10.0, least=1, most=1e18)


class RotaryMixed2D(RotaryAxial2D):
    """Rotates pairs by learned mixtures of column and row (Heo et al. 2024, "RoPE2D-Mix").

    Each layer, key head and pair learns a frequency for the column and one for the row. The release scrambles
    heads and positions when it applies the table; this is the method as published.
    """

    name = "rope2d_mixed"
    Options = MixedOptions

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        host = self.host
        # Axis 0: frequency for the column (x), then for the row (y).
        self.freqs = nn.Parameter(torch.empty(2, host.num_layers, host.num_kv_heads, host.head_dim // 2))
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Draws a direction for each layer and head; half the pairs turn along it, half across it."""
        if getattr(self.freqs, "_is_hf_initialized", False):  # transformers has loaded it
            return
        direction = torch.empty(*self.freqs.shape[1:3], 1, device=self.freqs.device)
        nn.init.uniform_(direction, 0.0, 2 * math.pi)
        magnitude = inverse_frequencies(self.options.base, self.host.head_dim // 4, self.freqs.device)
        across = direction + math.pi / 2
        x = torch.cat([magnitude * direction.cos(), magnitude * across.cos()], dim=-1)
        y = torch.cat([magnitude * direction.sin(), magnitude * across.sin()], dim=-1)
        with torch.no_grad():
            self.freqs.copy_(torch.stack([x, y]))

    def layer_inputs(self, encoded: Tensor) -> list[Tensor]:
        # Not as a matrix product, which autocast would compute in half precision.
        column, row = encoded[..., 0:1].unsqueeze(-1), encoded[..., 1:2].unsqueeze(-1)  # (..., L, 1, 1)
        return [join_rotation(column * x + row * y) for x, y in self.freqs.float().unbind(1)]

    def keep_layers(self, num_layers: int) -> None:
        super().keep_layers(num_layers)
        self.freqs = nn.Parameter(self.freqs.detach()[:, :num_layers].clone(), self.freqs.requires_grad)

    def make_operation(self) -> AttentionOperation:
        return RotateOperation(self.host.num_kv_heads, self.groups)


@dataclass(frozen=True)
class ALiBiOptions(Options):
    """Options of `alibi`.

    Attributes:
        scaled: whether the bias is divided by sqrt(D) together with the scores, as in the SeqPE paper and its
            release, whose slopes are 8 times weaker at D = 64. That of the original ALiBi is not.
    """

    scaled: bool = option(False, kind=True)


class ALiBi(PositionEncoding):
    """Lowers attention scores in proportion to distance (Press et al. 2021), for causal attention.

    A score loses slope * distance, which has rank 2. Positions enter as 256 * high + low: both parts are
    exact in bfloat16 up to position 65,535, where the position itself would not be.
    """

    name = "alibi"
    supported_dims = frozenset({1})
    needs_causal = True
    Options = ALiBiOptions

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        low = positions % 256
        return torch.cat([positions - low, low], dim=-1).float()  # (..., L, 2)

    def make_operation(self) -> AttentionOperation:
        scale = 1.0 if self.options.scaled else 1.0 / self.host.scaling
        return LinearBiasOperation([slope * scale for slope in alibi_slopes(self.host.num_heads or 1)])


class LinearBiasOperation(AttentionOperation):
    """Adds slope * (key position - query position) to the scores of each head."""

    has_scores = True

    def __init__(self, slopes: list[float]) -> None:
        super().__init__(len(slopes))
        self.slopes = slopes

    def score_factors(self, query_inputs: Tensor, key_inputs: Tensor) -> tuple[Tensor, Tensor]:
        slopes = torch.tensor(self.slopes, dtype=query_inputs.dtype, device=query_inputs.device)
        own = query_inputs.sum(dim=-1, keepdim=True)
        f_q = torch.cat([torch.ones_like(query_inputs), -own], dim=-1).unsqueeze(-3)  # (..., 1, L, 3)
        f_k = torch.cat([key_inputs, torch.ones_like(key_inputs[..., :1])], dim=-1)
        return f_q * slopes[:, None, None], f_k.unsqueeze(-3)


def alibi_slopes(num_heads: int) -> list[float]:
    """Returns the slopes of Press et al.: a geometric series, or two interleaved unless H is 2 ** x."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8.0 * (head + 1) / power) for head in range(power)]
    between = [2 ** (-8.0 * (head + 1) / (2 * power)) for head in range(2 * power)]
    return slopes + between[0::2][: num_heads - power]


def inverse_frequencies(base: float, count: int, device: torch.device) -> Tensor:
    """Returns base ** (-i / count) for i = 0..count-1, in float32."""
    exponent = torch.arange(count, device=device, dtype=torch.float32) / count
    return torch.pow(torch.full_like(exponent, base), -exponent)


POSITION_ENCODINGS: dict[str, type[PositionEncoding]] = {
    "nope": NoPositionEncoding,
    "ape_sin": SinusoidalEmbedding,
    "ape_learn": LearnedEmbedding,
    "rope": Rotary,
    "rope2d_axial": RotaryAxial2D,
    "rope2d_mixed": RotaryMixed2D,
    "alibi": ALiBi,
    "seqpe": SeqPE,
}


def register_position_encoding(encoding: type[PositionEncoding]) -> type[PositionEncoding]:
    """Adds an encoding under its `name`, for every host, recipe and evaluation; usable as a decorator."""
    name = getattr(encoding, "name", None)
    if not isinstance(name, str) or POSITION_ENCODINGS.get(name, encoding) is not encoding:
        raise ValueError(f"{encoding.__name__}.name={name!r} must be a name that no other encoding has")
    POSITION_ENCODINGS[name] = encoding
    return encoding


def position_encoding_class(name: str) -> type[PositionEncoding]:
    """Returns the class of an encoding; raises ValueError with the known names for an unknown one."""
    if not isinstance(name, str):
        raise TypeError(f"a position encoding is named by a string such as 'seqpe', not by {name!r}")
    if name not in POSITION_ENCODINGS:
        known, near = ", ".join(POSITION_ENCODINGS), did_you_mean(name, POSITION_ENCODINGS)
        raise ValueError(f"unknown position encoding {name!r}{near}; the known ones are: {known}")
    return POSITION_ENCODINGS[name]


def build_position_encoding(name: str, dim: int, **kwargs: Any) -> PositionEncoding:
    """Builds a position encoding for a transformer.

    Args:
        name: a name of `list_position_encodings()`.
        dim: width of the transformer.
        **kwargs: what the encoding must know of the transformer (see `HostSpec`) and its own options.
    """
    encoding = position_encoding_class(name)
    num_dims, causal = kwargs.get("num_dims", 1), kwargs.get("causal", False)
    unsuitable = encoding.unsuitable(num_dims, causal)
    if unsuitable:
        others = ", ".join(list_position_encodings(num_dims, causal))
        raise ValueError(f"position encoding {name!r} {unsuitable}; choose one of {others}")
    return encoding(dim, **kwargs)


def list_position_encodings(num_dims: int | None = None, causal: bool = True) -> list[str]:
    """Lists the names of encodings, all or those for data of `num_dims` dimensions.

    Args:
        num_dims: 1 for text, 2 for images.
        causal: whether attention is causal; some encodings need that.
    """
    return [
        name
        for name, encoding in POSITION_ENCODINGS.items()
        if num_dims is None or not encoding.unsuitable(num_dims, causal)
    ]
