"""NaFlexViT and the Eva family of timm (EVA-02, RoPE ViT, DINOv3, PE) with any position encoding.

These models hand every block a `rope` tensor. `PositionEva` and `PositionNaFlexVit` are timm's classes that
hand on `LayerPositions` instead, which hold the model's own rotation too where that is kept.
`add_position_encoding` changes a model of timm that exists.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Attention, AttentionRope, apply_keep_indices_nlc, apply_rot_embed_cat, to_2tuple
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva, EvaAttention, EvaBlock, EvaBlockPostNorm
from timm.models.naflexvit import NaFlexVit, create_attention_mask
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from .encodings import LearnedEmbedding
from .position_encoding import PositionEncoding, PositionInputs, share_heads
from .positions import Positions, ravel_positions
from .vit import (
    AttentionWithPositions,
    LayerPositions,
    PositionAttention,
    PositionBlock,
    PositionGridHost,
    PositionHost,
    PositionVisionTransformer,
    PositionVisionTransformerDistilled,
    after_prefix,
    take_rows,
)


class RotaryAttentionWithPositions(AttentionWithPositions):
    """What the attention layers of timm's rotary models share; comes before a class of timm."""

    def forward(
        self, x: Tensor, rope: LayerPositions, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attends."""
        q, k, v = self.project(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rope.rotations is not None:
            rotation = rope.rotations[self.layer]
            if rope.kept is not None:
                rotation = apply_keep_indices_nlc(x, rotation, rope.kept, rotation.ndim == 4)
                rotation = rotation if rotation.ndim == 4 else rotation.unsqueeze(1)  # (B, H or 1, K, .)
            q, k = self.rotate(q, rotation).type_as(v), self.rotate(k, rotation).type_as(v)
        groups = getattr(self, "num_kv_groups", 1)  # queries that share a key head
        return self.attend(x, q, share_heads(k, groups), share_heads(v, groups), rope, attn_mask, is_causal)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values (B, H, L, D); keys may have fewer heads than queries."""
        if self.qkv is None:
            parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
            q, k, v = (part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts)
            return q, k, v
        if getattr(self, "q_bias", None) is None:
            qkv = self.qkv(x)
        else:
            qkv = F.linear(x, self.qkv.weight, torch.cat([self.q_bias, self.k_bias, self.v_bias]))
        q, k, v = qkv.unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def rotate(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Applies timm's rotation to all tokens but class and register tokens."""
        prefix, patches = x[:, :, : self.num_prefix_tokens], x[:, :, self.num_prefix_tokens :]
        return torch.cat([prefix, apply_rot_embed_cat(patches, rotation, half=self.rotate_half)], dim=2)


class PositionAttentionRope(RotaryAttentionWithPositions, AttentionRope):
    """timm's `AttentionRope` with a position encoding."""


class PositionEvaAttention(RotaryAttentionWithPositions, EvaAttention):
    """timm's `EvaAttention` with a position encoding."""


LAYER_CLASSES: dict[type, type] = {
    Block: PositionBlock,
    EvaBlock: EvaBlock,
    EvaBlockPostNorm: EvaBlockPostNorm,
    Attention: PositionAttention,
    AttentionRope: PositionAttentionRope,
    EvaAttention: PositionEvaAttention,
}


class PositionEva(PositionGridHost, Eva):
    """timm's `Eva` (EVA-02, RoPE ViT, DINOv3, PE) with a position encoding."""

    layer_classes = LAYER_CLASSES

    def add_position_encoding(self, *args: Any, **kwargs: Any) -> None:
        """As in `PositionHost`."""
        super().add_position_encoding(*args, **kwargs)
        # timm hands all layers one object, from which each takes its own rotation.
        self.one_rotation, self.rope_mixed = not self.rope_mixed, False

    def remove_native_positions(self) -> None:
        """Removes table and rotation."""
        super().remove_native_positions()
        self.rope = None

    def _pos_embed(self, x: Tensor) -> tuple[Tensor, LayerPositions]:
        size = (x.shape[1], x.shape[2]) if self.dynamic_img_size else None
        x, rope = super()._pos_embed(x)
        if self.rope is None:
            return x, rope
        rotation = self.rope.get_embed(shape=size)
        rotations = [rotation if self.one_rotation else rotation[layer] for layer in range(len(self.blocks))]
        return x, rope._replace(rotations=rotations)


class PositionNaFlexVit(PositionHost, NaFlexVit):
    """timm's `NaFlexVit` with a position encoding, which reads the coordinates of all patches."""

    layer_classes = LAYER_CLASSES

    def check_encoding(self, encoding: PositionEncoding, keep_native: bool) -> None:
        """Refuses encodings and rotations for which images of different sizes cannot share a batch."""
        if keep_native and self.rope_is_mixed:
            raise ValueError(
                "timm cannot rotate images of different sizes with rope_type='mixed', and NaFlexViT batches "
                "them; use keep_native=False, or a model whose rope_type is 'axial' or 'dinov3'"
            )
        if depends_on_size(encoding):
            raise ValueError(
                f"position encoding {encoding.name!r} so configured depends on the size of an image, and "
                "images of different sizes share a batch in NaFlexViT; choose one that reads coordinates: "
                "'seqpe' (with extrapolation='extend'), 'rope2d_axial', 'rope2d_mixed' or 'nope'"
            )

    def train_shape(self, train_img_size: Any = None) -> tuple[int, int]:
        """As in `PositionHost`; by default the grid of timm's table."""
        if train_img_size is None:
            rows, columns = self.embeds.pos_embed_grid_size or (16, 16)
        else:
            rows, columns = self.embeds.dynamic_feat_size(to_2tuple(train_img_size))
        return int(rows), int(columns)

    def remove_native_positions(self) -> None:
        """Removes tables and rotation."""
        embeds = self.embeds
        embeds.pos_embed = embeds.pos_embed_y = embeds.pos_embed_x = self.rope = None
        embeds.pos_embed_type, self.rope_is_mixed = "none", False

    def _forward_embeds(
        self, x: Tensor, patch_coord: Tensor | None, patch_valid: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Any]:
        """As timm's, with `LayerPositions` as `rope_embeds`, which patch dropout has shortened already."""
        x, size = self.embeds(x, patch_coord=patch_coord, patch_valid=patch_valid)
        rotation = rows = None
        if patch_coord is None:
            positions = Positions((size[0], size[1]), self.grid_start)
            inputs = self.position_encoding(positions, x.shape[0], x.device, self.wants_objectives)
            if self.rope is not None:
                rotation = self.rope.get_embed(shape=size)
        else:
            inputs, rows = self.inputs_of_patches(patch_coord)
            if self.rope is not None:
                rotation = self._generate_rope_naflex(x, patch_coord)
        x, rope = self.enter_blocks(x, inputs, rows)
        if rotation is not None:
            rope = rope._replace(rotations=[rotation] * len(self.blocks))
        if rope.kept is not None and patch_valid is not None:
            patch_valid = patch_valid.gather(1, rope.kept)
        if attn_mask is None:
            attn_mask = create_attention_mask(
                patch_valid,
                num_prefix_tokens=self.num_prefix_tokens,
                symmetric=not self.use_key_only_attn_mask,
                q_len=1 if self.use_key_only_attn_mask else None,
                dtype=x.dtype,
            )
        return {
            "patches": self.norm_pre(x),
            "patch_valid": patch_valid,
            "rope_embeds": rope,
            "attn_mask": attn_mask,
            "keep_indices": None,
        }

    @torch.compiler.disable  # as timm's own rotation here: grids are known by the values of a tensor
    def inputs_of_patches(self, patch_coord: Tensor) -> tuple[PositionInputs, Tensor | None]:
        """Position inputs of a NaFlex batch: those of the smallest grid that holds all patches.

        Args:
            patch_coord: rows and columns (B, N, 2); those of padding may be anything legal.

        Returns:
            The inputs, and which of their rows each token has (B, P + N); None where they are in order.
        """
        encoding, batch, device = self.position_encoding, patch_coord.shape[0], patch_coord.device
        size = tuple(int(side) + 1 for side in patch_coord.amax(dim=(0, 1)))
        if math.prod(size) > patch_coord[..., 0].numel():  # very wide and very high images in one batch
            return encoding(Positions(ids=patch_coord), batch, device, self.wants_objectives), None
        inputs = encoding(Positions(size, (0, 0)), batch, device, self.wants_objectives)
        rows = after_prefix(ravel_positions(patch_coord, size), self.num_prefix_tokens)
        if encoding.changes_input:
            inputs = inputs._replace(encoded=take_rows(inputs.encoded, rows))
        return inputs, rows


def depends_on_size(encoding: PositionEncoding) -> bool:
    """Whether the inputs of a position depend on the size of the grid too, and not on coordinates alone."""
    stretches = getattr(encoding, "interpolates", False)
    has_table = any(isinstance(part, LearnedEmbedding) for part in encoding.modules())
    return encoding.flattens or stretches or has_table


HOSTS: dict[type, type[PositionHost]] = {
    VisionTransformer: PositionVisionTransformer,
    VisionTransformerDistilled: PositionVisionTransformerDistilled,
    Eva: PositionEva,
    NaFlexVit: PositionNaFlexVit,
}
"""The class with positions of each class of timm."""

FAMILIES = (
    "ViT, DeiT, DINOv2, SigLIP and CLIP (vit_*, deit*), NaFlexViT (naflexvit_*), and the Eva family "
    "(eva02_*, vit_*_rope_*, vit_*_dinov3*, vit_pe_*)"
)


def unsupported(name: str, model: str) -> ValueError:
    """The error for a model that cannot have a position encoding."""
    return ValueError(
        f"position encoding {name!r} cannot be added to {model}; these models of timm can have it: {FAMILIES}"
    )


def add_position_encoding(
    model: nn.Module,
    name: str,
    options: dict[str, Any] | None = None,
    keep_native: bool = False,
    train_img_size: Any = None,
) -> nn.Module:
    """Gives a model of timm a position encoding, in place, and returns it.

    Arguments as of `PositionHost.add_position_encoding`.

    Raises:
        ValueError: the model cannot have it, or has one.
    """
    native = type(model)
    if isinstance(model, PositionHost):
        raise ValueError(
            f"{native.__name__} has position encoding {model.position_encoding.name!r} already; start from "
            "the plain model of timm"
        )
    if native not in HOSTS:
        raise unsupported(name, f"a model of class {native.__name__}")
    model.__class__ = HOSTS[native]
    try:
        model.add_position_encoding(name, options, keep_native, train_img_size)  # type: ignore[operator]
    except (ValueError, TypeError):
        model.__class__ = native
        raise
    return model
