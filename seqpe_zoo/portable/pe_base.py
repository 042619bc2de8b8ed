"""The contract of a position encoding: what it may do in a transformer, stage by stage.

Letters used for tensor shapes in this package:
    B batch, L tokens, n dimensions of a position, C width of the transformer, H its heads, D = C / H,
    W width of what is encoded for a token, T width of what one layer needs of a token.

A forward pass of a host transformer calls, in this order:
    encode (once), encode_prefix (when there are class or register tokens), on_input, layer_terms (once),
    and in the attention of every layer the methods of its `AttentionStage` (see `stages.py`).
`prepare` and `prepare_grid` bundle the first calls. Attention never asks which encoding it serves.
"""

import difflib
import weakref
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Dict, FrozenSet, Iterable, List, NamedTuple, Optional, Sequence, Tuple, Type

import torch
from torch import Tensor, nn

from .offloading import keep_in_memory
from .positions import grid_positions
from .precision import without_autocast
from .stages import AttentionStage
from .tracing import is_traced

LARGEST_GRID_CACHE = 8
"""Grids whose prepared tensors are kept in inference; a service sees few resolutions."""


KINDS_OF_DATA = {1: " such as text", 2: " such as images"}
"""What data of so many dimensions is, in words."""


@dataclass(frozen=True)
class NoOptions:
    """Options of an encoding that has none."""


class Prepared(NamedTuple):
    """What a forward pass needs of its positions."""

    encoded: Tensor
    """(..., L, W), for `on_input`; encodings that do nothing there may put anything."""
    layers: List[Tensor]
    """A tensor (..., L, T) for each layer of the host, for its attention stage."""


class PositionLosses(NamedTuple):
    """The two position objectives of a training step, unweighted, and their weighted sum; all scalars."""

    distance: Tensor
    ood: Tensor
    weighted: Tensor


class _SeenWeights:
    """Which parameters something was computed from, so that a change of any of them is noticed.

    Parameters are known by identity, as an address may be used again. What changes neither a parameter nor
    its version goes unnoticed: `p.data.copy_(...)`, or an adapter that is switched off.
    """

    def __init__(self, owner: nn.Module) -> None:
        parameters = _own_parameters(owner)
        self._seen = [weakref.ref(p) for p in parameters]
        self._state = _state_of(parameters)

    def are_those_of(self, owner: nn.Module) -> bool:
        """Whether a module still has the same parameters, unchanged."""
        parameters = _own_parameters(owner)
        if len(parameters) != len(self._seen):
            return False
        for seen, p in zip(self._seen, parameters):
            if seen() is not p:
                return False
        return self._state == _state_of(parameters)


def _own_parameters(owner: nn.Module) -> List[Tensor]:
    """`parameters()` without their names, which take most of its time: this runs in every forward pass."""
    found: List[Any] = []
    modules: List[Any] = [owner]
    for module in modules:  # grows while it is read
        if module is not None:
            found.extend(module._parameters.values())
            modules.extend(module._modules.values())
    return [p for p in found if p is not None]


def _state_of(parameters: List[Tensor]) -> List[int]:
    # Parameters made in inference mode have no version: there, only replacing them is noticed.
    versions = [0 if p.is_inference() else p._version for p in parameters]
    return versions + [p.data_ptr() for p in parameters]


