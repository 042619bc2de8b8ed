"""timm's Vision Transformer with any position encoding of the registry.

`PositionVisionTransformer` is a `VisionTransformer` with a `position_encoding`. It asks that once a forward
pass for the positions of its image grid and hands every block the position inputs of its layer. Features,
intermediates, dynamic sizes, patch dropout, checkpointing, torch.fx and export work as in timm. Other models
of timm are in `timm_hosts.py`, names for `timm.create_model` in `timm_models.py` of the package.
"""

import itertools
import operator
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from timm.layers import Attention, PatchDropoutWithIndices, maybe_add_mask, register_notrace_module
from timm.layers import resolve_self_attn_mask as resolve_mask
from timm.models import checkpoint
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, feature_take_indices
from torch import Tensor, nn

from .encodings import build_position_encoding
from .position_encoding import (
    AttentionOperation,
    PositionEncoding,
    PositionInputs,
    PositionLosses,
    has_hooks,
    is_traced,
    position_scores,
    widen_heads,
)
from .positions import Positions

register_notrace_module(PositionEncoding)

NO_OUTPUTS: dict[int, Any] = {}
MAX_SCORE_MATRIX = 64 * 2**20
"""Largest matrix of position scores, in elements, that is built; above it heads are widened."""

torch.fx.wrap("attend_with_scores")  # how scores are added depends on sizes, which torch.fx does not know
torch.fx.wrap("position_scores")
torch.fx.wrap("checked_start")


def attend_with_scores(
    q: Tensor, k: Tensor, v: Tensor, factors: Any, mask: Any, is_causal: bool, dropout_p: float
) -> Tensor:
    """Scaled dot-product attention whose scores are (q k^T + f_q f_k^T) / sqrt(D); returns (B, H, L, D)."""
    scale, width = q.shape[-1] ** -0.5, v.shape[-1]
    rows = factors[0].shape[0] if factors[0].ndim == 4 else 1
    if rows * q.shape[1] * q.shape[2] * k.shape[2] > MAX_SCORE_MATRIX:
        q, k, v = widen_heads(q, k, v, factors)
    else:
        scores = position_scores(factors, scale).to(q.dtype)
        visible = resolve_mask(q.shape[2], scores, mask, is_causal)
        if visible is not None:
            # Masks may hold the lowest number of a dtype; below it half precision has minus infinity alone.
            scores = (scores + visible).clamp(min=torch.finfo(q.dtype).min)
        mask, is_causal = scores, False
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)[..., :width]


class AttentionWithPositions(nn.Module):
    """What all attention layers of timm do after projecting, with the operation of a position encoding.

    Comes before an attention class of timm.
    """

    operation = AttentionOperation()

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, inputs: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Gives queries and keys (B, H, L, D) their positions, attends, and projects.

        `x` is the input of the layer, `inputs` its position inputs, (L, T) or (B, L, T).
        """
        # Without gradients positions are written where queries and keys lie, unless a hook has seen them.
        inplace = not (torch.is_grad_enabled() or is_traced() or has_hooks(self))
        q = self.operation.on_query(q, inputs, inplace)
        k = self.operation.on_key(k, inputs, inplace)
        dropout_p = self.attn_drop.p if self.training else 0.0
        if not self.fused_attn:
            y = self._attend_in_steps(q, k, v, inputs, mask, is_causal)
        elif self.operation.has_scores:
            factors = self.operation.score_factors(inputs, inputs)
            y = attend_with_scores(q, k, v, factors, mask, is_causal, dropout_p)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
        y = self.norm(y.transpose(1, 2).flatten(2))
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(y))

    def _attend_in_steps(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: Tensor, mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Attention whose probabilities can be looked at, where timm's fused attention is off."""
        scores = (q * self.scale) @ k.transpose(-2, -1)
        if self.operation.has_scores:
            scores = scores + position_scores(self.operation.score_factors(inputs, inputs), self.scale)
        scores = maybe_add_mask(scores, resolve_mask(q.shape[2], scores, mask, is_causal))
        return self.attn_drop(scores.softmax(dim=-1)) @ v


