"""NaFlexViT and the Eva family of timm (EVA-02, RoPE ViT, DINOv3, PE) with any position encoding.

These models hand every block a `rope` tensor, one a layer where rotations are "mixed". `PositionEva` and
`PositionNaFlexVit` are timm's classes that hand on the position inputs of each layer instead, together with
the model's own rotation where that is kept. `add_position_encoding` changes a model of timm that exists.
"""

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

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
    PositionAttention,
    PositionBlock,
    PositionHost,
    PositionVisionTransformer,
    PositionVisionTransformerDistilled,
    keep_rows,
)

Rope = tuple[Tensor, Tensor | None]
"""What a block gets as `rope`: position inputs of its layer, and the model's own rotation if it is kept."""


class RotaryAttentionWithPositions(AttentionWithPositions):
    """What the attention layers of timm's rotary models share; comes before a class of timm."""

    def forward(
        self, x: Tensor, rope: Rope, attn_mask: Tensor | None = None, is_causal: bool = False
    ) -> Tensor:
        """Attends; `rope` as above."""
        inputs, rotation = rope
        q, k, v = self.project(x)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = self.rotate(q, rotation).type_as(v), self.rotate(k, rotation).type_as(v)
        groups = getattr(self, "num_kv_groups", 1)  # queries that share a key head
        return self.attend(x, q, share_heads(k, groups), share_heads(v, groups), inputs, attn_mask, is_causal)

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


class PositionNaFlexBlock(PositionBlock):
    """timm's plain `Block` as NaFlexViT calls it."""

    def forward(self, x: Tensor, rope: Rope, attn_mask: Tensor | None = None) -> Tensor:
        """As timm's; a plain block has no rotation of its own."""
        return super().forward(x, rope[0], attn_mask)


class RotaryPositionHost(PositionHost):
    """What models share whose blocks get a `rope`."""

    def finish_embedding(
        self,
        x: Tensor,
        inputs: PositionInputs,
        rotation: Any,
        has_batch: bool = False,
        rows: Tensor | None = None,
    ) -> tuple[Tensor, Iterator[Rope], Tensor | None]:
        """Adds positions to embedded tokens, and in training drops patches together with their positions.

        Args:
            x: tokens (B, P + L, C).
            inputs: of the encoding.
            rotation: of the model itself, where it is kept; one, or one for each layer.
            has_batch: whether the rotation has a batch axis.
            rows: which rows of the inputs patches have (B, L); None for each its own.

        Returns:
            Tokens, what each block gets as `rope`, and which patches (B, K) are left, None for all.
        """
        prefix = self.num_prefix_tokens
        if self.position_encoding.changes_input:
            encoded = inputs.encoded if rows is None else keep_rows(inputs.encoded, rows, prefix)
            x = self.position_encoding.on_input(x, encoded)
        x, layers, kept = self.position_drop(x), inputs.layers, None
        if self.training:
            if rows is not None:
                layers, rows = [keep_rows(layer, rows, prefix) for layer in layers], None
            x, layers, kept = self.training_step(x, inputs._replace(layers=layers))
        mixed = rotation is not None and self.rotation_is_mixed
        rotations = [rotation[layer] if mixed else rotation for layer in range(len(self.blocks))]
        if kept is not None and rotation is not None:
            rotations = [apply_keep_indices_nlc(x, one, kept, has_batch) for one in rotations]
            rotations = [one if one.ndim == 4 else one.unsqueeze(1) for one in rotations]  # (B, H or 1, K, .)

        def of_layer(index: int) -> Rope:
            own = layers[index] if rows is None else keep_rows(layers[index], rows, prefix)
            return own, rotations[index]

        # One by one as blocks run, so that in inference the rows of one layer are in memory.
        return x, map(of_layer, range(len(self.blocks))), kept


