"""timm's Vision Transformer with any position encoding of the registry.

`PositionVisionTransformer` is a `VisionTransformer` with a `position_encoding`. It asks that once a forward
pass for the positions of its image grid and hands all blocks the position inputs, as timm's `Eva` hands its
blocks a rotation: `Eva` has the loops over blocks that are used here. Features, intermediates, dynamic sizes,
patch dropout, checkpointing, torch.fx and export work as in timm. Other models of timm are in
`timm_hosts.py`, names for `timm.create_model` in `timm_models.py` of the package.
"""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import Attention, PatchDropoutWithIndices, maybe_add_mask, register_notrace_module
from timm.layers import resolve_self_attn_mask as resolve_mask
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from .encodings import build_position_encoding
from .position_encoding import (
    AttentionOperation,
    PositionEncoding,
    PositionInputs,
    PositionLosses,
    is_traced,
    position_scores,
    widen_heads,
)
from .positions import Positions

register_notrace_module(PositionEncoding)

MAX_SCORE_MATRIX = 64 * 2**20
"""Largest matrix of position scores, in elements, that is built; above it heads are widened."""


class LayerPositions(NamedTuple):
    """What all layers are handed, under timm's name `rope`; each takes its own."""

    inputs: list[Tensor]
    """Position inputs of each layer, (L, T) or (B, L, T)."""
    rows: Tensor | None = None
    """Which rows of the inputs tokens have (B, P + K), where they are not all in order."""
    kept: Tensor | None = None
    """Which patches are left after patch dropout (B, K)."""
    rotations: list[Tensor] | None = None
    """The model's own rotation in each layer, where it is kept; of all patches, dropped ones too."""


