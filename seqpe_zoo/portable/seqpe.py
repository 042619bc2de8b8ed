"""SeqPE: positions as digit sequences, read by a small transformer (the paper's method).

The encoder makes vectors of positions, W_PE makes of them what each layer needs, and the integration
(AttnMul, AttnSum, AttnBias or the input) says what the host does with it. In training come the random shift
and the two objectives; all positions of a step go through one encoder call.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoder import PositionEncoder, fit_to_sinusoids
from .objectives import OOD_FORMS, StepObjectives, optional_generator, sample_shifts
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
)
from .positions import Positions, count_digits, grid_positions, ravel_positions

INTEGRATIONS = ("mul", "sum", "bias", "input")
PAPER_MAX_POSITION = 20000
"""L_max of the paper's text runs."""
MAX_ENCODER_DIM = 768
"""Widest encoder by default; the paper's is as wide as its models, 384 and 768."""
PROJECTION_SCALE = 2.0
"""Weights of W_PE are drawn with this / sqrt(fan in), with which SeqPE trains best in small."""
MAX_TABLE_ROWS = 2**22
"""Largest table of positions that is made."""


@dataclass(frozen=True)
class SeqPEOptions(Options):
    """Options of `seqpe`. Letters of the paper in brackets.

    Attributes:
        num_digits: [k] digits per coordinate; by default 5 in one dimension and 2 in more, or as many as
            write twice the training context.
        base: [b] base of the number system.
        encoder_dim: [d] width of the encoder; by default that of the host, at most 768.
        encoder_heads: its attention heads; by default one for 64 columns, or the next fewer that divide them.
        encoder_layers: [N] its layers.
        encoder_causal: causal or bidirectional attention over digits.
        dropout: residual dropout of the encoder.
        attention_dropout: dropout of its attention probabilities.
        final_norm: normalise the state of [CLS] before the output projection.
        temperature: the vectors are divided by it.
        mask_padding: hide padding zeros from attention; the paper and the runs of the release show them.
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
            model is built; "release" draws all weights with 0.02, as the authors do.
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
        is_text, trained = host.num_dims == 1, max(host.train_shape or (1,))
        digits = self.num_digits or max(5 if is_text else 2, count_digits(self.base, 2 * trained))
        encoder_dim = self.encoder_dim or min(host.dim, MAX_ENCODER_DIM)
        encoder_heads = self.encoder_heads or largest_divisor(encoder_dim, encoder_dim // 64)
        suited = "input" if host.num_heads is None else "bias" if is_text else "mul"
        integration = self.integration or suited
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
        own: Any = self  # no option is open here
        capacity, most, width = own.base**own.num_digits, own.max_position, own.width(host)
        not_bias = own.position_dim is not None and own.integration != "bias"
        no_heads = own.integration != "input" and host.num_heads is None
        too_few = own.distance_weight > 0 and most**host.num_dims <= own.num_candidates + 1
        too_many = most ** max(2, host.num_dims) * host.num_dims >= 2**62
        stretches = own.extrapolation == "interpolate"
        unknown = stretches and host.train_shape is None
        digits = f"num_digits={own.num_digits} digits of base {own.base}"
        drawn = f"max_position={most} in {host.num_dims} dimensions"
        reasons = {
            f"{digits} write numbers above 2**60; use fewer digits": capacity > 2**60,
            f"position_dim={own.position_dim} is an option of integration='bias'; with {own.integration!r} "
            "vectors are as wide as the heads": not_bias,
            f"integration={own.integration!r} works in attention: give num_heads of the host": no_heads,
            f"max_position={most} does not fit into {digits}, which write positions up to {capacity - 1}; "
            "lower it or use more digits": most > capacity,
            f"{drawn} has too few positions for num_candidates={own.num_candidates}; lower num_candidates or "
            "set distance_weight=0": too_few,
            f"{drawn} is more than 64-bit integers can number; lower it: the objectives draw positions below "
            "it": too_many,
            f"encoder_dim={own.encoder_dim} is not divisible by encoder_heads={own.encoder_heads}; set "
            "encoder_heads": own.encoder_dim % own.encoder_heads > 0,
            f"vectors of width {width} do not split into ood_heads={own.ood_heads}; set ood_heads to a "
            "divisor": own.ood_weight > 0 and width % own.ood_heads > 0,
            "extrapolation='interpolate' stretches the training context: give train_shape": unknown,
            "absent coordinates have no place in a grid that is stretched: allow_absent=True needs "
            "extrapolation='extend'": stretches and own.allow_absent,
        }
        for reason, is_wrong in reasons.items():
            if is_wrong:
                raise ValueError(reason)


def largest_divisor(number: int, most: int) -> int:
    """The largest divisor of a number that is at most `most`, at least 1."""
    return next(divisor for divisor in range(min(number, max(1, most)), 0, -1) if number % divisor == 0)


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
        if host.num_prefix:  # class and register tokens have no place in the grid: each learns its vector
            self.prefix = nn.Parameter(torch.empty(host.num_prefix, self.width))
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
            scale = std if released else PROJECTION_SCALE * layer.in_features**-0.5
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

        All parameters still learn: of the product of "bias" only one half is 0, so that the other gets a
        gradient.
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
            # In a graph positions are not checked: a negative one would count from the end of the table.
            positions = torch.where(positions < 0, self.frozen_table.shape[0], positions)
            return self.frozen_table[positions.unbind(-1)]
        if self.interpolates:
            shape: Any = self.train_shape
            trained = self.encoder(grid_positions(shape, device=positions.device))
            return read_stretched(trained, shape, positions, limit)
        encoded: Tensor = self.encoder(positions)
        return encoded

    def layer_inputs(self, encoded: Tensor) -> list[Tensor]:
        # Without W_PE queries and keys get the same.
        inputs = [layer(encoded) for layer in self.projection] or [torch.cat([encoded, encoded], dim=-1)]
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
        base, frozen = self.options.base, self.frozen_table
        rows = self.capacity if frozen is None else frozen.shape[0]
        for side in limit:  # one by one: in a graph max() would compare open sizes with each other
            if side <= rows:
                continue
            if frozen is not None:
                raise ValueError(
                    f"position {side - 1} is outside of the frozen table, which ends at {rows - 1}; freeze a "
                    f"larger one with freeze_to_table({side}), or call unfreeze()"
                )
            raise ValueError(
                f"position {side - 1} needs more than num_digits={self.options.num_digits} digits in base "
                f"{base}; the largest allowed position is {rows - 1}. Use "
                f"num_digits={count_digits(base, side)} (a model trained with fewer digits has no embeddings "
                "for more of them), or keep texts and images below that size."
            )

    # Export: a table in place of the encoder.

    def freeze_to_table(self, max_position: int | None = None) -> "SeqPE":
        """Replaces the encoder by a table in graphs of torch.compile, torch.export and ONNX.

        The table holds the positions below `max_position` in each dimension; one outside of it is an index
        error of the graph. The weights stay, and `unfreeze` brings the encoder back; so do `train()` and
        loading weights. Make the graph anew when weights change. Switches to inference, as `eval()` does.
        """
        side, num_dims = self.options.max_position if max_position is None else max_position, self.num_dims
        check_value("max_position", side, int, least=1)
        self.unfreeze().eval().check_limit([side])
        if side**num_dims > MAX_TABLE_ROWS:
            raise ValueError(
                f"a table of max_position={side} in {num_dims} dimensions has {side**num_dims} rows, more "
                f"than {MAX_TABLE_ROWS}; freeze a smaller one"
            )
        if self.allow_absent or self.interpolates:
            raise ValueError("a table holds plain positions: no absent ones, and extrapolation='extend'")
        device = self.encoder.cls_embedding.device
        with as_constants(device):
            table = self.encoder(grid_positions([side] * num_dims, device=device))
        self.frozen_table = table.reshape(*[side] * num_dims, self.width)
        return self

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
        flat, step = ids.reshape(-1, self.num_dims), None
        if objectives and self.has_objectives():
            step = StepObjectives(self.options, window, self.generator, ids.device)
            flat = torch.cat([flat, step.positions])
        vectors, drawn = self.encoder(flat).tensor_split([ids[..., 0].numel()])
        encoded = self.encode_prefix(vectors.reshape(*ids.shape[:-1], self.width))
        inputs = PositionInputs(encoded, self.layer_inputs(encoded), step.losses(drawn) if step else None)
        return inputs if rows is None else inputs.map(lambda one: one.index_select(0, rows))

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def position_losses(self) -> PositionLosses:
        """Draws positions and returns the two objectives, for training loops that add them themselves."""
        if self.train_shape is None:
            raise ValueError("the training context is unknown: give train_shape, as (512,) or (14, 14)")
        device = self.encoder.cls_embedding.device
        step = StepObjectives(self.options, self.train_shape, self.generator, device)
        return step.losses(self.encoder(step.positions))

    def _shift(self, ids: Tensor, window: Sequence[int], batch_size: int) -> tuple[Tensor, Tensor | None]:
        """Shifts examples at random: positions (R, L, n), and for each example its row among R (B,)."""
        options = self.options
        if options.shift_probability * batch_size == 0:
            return ids, None
        chance = (options.shift_probability, options.shift_scope)
        generator = optional_generator(self.generator, torch.device("cpu"))
        starts, rows = sample_shifts(window, options.max_position, batch_size, *chance, generator)
        starts, rows = starts.unsqueeze(1).to(ids.device), rows.to(ids.device)
        if ids.ndim == 3:  # examples have positions of their own
            return torch.where(ids < 0, ids, ids + starts[rows]), None  # what is absent stays absent
        if starts.shape[0] == 1:
            return ids, None
        return torch.where(ids < 0, ids, ids + starts), rows


def read_stretched(
    rows: Tensor, shape: Sequence[int], positions: Tensor, limit: Sequence[int] | None
) -> Tensor:
    """Reads positions from the rows of a grid, which is stretched where they reach beyond it.

    As learned tables extrapolate in the paper: linear for text, bicubic for images; pixel centres aligned
    (align_corners=False) and no anti-aliasing.

    Args:
        rows: (prod(shape), W), row-major.
        shape: the grid of the training context; one, two or three dimensions.
        positions: (..., n).
        limit: what coordinates are below; read from the positions when it is None.
    """
    limit = limit or (positions.reshape(-1, len(shape)).amax(dim=0) + 1).tolist()
    sides = [max(trained, wanted) for trained, wanted in zip(shape, limit, strict=True)]
    if is_traced() or sides != list(shape):
        if math.prod(sides) > MAX_TABLE_ROWS:
            raise ValueError(f"a table of {shape} positions cannot be stretched over {sides}: too many rows")
        if len(shape) > 3:
            raise ValueError(f"only grids of 1, 2 or 3 dimensions can be interpolated, not one of {shape}")
        mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[len(shape)]
        volume = rows.t().reshape([1, rows.shape[1], *shape]).float()
        resized = F.interpolate(volume, size=sides, mode=mode, align_corners=False)
        rows = resized.flatten(2)[0].t().to(rows.dtype)
    return F.embedding(ravel_positions(positions, sides), rows)