class PositionEva(RotaryPositionHost, Eva):
    """timm's `Eva` (EVA-02, RoPE ViT, DINOv3, PE) with a position encoding."""

    layer_classes: ClassVar = {
        EvaBlock: EvaBlock,
        EvaBlockPostNorm: EvaBlockPostNorm,
        AttentionRope: PositionAttentionRope,
        EvaAttention: PositionEvaAttention,
    }

    def add_position_encoding(self, *args: Any, **kwargs: Any) -> None:
        """As in `PositionHost`."""
        super().add_position_encoding(*args, **kwargs)
        self.rotation_is_mixed = self.rope_mixed
        self.rope_mixed = True  # then timm hands each layer its own entry of what `_pos_embed` returns

    def remove_native_positions(self) -> None:
        """Removes table and rotation."""
        super().remove_native_positions()
        self.rope = None

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        kept = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.position_encoding.keep_layers(len(self.blocks))
        return list(kept)

    def _pos_embed(self, x: Tensor) -> tuple[Tensor, list[Rope]]:
        size = (x.shape[1], x.shape[2]) if self.dynamic_img_size else self.patch_embed.grid_size
        positions = Positions(tuple(size), self.grid_start)
        inputs = self.position_encoding(positions, x.shape[0], x.device, self.wants_objectives)
        rotation = None
        if self.rope is not None:
            rotation = self.rope.get_embed(shape=size if self.dynamic_img_size else None)
        # Eva embeds tokens as a ViT does; its own method would drop patches before they have positions.
        x = VisionTransformer._pos_embed(self, x)
        x, ropes, _ = self.finish_embedding(x, inputs, rotation)
        return x, list(ropes)


class PositionNaFlexVit(RotaryPositionHost, NaFlexVit):
    """timm's `NaFlexVit` with a position encoding, which reads the coordinates of all patches."""

    layer_classes: ClassVar = {
        Block: PositionNaFlexBlock,
        Attention: PositionAttention,
        EvaBlock: EvaBlock,
        AttentionRope: PositionAttentionRope,
        EvaAttention: PositionEvaAttention,
    }

    def add_position_encoding(self, *args: Any, **kwargs: Any) -> None:
        """As in `PositionHost`."""
        super().add_position_encoding(*args, **kwargs)
        self.rotation_is_mixed = self.rope_is_mixed
        self.rope_is_mixed = True  # then timm hands each layer its own entry of `rope_embeds`

    def check_encoding(self, encoding: PositionEncoding) -> None:
        """Refuses encodings for which images of different sizes cannot share a batch."""
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
        embeds.pos_embed_type = "none"

    def _forward_embeds(
        self, x: Tensor, patch_coord: Tensor | None, patch_valid: Tensor | None, attn_mask: Tensor | None
    ) -> dict[str, Any]:
        """As timm's, with position inputs as `rope_embeds`, which patch dropout has shortened already."""
        x, size = self.embeds(x, patch_coord=patch_coord, patch_valid=patch_valid)
        rotation = rows = None
        if patch_coord is None:
            positions = Positions(tuple(size), self.grid_start)
            inputs = self.position_encoding(positions, x.shape[0], x.device, self.wants_objectives)
            if self.rope is not None:
                rotation = self.rope.get_embed(shape=size)
        else:
            inputs, rows = self.inputs_of_patches(patch_coord)
            if self.rope is not None:
                native = SimpleNamespace(
                    rope=self.rope,
                    rope_is_mixed=self.rotation_is_mixed,
                    num_prefix_tokens=self.num_prefix_tokens,
                )
                rotation = NaFlexVit._generate_rope_naflex(native, x, patch_coord)
                rotation = list(rotation) if self.rotation_is_mixed else rotation
        x, ropes, kept = self.finish_embedding(x, inputs, rotation, patch_coord is not None, rows)
        if kept is not None and patch_valid is not None:
            patch_valid = patch_valid.gather(1, kept)
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
            "rope_embeds": ropes,
            "attn_mask": attn_mask,
            "keep_indices": None,
        }

    @torch.compiler.disable  # as timm's own rotation here: grids are known by the values of a tensor
    def inputs_of_patches(self, patch_coord: Tensor) -> tuple[PositionInputs, Tensor | None]:
        """Position inputs of a NaFlex batch: those of the smallest grid that holds all patches.

        Args:
            patch_coord: rows and columns (B, N, 2); those of padding may be anything legal.

        Returns:
            The inputs, and which of their rows each patch has (B, N); None where they are in order.
        """
        encoding, batch, device = self.position_encoding, patch_coord.shape[0], patch_coord.device
        size = tuple(int(side) + 1 for side in patch_coord.amax(dim=(0, 1)))
        if math.prod(size) > patch_coord[..., 0].numel():  # very wide and very high images in one batch
            return encoding(Positions(ids=patch_coord), batch, device, self.wants_objectives), None
        inputs = encoding(Positions(size, (0, 0)), batch, device, self.wants_objectives)
        return inputs, ravel_positions(patch_coord, size)


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
