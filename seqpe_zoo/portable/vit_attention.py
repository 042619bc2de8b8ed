"""timm's transformer blocks with a place for positions.

Each class is its timm parent, parameter for parameter, but for one thing: `forward` takes the terms of its
layer (see `stages.py`) as a second argument, always by place, as gradient checkpointing wants it, and last,
where examples share rows of terms, the row of each. Nothing here knows which encoding made them.
"""

from typing import Any, ClassVar, Dict, List, NamedTuple, Optional, Tuple, Type

import torch
import torch.nn.functional as F
from timm.layers import Attention, maybe_add_mask, resolve_self_attn_mask
from timm.models.vision_transformer import Block, ParallelScalingBlock, ParallelThingsBlock, ResPostBlock
from torch import Tensor, nn
from torch.jit import Final
from torch.nn.modules.module import _has_any_global_hook

from .attention import attend, score_bias
from .plain_layers import is_plain_linear, is_watched
from .stages import AttentionStage
from .tracing import is_traced

# How scores are added depends on sizes and devices, which torch.fx does not know while it traces.
torch.fx.wrap("attend")
torch.fx.wrap("score_bias")


LARGEST_KEPT_BIAS = 24 * 2**20
"""Largest matrix of position scores, in elements, that a layer keeps in inference: ViT-S up to 720 pixels."""


LARGEST_FOLD = 2**21
"""Largest product of tokens and columns of the projection for which a layer keeps positions folded into it:
ViT-S up to 680 pixels, where its twelve layers then keep 130 MB."""


def _is_intel_cpu() -> bool:
    describe = getattr(torch.cpu, "get_capabilities", None)  # older versions of PyTorch cannot tell
    return describe is not None and "Intel" in str(describe().get("cpu_name"))


FOLDS_FACTORS = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and _is_intel_cpu()
"""Whether AttnMul's pass over queries and keys should add the bias too, which the product then leaves out.

On an Intel Xeon, by measurement, it should. On two AMD EPYCs, one with AVX-512 and one without, the product
takes as long or longer without a bias, and the pass longer with it.
"""


class _Fold(NamedTuple):
    """Positions folded into a projection (see `AttentionStage.fold`), and what that was computed from."""

    terms: Tensor
    bias: Tensor
    version: int
    factor: Optional[Tensor]
    shift: Tensor


