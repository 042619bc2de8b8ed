"""SeqPE: positions as digit sequences, read by a small transformer (the paper's method).

This file ties the pieces together: the encoder, the integration into the host (AttnMul, AttnSum, AttnBias or
the input), W_PE, and in training the random shift and the two objectives, all of whose positions go through
one encoder call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoder import PositionEncoder, fit_to_sinusoids
from .objectives import (
    OOD_FORMS,
    distance_contrastive_loss,
    ood_distillation_loss,
    optional_generator,
    sample_contrastive,
    sample_shifts,
    sample_transfer,
)
from .position_encoding import (
    AddOperation,
    AttentionOperation,
    BiasOperation,
    HostSpec,
    MultiplyOperation,
    Options,
    PositionEncoding,
    PositionInputs,
    PositionLosses,
    as_constants,
    check_value,
    is_traced,
    option,
    prepend_rows,
)
from .positions import Positions, grid_positions, ravel_positions

INTEGRATIONS = ("mul", "sum", "bias", "input")
PAPER_MAX_POSITION = 20000
"""L_max of the paper's text runs."""
MAX_ENCODER_DIM = 768
"""Widest encoder by default; the paper's is as wide as its models, 384 and 768."""
MAX_TABLE_ROWS = 2**22
"""Largest table of positions that is made."""