@torch.fx.wrap  # type: ignore[untyped-decorator]
def add_scores(
    q: Tensor, k: Tensor, v: Tensor, factors: Any, mask: Any, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adds position scores f_q f_k^T to q k^T: in the mask, or in wider heads where that would be too large.

    A node of its own for torch.fx, which does not know sizes.
    """
    rows = factors[0].shape[0] if factors[0].ndim == 4 else 1
    visible = resolve_mask(q.shape[2], q, mask, is_causal)
    if rows * q.shape[1] * q.shape[2] * k.shape[2] > MAX_SCORE_MATRIX:
        return *widen_heads(q, k, v, factors), visible
    scores = position_scores(factors, q.shape[-1] ** -0.5).to(q.dtype)
    if visible is not None:
        # Masks may hold the lowest number of a dtype; below it half precision has minus infinity alone.
        scores = (scores + visible).clamp(min=torch.finfo(q.dtype).min)
    return q, k, v, scores


class AttentionWithPositions(nn.Module):
    """What all attention layers of timm do after projecting, with the operation of a position encoding.

    Comes before an attention class of timm.
    """

    operation = AttentionOperation()
    layer = 0

    def attend(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, rope: LayerPositions, mask: Any, is_causal: bool
    ) -> Tensor:
        """Gives queries and keys (B, H, L, D) their positions, attends and projects; x is the input."""
        inputs = rope.inputs[self.layer]
        if rope.rows is not None:
            inputs = take_rows(inputs, rope.rows)
        # Without gradients positions are written where queries and keys lie, unless a hook has seen them.
        inplace = not (
            torch.is_grad_enabled()
            or is_traced()
            or nn.modules.module._global_forward_hooks
            or any(part._forward_hooks for part in self.modules())
        )
        q = self.operation.on_query(q, inputs, inplace)
        k = self.operation.on_key(k, inputs, inplace)
        if self.operation.has_scores:
            factors = self.operation.score_factors(inputs, inputs)
            q, k, v, mask = add_scores(q, k, v, factors, mask, is_causal)
            is_causal = False  # now in the mask
        if self.fused_attn:
            dropout_p = self.attn_drop.p if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=self.scale)
        else:
            scores = (q * self.scale) @ k.transpose(-2, -1)
            scores = maybe_add_mask(scores, resolve_mask(q.shape[2], scores, mask, is_causal))
            y = self.attn_drop(scores.softmax(dim=-1)) @ v
        y = self.norm(y[..., : self.head_dim].transpose(1, 2).flatten(2))  # without what widened the heads
        if self.gate is not None:
            y = y * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(y))


class PositionAttention(AttentionWithPositions, Attention):
    """timm's `Attention` with a position encoding."""

    def forward(
        self, x: Tensor, rope: LayerPositions, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attends."""
        B, L, _ = x.shape
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        return self.attend(x, self.q_norm(q), self.k_norm(k), v, rope, attn_mask, is_causal)


class PositionBlock(Block):
    """timm's `Block`, which hands positions on."""

    def forward(
        self, x: Tensor, rope: LayerPositions, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """As timm's."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), rope, attn_mask, is_causal)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


def take_rows(inputs: Tensor, rows: Tensor) -> Tensor:
    """Takes rows (B, K) of inputs (L, T) or (B, L, T), as (B, K, T)."""
    if inputs.ndim == 2:
        return inputs[rows]
    return inputs.gather(1, rows.unsqueeze(-1).expand(-1, -1, inputs.shape[-1]))


def after_prefix(patches: Tensor, num_prefix: int) -> Tensor:
    """Turns numbers of patches (B, K) into those of rows (B, P + K), prefix tokens first."""
    prefix = torch.arange(num_prefix, device=patches.device).expand(patches.shape[0], num_prefix)
    return torch.cat([prefix, patches + num_prefix], dim=1)


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
        self.check_encoding(encoding, keep_native)
        self.keep_native = keep_native
        self._initialize(encoding)
        self.position_encoding = encoding.to(weight.dtype).train(self.training)
        for layer in layers:
            layer.__class__ = self.layer_classes[type(layer)]
        for index, block in enumerate(self.blocks):
            block.attn.operation, block.attn.layer = encoding.make_operation(), index
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

    def check_encoding(self, encoding: PositionEncoding, keep_native: bool) -> None:
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
        """Puts the first patch of all images at another row and column, until told otherwise.

        Raises:
            ValueError: not two whole numbers from 0 on.
        """
        origin = tuple(start)
        if len(origin) != 2 or any(not isinstance(first, int) or first < 0 for first in origin):
            raise ValueError(
                f"start={start!r} must be the row and the column of the first patch, whole numbers from 0"
            )
        self.grid_start = origin

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

    def enter_blocks(
        self, x: Tensor, inputs: PositionInputs, rows: Tensor | None = None
    ) -> tuple[Tensor, LayerPositions]:
        """Adds positions to embedded tokens; in training keeps the objectives and drops patches.

        Args:
            x: tokens (B, P + L, C).
            inputs: of the encoding.
            rows: which rows of the layers' inputs tokens have (B, P + L); None for each its own.

        Returns:
            Tokens that are left, and what timm hands all blocks as `rope`.
        """
        if self.position_encoding.changes_input:
            x = self.position_encoding.on_input(x, inputs.encoded)
        x, kept = self.position_drop(x), None
        if self.training:
            self.keep_losses(inputs.losses)
            x, kept = self.patch_drop(x)
            if kept is not None:
                left = after_prefix(kept, self.num_prefix_tokens)
                rows = left if rows is None else rows.gather(1, left)
        return x, LayerPositions(inputs.layers, rows, kept)

    def keep_losses(self, losses: PositionLosses | None) -> None:
        """Keeps the objectives of a step for `position_losses`, or says once that they are left out."""
        asked, self.wants_objectives = self.wants_objectives, False
        self._step_losses = losses if asked else None
        self._ignored_steps = 0 if asked else self._ignored_steps + 1
        if self._ignored_steps == 2 and self.position_encoding.has_objectives():
            warnings.warn(
                "this model trains without the objectives of its position encoding, which are what makes it "
                "extrapolate: add model.position_losses().weighted to the loss of every step, or set "
                "distance_weight=0 and ood_weight=0",
                stacklevel=2,
            )

    def __getstate__(self) -> dict[str, Any]:
        # Tensors inside a graph can be neither copied nor pickled.
        return {**self.__dict__, "_step_losses": None}


class PositionGridHost(PositionHost):
    """What models share whose images all have the same grid of patches."""

    embed_tokens = VisionTransformer._pos_embed

    def _pos_embed(self, x: Tensor) -> tuple[Tensor, LayerPositions]:
        size = (x.shape[1], x.shape[2]) if self.dynamic_img_size else self.patch_embed.grid_size
        positions = Positions(tuple(size), self.grid_start)
        inputs = self.position_encoding(positions, x.shape[0], x.device, self.wants_objectives)
        return self.enter_blocks(self.embed_tokens(x), inputs)

    def prune_intermediate_layers(self, *args: Any, **kwargs: Any) -> list[int]:
        kept = super().prune_intermediate_layers(*args, **kwargs)
        self.position_encoding.keep_layers(len(self.blocks))
        return list(kept)


class PositionVisionTransformer(PositionGridHost, VisionTransformer):
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

    forward_features = Eva.forward_features

    def forward_intermediates(self, x: Tensor, *args: Any, output_dict: bool = False, **kwargs: Any) -> Any:
        """As in timm."""
        found = Eva.forward_intermediates(self, x, *args, **kwargs)
        if not output_dict:
            return found
        features, taken = (None, found) if isinstance(found, list) else found
        result: dict[str, Any] = {"image_intermediates": taken}
        if taken and isinstance(taken[0], tuple):
            spatial, prefix = zip(*taken, strict=True)
            result = {"image_intermediates": list(spatial), "image_intermediates_prefix": list(prefix)}
        return result if features is None else {**result, "image_features": features}


class PositionVisionTransformerDistilled(PositionVisionTransformer, VisionTransformerDistilled):
    """timm's `VisionTransformerDistilled` (DeiT) with a position encoding; arguments as above."""

    def embed_tokens(self, x: Tensor) -> Tensor:
        """As in timm, whose method expects a table."""
        if self.pos_embed is not None:
            return VisionTransformerDistilled._pos_embed(self, x)
        tokens = (self.cls_token, self.dist_token)
        x = x.view(x.shape[0], -1, x.shape[-1])
        return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], dim=1)