class HoldsStage:
    """What all attention with positions shares: the stage of its layer, and what it does with q, k and v."""

    projection: ClassVar[str] = "qkv"
    """Name of the layer that makes queries, keys and values."""
    stage: Any
    num_heads: Any
    head_dim: Any
    q_norm: Any
    k_norm: Any
    fused_attn: Any
    attn_drop: Any
    scale: Any
    training: Any
    _modules: Any
    _kept_bias: Optional[Tuple[Tensor, Tensor]] = None
    _kept_fold: Optional[_Fold] = None
    __jit_ignored_attributes__: ClassVar[List[str]] = ["_kept_bias", "_kept_fold"]

    def attend_with_positions(
        self,
        qkv: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor],
        is_causal: bool,
        placed: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        """Attention over queries, keys and values side by side (B, L, 3 * H * D); returns (B, L, H * D).

        Args:
            qkv: the three, side by side.
            terms: of the same tokens, (L, T), (B, L, T), or (R, L, T) with `rows`.
            attn_mask: as in timm.
            is_causal: as in timm.
            placed: whether q and k have their positions.
            rows: for each example its row among R, (B,).
        """
        batch, length, width = qkv.shape
        parts: Optional[Tuple[Tensor, Tensor, Tensor]] = None
        if not placed and not torch.jit.is_scripting():
            parts = self._place_in_training(qkv, terms, rows)
            if parts is None:
                terms = terms if rows is None else terms.index_select(0, rows)
                placed = self.stage.overwrites and self._place_in_(qkv, terms)
        if parts is not None:
            q, k, v = parts
        else:
            q, k, v = (
                qkv.reshape(batch, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4).unbind(0)
            )
            if not placed:
                q, k = self.stage.on_query_key(self.q_norm(q), self.k_norm(k), terms)
        attended = self._attend(q, k, v, terms, attn_mask, is_causal)
        return attended.transpose(1, 2).reshape(batch, length, width // 3)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, terms: Tensor, attn_mask: Optional[Tensor], is_causal: bool
    ) -> Tensor:
        factors: Optional[Tuple[Tensor, Tensor]] = None
        if self.stage.has_scores:
            if not torch.jit.is_scripting():
                bias = self._bias_of_inference(q, terms)
                if bias is not None and attn_mask is None and not is_causal:
                    return F.scaled_dot_product_attention(q, k, v, bias)
            factors = self.stage.score_factors(terms, terms)
        if self.fused_attn:
            dropout_p = self.attn_drop.p if self.training else 0.0
            return attend(q, k, v, factors, attn_mask, is_causal, dropout_p)
        scores = (q * self.scale) @ k.transpose(-2, -1)
        if factors is not None:
            scores = scores + score_bias(factors, self.scale, scores.dtype)
        mask = resolve_self_attn_mask(q.shape[2], scores, attn_mask, is_causal)
        scores = maybe_add_mask(scores, mask)
        return self.attn_drop(scores.softmax(dim=-1)) @ v

    @torch.jit.unused
    def _place_in_training(
        self, qkv: Tensor, terms: Tensor, rows: Optional[Tensor]
    ) -> Optional[Tuple[Tensor, Tensor, Tensor]]:
        """`AttentionStage.place_in_training`, where norms do nothing in between; else None."""
        if not self._can_place_in_training(qkv, terms, rows):
            return None
        placed: Tuple[Tensor, Tensor, Tensor]
        placed = self.stage.place_in_training(qkv, terms, rows, self.num_heads)
        return placed

    @torch.jit.unused
    def _can_place_in_training(self, x: Tensor, terms: Tensor, rows: Optional[Tensor]) -> bool:
        if not torch.is_grad_enabled() or is_traced(x) or not self._norms_do_nothing():
            return False
        columns = 2 * self.num_heads * self.head_dim
        return bool(self.stage.can_place_in_training(x, columns, terms, rows))

    @torch.jit.unused
    def _place_in_(self, qkv: Tensor, terms: Tensor) -> bool:
        """Writes positions into queries and keys where they lie, if nobody else reads them; says whether."""
        if not self._owns_query_key(qkv):
            return False
        self.stage.place_in_(qkv[..., : qkv.shape[-1] // 3 * 2], terms)
        return True

    @torch.jit.unused
    def _owns_query_key(self, x: Tensor) -> bool:
        """Whether nobody else reads queries and keys before positions are in them.

        Autograd, a tracer, a norm and a hook on the projection, or on what it is made of, would.
        """
        if is_traced(x) or torch.is_grad_enabled() or not self._norms_do_nothing():
            return False
        projection = self._modules[self.projection]
        parts = projection.modules() if projection._modules else (projection,)
        return not any(is_watched(part) for part in parts)

    @torch.jit.unused
    def _norms_do_nothing(self) -> bool:
        """Whether queries and keys are neither normalised nor looked at by a hook on their norms."""
        own = self._modules  # asked directly: this runs in every layer of every pass
        for norm in (own["q_norm"], own["k_norm"]):
            if type(norm) is not nn.Identity or "forward" in norm.__dict__ or is_watched(norm):
                return False
        return not _has_any_global_hook()

    @torch.jit.unused
    def _bias_of_inference(self, q: Tensor, terms: Tensor) -> Optional[Tensor]:
        """The multiplied-out position scores (1, H, L, L), computed once while terms are the same tensor.

        Encodings hand out the same terms as long as weights and resolution stay. On the CPU the product costs
        as much as q k^T itself, and memory is plenty; elsewhere, and for longer sequences, None.
        """
        if is_traced(terms):
            return None
        if self.training or torch.is_grad_enabled():
            self._kept_bias = None
            return None
        fits = terms.ndim == 2 and q.shape[1] * terms.shape[0] ** 2 <= LARGEST_KEPT_BIAS
        if not (fits and self.fused_attn and terms.device.type == "cpu"):
            return None
        kept = self._kept_bias  # read once: another thread may replace it
        if kept is None or kept[0] is not terms or kept[1].dtype != q.dtype:
            with torch.inference_mode(False), torch.no_grad():
                factors = self.stage.score_factors(terms, terms)
                bias = score_bias(factors, self.scale, q.dtype).unsqueeze(0)
            self._kept_bias = kept = (terms, bias)
        return kept[1]

    def __getstate__(self) -> Dict[str, Any]:
        return {**self.__dict__, "_kept_bias": None, "_kept_fold": None}


class PositionAttention(HoldsStage, Attention):
    """timm's `Attention` with positions."""

    fused_attn: Final[bool]  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stage = AttentionStage()

    def forward(
        self,
        x: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        placed: Optional[Tensor] = None
        parts: Optional[Tuple[Tensor, Tensor, Tensor]] = None
        if not torch.jit.is_scripting():
            placed = self._project_and_place(x, terms, attn_mask is not None)
            parts = self._project_in_training(x, terms, rows, attn_mask is not None)
        if parts is not None:
            q, k, v = parts
            x = self._attend(q, k, v, terms, attn_mask, is_causal).transpose(1, 2).flatten(2)
        else:
            qkv = self.qkv(x) if placed is None else placed
            x = self.attend_with_positions(qkv, terms, attn_mask, is_causal, placed is not None, rows)
        x = self.norm(x)
        if gate is not None:
            x = x * gate
        if parts is not None or (placed is not None and not self.stage.folds_to_shift):
            return self.proj_drop(self._project_with_owed_bias(x))
        return self.proj_drop(self.proj(x))

    @torch.jit.unused
    def _project_in_training(
        self, x: Tensor, terms: Tensor, rows: Optional[Tensor], is_masked: bool
    ) -> Optional[Tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys and values of a training step, positions placed and v's bias owed; else None.

        The product leaves its bias out, which is a pass over all its elements forwards and one backwards, and
        the pass that places positions adds it. Arguments as of `_project_and_place`, and terms may be (R, L,
        T) with `rows` (B,).
        """
        projection = self._modules["qkv"]
        if is_masked or not self._can_place_in_training(x, terms, rows):
            return None
        if not is_plain_linear(projection) or is_watched(projection) or not self._can_owe_bias():
            return None
        drops = self.training and self.attn_drop.p > 0  # then probabilities do not sum to one
        if drops or projection.weight.dtype != x.dtype or torch.is_autocast_enabled("cpu"):
            return None
        bias = projection.bias[: 2 * self.num_heads * self.head_dim]
        projected = F.linear(x, projection.weight)
        placed: Tuple[Tensor, Tensor, Tensor]
        placed = self.stage.place_in_training(projected, terms, rows, self.num_heads, bias)
        return placed

    @torch.jit.unused
    def _project_and_place(self, x: Tensor, terms: Tensor, is_masked: bool) -> Optional[Tensor]:
        """The projection of x with positions folded into its bias; None where that is not possible.

        A pass over queries and keys that only places positions takes two or three percent of the layer on a
        CPU. Folded, AttnSum has no such pass, and AttnMul, where the CPU `FOLDS_FACTORS`, one that adds the
        bias too. Factor and shift are read from memory: for a single image that costs more than it saves.

        Args:
            x: (B, L, C).
            terms: (L, T).
            is_masked: whether attention gets a mask, which may hide all keys of a query.

        Returns:
            (B, L, 3 * C); without the bias of values, which is to be added after attention, unless the stage
            `folds_to_shift`.
        """
        own = self._modules
        stage, projection = own["stage"], own["qkv"]
        if not stage.overwrites or self.training or is_traced(x) or x.shape[0] == 1:
            return None
        if not is_plain_linear(projection):
            return None
        if not stage.folds_to_shift and (not FOLDS_FACTORS or is_masked or not self._can_owe_bias()):
            return None
        weight, bias = projection.weight, projection.bias
        is_plain = terms.ndim == 2 and x.dtype == weight.dtype == terms.dtype == torch.float32
        if not is_plain or x.device.type != "cpu" or terms.shape[0] * bias.shape[0] > LARGEST_FOLD:
            return None
        if not self._owns_query_key(x) or torch.is_autocast_enabled("cpu"):
            return None
        kept = self._kept_fold  # read once: another thread may replace it
        version = 0 if bias.is_inference() else bias._version
        (batch, length, width), columns = x.shape, bias.shape[0]
        if kept is None or kept.terms is not terms or kept.bias is not bias or kept.version != version:
            with torch.inference_mode(False), torch.no_grad():
                factor, shift = stage.fold(bias, terms)
            self._kept_fold = kept = _Fold(terms, bias, version, factor, shift)
        if kept.factor is None:
            placed = x.new_empty(batch, length, columns).copy_(kept.shift)
            placed.view(-1, columns).addmm_(x.reshape(-1, width), weight.t())
            return placed
        placed = F.linear(x, weight)
        query_key = placed[..., : kept.shift.shape[-1]]
        torch.addcmul(kept.shift, query_key, kept.factor, out=query_key)
        return placed

    @torch.jit.unused
    def _can_owe_bias(self) -> bool:
        """Whether v's bias may be added after attention: what lies in between must not notice.

        Probabilities sum to one, so that a bias of all values is a bias of what they are averaged to, and the
        output projection makes one of its own bias of it. That saves a pass over all values.
        """
        own = self._modules
        output, norm = own["proj"], own["norm"]
        if not self.fused_attn or own.get("gate") is not None or not is_plain_linear(output):
            return False
        return isinstance(norm, nn.Identity) and not (is_watched(output) or is_watched(norm))

    @torch.jit.unused
    def _project_with_owed_bias(self, x: Tensor) -> Tensor:
        # Computed in each pass: it takes microseconds, and what is not kept need not be watched for changes.
        owed = self.qkv.bias[self.qkv.out_features // 3 * 2 :]
        return F.linear(x, self.proj.weight, torch.addmv(self.proj.bias, self.proj.weight, owed))


class PositionBlock(Block):
    """timm's `Block` with positions."""

    def forward(
        self,
        x: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), terms, attn_mask, is_causal, rows)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))


class PositionResPostBlock(ResPostBlock):
    """timm's `ResPostBlock` with positions."""

    def forward(
        self,
        x: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        x = x + self.drop_path1(self.norm1(self.attn(x, terms, attn_mask, is_causal, rows)))
        return x + self.drop_path2(self.norm2(self.mlp(x)))


class PositionParallelThingsBlock(ParallelThingsBlock):
    """timm's `ParallelThingsBlock` with positions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A Sequential would call attention with one argument; the names of parameters stay.
        branches: Any = super().__getattr__("attns")
        self.attns: Any = nn.ModuleList([nn.ModuleDict(dict(branch.named_children())) for branch in branches])

    def forward(
        self,
        x: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        attended = []
        for branch in self.attns:
            y = branch["attn"](branch["norm"](x), terms, attn_mask, is_causal, rows)
            attended.append(branch["drop_path"](branch["ls"](y)))
        x = x + torch.stack(attended).sum(dim=0)
        return x + torch.stack([ffn(x) for ffn in self.ffns]).sum(dim=0)


class PositionParallelScalingBlock(HoldsStage, ParallelScalingBlock):
    """timm's `ParallelScalingBlock` with positions."""

    projection = "in_proj"
    fused_attn: Final[bool]  # type: ignore[misc]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stage = AttentionStage()

    def forward(
        self,
        x: Tensor,
        terms: Tensor,
        attn_mask: Optional[Tensor] = None,
        is_causal: bool = False,
        rows: Optional[Tensor] = None,
    ) -> Tensor:
        hidden, width = self.in_split[0], self.num_heads * self.head_dim
        x_mlp, qkv = torch.split(self.in_proj(self.in_norm(x)), [hidden, 3 * width], dim=-1)
        if self.mlp_bias is not None:
            x_mlp = x_mlp + self.mlp_bias
        x_attn = self.attend_with_positions(qkv, terms, attn_mask, is_causal, rows=rows)
        x_mlp = self.mlp_drop(self.mlp_act(x_mlp))
        if self.out_proj is not None:
            y = self.out_proj(torch.cat((x_attn, x_mlp), dim=-1))
        else:
            y = self.attn_out_proj(x_attn) + self.mlp_out_proj(x_mlp)
        return x + self.drop_path(self.ls(y))


BLOCKS: Dict[Type[nn.Module], Type[nn.Module]] = {
    Block: PositionBlock,
    ResPostBlock: PositionResPostBlock,
    ParallelThingsBlock: PositionParallelThingsBlock,
    ParallelScalingBlock: PositionParallelScalingBlock,
}
"""timm's blocks and ours that stand in for them."""


def block_with_positions(block_fn: Type[nn.Module]) -> Type[nn.Module]:
    """Returns the class that stands in for a block of timm.

    Raises:
        ValueError: there is none.
    """
    if block_fn in BLOCKS.values():
        return block_fn
    if block_fn not in BLOCKS:
        known = ", ".join(block.__name__ for block in BLOCKS)
        raise ValueError(
            f"blocks of type {block_fn.__name__} take no position encoding; choose one of {known}"
        )
    return BLOCKS[block_fn]


def attention_with_positions(attn_layer: Any) -> Type[nn.Module]:
    """Returns the class that stands in for an attention layer of timm, given as timm does: a class or a name.

    Raises:
        ValueError: there is none.
    """
    if attn_layer in ("", "attn", Attention, PositionAttention):
        return PositionAttention
    name = attn_layer if isinstance(attn_layer, str) else attn_layer.__name__
    raise ValueError(
        f"attn_layer={name!r} takes no position encoding; use timm's plain attention, attn_layer='attn'"
    )
