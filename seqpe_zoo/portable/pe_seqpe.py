"""SeqPE: positions as digit sequences, read by a small transformer (the paper's method).

This file ties the pieces together: the encoder, the integration into the host (AttnMul, AttnSum, AttnBias or
the input), W_PE, the lookup tables of inference, and in training the random shift and the two objectives,
all of whose positions go through one encoder call.
"""

from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoder import SEQUENCE_MODELS, PositionEncoder
from .interpolation import resize_grid_rows, stretch_beyond
from .objectives import OOD_FORMS, distance_contrastive_loss, ood_distillation_loss, warmup_ratio
from .pe_base import PositionEncoding, PositionLosses, Prepared, prepend_rows
from .positions import ABSENT, check_largest_position, check_positions, grid_positions, ravel_positions
from .precision import without_autocast
from .samplers import (
    DISTANCES,
    DistanceFunction,
    optional_generator,
    sample_contrastive,
    sample_shifts,
    sample_transfer,
)
from .stages import AddStage, AttentionStage, BiasStage, MultiplyStage
from .table import PositionTable
from .tracing import is_traced

INTEGRATIONS = ("mul", "sum", "bias", "input")
PROJECTIONS = ("per_layer", "shared", "none")
PAPER_MAX_POSITION = 20000
"""L_max of the paper's text runs."""


