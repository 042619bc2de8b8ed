"""timm's Vision Transformer with any position encoding of the registry.

`PositionVisionTransformer` is a `VisionTransformer` that holds a `position_encoding` instead of a table
`pos_embed`. It makes the positions of its patches from the image grid, prepares what each layer needs once
per forward, and hands every block its terms. All of timm's contract holds: features, intermediates, dynamic
sizes, patch dropout, checkpointing, TorchScript, torch.fx, export. Names for `timm.create_model` are in the
package's `timm_models.py`.
"""

import contextlib
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple, Type, Union

import torch
from timm.layers import PatchDropoutWithIndices, register_notrace_function, register_notrace_module
from timm.models import checkpoint
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer, feature_take_indices
from torch import Tensor, nn
from torch.jit import Final

from .pe_base import PositionEncoding, PositionLosses
from .registry import build_position_encoding
from .tracing import is_traced
from .vit_attention import BLOCKS, HoldsStage, attention_with_positions, block_with_positions

register_notrace_module(PositionEncoding)

Size2 = Union[int, Sequence[int]]


def image_positions(
    like: Tensor,
    rows: int,
    columns: int,
    start: Optional[Tuple[int, int]],
    default_start: Tuple[int, int],
    numbered: bool,
    num_prefix: int,
    capacity: int,
) -> Tensor:
    """Positions of a grid in row-major order, for TorchScript and torch.fx; eager code uses `prepare_grid`.

    Args:
        like: a tensor on the device wanted.
        rows: R.
        columns: C.
        start: row and column of the first patch.
        default_start: where `start` is None.
        numbered: number cells through, prefix tokens first.
        num_prefix: P.
        capacity: coordinates must be below it; 0 where there is no limit.

    Returns:
        (R * C, 2), or (P + R * C, 1) when `numbered`.
    """
    origin = default_start if start is None else start
    if numbered:
        return torch.arange(num_prefix + rows * columns, device=like.device).unsqueeze(-1)
    if capacity > 0 and max(origin[0] + rows, origin[1] + columns) > capacity:
        raise ValueError(
            "the image has more patches a side than the digits of the position encoding can number"
        )
    row = torch.arange(rows, device=like.device).unsqueeze(1).expand(rows, columns) + origin[0]
    column = torch.arange(columns, device=like.device).unsqueeze(0).expand(rows, columns) + origin[1]
    return torch.stack([row, column], dim=-1).reshape(-1, 2)


torch.fx.wrap("image_positions")
register_notrace_function(image_positions)


def keep_rows(terms: Tensor, kept: Tensor, num_prefix: int) -> Tensor:
    """Drops the rows of dropped patches: terms (L, T) or (B, L, T), kept (B, K) to (B, P + K, T)."""
    batch = kept.shape[0]
    prefix = torch.arange(num_prefix, device=kept.device).expand(batch, num_prefix)
    rows = torch.cat([prefix, kept + num_prefix], dim=1)
    if terms.dim() == 2:
        return terms[rows]
    return terms.gather(1, rows.unsqueeze(-1).expand(-1, -1, terms.shape[-1]))