class PositionAttention(AttentionWithPositions, Attention):
    """timm's `Attention` with a position encoding."""

    def forward(
        self, x: Tensor, inputs: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attends; `inputs` are the position inputs of this layer."""
        B, L, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.attend(x, self.q_norm(q), self.k_norm(k), v, inputs, attn_mask, is_causal)


class PositionBlock(Block):
    """timm's `Block`, which hands the position inputs of its layer on."""

    def forward(
        self, x: Tensor, inputs: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """As timm's; `inputs` by place, as gradient checkpointing wants it."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), inputs, attn_mask, is_causal)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def keep_rows(inputs: Tensor, kept: Tensor, num_prefix: int) -> Tensor:
    """Drops the rows of dropped patches: inputs (L, T) or (B, L, T), kept (B, K) to (B, P + K, T)."""
    batch = kept.shape[0]
    prefix = torch.arange(num_prefix, device=kept.device).expand(batch, num_prefix)
    rows = torch.cat([prefix, kept + num_prefix], dim=1)
    if inputs.ndim == 2:
        return inputs[rows]
    return inputs.gather(1, rows.unsqueeze(-1).expand(-1, -1, inputs.shape[-1]))


class PositionHost(nn.Module):
    """What all models of timm with a position encoding share; comes before a class of timm.

    `add_position_encoding` changes a model that is built: it gives layers their classes with positions and
    removes the model's own positions. Subclasses ask for position inputs where they embed images.
    """

    position_encoding: PositionEncoding
    layer_classes: ClassVar[dict[type, type]] = {}
    """The class with positions of each class of blocks and attention layers that can have them."""

    def add_position_encoding(
        self, name: str, options: Any = None, keep_native: bool = False, train_img_size: Any = None
    ) -> None:
        """Adds an encoding to a model that has been built; arguments as of `PositionVisionTransformer`.

        Raises:
            ValueError: blocks or attention layers of the model take no position encoding.
        """
        layers = [layer for block in self.blocks for layer in (block, getattr(block, "attn", block))]
        others = {type(layer).__name__ for layer in layers if type(layer) not in self.layer_classes}
        if others:
            known = ", ".join(kind.__name__ for kind in self.layer_classes)
            names = " and ".join(sorted(others))
            raise ValueError(f"layers of type {names} take no position encoding; those that do are {known}")
        weight, first = next(self.parameters()), self.blocks[0].attn
        with torch.device(weight.device):
            encoding = build_position_encoding(
                name,
                self.embed_dim,
                num_heads=first.num_heads,
                head_dim=first.head_dim,
                num_layers=len(self.blocks),
                num_dims=2,
                train_shape=self.train_shape(train_img_size),
                num_prefix=self.num_prefix_tokens,
                **(options or {}),
            )
        self.check_encoding(encoding)
        self.keep_native = keep_native
        self._initialize(encoding)
        self.position_encoding = encoding.to(weight.dtype).train(self.training)
        for layer in layers:
            layer.__class__ = self.layer_classes[type(layer)]
        for block in self.blocks:
            block.attn.operation = encoding.make_operation()
        if keep_native:
            # Its name in a checkpoint keeps models with and without their own positions apart.
            self.register_buffer("keeps_native_positions", weight.new_ones(1, dtype=torch.uint8))
        else:
            self.remove_native_positions()
        self.grid_start = (0, 0)
        self.wants_objectives, self._step_losses, self._ignored_steps = False, None, 0
        # timm's `_pos_embed` ends with this dropout where it adds a table, and leaves it out otherwise.
        drops = hasattr(self, "pos_drop") and self.pos_embed is None
        self.position_drop = self.pos_drop if drops else nn.Identity()
        patch_drop_rate = getattr(self.patch_drop, "prob", 0.0)
        self.drops_patches = patch_drop_rate > 0
        if self.drops_patches:
            self.patch_drop = PatchDropoutWithIndices(patch_drop_rate, self.num_prefix_tokens)

    def train_shape(self, train_img_size: Any = None) -> tuple[int, int]:
        """Rows and columns of patches in an image of training."""
        size = self.patch_embed.img_size if train_img_size is None else train_img_size
        height, width = (size, size) if isinstance(size, int) else size
        rows, columns = self.patch_embed.dynamic_feat_size((height, width))
        return int(rows), int(columns)

    def remove_native_positions(self) -> None:
        """Removes the table of the model's own positions."""
        self.pos_embed = None

    def check_encoding(self, encoding: PositionEncoding) -> None:
        """Raises ValueError for encodings that the model cannot have."""

    def _initialize(self, encoding: PositionEncoding) -> None:
        encoding.initialize()
        if self.keep_native and hasattr(encoding, "start_neutral"):
            encoding.start_neutral()

    def init_weights(self, *args: Any, **kwargs: Any) -> None:
        super().init_weights(*args, **kwargs)
        if hasattr(self, "position_encoding"):  # else timm builds the rest first
            self._initialize(self.position_encoding)  # timm initialises every Linear alike

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        raise NotImplementedError(
            f"{checkpoint_path} holds JAX weights, which need timm's own position table; load them into a "
            "plain model and call set_position_encoding, or use the same weights in PyTorch's format"
        )

    def no_weight_decay(self) -> set[str]:
        # The paper trains the position encoder without weight decay; timm its tables and frequencies.
        names = {f"position_encoding.{name}" for name, _ in self.position_encoding.named_parameters()}
        return set(super().no_weight_decay()) | names

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        # The encoder feeds every block directly, so it is not below them: under layer-wise decay it learns at
        # the rate of the last block, as in the paper, where encoder and transformer have one rate. In the
        # stem a decay of 0.75 would all but freeze it.
        matcher = dict(super().group_matcher(coarse))
        matcher["blocks"] = [*matcher["blocks"], (r"^position_encoding", (99999,))]
        return matcher

    def set_grid_start(self, start: Sequence[int]) -> None:
        """Puts the first patch of all images at another row and column, until told otherwise."""
        self.grid_start = checked_start(start)

    def position_losses(self) -> PositionLosses:
        """Returns the two position objectives for a training loop: add `.weighted` to the loss of the task.

        From the first call on, a forward pass in training mode draws them in its one encoder call; a loop
        that never asks pays nothing. Encodings without objectives give zeros.
        """
        losses: PositionLosses | None
        losses, self._step_losses = self._step_losses, None
        self.wants_objectives = True
        if losses is not None:
            return losses
        if self.position_encoding.has_objectives():
            drawn: PositionLosses = self.position_encoding.position_losses()
            return drawn
        zero = next(self.parameters()).new_zeros(())
        return PositionLosses(zero, zero, zero)

    def training_step(self, x: Tensor, inputs: PositionInputs) -> tuple[Tensor, list[Tensor], Tensor | None]:
        """Keeps the objectives for `position_losses`, or says once that they are left out; drops patches.

        Returns tokens and position inputs that are left, and which patches (B, K) they are, None for all.
        """
        asked, self.wants_objectives = self.wants_objectives, False
        self._step_losses = inputs.losses if asked else None
        self._ignored_steps = 0 if asked else self._ignored_steps + 1
        if self._ignored_steps == 2 and self.position_encoding.has_objectives():
            warnings.warn(
                "this model trains without the objectives of its position encoding, which are what makes it "
                "extrapolate: add model.position_losses().weighted to the loss of every step, or set "
                "distance_weight=0 and ood_weight=0",
                stacklevel=2,
            )
        if not self.drops_patches:
            return x, inputs.layers, None
        x, kept = self.patch_drop(x)
        return x, [keep_rows(layer, kept, self.num_prefix_tokens) for layer in inputs.layers], kept

    def __getstate__(self) -> dict[str, Any]:
        # Tensors inside a graph can be neither copied nor pickled.
        return {**self.__dict__, "_step_losses": None}


class PositionVisionTransformer(PositionHost, VisionTransformer):
    """timm's `VisionTransformer` with a position encoding.

    Args:
        pos_embed: name of the encoding, one of `list_position_encodings(2, causal=False)`.
        pos_embed_args: its options.
        keep_native: keep timm's own positions too; SeqPE, added to them, starts by changing nothing.
        train_img_size: image size of training, where it is not `img_size`: encodings that interpolate
            stretch the grid of this size.
        **kwargs: as of timm's `VisionTransformer`.
    """

    layer_classes: ClassVar = {Block: PositionBlock, Attention: PositionAttention}

    def __init__(
        self,
        *args: Any,
        pos_embed: str = "seqpe",
        pos_embed_args: dict[str, Any] | None = None,
        keep_native: bool = False,
        train_img_size: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, pos_embed="learn" if keep_native else "none", **kwargs)
        self.add_position_encoding(pos_embed, pos_embed_args, keep_native, train_img_size)

    def add_position_encoding(self, *args: Any, **kwargs: Any) -> None:
        """As in `PositionHost`."""
        super().add_position_encoding(*args, **kwargs)
        self.blocks = nn.ModuleList(self.blocks)  # a Sequential would call its blocks with one argument

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        kept = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.position_encoding.keep_layers(len(self.blocks))
        return kept

    def forward_features(
        self,
        x: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        start: Any = None,
        outputs: dict[int, Any] = NO_OUTPUTS,
        num_blocks: int | None = None,
    ) -> Tensor:
        """As in timm; `start` as in `forward`. Outputs of blocks that are keys of `outputs` are put there."""
        x = self.patch_embed(x)
        size = (x.shape[1], x.shape[2]) if self.dynamic_img_size else self.patch_embed.grid_size
        origin = self.grid_start if start is None else checked_start(start, self.grid_start)
        positions = Positions(tuple(size), origin)
        inputs = self.position_encoding(positions, x.shape[0], x.device, self.wants_objectives)
        x = self._pos_embed(x)
        if self.position_encoding.changes_input:
            x = self.position_encoding.on_input(x, inputs.encoded)
        x, layers = self.position_drop(x), inputs.layers
        if self.training:
            x, layers, _ = self.training_step(x, inputs)
        x = self.norm_pre(x)
        run = checkpoint if self.grad_checkpointing else call
        for index, block in enumerate(itertools.islice(self.blocks, num_blocks)):
            x = run(block, x, layers[index], attn_mask, is_causal)
            if index in outputs:
                outputs[index] = x
        return self.norm(x)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, start: Any = None
    ) -> Tensor:
        """As in timm; `start` is the row and column of the first patch, by default as set before."""
        return self.forward_head(self.forward_features(x, attn_mask, is_causal, start))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        start: Any = None,
    ) -> Any:
        """As in timm; `start` as in `forward`."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r} must be NCHW or NLC")
        wanted, last = feature_take_indices(len(self.blocks), indices)
        outputs: dict[int, Any] = dict.fromkeys(sorted(wanted))
        num_blocks = last + 1 if stop_early else None
        features = self.forward_features(x, attn_mask, is_causal, start, outputs, num_blocks)
        taken = [self.norm(y) if norm else y for y in outputs.values()]
        num_prefix = self.num_prefix_tokens
        prefix = [y[:, :num_prefix] for y in taken] if num_prefix and return_prefix_tokens else None
        spatial = [y[:, num_prefix:] for y in taken]
        if output_fmt == "NCHW":
            rows, columns = self.patch_embed.dynamic_feat_size(x.shape[-2:])
            spatial = [y.unflatten(1, (rows, columns)).permute(0, 3, 1, 2).contiguous() for y in spatial]
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": spatial}
            if prefix is not None:
                result["image_intermediates_prefix"] = prefix
            if not intermediates_only:
                result["image_features"] = features
            return result
        intermediates = spatial if prefix is None else list(zip(spatial, prefix, strict=True))
        return intermediates if intermediates_only else (features, intermediates)


class PositionVisionTransformerDistilled(PositionVisionTransformer, VisionTransformerDistilled):
    """timm's `VisionTransformerDistilled` (DeiT) with a position encoding; arguments as above."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        if self.pos_embed is not None:
            return super()._pos_embed(x)
        tokens = (self.cls_token, self.dist_token)
        x = x.view(x.shape[0], -1, x.shape[-1])
        return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], dim=1)


call = operator.call if hasattr(operator, "call") else lambda function, *given: function(*given)
"""Calls a block; `operator.call` is of Python 3.11."""


def checked_start(start: Sequence[int] | None, default: tuple[int, int] = (0, 0)) -> tuple[int, int]:
    """The row and the column of the first patch; `default` for None, which a graph of torch.fx may hand on.

    Raises:
        ValueError: not two whole numbers from 0 on.
    """
    if start is None:
        return default
    origin = tuple(start)
    if len(origin) != 2 or any(not isinstance(first, int) or first < 0 for first in origin):
        raise ValueError(
            f"start={start!r} must be the row and the column of the first patch, whole numbers from 0"
        )
    return origin[0], origin[1]