class PositionEncoding(nn.Module):
    """How a transformer learns where its tokens are. Override only the stages the method uses.

    Args:
        dim: width C of the host transformer.
        num_heads: its attention heads; may be left out by hosts without attention stages.
        num_layers: its layers.
        num_dims: dimensions of its data: 1 for text, 2 for images.
        train_shape: size of the training context, (length,) or (rows, columns).
        num_prefix: class and register tokens, which have no position.
        causal: whether its attention is causal.
        **options: fields of the class's `Options`.
    """

    name: ClassVar[str]
    supported_dims: ClassVar[FrozenSet[int]] = frozenset()
    """Dimensions of data that the method handles; empty means any."""
    flattens: ClassVar[bool] = False
    """Whether data of more dimensions is numbered through in row-major order, prefix tokens first."""
    needs_causal: ClassVar[bool] = False
    Options: ClassVar[Type[Any]] = NoOptions
    # Filled caches have types that TorchScript does not know, and it reads all attributes of a module.
    __jit_ignored_attributes__: ClassVar[List[str]] = ["_grid_cache", "_tables", "_seen_weights"]

    def __init__(
        self,
        dim: int,
        *,
        num_heads: Optional[int] = None,
        num_layers: int = 1,
        num_dims: int = 1,
        train_shape: Optional[Sequence[int]] = None,
        num_prefix: int = 0,
        causal: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        self.options = parse_options(self.name, self.Options, options)
        if num_heads is not None and dim % num_heads:
            raise ValueError(
                f"dim={dim} is not divisible by num_heads={num_heads}; choose heads that divide it"
            )
        if num_dims < 1:
            raise ValueError(
                f"num_dims={num_dims} must be at least 1: one coordinate per dimension of the data"
            )
        unsuitable = self.unsuitable(num_dims, causal)
        if unsuitable:
            raise ValueError(f"position encoding {self.name!r} {unsuitable}")
        if train_shape is not None and len(train_shape) != num_dims:
            raise ValueError(f"train_shape={tuple(train_shape)} must have num_dims={num_dims} entries")
        self.dim, self.num_layers, self.num_prefix, self.causal = dim, num_layers, num_prefix, causal
        self.num_heads = num_heads if num_heads is not None else 1
        self.head_dim = dim // self.num_heads
        self.data_dims = num_dims
        self.num_dims = 1 if self.flattens else num_dims
        """Coordinates of the positions that `encode` takes: 1 for a method that numbers a grid through."""
        self.train_shape = None if train_shape is None else tuple(int(size) for size in train_shape)
        self._grid_cache: Dict[Any, Prepared] = {}
        self._seen_weights: Optional[_SeenWeights] = None

    @classmethod
    def unsuitable(cls, num_dims: int, causal: bool) -> str:
        """Says why the method does not suit such data or attention; nothing when it does."""
        if cls.supported_dims and num_dims not in cls.supported_dims and not cls.flattens:
            handled, example = sorted(cls.supported_dims), KINDS_OF_DATA.get(num_dims, "")
            return f"handles {handled}-dimensional data, not {num_dims}-dimensional data{example}"
        if cls.needs_causal and not causal:
            return "needs causal attention, as in a language model; this model attends in both directions"
        return ""

    def forward(self, positions: Tensor) -> Tensor:
        """`encode`, as a call of the module: torch.fx takes it as one node of its graph."""
        return self.encode(positions)

    # Stages. Defaults do nothing.

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        """Turns positions into what the later stages need; runs once per forward.

        Args:
            positions: (..., L, n).
            extent: size of the context that the positions come from, when it is known: all coordinates are
                below it. Methods that interpolate stretch their trained context over it.

        Returns:
            (..., L, W).
        """
        return torch.zeros(positions.shape[:-1] + (0,), device=positions.device)

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        """Puts the rows of class and register tokens before those of the other tokens: (..., P + L, W)."""
        if num_prefix == 0:
            return encoded
        return prepend_rows(encoded.new_zeros(num_prefix, encoded.shape[-1]), encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        """Changes the embedded tokens (B, L, C) before the first layer."""
        return x

    def layer_terms(self, encoded: Tensor) -> List[Tensor]:
        """Returns for each layer what its attention stage needs, (..., L, T); runs once per forward."""
        return [encoded] * self.num_layers

    def make_stage(self) -> AttentionStage:
        """Returns the parameter-free module by which one layer's attention uses its terms."""
        return AttentionStage()

    def keep_layers(self, num_layers: int) -> None:
        """Forgets what belongs to layers beyond the first `num_layers`, which the host has cut off."""
        self.num_layers = num_layers
        self.drop_caches()

    def check_size(self, largest: int) -> None:
        """Raises ValueError when a position as large as `largest` cannot be encoded."""

    # What hosts call.

    def prepare(self, positions: Tensor, num_prefix: int = 0, extent: Optional[List[int]] = None) -> Prepared:
        """Runs `encode`, `encode_prefix` and `layer_terms`.

        Args:
            positions: (L, n) or (B, L, n).
            num_prefix: tokens without a position that come first.
            extent: as in `encode`.
        """
        if not torch.jit.is_scripting():
            prepared = self._prepare_from_table(positions, num_prefix, extent)
            if prepared is not None:
                return prepared
        encoded = self.encode_prefix(self.encode(positions, extent), num_prefix)
        return Prepared(encoded, self.layer_terms(encoded))

    @torch.jit.unused
    def _prepare_from_table(
        self, positions: Tensor, num_prefix: int, extent: Optional[List[int]]
    ) -> Optional[Prepared]:
        """Answers `prepare` from a table of inference; None when the encoding keeps none."""
        return None

    @torch.jit.unused
    def prepare_range(self, start: int, stop: int, device: Optional[torch.device] = None) -> Prepared:
        """`prepare` for the 1-D positions start..stop-1, known as Python integers."""
        self.check_size(stop - 1)
        return self.prepare(torch.arange(start, stop, device=device).unsqueeze(-1), extent=[stop])

    @torch.jit.unused
    def prepare_grid(
        self,
        size: Sequence[int],
        start: Optional[Sequence[int]] = None,
        num_prefix: int = 0,
        device: Optional[torch.device] = None,
    ) -> Prepared:
        """`prepare` for a whole grid; in inference the result is kept, so that a resolution costs once."""
        origin = tuple(start) if start is not None else (0,) * len(size)
        if not self._may_cache():
            return self._compute_grid(size, origin, num_prefix, device)
        self._forget_if_changed()
        key = (tuple(size), origin, num_prefix, str(device))
        prepared = self._grid_cache.get(key)
        if prepared is None:
            home = torch.device(device or torch.get_default_device())
            with torch.inference_mode(False), torch.no_grad(), without_autocast(home):
                prepared = self._compute_grid(size, origin, num_prefix, device)
            for oldest in list(self._grid_cache)[: 1 - LARGEST_GRID_CACHE]:
                self._grid_cache.pop(oldest, None)  # another thread may have been faster
            self._grid_cache[key] = prepared
        return prepared

    def _compute_grid(
        self, size: Sequence[int], origin: Sequence[int], num_prefix: int, device: Optional[torch.device]
    ) -> Prepared:
        if not is_traced():
            keep_in_memory(self)
        for cells, first in zip(size, origin):
            if isinstance(cells, int):
                self.check_size(first + cells - 1)
        extent = None if self.flattens else [cells + first for cells, first in zip(size, origin)]
        return self.prepare(self.grid(size, origin, num_prefix, device), num_prefix, extent)

    def grid(
        self,
        size: Sequence[int],
        start: Sequence[int],
        num_prefix: int = 0,
        device: Optional[torch.device] = None,
    ) -> Tensor:
        """Returns the positions of a grid as this encoding counts them, (L, n)."""
        if not self.flattens:
            return grid_positions(size, start, device)
        if any(start):
            raise ValueError(
                f"position encoding {self.name!r} numbers the cells of a grid through and cannot start at "
                f"{tuple(start)}; use an encoding with a coordinate per dimension, as 'seqpe'"
            )
        cells = 1
        for side in size:
            cells = cells * side
        return torch.arange(num_prefix, num_prefix + cells, device=device).unsqueeze(-1)

    def encode_for_training(
        self, positions: Tensor, window: Sequence[int], batch_size: int
    ) -> Tuple[Tensor, Optional[Tensor], Optional[PositionLosses]]:
        """`encode` of a training step; encodings with objectives of their own shift positions and add losses.

        Args:
            positions: (L, n) or (B, L, n), unshifted.
            window: extent of the positions in each dimension, the context that the main task trains.
            batch_size: examples of the step, which may be shifted one by one.

        Returns:
            Encoded positions (R, L, W) or (L, W); for each example its row among R (B,), None when all share
            one or have their own; and the losses, None where there are none.
        """
        return self.encode(positions), None, None

    @torch.jit.unused
    def prepare_for_training(
        self, positions: Tensor, window: Sequence[int], batch_size: int, num_prefix: int = 0
    ) -> Tuple[Prepared, Optional[PositionLosses]]:
        """`prepare` of a training step.

        Tensors of the result are (B, L, .) when examples are shifted one by one, else (L, .). Projections
        run on the different rows alone, before these are laid out over the batch.
        """
        prepared, rows, losses = self.prepare_rows_for_training(positions, window, batch_size, num_prefix)
        if rows is None:
            return prepared, losses
        # Layers that share W_PE share one tensor.
        laid_out = {id(terms): terms.index_select(0, rows) for terms in prepared.layers}
        return Prepared(prepared.encoded[rows], [laid_out[id(terms)] for terms in prepared.layers]), losses

    @torch.jit.unused
    def prepare_rows_for_training(
        self, positions: Tensor, window: Sequence[int], batch_size: int, num_prefix: int = 0
    ) -> Tuple[Prepared, Optional[Tensor], Optional[PositionLosses]]:
        """`prepare_for_training` for hosts that find the row of an example themselves.

        Returns:
            Tensors (R, L, .), or (L, .) or (B, L, .) without rows; for each example its row among R (B,),
            None when all share one or have their own; and the losses.
        """
        encoded, rows, losses = self.encode_for_training(positions, window, batch_size)
        encoded = self.encode_prefix(encoded, num_prefix)
        return Prepared(encoded, self.layer_terms(encoded)), rows, losses

    def has_training_objectives(self) -> bool:
        """Tells whether `encode_for_training` does more than `encode`."""
        return False

    # Caches.

    def _may_cache(self) -> bool:
        """Whether results may be kept: inference, or frozen parameters, outside of tracing."""
        if self.training or is_traced():
            return False
        return not (torch.is_grad_enabled() and any(p.requires_grad for p in self.parameters()))

    def _forget_if_changed(self) -> None:
        """Drops what was kept when a parameter has been updated, loaded, moved or replaced since."""
        if self._seen_weights is None or not self._seen_weights.are_those_of(self):
            self.drop_caches()
            self._seen_weights = _SeenWeights(self)

    def drop_caches(self) -> None:
        """Forgets everything that was computed for inference."""
        self._grid_cache.clear()

    def train(self, mode: bool = True) -> "PositionEncoding":
        if mode:
            self.drop_caches()
        return super().train(mode)

    def _apply(self, *args: Any, **kwargs: Any) -> "PositionEncoding":
        self.drop_caches()
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_grid_cache": {}, "_seen_weights": None}

    def extra_repr(self) -> str:
        shown = [f"dim={self.dim}", f"num_dims={self.data_dims}"]
        for field in fields(self.options):
            value = getattr(self.options, field.name)
            if field.default is MISSING or value != field.default:
                shown.append(f"{field.name}={value!r}")
        return ", ".join(shown)


def prepend_rows(rows: Tensor, encoded: Tensor) -> Tensor:
    """Puts (P, W) rows before (..., L, W), repeating them over leading axes."""
    # No look at the number of axes, which torch.fx does not know while it traces.
    rows = rows.to(encoded.dtype).expand(encoded.shape[:-2] + rows.shape)
    return torch.cat([rows, encoded], dim=-2)


def parse_options(name: str, options_class: Type[Any], given: Dict[str, Any]) -> Any:
    """Builds the options of an encoding, refusing those that it does not have.

    Raises:
        TypeError: an option is unknown; lists the known ones.
    """
    known = [field.name for field in fields(options_class)]
    unknown = [f"{option}{did_you_mean(option, known)}" for option in sorted(set(given) - set(known))]
    if unknown:
        listed = ", ".join(known) if known else "none"
        raise TypeError(
            f"position encoding {name!r} has no option {', '.join(unknown)}; its options are: {listed}"
        )
    return options_class(**given)


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """Words that point to the name most like a mistyped one; nothing when none is like it."""
    nearest = difflib.get_close_matches(given, list(known), n=1)
    return f" (did you mean {nearest[0]}?)" if nearest else ""