@dataclass(frozen=True)
class SeqPEOptions:
    """Options of `seqpe`. Letters of the paper in brackets.

    Attributes:
        num_digits: [k] digits per coordinate; by default 5 in one dimension, 2 in more.
        base: [b] base of the number system.
        encoder_dim: [d] width of the encoder; by default that of the host.
        encoder_heads: its attention heads; by default one for each 64 columns.
        encoder_layers: [N] its layers.
        sequence_model: "transformer" or "gru".
        encoder_causal: causal or bidirectional attention over digits.
        dropout: residual dropout of the encoder.
        attention_dropout: dropout of its attention probabilities.
        final_norm: normalise the state of [CLS] before the output projection.
        temperature: the vectors are divided by it.
        mask_padding: hide padding zeros from attention; the paper and all runs of the release leave them
            visible.
        allow_absent: coordinates may be -1, "not there", for batches that mix text and images.
        integration: "mul", "sum", "bias" or "input". By default the paper's choice, "bias" in one dimension
            and
            "mul" in more; "input" when the host names no attention heads.
        projection: W_PE "per_layer", "shared" by all layers, or "none". By default "shared" in one dimension
            and
            "per_layer" in more, as in the paper's runs.
        multi_head: vectors as wide as the host, split between its heads; else one head, shared by all.
        bias_scale: factor of the position scores of "bias".
        projection_init: "release" initialises W_PE near zero, so that "mul" starts with attention switched
            off;
            "identity" starts its factors at 1, so that attention starts as without positions.
        extrapolation: "extend" encodes unseen positions; "interpolate" stretches the vectors of the training
            context over a larger one.
        chunk_size: positions encoded at a time in inference.
        distance_weight: [alpha] weight of the contrastive objective.
        ood_weight: [beta] weight of the distillation objective.
        shift_probability: share of training examples with a random start position.
        shift_scope: "example", or "batch" as in the release.
        max_position: [L_max] the objectives draw positions below it; by default what the digits can write, at
            most 20,000.
        num_pivots: pivots of the contrastive objective a step.
        num_candidates: [m] candidates a pivot.
        num_starts: shifted contexts of the distillation objective a step.
        num_transfer: [m] positions compared in each of them. The paper has 32 for both; the release 64 for
            images.
        hard_ratio: share of lexical twins among global candidates.
        local_probability: share of pivots with local candidates.
        local_range: smallest number of positions in a local region.
        distance: "euclidean" or "manhattan". For one of your own, set `distance_function` of the module.
        ood_form: "paper", "release" or "release_mse".
        ood_heads: heads of the distillation objective; by default those of the encoder.
        warmup_steps: training steps over which the objectives' weights rise from zero.
        objective_probability: share of training steps that compute the objectives; their weights are divided
            by it, so that the expected gradient stays the same, but for clipping. Below 1 training is faster;
            measure what it does to extrapolation.
    """

    num_digits: Optional[int] = None
    base: int = 10
    encoder_dim: Optional[int] = None
    encoder_heads: Optional[int] = None
    encoder_layers: int = 2
    sequence_model: str = "transformer"
    encoder_causal: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    final_norm: bool = True
    temperature: float = 1.0
    mask_padding: bool = False
    allow_absent: bool = False
    integration: Optional[str] = None
    projection: Optional[str] = None
    multi_head: bool = True
    bias_scale: float = 1.0
    projection_init: str = "release"
    extrapolation: str = "extend"
    chunk_size: int = 2048
    distance_weight: float = 0.1
    ood_weight: float = 0.1
    shift_probability: float = 0.1
    shift_scope: str = "example"
    max_position: Optional[int] = None
    num_pivots: int = 32
    num_candidates: int = 32
    num_starts: int = 32
    num_transfer: int = 32
    hard_ratio: float = 0.25
    local_probability: float = 0.5
    local_range: int = 256
    distance: str = "euclidean"
    ood_form: str = "paper"
    ood_heads: Optional[int] = None
    warmup_steps: int = 0
    objective_probability: float = 1.0

    def __post_init__(self) -> None:
        _choose("sequence_model", self.sequence_model, tuple(SEQUENCE_MODELS))
        _choose("integration", self.integration, (*INTEGRATIONS, None))
        _choose("projection", self.projection, (*PROJECTIONS, None))
        _choose("projection_init", self.projection_init, ("release", "identity"))
        _choose("extrapolation", self.extrapolation, ("extend", "interpolate"))
        _choose("shift_scope", self.shift_scope, ("example", "batch"))
        _choose("distance", self.distance, tuple(DISTANCES))
        _choose("ood_form", self.ood_form, OOD_FORMS)
        for name, least in (("base", 2), ("encoder_layers", 1), ("chunk_size", 1), ("num_candidates", 2)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.num_digits is not None and self.num_digits < 1:
            raise ValueError(f"num_digits={self.num_digits} must be at least 1")
        if self.temperature <= 0:
            raise ValueError(f"temperature={self.temperature} must be positive: vectors are divided by it")
        for name in ("shift_probability", "local_probability", "hard_ratio", "dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)} must lie between 0 and 1")
        if not 0 < self.objective_probability <= 1:
            raise ValueError(
                f"objective_probability={self.objective_probability} must be above 0 and at most 1; to turn "
                "the objectives off, set distance_weight=0 and ood_weight=0"
            )
        for name in ("distance_weight", "ood_weight", "warmup_steps"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)} must not be negative; 0 turns it off")


class _StepPositions(NamedTuple):
    """The drawn positions of a training step, flattened for one encoder call, and their counts."""

    flat: Tensor
    sizes: List[int]
    nearest: Optional[Tensor]
    tied: Optional[Tensor]