@dataclass(frozen=True)
class SeqPEOptions(Options):
    """Options of `seqpe`. Letters of the paper in brackets.

    Attributes:
        num_digits: [k] digits per coordinate; by default 5 in one dimension and 2 in more, or as many as
        write
            twice the training context.
        base: [b] base of the number system.
        encoder_dim: [d] width of the encoder; by default that of the host, at most 768.
        encoder_heads: its attention heads; by default one for 64 columns, or the next fewer that divide them.
        encoder_layers: [N] its layers.
        encoder_causal: causal or bidirectional attention over digits.
        dropout: residual dropout of the encoder.
        attention_dropout: dropout of its attention probabilities.
        final_norm: normalise the state of [CLS] before the output projection.
        temperature: the vectors are divided by it.
        mask_padding: hide padding zeros from attention; the paper and all runs of the release leave them
            visible.
        allow_absent: coordinates may be -1, "not there", for batches that mix text and images.
        integration: "mul", "sum", "bias" or "input". By default the paper's choice, "bias" in one dimension
            and "mul" in more; "input" when the host names no attention heads.
        projection: W_PE "per_layer", "shared" by all layers, or "none". By default "shared" in one dimension
            and "per_layer" in more, as in the paper's runs.
        multi_head: vectors for each head; else one, shared by all.
        position_dim: columns of a head's vectors under "bias", by default those of the head; fewer make long
            texts cheaper.
        bias_scale: factor of the position scores of "bias".
        init: "fan_in" draws weights of 1 / sqrt(fan in), and the factors of "mul" start around 1; "fitted"
            then fits the encoder to sines and cosines of its positions, which takes seconds to minutes when a
            model is built; "release" draws all weights with 0.02, as the authors do: scores and factors start
            near zero.
        init_scale: factor of the weights of W_PE, except under "release".
        fit_steps: steps of "fitted".
        extrapolation: "extend" encodes unseen positions; "interpolate" stretches the vectors of the training
            context over a larger one.
        distance_weight: [alpha] weight of the contrastive objective.
        ood_weight: [beta] weight of the distillation objective.
        shift_probability: share of training examples with a random start position.
        shift_scope: "example", or "batch" as in the release.
        max_position: [L_max] the objectives draw positions below it; by default what the digits can write, at
            most 20,000 or four times the training context.
        num_pivots: pivots of the contrastive objective a step.
        num_candidates: [m] candidates a pivot.
        num_starts: shifted contexts of the distillation objective a step.
        num_transfer: [m] positions compared in each of them. The paper has 32 for both; the release 64 for
            images.
        local_range: smallest number of positions in a local region of the contrastive objective.
        ood_form: "paper", "release" or "release_mse".
        ood_heads: heads of the distillation objective; by default those of the encoder, or as many of them as
            divide the vectors.
    """

    num_digits: int | None = option(None, least=1, most=18)
    base: int = option(10, least=2, most=65536)
    encoder_dim: int | None = option(None, least=1, most=65536)
    encoder_heads: int | None = option(None, least=1, kind=True)
    encoder_layers: int = option(2, least=1, most=1000)
    encoder_causal: bool = option(True, kind=True)
    dropout: float = option(0.1, least=0, most=1)
    attention_dropout: float = option(0.0, least=0, most=1)
    final_norm: bool = option(True)
    temperature: float = option(1.0, least=1e-6, most=1e6, kind=True)
    mask_padding: bool = option(False, kind=True)
    allow_absent: bool = option(False)
    integration: str | None = option(None, choices=INTEGRATIONS, kind=True)
    projection: str | None = option(None, choices=("per_layer", "shared", "none"))
    multi_head: bool = option(True)
    position_dim: int | None = option(None, least=1)
    bias_scale: float = option(1.0, least=-1e6, most=1e6, kind=True)
    init: str = option("fan_in", choices=("fan_in", "fitted", "release"))
    init_scale: float = option(2.0, least=0, most=1e6)
    fit_steps: int = option(1000, least=1)
    extrapolation: str = option("extend", choices=("extend", "interpolate"))
    distance_weight: float = option(0.1, least=0, most=1e6)
    ood_weight: float = option(0.1, least=0, most=1e6)
    shift_probability: float = option(0.1, least=0, most=1)
    shift_scope: str = option("example", choices=("example", "batch"))
    max_position: int | None = option(None, least=1)
    num_pivots: int = option(32, least=1, most=2**20)
    num_candidates: int = option(32, least=2, most=2**20)
    num_starts: int = option(32, least=1, most=2**20)
    num_transfer: int = option(32, least=1, most=2**20)
    local_range: int = option(256, least=1)
    ood_form: str = option("paper", choices=OOD_FORMS)
    ood_heads: int | None = option(None, least=1)

    def resolve(self, host: HostSpec) -> "SeqPEOptions":
        is_text, in_attention = host.num_dims == 1, host.num_heads is not None
        trained = max(host.train_shape or (1,))
        digits = self.num_digits or (5 if is_text else 2)
        while self.num_digits is None and self.base**digits < 2 * trained:
            digits += 1
        encoder_dim = self.encoder_dim or min(host.dim, MAX_ENCODER_DIM)
        encoder_heads = self.encoder_heads or largest_divisor(encoder_dim, encoder_dim // 64)
        integration = self.integration or ("input" if not in_attention else "bias" if is_text else "mul")
        projection = self.projection or ("shared" if is_text else "per_layer")
        made = replace(
            self,
            num_digits=digits,
            encoder_dim=encoder_dim,
            encoder_heads=encoder_heads,
            integration=integration,
            projection="none" if integration == "input" else projection,
            max_position=self.max_position or min(self.base**digits, max(PAPER_MAX_POSITION, 4 * trained)),
        )
        made = replace(made, ood_heads=self.ood_heads or largest_divisor(made.width(host), encoder_heads))
        made.check(host)
        return made

    def width(self, host: HostSpec) -> int:
        """Width of a position's vector: that of the host, or of all its key heads."""
        heads = host.num_kv_heads if self.multi_head else 1
        return host.dim if self.integration == "input" else heads * (self.position_dim or host.head_dim)

    def check(self, host: HostSpec) -> None:
        """Raises ValueError where options contradict each other or the host."""
        capacity, largest = self.base**self.num_digits, self.max_position  # type: ignore[operator]
        if capacity > 2**60:
            raise ValueError(
                f"num_digits={self.num_digits} digits of base {self.base} write numbers above 2**60; "
                "use fewer digits"
            )
        if self.position_dim is not None and self.integration != "bias":
            raise ValueError(
                f"position_dim={self.position_dim} is an option of integration='bias'; with "
                f"{self.integration!r} vectors are as wide as the heads"
            )
        if self.integration != "input" and host.num_heads is None:
            raise ValueError(
                f"integration={self.integration!r} works in attention: give num_heads of the host"
            )
        if largest > capacity:
            raise ValueError(
                f"max_position={largest} does not fit into num_digits={self.num_digits} digits of base "
                f"{self.base}, which write positions up to {capacity - 1}; lower it or use more digits"
            )
        if self.distance_weight > 0 and largest**host.num_dims <= self.num_candidates + 1:  # type: ignore[operator]
            raise ValueError(
                f"max_position={largest} in {host.num_dims} dimensions has too few positions for "
                f"num_candidates={self.num_candidates}; lower num_candidates or set distance_weight=0"
            )
        if largest ** max(2, host.num_dims) * host.num_dims >= 2**62:  # type: ignore[operator]
            raise ValueError(
                f"max_position={largest} in {host.num_dims} dimensions is more than 64-bit integers can "
                "number; lower it: the objectives draw positions below it"
            )
        if self.encoder_dim % self.encoder_heads:  # type: ignore[operator]
            raise ValueError(
                f"encoder_dim={self.encoder_dim} is not divisible by encoder_heads={self.encoder_heads}; "
                "set encoder_heads"
            )
        if self.ood_weight > 0 and self.width(host) % self.ood_heads:  # type: ignore[operator]
            raise ValueError(
                f"vectors of width {self.width(host)} do not split into ood_heads={self.ood_heads}; "
                "set ood_heads to a divisor"
            )
        if self.extrapolation == "interpolate" and host.train_shape is None:
            raise ValueError("extrapolation='interpolate' stretches the training context: give train_shape")
        if self.extrapolation == "interpolate" and self.allow_absent:
            raise ValueError(
                "absent coordinates have no place in a grid that is stretched: allow_absent=True needs "
                "extrapolation='extend'"
            )


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`, at least 1."""
    return next(divisor for divisor in range(min(number, max(1, most)), 0, -1) if number % divisor == 0)


class _StepPositions(NamedTuple):
    """The drawn positions of a training step, flattened for one encoder call, and their counts."""

    flat: Tensor
    sizes: list[int]
    nearest: Tensor | None
    tied: Tensor | None


class SeqPE(PositionEncoding):
    """Sequential position encoding.

    As a module of its own it maps positions to vectors, for use in any transformer:

    >>> pe = SeqPE(dim=384, num_dims=2, num_digits=2)
    >>> pe(torch.tensor([[2, 3], [13, 0]])).shape
    torch.Size([2, 384])

    Inside a host it is a `PositionEncoding` like any other. Arguments of the host as in `HostSpec`; options
    as in `SeqPEOptions`.

    Attributes:
        generator: source of randomness of the training positions; by default seeded from PyTorch's global
            one.
    """

    name = "seqpe"
    Options = SeqPEOptions
    frozen_table: Tensor | None

    def __init__(self, dim: int, **kwargs: Any) -> None:
        super().__init__(dim, **kwargs)
        options, host = self.options, self.host
        self.capacity: int = options.base**options.num_digits
        self.allow_absent = options.allow_absent
        self.integration: str = options.integration
        self.position_heads: int = host.num_kv_heads if options.multi_head else 1
        self.width: int = options.width(host)
        self.interpolates = options.extrapolation == "interpolate"
        self.changes_input = self.integration == "input"
        self.has_table = host.num_dims == 1 and not (
            host.num_prefix or self.interpolates or self.allow_absent
        )
        self.encoder = PositionEncoder(self.width, self.num_dims, options)
        # Class and register tokens have no place in the grid; each learns a vector of its own, as in the
        # release.
        self.prefix = nn.Parameter(torch.empty(host.num_prefix, self.width)) if host.num_prefix else None
        copies = {"per_layer": host.num_layers, "shared": 1, "none": 0}[options.projection]
        self.projection = nn.ModuleList([nn.Linear(self.width, 2 * self.width) for _ in range(copies)])
        self.register_buffer("frozen_table", None, persistent=False)
        self.generator: torch.Generator | None = None
        self.is_fitted = False
        self.reset_parameters()

    def reset_parameters(self, std: float = 0.02) -> None:
        """Initialises as option `init` says; `std` is that of the release's weights."""
        released = self.options.init == "release"
        if self.options.init == "fitted":
            self._fit_encoder()
        else:
            self.encoder.reset_parameters(std if released else None)
        if self.prefix is not None:
            nn.init.normal_(self.prefix, std=std if released else 0.5)
        for layer in self.projection:
            assert isinstance(layer, nn.Linear)
            scale = std if released else self.options.init_scale * layer.in_features**-0.5
            nn.init.normal_(layer.weight, std=scale)
            starts_at_one = self.integration == "mul" and not released
            nn.init.constant_(layer.bias, 1.0 if starts_at_one else 0.0)

    def _fit_encoder(self) -> None:
        """Fits a fresh encoder, once: hosts initialise repeatedly, transformers also after loading."""
        first = self.encoder.cls_embedding
        if self.is_fitted or first.is_meta or getattr(first, "_is_hf_initialized", False):
            return
        self.encoder.reset_parameters(None)
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, (), device="cpu")))
        fit_to_sinusoids(self.encoder, self.options.max_position, self.options.fit_steps, generator)
        self.is_fitted = True

    @torch.no_grad()
    def start_neutral(self) -> None:
        """Makes the vectors change nothing at first, for a trained model that keeps its own positions.

        All parameters still learn: factors of "mul" are 1, terms of "sum" 0, and of the product of "bias" one
        half is 0. With both halves at zero no gradient would reach either.
        """
        if self.integration == "input":
            nn.init.zeros_(self.encoder.out.weight)
            nn.init.zeros_(self.encoder.out.bias)
            if self.prefix is not None:
                nn.init.zeros_(self.prefix)
        elif not self.projection:
            raise ValueError("without W_PE (projection='none') SeqPE cannot start as a change of nothing")
        for layer in self.projection:
            assert isinstance(layer, nn.Linear)
            rows = self.width if self.integration == "bias" else 2 * self.width
            layer.weight[:rows].zero_()
            layer.bias[:rows].fill_(1.0 if self.integration == "mul" else 0.0)
        self.clear_cache()

    # What hosts call.

    def encode(self, positions: Tensor, limit: list[int] | None = None) -> Tensor:
        if self.frozen_table is not None and is_traced():
            return self._read_frozen(positions)
        if self.interpolates:
            return self._encode_stretched(positions, limit)
        encoded: Tensor = self.encoder(positions)
        return encoded

    def encode_prefix(self, encoded: Tensor) -> Tensor:
        return encoded if self.prefix is None else prepend_rows(self.prefix, encoded)

    def on_input(self, x: Tensor, encoded: Tensor) -> Tensor:
        return x + encoded.to(x.dtype) if self.changes_input else x

    def layer_inputs(self, encoded: Tensor) -> list[Tensor]:
        inputs = [layer(encoded) for layer in self.projection]
        if not inputs:
            inputs = [torch.cat([encoded, encoded], dim=-1)]  # W_PE "none", or nothing in attention
        return inputs * (self.host.num_layers // len(inputs))

    def make_operation(self) -> AttentionOperation:
        heads = self.position_heads
        groups = self.groups if heads > 1 else 1
        if self.integration == "bias":
            return BiasOperation(heads, groups, self.options.bias_scale)
        operations = {"mul": MultiplyOperation, "sum": AddOperation}
        return operations.get(self.integration, AttentionOperation)(heads, groups)

    def keep_layers(self, num_layers: int) -> None:
        super().keep_layers(num_layers)
        if len(self.projection) > 1:
            self.projection = self.projection[:num_layers]

    def check_limit(self, limit: Sequence[int]) -> None:
        base, table = self.options.base, self.frozen_table
        for side in limit:  # one by one: in a graph max() would compare open sizes with each other
            if table is not None and side > table.shape[0]:
                raise ValueError(
                    f"position {side - 1} is outside of the frozen table, which ends at "
                    f"{table.shape[0] - 1}; freeze a larger one with freeze_to_table({side}), or call "
                    "unfreeze()"
                )
            if side > self.capacity:
                needed = self.options.num_digits
                while base**needed < side:
                    needed += 1
                raise ValueError(
                    f"position {side - 1} needs more than num_digits={self.options.num_digits} digits in "
                    f"base {base}; the largest allowed position is {self.capacity - 1}. Use "
                    f"num_digits={needed} (a model trained with fewer digits has no embeddings for more of "
                    "them), or keep texts and images below that size."
                )

    def _encode_stretched(self, positions: Tensor, limit: list[int] | None) -> Tensor:
        """Vectors of the training context, stretched where positions reach beyond it."""
        assert self.train_shape is not None
        limit = limit or (positions.reshape(-1, self.num_dims).amax(dim=0) + 1).tolist()
        shape = list(self.train_shape)
        sides = [max(trained, wanted) for trained, wanted in zip(shape, limit, strict=True)]
        if sides == shape and not is_traced():
            encoded: Tensor = self.encoder(positions)
            return encoded
        trained = self.encoder(grid_positions(shape, device=positions.device))
        return F.embedding(ravel_positions(positions, sides), resize_grid_rows(trained, shape, sides))

    # Export: a table in place of the encoder.

    def freeze_to_table(self, max_position: int | None = None) -> "SeqPE":
        """Replaces the encoder by a table in graphs of torch.compile, torch.export and ONNX.

        The table holds the positions below `max_position` in each dimension; one outside of it is an index
        error of the graph. The weights stay, and `unfreeze` brings the encoder back; so do `train()` and
        loading weights. Make the graph anew when weights change.
        """
        side = self.options.max_position if max_position is None else max_position
        check_value("max_position", side, int, least=1)
        self.unfreeze().check_limit([side])
        if side**self.num_dims > MAX_TABLE_ROWS:
            raise ValueError(
                f"a table of max_position={side} in {self.num_dims} dimensions has {side**self.num_dims} "
                f"rows, more than {MAX_TABLE_ROWS}; freeze a smaller one"
            )
        if self.options.allow_absent or self.interpolates:
            raise ValueError(
                "a table holds plain positions only: allow_absent and interpolation cannot be frozen"
            )
        was_training = self.encoder.training
        self.encoder.eval()
        device = self.encoder.cls_embedding.device
        positions = grid_positions([side] * self.num_dims, device=device)
        with as_constants(device):
            table = self.encoder(positions)
        self.frozen_table = table.reshape(*[side] * self.num_dims, self.width)
        self.encoder.train(was_training)
        return self

    def _read_frozen(self, positions: Tensor) -> Tensor:
        table = self.frozen_table
        assert table is not None
        sides = table.shape[:-1]
        index = ravel_positions(positions, sides)
        for dimension, side in enumerate(sides):
            # In a graph positions are not checked. A coordinate beyond its side would wrap around into the
            # next row: it gets an index out of range.
            inside = (positions[..., dimension] >= 0) & (positions[..., dimension] < side)
            index = torch.where(inside, index, side**self.num_dims)
        return F.embedding(index, table.flatten(0, -2))

    def unfreeze(self) -> "SeqPE":
        """Drops the table of `freeze_to_table`."""
        self.frozen_table = None
        self.clear_cache()
        return self

    def train(self, mode: bool = True) -> "SeqPE":
        if mode:
            self.unfreeze()  # a frozen table does not follow the weights: it ends where they may change
        super().train(mode)
        return self

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.unfreeze()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "generator": None}

    # Training: random shift and the two objectives.

    def has_objectives(self) -> bool:
        """Whether the weight of an objective is not zero."""
        return bool(self.options.distance_weight + self.options.ood_weight > 0)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def training_inputs(
        self, positions: Positions, batch_size: int, objectives: bool, device: Any
    ) -> PositionInputs:
        """`forward` of a training step: shifted examples, and the objectives in the same encoder call.

        Inputs are (B, L, .) when examples are shifted one by one, else (L, .). Projections run on the
        different rows alone, before these are laid out over the batch. Positions that do not begin at zero
        are taken as they are.
        """
        if self.interpolates:
            inputs = self.compute_inputs(positions, device)
            return inputs._replace(losses=self.position_losses() if objectives else None)
        positions, window = self._checked(positions)
        ids = positions.tensor(device)
        ids, rows = self._shift(ids, window, 0 if any(positions.start) else batch_size)
        step = self._draw_objectives(window, ids.device, objectives)
        vectors = self.encoder(torch.cat([ids.reshape(-1, self.num_dims), step.flat]))
        main, drawn = vectors.split([ids[..., 0].numel(), step.flat.shape[0]])
        losses = self._losses(drawn, step) if step.sizes else None
        encoded = self.encode_prefix(main.reshape(*ids.shape[:-1], self.width))
        layers = self.layer_inputs(encoded)
        if rows is not None:
            return PositionInputs(encoded, layers, losses).map(lambda inputs: inputs.index_select(0, rows))
        return PositionInputs(encoded, layers, losses)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def position_losses(self, window: Sequence[int] | None = None) -> PositionLosses:
        """Draws positions and returns the two objectives, for training loops that add them themselves.

        Args:
            window: size of the training context; by default `train_shape`.
        """
        window = window or self.train_shape
        if window is None:
            raise ValueError(
                "the training context is unknown: give window, as (512,) or (14, 14), or train_shape"
            )
        self._checked(Positions(tuple(window)))
        step = self._draw_objectives(list(window), self.encoder.cls_embedding.device, True)
        return self._losses(self.encoder(step.flat), step)

    def _shift(self, ids: Tensor, window: Sequence[int], batch_size: int) -> tuple[Tensor, Tensor | None]:
        """Shifts examples at random: positions (R, L, n), and for each example its row among R (B,)."""
        options = self.options
        if options.shift_probability == 0 or batch_size == 0:
            return ids, None
        generator = optional_generator(self.generator, torch.device("cpu"))
        starts, rows = sample_shifts(
            window,
            self.options.max_position,
            batch_size,
            options.shift_probability,
            options.shift_scope,
            generator,
        )
        starts, rows = starts.to(ids.device), rows.to(ids.device)
        if ids.ndim < 3 and starts.shape[0] == 1:
            return ids, None
        shifted = ids + (starts[rows] if ids.ndim == 3 else starts).unsqueeze(1)
        return torch.where(ids < 0, ids, shifted), rows if ids.ndim < 3 else None  # absent stays absent

    def _draw_objectives(self, window: Sequence[int], device: Any, wanted: bool) -> _StepPositions:
        options = self.options
        drawn = [torch.empty(0, self.num_dims, dtype=torch.long, device=device)]
        nearest = tied = None
        if not (wanted and self.has_objectives()):
            return _StepPositions(drawn[0], [], None, None)
        generator = optional_generator(self.generator, device)
        if options.distance_weight > 0:
            contrastive = sample_contrastive(
                self.options.max_position,
                self.num_dims,
                options.base,
                options.num_pivots,
                options.num_candidates,
                generator,
                local_range=options.local_range,
            )
            drawn += [contrastive.pivots, contrastive.candidates]
            nearest, tied = contrastive.nearest.to(device), contrastive.tied.to(device)
        if options.ood_weight > 0:
            counts = (options.num_starts, options.num_transfer)
            window = [max(1, side) for side in window]  # where all tokens lack a coordinate
            drawn += sample_transfer(window, self.options.max_position, *counts, generator)
        flat = [part.reshape(-1, self.num_dims).to(device) for part in drawn]
        return _StepPositions(torch.cat(flat), [part.shape[0] for part in flat[1:]], nearest, tied)

    def _losses(self, vectors: Tensor, step: _StepPositions) -> PositionLosses:
        options, parts = self.options, list(vectors.split(step.sizes))
        distance = ood = self.encoder.cls_embedding.new_zeros(())
        if step.nearest is not None:
            pivots, candidates, *parts = parts
            candidates = candidates.unflatten(0, (pivots.shape[0], -1))
            distance = distance_contrastive_loss(pivots, candidates, step.nearest, step.tied)
        if parts:
            teachers, students = (part.unflatten(0, (options.num_starts, -1)) for part in parts)
            ood = ood_distillation_loss(teachers, students, self.options.ood_heads, options.ood_form)
        return PositionLosses(distance, ood, options.distance_weight * distance + options.ood_weight * ood)


def resize_grid_rows(rows: Tensor, shape: list[int], new_shape: list[int]) -> Tensor:
    """Stretches rows of a grid over a larger one, as learned tables extrapolate in the paper.

    Linear for text, bicubic for images; pixel centres aligned (align_corners=False) and no anti-aliasing.

    Args:
        rows: (prod(shape), W), row-major.
        shape: the grid they belong to; one, two or three dimensions.
        new_shape: the grid wanted.

    Returns:
        (prod(new_shape), W).
    """
    if not is_traced() and shape == new_shape:
        return rows
    if math.prod(new_shape) > MAX_TABLE_ROWS:
        raise ValueError(f"a table of {shape} positions cannot be stretched over {new_shape}: too many rows")
    if len(shape) > 3:
        raise ValueError(f"only grids of 1, 2 or 3 dimensions can be interpolated, not one of shape {shape}")
    mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[len(shape)]
    volume = rows.t().reshape([1, rows.shape[1], *shape]).float()
    resized = F.interpolate(volume, size=new_shape, mode=mode, align_corners=False)
    return resized.flatten(2)[0].t().to(rows.dtype)
