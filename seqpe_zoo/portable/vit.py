"""timm's Vision Transformer with any position encoding of the registry.

`PositionVisionTransformer` is a `VisionTransformer` that holds a `position_encoding` instead of a table
`pos_embed`. It asks that once a forward pass for the positions of its image grid and hands every block the
position inputs of its layer. All of timm's contract holds: features, intermediates, dynamic sizes, patch
dropout, checkpointing, torch.fx, export. Names for `timm.create_model` are in the package's `timm_models.py`.
"""

import contextlib
import operator
import warnings
from collections.abc import Sequence
from typing import Any

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

MAX_SCORE_MATRIX = 64 * 2**20
"""Largest matrix of position scores, in elements, that is built; longer sequences widen their heads instead."""


torch.fx.wrap("attend_with_scores")  # how scores are added depends on sizes, which torch.fx does not know
torch.fx.wrap("position_scores")


def attend_with_scores(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: tuple[Tensor, Tensor],
    mask: Tensor | None,
    is_causal: bool,
    dropout_p: float,
    groups: int = 1,
) -> Tensor:
    """Scaled dot-product attention whose scores are (q k^T + f_q f_k^T) / sqrt(D); returns (B, H, L, D)."""
    scale, width = q.shape[-1] ** -0.5, v.shape[-1]
    rows = factors[0].shape[0] if factors[0].ndim == 4 else 1
    if rows * q.shape[1] * q.shape[2] * k.shape[2] > MAX_SCORE_MATRIX:
        q, k, v = widen_heads(q, k, v, factors, groups)
    else:
        scores = position_scores(factors, scale, groups).to(q.dtype)
        mask, is_causal = maybe_add_mask(scores, resolve_mask(q.shape[2], scores, mask, is_causal)), False
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale=scale)[..., :width]