class _WithPositions(VisionTransformer):
    """What the plain and the distilled model share."""

    _step_losses: Optional[PositionLosses]

    def __init__(
        self,
        *args: Any,
        pos_embed: str = "seqpe",
        pos_embed_args: Optional[Dict[str, Any]] = None,
        train_img_size: Optional[Size2] = None,
        patch_drop_rate: float = 0.0,
        weight_init: str = "",
        block_fn: Type[nn.Module] = Block,
        attn_layer: Any = "attn",
        device: Any = None,
        dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            *args,
            pos_embed="none",
            weight_init="skip",
            block_fn=block_with_positions(block_fn),
            attn_layer=attention_with_positions(attn_layer),
            device=device,
            dtype=dtype,
            **kwargs,
        )
        self.pos_embed = None
        blocks: Any = super().__getattr__("blocks")
        self.blocks = nn.ModuleList(blocks)  # a Sequential would call its blocks with one argument
        self.grid_start = (0, 0)
        self._step_losses = None
        trained = self.patch_embed.grid_size if train_img_size is None else self._grid_of(train_img_size)
        on_device = torch.device(device) if device is not None else contextlib.nullcontext()
        with on_device:
            self.position_encoding = build_position_encoding(
                pos_embed,
                self.embed_dim,
                num_heads=_attention_layers(self.blocks[0])[0].num_heads,
                num_layers=len(self.blocks),
                num_dims=2,
                train_shape=trained,
                num_prefix=self.num_prefix_tokens,
                **(pos_embed_args or {}),
            )
        if dtype is not None:
            self.position_encoding.to(dtype)
        for block in self.blocks:
            for layer in _attention_layers(block):
                layer.stage = self.position_encoding.make_stage()
        self.numbers_patches = type(self.position_encoding).flattens
        self.grid_capacity = int(getattr(self.position_encoding, "capacity", 0))
        self.drops_patches = patch_drop_rate > 0
        if self.drops_patches:
            self.patch_drop = PatchDropoutWithIndices(
                patch_drop_rate, num_prefix_tokens=self.num_prefix_tokens
            )
        self.weight_init_mode = "reset" if weight_init == "skip" else weight_init
        if weight_init != "skip":
            self.init_weights(needs_reset=False)

    def _grid_of(self, img_size: Size2) -> Tuple[int, int]:
        height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
        rows, columns = self.patch_embed.dynamic_feat_size((int(height), int(width)))
        return int(rows), int(columns)

    def init_weights(self, mode: str = "", needs_reset: bool = True) -> None:
        super().init_weights(mode=mode, needs_reset=needs_reset)
        # timm initialises every Linear alike; the position encoding has the last word on its own.
        reset = getattr(self.position_encoding, "reset_parameters", None)
        if callable(reset):
            reset()

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        raise NotImplementedError(
            f"{checkpoint_path} holds JAX weights, which need timm's own position table; load it with "
            "pos_embed='learn' and graft the weights, or use the same weights in PyTorch's format"
        )

    def no_weight_decay(self) -> Set[str]:
        # The paper trains the position encoder without weight decay; timm its tables and frequencies.
        names = {f"position_encoding.{name}" for name, _ in self.position_encoding.named_parameters()}
        return set(super().no_weight_decay()) | names

    def group_matcher(self, coarse: bool = False) -> Dict[str, Any]:
        # The encoder feeds every block directly, so it is not below them: under layer-wise decay it learns at
        # the rate of the last block, as in the paper, where encoder and transformer have one rate. In the
        # stem a decay of 0.75 would all but freeze it.
        matcher = dict(super().group_matcher(coarse))
        matcher["blocks"] = list(matcher["blocks"]) + [(r"^position_encoding", (99999,))]
        return matcher

    def prune_intermediate_layers(
        self, indices: Union[int, List[int]] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> List[int]:
        kept = super().prune_intermediate_layers(indices, prune_norm, prune_head)
        self.position_encoding.keep_layers(len(self.blocks))
        return kept

    def set_grid_start(self, start: Sequence[int]) -> None:
        """Puts the first patch of all images at another row and column, until told otherwise.

        Raises:
            ValueError: not two whole numbers from 0 on.
        """
        self.grid_start = _checked_start(start)

    def position_losses(self) -> PositionLosses:
        """Returns the two position objectives for a training loop: add `.weighted` to the loss of the task.

        A forward pass in training mode draws them with the positions of its images, in one encoder call;
        that result is returned, once. Without such a pass they are drawn now. Encodings without objectives
        give zeros.
        """
        losses, self._step_losses = self._step_losses, None
        if losses is not None:
            return losses
        draw = getattr(self.position_encoding, "position_losses", None)
        if draw is not None:
            return draw(self.patch_embed.grid_size)
        zero = self.patch_embed.proj.weight.new_zeros(())
        return PositionLosses(zero, zero, zero)

    def __getstate__(self) -> Dict[str, Any]:
        return {
            **self.__dict__,
            "_step_losses": None,
        }  # tensors inside a graph can be neither copied nor pickled

    def _embed(
        self, x: Tensor, start: Optional[Tuple[int, int]]
    ) -> Tuple[Tensor, List[Tensor], Optional[Tensor]]:
        """Adds prefix tokens and positions to patches.

        Returns:
            Tokens (B, L, C); the terms of all layers, (L, T), (B, L, T), or (R, L, T) with the third; for
            each example its row among R, (B,).
        """
        example_rows: Optional[Tensor] = None
        if self.dynamic_img_size:
            rows, columns = x.shape[1], x.shape[2]
            x = x.flatten(1, 2)
        else:
            rows, columns = self.patch_embed.grid_size[0], self.patch_embed.grid_size[1]
        if torch.jit.is_scripting():
            encoded, terms = self._prepare_plainly(x, rows, columns, start)
        else:
            encoded, terms, example_rows = self._prepare(x, rows, columns, start)
        x = self._prepend_tokens(x)
        x = self.pos_drop(self.position_encoding.on_input(x, encoded))
        if self.drops_patches:
            x, kept = self.patch_drop(x)
            if kept is not None:
                if example_rows is not None:
                    terms = [layer.index_select(0, example_rows) for layer in terms]
                    example_rows = None
                terms = [keep_rows(layer, kept, self.num_prefix_tokens) for layer in terms]
        return self.norm_pre(x), terms, example_rows

    @torch.jit.unused
    def _prepare(
        self, x: Tensor, rows: int, columns: int, start: Optional[Tuple[int, int]]
    ) -> Tuple[Tensor, List[Tensor], Optional[Tensor]]:
        traced: Any = x
        if isinstance(traced, torch.fx.Proxy):
            encoded, terms = self._prepare_plainly(x, rows, columns, start)
            return encoded, terms, None
        encoding, size = self.position_encoding, (rows, columns)
        origin = self.grid_start if start is None else _checked_start(start)
        if self._step_losses is not None:
            self._step_losses = None  # assigning to a module takes longer than asking it
        # Only a step that leaves the origin to us is shifted at random.
        if self.training and origin == (0, 0) and encoding.has_training_objectives():
            encoding.check_size(max(size) - 1)
            positions = encoding.grid(size, origin, self.num_prefix_tokens, x.device)
            step = (positions, size, x.shape[0], self.num_prefix_tokens)
            if x.device.type == "cpu" and self._blocks_take_rows():
                prepared, example_rows, self._step_losses = encoding.prepare_rows_for_training(*step)
                if example_rows is not None:
                    return prepared.encoded[example_rows], prepared.layers, example_rows
            else:
                prepared, self._step_losses = encoding.prepare_for_training(*step)
        else:
            prepared = encoding.prepare_grid(size, origin, self.num_prefix_tokens, x.device)
        return prepared.encoded, prepared.layers, None

    def _blocks_take_rows(self) -> bool:
        """Whether blocks can be told the row of each example: they are ours, and nobody stands in between."""
        for block in self.blocks:
            if type(block) not in BLOCKS.values() or block._forward_pre_hooks:
                return False
        return not is_traced() and bool(_attention_layers(self.blocks[0])[0].stage.takes_rows)

    def _prepare_plainly(
        self, x: Tensor, rows: int, columns: int, start: Optional[Tuple[int, int]]
    ) -> Tuple[Tensor, List[Tensor]]:
        """Without tables and objectives, in steps that TorchScript and torch.fx can follow."""
        positions = image_positions(
            x,
            rows,
            columns,
            start,
            self.grid_start,
            self.numbers_patches,
            self.num_prefix_tokens,
            self.grid_capacity,
        )
        encoded = self.position_encoding(positions)
        if not self.numbers_patches:
            encoded = self.position_encoding.encode_prefix(encoded, self.num_prefix_tokens)
        return encoded, self.position_encoding.layer_terms(encoded)

    def _prepend_tokens(self, x: Tensor) -> Tensor:
        tokens: List[Tensor] = []
        if self.cls_token is not None:
            tokens.append(self.cls_token.expand(x.shape[0], -1, -1))
        if self.reg_token is not None:
            tokens.append(self.reg_token.expand(x.shape[0], -1, -1))
        tokens.append(x)
        return torch.cat(tokens, dim=1)

    @torch.jit.unused
    def _run(self, block: Any, *given: Any) -> Tensor:
        """Calls a block; the row of each example, last of what is given, only where there is one."""
        given = given if given[-1] is not None else given[:-1]
        x: Tensor = checkpoint(block, *given) if self.grad_checkpointing else block(*given)
        return x

    def forward_features(
        self,
        x: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        start: Optional[Tuple[int, int]] = None,
    ) -> Tensor:
        x, terms, example_rows = self._embed(self.patch_embed(x), start)
        for index, block in enumerate(self.blocks):
            if torch.jit.is_scripting():
                x = block(x, terms[index], attn_mask, is_causal)
            else:
                x = self._run(block, x, terms[index], attn_mask, is_causal, example_rows)
        return self.norm(x)

    def forward(
        self,
        x: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        start: Optional[Tuple[int, int]] = None,
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
        indices: Optional[Union[int, List[int]]] = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        start: Optional[Tuple[int, int]] = None,
    ) -> Union[List[Tensor], Tuple[Tensor, List[Tensor]], Dict[str, Any]]:
        """As in timm; `start` as in `forward`."""
        if output_fmt not in ("NCHW", "NLC"):
            raise ValueError(f"output_fmt={output_fmt!r} must be NCHW or NLC")
        take_indices, max_index = feature_take_indices(len(self.blocks), indices)
        batch, _, height, width = x.shape
        x, terms, example_rows = self._embed(self.patch_embed(x), start)
        blocks = self.blocks[: max_index + 1] if stop_early else self.blocks
        taken: List[Tensor] = []
        for index, block in enumerate(blocks):
            if torch.jit.is_scripting():
                x = block(x, terms[index], attn_mask, is_causal)
            else:
                x = self._run(block, x, terms[index], attn_mask, is_causal, example_rows)
            if index in take_indices:
                taken.append(self.norm(x) if norm else x)
        num_prefix = self.num_prefix_tokens
        prefix = [y[:, :num_prefix] for y in taken] if num_prefix else None
        spatial = [y[:, num_prefix:] for y in taken]
        if output_fmt == "NCHW":
            rows, columns = self.patch_embed.dynamic_feat_size((height, width))
            spatial = [y.reshape(batch, rows, columns, -1).permute(0, 3, 1, 2).contiguous() for y in spatial]
        if output_dict:
            result: Dict[str, Any] = {"image_intermediates": spatial}
            if prefix is not None and return_prefix_tokens:
                result["image_intermediates_prefix"] = prefix
            if not intermediates_only:
                result["image_features"] = self.norm(x)
            return result
        intermediates: Any = spatial
        if prefix is not None and return_prefix_tokens:
            intermediates = list(zip(spatial, prefix))
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

    dynamic_img_size: Final[bool]  # type: ignore[misc]
    numbers_patches: Final[bool]  # type: ignore[misc]
    drops_patches: Final[bool]  # type: ignore[misc]


class PositionVisionTransformerDistilled(_WithPositions, VisionTransformerDistilled):
    """timm's `VisionTransformerDistilled` (DeiT) with a position encoding; arguments as above."""

    dynamic_img_size: Final[bool]  # type: ignore[misc]
    numbers_patches: Final[bool]  # type: ignore[misc]
    drops_patches: Final[bool]  # type: ignore[misc]

    def _prepend_tokens(self, x: Tensor) -> Tensor:
        cls_token = self.cls_token.expand(x.shape[0], -1, -1)
        return torch.cat([cls_token, self.dist_token.expand(x.shape[0], -1, -1), x], dim=1)


def _attention_layers(block: nn.Module) -> List[Any]:
    return [module for module in block.modules() if isinstance(module, HoldsStage)]


def _checked_start(start: Sequence[int]) -> Tuple[int, int]:
    origin = tuple(start)
    if len(origin) != 2 or any(not isinstance(first, int) or first < 0 for first in origin):
        raise ValueError(
            f"start={start!r} must be the row and the column of the first patch, whole numbers from 0"
        )
    return origin[0], origin[1]