class SeqPE(PositionEncoding):
    """Sequential position encoding.

    As a module of its own it maps positions to vectors, for use in any transformer:

    >>> pe = SeqPE(dim=384, num_dims=2, num_digits=2)
    >>> pe(torch.tensor([[2, 3], [13, 0]])).shape
    torch.Size([2, 384])

    Inside a host it is a `PositionEncoding` like any other. Arguments of the host as in `PositionEncoding`;
    options as in `SeqPEOptions`.

    Attributes:
        distance_function: distance of the contrastive objective; assign your own, taking (B, 1, n) and (B,
            m, n) positions and returning (B, m) distances.
        generator: source of randomness of the training positions; by default seeded from PyTorch's global
            one.
    """

    name = "seqpe"
    Options = SeqPEOptions

    def __init__(self, dim: int, *, num_heads: Optional[int] = None, **kwargs: Any) -> None:
        super().__init__(dim, num_heads=num_heads, **kwargs)
        options = self.options
        self.base = options.base
        self.num_digits = options.num_digits or (5 if self.num_dims == 1 else 2)
        self.capacity = self.base**self.num_digits
        in_attention = num_heads is not None
        default = ("bias" if self.num_dims == 1 else "mul") if in_attention else "input"
        self.integration = options.integration or default
        if self.integration != "input" and not in_attention:
            raise ValueError(
                f"integration={self.integration!r} works in attention: give num_heads of the host"
            )
        self.projection_mode = options.projection or ("shared" if self.num_dims == 1 else "per_layer")
        self.position_heads = self.num_heads if options.multi_head else 1
        width = dim if options.multi_head or self.integration == "input" else self.head_dim
        self.width = width
        self.interpolates = options.extrapolation == "interpolate"
        if self.interpolates and self.train_shape is None:
            raise ValueError("extrapolation='interpolate' stretches the training context: give train_shape")
        self.universe = self._universe()

        encoder_dim = options.encoder_dim or dim
        encoder_heads = options.encoder_heads or max(1, encoder_dim // 64)
        if encoder_dim % encoder_heads:
            raise ValueError(
                f"encoder_dim={encoder_dim} is not divisible by encoder_heads={encoder_heads}; "
                "set encoder_heads"
            )
        self.ood_heads = options.ood_heads or encoder_heads
        if options.ood_weight > 0 and width % self.ood_heads:
            raise ValueError(
                f"vectors of width {width} do not split into ood_heads={self.ood_heads}; "
                "set ood_heads to a divisor"
            )
        self.encoder = PositionEncoder(
            width,
            self.num_dims,
            self.num_digits,
            self.base,
            encoder_dim,
            encoder_heads,
            options.encoder_layers,
            options.sequence_model,
            options.encoder_causal,
            options.dropout,
            options.attention_dropout,
            options.final_norm,
            options.temperature,
            options.mask_padding,
            options.allow_absent,
            options.chunk_size,
        )
        # Class and register tokens have no place in the grid; each learns a vector of its own, as in the
        # release.
        self.prefix = nn.Parameter(torch.empty(self.num_prefix, width)) if self.num_prefix else None
        copies = {"per_layer": self.num_layers, "shared": 1, "none": 0}[self.projection_mode]
        if self.integration == "input":
            copies = 0
        self.projection = nn.ModuleList([nn.Linear(width, 2 * width) for _ in range(copies)])
        if options.warmup_steps > 0:
            self.register_buffer("objective_step", torch.zeros((), dtype=torch.long))
        self.frozen_table: Optional[Tensor]
        self.register_buffer("frozen_table", None, persistent=False)
        self.frozen_sides: List[int] = []
        self.distance_function: DistanceFunction = DISTANCES[options.distance]
        self.generator: Optional[torch.Generator] = None
        self._tables: Dict[str, PositionTable] = {}
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialises with normal weights of `std`, as the release; but see `projection_init`."""
        self.encoder.reset_parameters(std)
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=std)
        for layer in self.projection:
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, std=std)
            starts_at_one = self.integration == "mul" and self.options.projection_init == "identity"
            nn.init.constant_(layer.bias, 1.0 if starts_at_one else 0.0)

    # Stages.

    def forward(self, positions: Tensor) -> Tensor:
        """Maps positions (..., n) to vectors (..., dim), checking them first.

        Raises:
            ValueError: positions are not integers, negative, of another number of dimensions or too large.
        """
        if not torch.jit.is_scripting():
            self._check_positions(positions)
        return self.encode(positions)

    def encode(self, positions: Tensor, extent: Optional[List[int]] = None) -> Tensor:
        if self.frozen_table is not None:
            return F.embedding(ravel_positions(positions, self.frozen_sides), self.frozen_table)
        if torch.jit.is_scripting():
            return self.encoder(positions)
        return self._encode_eager(positions, extent)

    def encode_prefix(self, encoded: Tensor, num_prefix: int) -> Tensor:
        if self.prefix is None:
            return encoded
        return prepend_rows(self.prefix, encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        if self.integration == "input":
            return x + encoded.to(x.dtype)
        return x

    def layer_terms(self, encoded: Tensor) -> List[Tensor]:
        terms: List[Tensor] = []
        for layer in self.projection:
            terms.append(layer(encoded))
        if len(terms) == 0:
            terms.append(encoded if self.integration == "input" else torch.cat([encoded, encoded], dim=-1))
        if len(terms) == 1:
            return terms * self.num_layers
        return terms

    def make_stage(self) -> AttentionStage:
        if self.integration == "mul":
            return MultiplyStage(self.position_heads)
        if self.integration == "sum":
            return AddStage(self.position_heads)
        if self.integration == "bias":
            return BiasStage(self.position_heads, float(self.options.bias_scale))
        return AttentionStage()

    def keep_layers(self, num_layers: int) -> None:
        super().keep_layers(num_layers)
        if len(self.projection) > 1:
            self.projection = self.projection[:num_layers]

    @torch.jit.unused
    def _check_positions(self, positions: Tensor) -> None:
        if not is_traced():
            check_positions(positions, self.num_dims, self.base, self.num_digits, self.options.allow_absent)

    @torch.jit.unused
    def check_size(self, largest: int) -> None:
        check_largest_position(largest, self.capacity, self.base, self.num_digits)

    # Inference: tables.

    @torch.jit.unused
    def _encode_eager(self, positions: Tensor, extent: Optional[List[int]]) -> Tensor:
        if self.interpolates:
            stretched = self._encode_stretched(positions, extent)
            if stretched is not None:
                return stretched
        if self._may_use_tables():
            return self._table("vectors").lookup(positions, None if extent is None else max(extent))[0]
        return self.encoder(positions)

    def _encode_stretched(self, positions: Tensor, extent: Optional[List[int]]) -> Optional[Tensor]:
        """Vectors of the training context stretched over a larger one; None when it is not larger."""
        assert self.train_shape is not None
        if extent is None:
            extent = (positions.reshape(-1, self.num_dims).amax(dim=0) + 1).tolist()
        shape = list(self.train_shape)
        sides, larger = stretch_beyond(shape, list(extent))
        if not larger:
            return None
        trained = self.encoder(grid_positions(shape, device=positions.device))
        return F.embedding(ravel_positions(positions, sides), resize_grid_rows(trained, shape, sides))

    @torch.jit.unused
    def _prepare_from_table(
        self, positions: Tensor, num_prefix: int, extent: Optional[List[int]]
    ) -> Optional[Prepared]:
        # Grids are kept whole by `prepare_grid`; here are the positions of text, which come a token at a
        # time.
        if num_prefix > 0 or self.num_dims > 1 or self.interpolates or not self._may_use_tables():
            return None
        return self._prepared(self._table("terms").lookup(positions, None if extent is None else max(extent)))

    @torch.jit.unused
    def prepare_range(self, start: int, stop: int, device: Optional[torch.device] = None) -> Prepared:
        if self.num_dims > 1 or self.interpolates or not self._may_use_tables():
            return super().prepare_range(start, stop, device)
        self.check_size(stop - 1)
        return self._prepared(self._table("terms").slice(start, stop, device))

    def _prepared(self, columns: List[Tensor]) -> Prepared:
        """Reads the columns of the table of terms: one for all layers, or one for each."""
        return Prepared(columns[0], columns * self.num_layers if len(columns) == 1 else columns)

    def _table(self, kind: str) -> PositionTable:
        """Returns the table of "vectors" or of "terms"; a new one when any parameter has changed."""
        self._forget_if_changed()
        table = self._tables.get(kind)
        if table is None:
            compute = self._compute_vectors if kind == "vectors" else self._compute_terms
            lowest = ABSENT if self.options.allow_absent else 0
            self._tables[kind] = table = PositionTable(compute, self.num_dims, self.capacity, lowest)
        return table

    def _compute_vectors(self, positions: Tensor) -> List[Tensor]:
        # Normal tensors even inside inference_mode, so that a frozen encoder can serve a model that trains;
        # full precision even under autocast, so that the table does not depend on who asked first.
        with torch.inference_mode(False), torch.no_grad(), without_autocast(positions.device):
            return [self.encoder(positions)]

    def _compute_terms(self, positions: Tensor) -> List[Tensor]:
        with torch.inference_mode(False), torch.no_grad(), without_autocast(positions.device):
            terms = self.layer_terms(self.encoder(positions))
            return terms if len(self.projection) > 1 else terms[:1]

    def _may_use_tables(self) -> bool:
        numbered = (self.capacity + 1) ** self.num_dims < 2**63
        return self.frozen_table is None and numbered and self._may_cache()

    def freeze_to_table(self, max_position: Optional[int] = None) -> "SeqPE":
        """Replaces the encoder by a table, for export.

        The table holds the positions below `max_position` in each dimension. The weights stay, and
        `unfreeze` brings the encoder back; so do `train()` and loading weights. A position outside of the
        table is an index error.
        """
        limit = max_position or min(self.capacity, self.universe)
        self.check_size(limit - 1)
        if self.options.allow_absent or self.interpolates:
            raise ValueError(
                "a table holds plain positions only: allow_absent and interpolation cannot be frozen"
            )
        self.unfreeze()
        self.frozen_sides = [limit] * self.num_dims
        device = self.encoder.cls_embedding.device
        was_training = self.encoder.training
        self.encoder.eval()
        positions = grid_positions(self.frozen_sides, device=device)
        self.frozen_table = self._compute_vectors(positions)[0]
        self.encoder.train(was_training)
        return self

    def unfreeze(self) -> "SeqPE":
        """Drops the table of `freeze_to_table`."""
        self.frozen_table, self.frozen_sides = None, []
        self.drop_caches()
        return self

    def drop_caches(self) -> None:
        super().drop_caches()
        self._tables = {}

    def __getstate__(self) -> Dict[str, Any]:
        return {**super().__getstate__(), "_tables": {}, "generator": None}

    # A frozen table does not follow the weights: it ends where they may change.

    def train(self, mode: bool = True) -> "SeqPE":
        if mode:
            self.unfreeze()
        super().train(mode)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unfreeze()
        super()._load_from_state_dict(*args, **kwargs)

    # Training: random shift and the two objectives.

    def has_training_objectives(self) -> bool:
        options = self.options
        return self.training and options.distance_weight + options.ood_weight + options.shift_probability > 0

    @torch.jit.unused
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def encode_for_training(
        self, positions: Tensor, window: Sequence[int], batch_size: int
    ) -> Tuple[Tensor, Optional[Tensor], Optional[PositionLosses]]:
        if not self.has_training_objectives():
            return self.encode(positions), None, None
        window = [int(side) for side in window]
        if self.options.shift_probability > 0:
            positions, rows = self._shift(positions, window, batch_size)
        else:
            rows = None
        step = self._draw_objectives(window, positions.device)
        sizes = [positions[..., 0].numel(), *step.sizes]
        flat = torch.cat([positions.reshape(-1, self.num_dims), step.flat])
        main, *parts = self.encoder(flat).split(sizes)
        encoded = main.reshape(*positions.shape[:-1], self.width)
        return encoded, rows, self._losses(parts, step)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def position_losses(self, window: Optional[Sequence[int]] = None) -> PositionLosses:
        """Draws positions and returns the two objectives, for training loops that add them themselves.

        Args:
            window: size of the training context; by default `train_shape`.
        """
        window = window or self.train_shape
        if window is None:
            raise ValueError(
                "the training context is unknown: give window, as (512,) or (14, 14), or train_shape"
            )
        step = self._draw_objectives(list(window), self.encoder.cls_embedding.device)
        return self._losses(list(self.encoder(step.flat).split(step.sizes)), step)

    def _shift(
        self, positions: Tensor, window: Sequence[int], batch_size: int
    ) -> Tuple[Tensor, Optional[Tensor]]:
        options = self.options
        generator = optional_generator(self.generator, torch.device("cpu"), _rank())
        starts, rows = sample_shifts(
            window, self.universe, batch_size, options.shift_probability, options.shift_scope, generator
        )
        starts, rows = starts.to(positions.device), rows.to(positions.device)
        if positions.ndim == 3:
            return positions + starts[rows].unsqueeze(1), None
        if starts.shape[0] == 1:
            return positions, None
        return positions + starts.unsqueeze(1), rows

    def _draw_objectives(self, window: Sequence[int], device: torch.device) -> _StepPositions:
        options = self.options
        generator = optional_generator(self.generator, device, _rank())
        drawn: List[Tensor] = []
        nearest = tied = None
        # Drawn anew each step instead of counted, so that an interrupted run needs no counter to go on.
        skipped = options.objective_probability < 1 and self.training
        if skipped:
            chance = torch.rand((), generator=generator, device=generator.device)
            skipped = float(chance) >= options.objective_probability
        if options.distance_weight > 0 and not skipped:
            contrastive = sample_contrastive(
                self.universe,
                self.num_dims,
                self.base,
                options.num_pivots,
                options.num_candidates,
                generator,
                options.hard_ratio,
                options.local_probability,
                options.local_range,
                self.distance_function,
            )
            drawn += [contrastive.pivots, contrastive.candidates]
            nearest, tied = contrastive.nearest, contrastive.tied
        if options.ood_weight > 0 and not skipped:
            drawn += sample_transfer(
                window, self.universe, options.num_starts, options.num_transfer, generator
            )
        flat = [part.reshape(-1, self.num_dims).to(device) for part in drawn]
        empty = torch.empty(0, self.num_dims, dtype=torch.long, device=device)
        return _StepPositions(torch.cat([empty, *flat]), [part.shape[0] for part in flat], nearest, tied)

    def _losses(self, parts: List[Tensor], step: _StepPositions) -> PositionLosses:
        options = self.options
        zero = self.encoder.cls_embedding.new_zeros(())
        distance, ood = zero, zero
        if step.nearest is not None and step.tied is not None:
            pivots, candidates, *parts = parts
            candidates = candidates.unflatten(0, (pivots.shape[0], -1))
            nearest, tied = step.nearest.to(pivots.device), step.tied.to(pivots.device)
            distance = distance_contrastive_loss(pivots, candidates, nearest, tied)
        if parts:
            teachers, students = (part.unflatten(0, (options.num_starts, -1)) for part in parts)
            ood = ood_distillation_loss(teachers, students, self.ood_heads, options.ood_form)
        ratio = self._advance_warmup()
        if self.training:
            ratio /= options.objective_probability
        weighted = ratio * (options.distance_weight * distance + options.ood_weight * ood)
        return PositionLosses(distance, ood, weighted)

    def _advance_warmup(self) -> float:
        warmup = self.options.warmup_steps
        if warmup == 0 or not self.training:
            return 1.0
        assert isinstance(self.objective_step, Tensor)
        self.objective_step += 1
        return warmup_ratio(int(self.objective_step), warmup)

    def _universe(self) -> int:
        """L_max, checked."""
        wanted = self.options.max_position
        universe = int(wanted if wanted is not None else min(self.capacity, PAPER_MAX_POSITION))
        if universe > self.capacity:
            raise ValueError(
                f"max_position={universe} does not fit into num_digits={self.num_digits} digits of base "
                f"{self.base}, which write positions up to {self.capacity - 1}; lower it or use more digits"
            )
        if self.options.distance_weight > 0 and universe**self.num_dims <= self.options.num_candidates + 1:
            raise ValueError(
                f"max_position={universe} in {self.num_dims} dimensions has too few positions for "
                f"num_candidates={self.options.num_candidates}; lower num_candidates or set distance_weight=0"
            )
        return universe


def _rank() -> int:
    distributed = torch.distributed
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


def _choose(name: str, value: Optional[str], allowed: Tuple[Optional[str], ...]) -> None:
    if value not in allowed:
        listed = ", ".join(repr(choice) for choice in allowed if choice is not None)
        raise ValueError(f"{name}={value!r} is unknown; choose one of {listed}")