class PositionAttention(Attention):
    """timm's `Attention` with the operation of a position encoding."""

    operation = AttentionOperation()

    def forward(
        self, x: Tensor, inputs: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attends; `inputs` are the position inputs of this layer, (L, T) or (B, L, T)."""
        B, L, _ = x.shape
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        q, k, v = self.qkv(x).reshape(B, L, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
        # Without gradients positions are written where queries and keys lie, unless a hook has seen them.
        inplace = not (torch.is_grad_enabled() or is_traced() or has_hooks(self.qkv))
        q = self.operation.on_query(self.q_norm(q), inputs, inplace)
        k = self.operation.on_key(self.k_norm(k), inputs, inplace)
        dropout_p = self.attn_drop.p if self.training else 0.0
        if not self.fused_attn:
            x = self._attend_in_steps(q, k, v, inputs, attn_mask, is_causal)
        elif self.operation.has_scores:
            factors = self.operation.score_factors(inputs, inputs)
            x = attend_with_scores(q, k, v, factors, attn_mask, is_causal, dropout_p, self.operation.groups)
        else:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p, is_causal)
        x = self.norm(x.transpose(1, 2).reshape(B, L, self.attn_dim))
        return self.proj_drop(self.proj(x if gate is None else x * gate))

    def _attend_in_steps(
        self, q: Tensor, k: Tensor, v: Tensor, inputs: Tensor, attn_mask: Tensor | None, is_causal: bool
    ) -> Tensor:
        """Attention whose probabilities can be looked at, where timm's fused attention is off."""
        scores = (q * self.scale) @ k.transpose(-2, -1)
        if self.operation.has_scores:
            factors = self.operation.score_factors(inputs, inputs)
            scores = scores + position_scores(factors, self.scale, self.operation.groups)
        scores = maybe_add_mask(scores, resolve_mask(q.shape[2], scores, attn_mask, is_causal))
        return self.attn_drop(scores.softmax(dim=-1)) @ v


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


class _WithPositions(VisionTransformer):
    """What the plain and the distilled model share."""

    position_encoding: PositionEncoding

    def __init__(
        self,
        *args: Any,
        pos_embed: str = "seqpe",
        pos_embed_args: dict[str, Any] | None = None,
        train_img_size: Any = None,
        patch_drop_rate: float = 0.0,
        weight_init: str = "",
        block_fn: type[nn.Module] = Block,
        attn_layer: Any = "attn",
        device: Any = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        check_parts(block_fn, attn_layer)
        super().__init__(
            *args,
            pos_embed="none",
            weight_init="skip",
            block_fn=PositionBlock,
            attn_layer=PositionAttention,
            device=device,
            dtype=dtype,
            **kwargs,
        )
        self.pos_embed = None
        blocks: Any = self.blocks
        self.blocks = nn.ModuleList(blocks)  # a Sequential would call its blocks with one argument
        self.grid_start = (0, 0)
        self.wants_objectives, self._step_losses, self._ignored_steps = False, None, 0
        size = train_img_size if train_img_size is not None else self.patch_embed.img_size
        height, width = (size, size) if isinstance(size, int) else size
        first = self.blocks[0].attn
        with torch.device(device) if device is not None else contextlib.nullcontext():
            self.position_encoding = build_position_encoding(
                pos_embed,
                self.embed_dim,
                num_heads=first.num_heads,
                head_dim=first.head_dim,
                num_layers=len(self.blocks),
                num_dims=2,
                train_shape=tuple(int(n) for n in self.patch_embed.dynamic_feat_size((height, width))),
                num_prefix=self.num_prefix_tokens,
                **(pos_embed_args or {}),
            )
        if dtype is not None:
            self.position_encoding.to(dtype)
        for block in self.blocks:
            block.attn.operation = self.position_encoding.make_operation()
        self.drops_patches = patch_drop_rate > 0
        if self.drops_patches:
            self.patch_drop = PatchDropoutWithIndices(
                patch_drop_rate, num_prefix_tokens=self.num_prefix_tokens
            )
        self.weight_init_mode = "reset" if weight_init == "skip" else weight_init
        if weight_init != "skip":
            self.init_weights(needs_reset=False)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        super().init_weights(mode=mode, needs_reset=needs_reset)
        self.position_encoding.initialize()  # timm initialises every Linear alike

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        raise NotImplementedError(
            f"{checkpoint_path} holds JAX weights, which need timm's own position table; load it with "
            "pos_embed='learn' and graft the weights, or use the same weights in PyTorch's format"
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

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        kept = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.position_encoding.keep_layers(len(self.blocks))
        return kept

    def set_grid_start(self, start: Sequence[int]) -> None:
        """Puts the first patch of all images at another row and column, until told otherwise.

        Raises:
            ValueError: not two whole numbers from 0 on.
        """
        self.grid_start = checked_start(start)

    def position_losses(self) -> PositionLosses:
        """Returns the two position objectives for a training loop: add `.weighted` to the loss of the task.

        From the first call on, a forward pass in training mode draws them with the positions of its images, in
        one encoder call; a loop that never asks pays nothing. Encodings without objectives give zeros.
        """
        losses: PositionLosses | None
        losses, self._step_losses = self._step_losses, None
        self.wants_objectives = True
        if losses is not None:
            return losses
        if objectives_of(self.position_encoding):
            drawn: PositionLosses = self.position_encoding.position_losses(self.patch_embed.grid_size)
            return drawn
        zero = self.patch_embed.proj.weight.new_zeros(())
        return PositionLosses(zero, zero, zero)

    def __getstate__(self) -> dict[str, Any]:
        # Tensors inside a graph can be neither copied nor pickled.
        return {**self.__dict__, "_step_losses": None}

    def _embed(self, x: Tensor, start: Any) -> tuple[Tensor, list[Tensor]]:
        """Embeds images: tokens (B, L, C), and the position inputs of all layers, (L, T) or (B, L, T)."""
        x = self.patch_embed(x)
        size = (x.shape[1], x.shape[2]) if self.dynamic_img_size else self.patch_embed.grid_size
        origin = self.grid_start if start is None else checked_start(start)
        inputs = self.position_encoding(
            Positions(tuple(size), origin), x.shape[0], x.device, self.wants_objectives
        )
        x, layers = self._pos_embed(x), inputs.layers
        if self.training:
            self._after_training_step(inputs)
        if self.position_encoding.changes_input:
            x = self.position_encoding.on_input(x, inputs.encoded)
        x = self.pos_drop(x)
        if self.drops_patches:
            x, layers = self._drop_patches(x, layers)
        return self.norm_pre(x), layers

    def _after_training_step(self, inputs: PositionInputs) -> None:
        """Keeps the objectives for `position_losses`; says once that a training loop leaves them out."""
        asked, self.wants_objectives = self.wants_objectives, False
        self._step_losses = inputs.losses if asked else None
        self._ignored_steps = 0 if asked else self._ignored_steps + 1
        if self._ignored_steps == 2 and objectives_of(self.position_encoding):
            warnings.warn(
                "this model trains without the objectives of its position encoding, which are what makes it "
                "extrapolate: add model.position_losses().weighted to the loss of every step, or set "
                "distance_weight=0 and ood_weight=0",
                stacklevel=2,
            )

    def _drop_patches(self, x: Tensor, layers: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        x, kept = self.patch_drop(x)
        if kept is None:
            return x, layers
        return x, [keep_rows(layer, kept, self.num_prefix_tokens) for layer in layers]

    def forward_features(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, start: Any = None
    ) -> Tensor:
        x, layers = self._embed(x, start)
        run = checkpoint if self.grad_checkpointing else call
        for index, block in enumerate(self.blocks):
            x = run(block, x, layers[index], attn_mask, is_causal)
        return self.norm(x)

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, start: Any = None
    ) -> Tensor:
        """Classifies images (B, channels, height, width).

        Args:
            x: the images.
            attn_mask: as in timm.
            is_causal: as in timm.
            start: row and column of the first patch, by default that of `set_grid_start`, at first (0, 0).
        """
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
        take_indices, max_index = feature_take_indices(len(self.blocks), indices)
        batch, _, height, width = x.shape
        x, layers = self._embed(x, start)
        taken: list[Tensor] = []
        run = checkpoint if self.grad_checkpointing else call
        for index, block in enumerate(self.blocks[: max_index + 1] if stop_early else self.blocks):
            x = run(block, x, layers[index], attn_mask, is_causal)
            if index in take_indices:
                taken.append(self.norm(x) if norm else x)
        num_prefix = self.num_prefix_tokens
        prefix = [y[:, :num_prefix] for y in taken] if num_prefix and return_prefix_tokens else None
        spatial = [y[:, num_prefix:] for y in taken]
        if output_fmt == "NCHW":
            rows, columns = self.patch_embed.dynamic_feat_size((height, width))
            spatial = [y.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2).contiguous() for y in spatial]
        if output_dict:
            result: dict[str, Any] = {"image_intermediates": spatial}
            if prefix is not None:
                result["image_intermediates_prefix"] = prefix
            if not intermediates_only:
                result["image_features"] = self.norm(x)
            return result
        intermediates = spatial if prefix is None else list(zip(spatial, prefix, strict=True))
        return intermediates if intermediates_only else (self.norm(x), intermediates)


class PositionVisionTransformer(_WithPositions):
    """timm's `VisionTransformer` with a position encoding.

    Args:
        pos_embed: name of the encoding, one of `list_position_encodings(2, causal=False)`.
        pos_embed_args: its options.
        train_img_size: image size of training, where it is not `img_size`: encodings that interpolate
            stretch the grid of this size.
        **kwargs: as of timm's `VisionTransformer`.
    """


class PositionVisionTransformerDistilled(_WithPositions, VisionTransformerDistilled):
    """timm's `VisionTransformerDistilled` (DeiT) with a position encoding; arguments as above."""

    def _pos_embed(self, x: Tensor) -> Tensor:
        tokens = (self.cls_token, self.dist_token)
        x = x.view(x.shape[0], -1, x.shape[-1])
        return torch.cat([*(token.expand(x.shape[0], -1, -1) for token in tokens), x], dim=1)


call = operator.call if hasattr(operator, "call") else lambda function, *given: function(*given)
"""Calls a block; `operator.call` is of Python 3.11."""


def objectives_of(encoding: Any) -> bool:
    """Whether an encoding has objectives of its own."""
    return hasattr(encoding, "has_objectives") and bool(encoding.has_objectives())


def check_parts(block_fn: Any, attn_layer: Any) -> None:
    """Raises ValueError for blocks and attention layers of timm that take no position encoding."""
    if block_fn not in (Block, PositionBlock):
        raise ValueError(
            f"blocks of type {block_fn.__name__} take no position encoding; use timm's plain block, block_fn=Block"
        )
    if attn_layer not in ("", "attn", Attention, PositionAttention):
        name = attn_layer if isinstance(attn_layer, str) else attn_layer.__name__
        raise ValueError(
            f"attn_layer={name!r} takes no position encoding; use timm's plain attention, attn_layer='attn'"
        )


def checked_start(start: Sequence[int]) -> tuple[int, int]:
    """The row and the column of the first patch.

    Raises:
        ValueError: not two whole numbers from 0 on.
    """
    origin = tuple(start)
    if len(origin) != 2 or any(not isinstance(first, int) or first < 0 for first in origin):
        raise ValueError(
            f"start={start!r} must be the row and the column of the first patch, whole numbers from 0"
        )
    return origin[0], origin[1]
