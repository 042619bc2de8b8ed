"""GPT-2 with any position encoding, for transformers.

The transformer is GPT-2, module by module and name by name, so that GPT-2's weights load. The position
encoding sits where GPT-2 has its table of positions, in `wpe`. A forward pass asks it once for all that
layers need of positions, and layers see only tensors: this file does not know the name of any encoding.

In training with labels the position objectives of the encoding, if it has any, are part of the loss.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache
from transformers.generation import GenerationMixin
from transformers.masking_utils import create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, PreTrainedModel, slice_logits_to_keep
from transformers.pytorch_utils import Conv1D
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .attention import widen_heads
from .configuration_seqpe_gpt2 import SeqPEGPT2Config, build_text_encoding
from .gelu import TANH_GELU_NAME, TanhGELU
from .offloading import keep_in_memory
from .pe_base import PositionEncoding, PositionLosses, Prepared
from .score_masks import (
    ScorePlan,
    add_scores,
    attend_in_chunks,
    fits_in_mask,
    keys_before_chunks,
    one_chunk,
    scores_by_distance,
)
from .stages import AttentionStage
from .text_positions import (
    TextPositions,
    hides_nothing,
    key_positions,
    packed_positions,
    prepare_positions,
    query_positions,
)
from .tracing import is_traced

MASKING = ("eager", "sdpa")
WIDENING = ("sdpa", "flex_attention", "flash_attention_2", "flash_attention_3", "flash_attention_4")
"""How attention implementations of transformers get position scores: in the mask, or in wider heads."""

WIDEST_FLASH_HEAD = 256


@dataclass
class SeqPEGPT2ModelOutput(BaseModelOutputWithPast):
    """Output of `SeqPEGPT2Model`; `position_losses` only where they were asked for.

    Attributes:
        position_losses: the position objectives of a training step, and their weighted sum.
    """

    position_losses: PositionLosses | None = None


@dataclass
class SeqPEGPT2CausalLMOutput(CausalLMOutputWithPast):
    """Output of `SeqPEGPT2LMHeadModel`.

    Attributes:
        loss: language modelling loss; in training with the weighted position objectives added.
        position_distance_loss: L_delta of the paper, not weighted; in training, for encodings that have it.
        position_ood_loss: L_OOD of the paper, likewise.
    """

    position_distance_loss: Tensor | None = None
    position_ood_loss: Tensor | None = None


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention in plain operations, as in transformers' GPT-2; returns its probabilities too."""
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    probabilities = nn.functional.softmax(scores, dim=-1).type(value.dtype)
    probabilities = nn.functional.dropout(probabilities, p=dropout, training=module.training)
    return torch.matmul(probabilities, value).transpose(1, 2), probabilities


class SeqPEGPT2Attention(nn.Module):
    """Causal self-attention of GPT-2, with the attention stage of a position encoding."""

    def __init__(self, config: SeqPEGPT2Config, layer_idx: int, stage: AttentionStage) -> None:
        super().__init__()
        self.config, self.layer_idx = config, layer_idx
        self.embed_dim, self.num_heads = config.n_embd, config.n_head
        self.head_dim = self.embed_dim // self.num_heads
        self.scaling = self.head_dim**-0.5
        self.is_causal = True
        self.c_attn = Conv1D(3 * self.embed_dim, self.embed_dim)
        self.c_proj = Conv1D(self.embed_dim, self.embed_dim)
        self.attn_dropout = nn.Dropout(config.attn_pdrop)
        self.resid_dropout = nn.Dropout(config.resid_pdrop)
        self.stage = stage

    def forward(
        self,
        hidden_states: Tensor,
        past_key_values: Cache | None,
        attention_mask: Tensor | list[Tensor] | None,
        terms: Tensor,
        key_terms: Tensor | None = None,
        widen: bool = False,
        keys_before: int | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attends.

        Args:
            hidden_states: (B, L, C).
            past_key_values: cache; holds keys as the stage left them, without position scores.
            attention_mask: as the attention implementation wants it; or one for each of `causal_chunks`.
            terms: what the stage needs of the new tokens, (L, T) or (B, L, T).
            key_terms: the same of all keys, (S, T) or (B, S, T), when position scores are to be added here.
            widen: add them by wider heads and not in the mask.
            keys_before: number of keys before the first query, where queries attend in chunks.
            **kwargs: for the attention implementation.
        """
        batch, length, _ = hidden_states.shape
        heads = (batch, length, self.num_heads, self.head_dim)
        q, k, v = (
            x.view(heads).transpose(1, 2) for x in self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        )
        q, k = self.stage.on_query_key(q, k, terms)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, self.layer_idx)

        factors = None if key_terms is None else self.stage.score_factors(terms, key_terms)
        if factors is not None and widen:
            q, k, v = widen_heads(q, k, v, factors)
            if q.shape[-1] > WIDEST_FLASH_HEAD and "flash" in self.config._attn_implementation:
                raise ValueError(
                    f"position scores make heads {q.shape[-1]} wide, and flash attention takes at most "
                    f"{WIDEST_FLASH_HEAD}; use attn_implementation='sdpa'"
                )
        elif factors is not None:
            assert not isinstance(attention_mask, list)
            attention_mask = add_scores(
                self.stage, factors, self.scaling, attention_mask, q.dtype, keys_before
            )
        attend: Callable[..., Any] = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        options = {
            "dropout": self.attn_dropout.p if self.training else 0.0,
            "scaling": self.scaling,
            **kwargs,
        }
        if isinstance(attention_mask, list):
            assert keys_before is not None
            attend, probabilities = partial(attend, self, **options), None
            output = attend_in_chunks(attend, q, k, v, attention_mask, keys_before)
        else:
            output, probabilities = attend(self, q, k, v, attention_mask, **options)
        output = output[..., : self.head_dim].reshape(batch, length, self.embed_dim)
        return self.resid_dropout(self.c_proj(output)), probabilities


class SeqPEGPT2MLP(nn.Module):
    """Feed-forward part of a GPT-2 layer."""

    def __init__(self, config: SeqPEGPT2Config) -> None:
        super().__init__()
        inner = config.n_inner if config.n_inner is not None else 4 * config.n_embd
        self.c_fc = Conv1D(inner, config.n_embd)
        self.c_proj = Conv1D(config.n_embd, inner)
        name = config.activation_function
        self.act = TanhGELU() if name == TANH_GELU_NAME else ACT2FN[name]
        self.dropout = nn.Dropout(config.resid_pdrop)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.dropout(self.c_proj(self.act(self.c_fc(hidden_states))))


class SeqPEGPT2Block(GradientCheckpointingLayer):
    """One layer of GPT-2. What may need gradients is passed by position, as reentrant checkpointing wants."""

    def __init__(self, config: SeqPEGPT2Config, layer_idx: int, stage: AttentionStage) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = SeqPEGPT2Attention(config, layer_idx, stage)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = SeqPEGPT2MLP(config)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | list[Tensor] | None,
        terms: Tensor,
        key_terms: Tensor | None = None,
        past_key_values: Cache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        normed = self.ln_1(hidden_states)
        attended, _ = self.attn(normed, past_key_values, attention_mask, terms, key_terms, **kwargs)
        hidden_states = hidden_states + attended
        return hidden_states + self.mlp(self.ln_2(hidden_states))


class SeqPEGPT2PreTrainedModel(PreTrainedModel):
    """Base of the models: what transformers must know of them, and how weights start."""

    config_class = SeqPEGPT2Config
    base_model_prefix = "transformer"
    supports_gradient_checkpointing = True
    _no_split_modules = ["SeqPEGPT2Block"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    _can_record_outputs = {"hidden_states": SeqPEGPT2Block, "attentions": SeqPEGPT2Attention}
    _keys_to_ignore_on_load_unexpected = [r"attn\.bias$", r"attn\.masked_bias$"]  # masks in old GPT-2 files

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # In code that is not its own, transformers skips modules without parameters of their own, as an
        # encoding made of parts. All initialisers below leave loaded weights alone, so none need be skipped.
        super()._initialize_weights(module)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        std = self.config.initializer_range
        if isinstance(module, Conv1D):
            init.normal_(module.weight, mean=0.0, std=std)
            init.zeros_(module.bias)
        elif isinstance(module, (SeqPEGPT2Attention, SeqPEGPT2MLP)):
            # GPT-2: what layers add to the residual stream starts smaller in deeper models.
            init.normal_(module.c_proj.weight, mean=0.0, std=std / math.sqrt(2 * self.config.n_layer))
        elif isinstance(module, PositionEncoding):
            reset = getattr(module, "reset_parameters", None)
            if reset is not None:
                reset(std)
            for buffer in module.buffers(recurse=False):
                init.zeros_(buffer)


class SeqPEGPT2Model(SeqPEGPT2PreTrainedModel):
    """GPT-2 without a head."""

    def __init__(self, config: SeqPEGPT2Config) -> None:
        super().__init__(config)
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = build_text_encoding(config)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(
            [SeqPEGPT2Block(config, layer, self.wpe.make_stage()) for layer in range(config.n_layer)]
        )
        self.ln_f = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.stage = self.wpe.make_stage()
        self.has_scores = self.stage.has_scores
        self.scaling = (config.n_embd // config.n_head) ** -0.5
        self.gradient_checkpointing = False
        self._check_attention()
        # The encoding is called by methods other than `forward`: its parts must stay together.
        self._no_split_modules = ["SeqPEGPT2Block", type(self.wpe).__name__]
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.wte

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.wte = value

    @merge_with_config_defaults  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        return_position_losses: bool = False,
        **kwargs: Any,
    ) -> SeqPEGPT2ModelOutput:
        """Runs the transformer.

        Args:
            input_ids: (B, L).
            past_key_values: cache.
            attention_mask: (B, past + L), nonzero for real tokens; or a mask of four dimensions.
            position_ids: (1 or B, L); by default counted over real tokens, after those in the cache.
            inputs_embeds: (B, L, C), instead of input_ids.
            use_cache: whether to return a cache.
            return_position_losses: in training, shift positions at random and return the position objectives,
                if the encoding has them.
            **kwargs: for the attention implementation.

        Raises:
            ValueError: a position is too large for the encoding, or the inputs contradict each other.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("You must specify exactly one of input_ids or inputs_embeds")
        if input_ids is not None:
            self.warn_if_padding_and_no_attention_mask(input_ids, attention_mask)
            inputs_embeds = self.wte(input_ids)
        assert inputs_embeds is not None
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        past_length = past_key_values.get_seq_length() if past_key_values is not None else 0
        length, device = inputs_embeds.shape[1], inputs_embeds.device

        queries = query_positions(length, past_length, position_ids, attention_mask, device)
        packed = None
        if attention_mask is None and position_ids is not None and past_key_values is None:
            packed = packed_positions(position_ids)
        keep_in_memory(self.wpe)
        if return_position_losses and self.wpe.has_training_objectives():
            prepared, losses = self._prepare_for_training(queries, inputs_embeds)
        else:
            prepared, losses = self._prepare(queries, device), None
        if hides_nothing(attention_mask, past_length + length):
            attention_mask = None  # so that one mask serves all rows
        scores = self._plan_scores(
            prepared, queries, past_key_values, attention_mask, packed, inputs_embeds, kwargs
        )
        hidden_states = self.drop(self.wpe.on_input(inputs_embeds, prepared.encoded))

        mask = self._make_mask(scores, hidden_states, attention_mask, past_key_values, packed)
        for block, terms, key_terms in zip(self.h, prepared.layers, scores.keys, strict=True):
            hidden_states = block(
                hidden_states,
                mask,
                terms,
                key_terms,
                past_key_values=past_key_values,
                use_cache=use_cache,
                position_ids=packed,
                widen=scores.widen,
                keys_before=scores.keys_before,
                **kwargs,
            )
        return SeqPEGPT2ModelOutput(
            last_hidden_state=self.ln_f(hidden_states),
            past_key_values=past_key_values if use_cache else None,
            position_losses=losses,
        )

    def _prepare(self, positions: TextPositions, device: torch.device) -> Prepared:
        """Asks the encoding for everything it knows of positions, and moves it to where tokens are."""
        home = next((parameter.device for parameter in self.wpe.parameters()), device)
        encoded, layers = prepare_positions(self.wpe, positions, home)
        if home == device:
            return Prepared(encoded, layers)
        moved = {id(terms): terms.to(device) for terms in layers}
        return Prepared(encoded.to(device), [moved[id(terms)] for terms in layers])

    def _prepare_for_training(
        self, positions: TextPositions, inputs_embeds: Tensor
    ) -> tuple[Prepared, PositionLosses | None]:
        ids = positions.tensor(inputs_embeds.device)
        window = positions.length if positions.ids is None else int(ids.max()) + 1
        self.wpe.check_size(window - 1)
        ids = ids[0] if ids.shape[0] == 1 else ids
        return self.wpe.prepare_for_training(ids.unsqueeze(-1), [window], inputs_embeds.shape[0])

    def _plan_scores(
        self,
        prepared: Prepared,
        queries: TextPositions,
        past_key_values: Cache | None,
        attention_mask: Tensor | None,
        packed: Tensor | None,
        inputs_embeds: Tensor,
        kwargs: dict[str, Any],
    ) -> ScorePlan:
        """Decides how position scores get into attention, and prepares the positions of all keys for it."""
        if not self.has_scores:
            return ScorePlan([None] * len(prepared.layers))
        self._check_attention(kwargs)
        if attention_mask is not None and not isinstance(attention_mask, Tensor):
            raise ValueError(
                "the encoding adds scores between positions and must know the positions of keys: pass a mask "
                f"of two dimensions and not a {type(attention_mask).__name__}"
            )
        length, device = queries.length, inputs_embeds.device
        past_length, key_length = 0, length
        if past_key_values is not None:
            past_length = past_key_values.get_seq_length()
            key_length = past_key_values.get_mask_sizes(length, 0)[0]
        keys = key_positions(queries, past_length, key_length, attention_mask, device)
        of_keys = prepared if keys is queries else self._prepare(keys, device)
        first = of_keys.layers[0]
        is_shared = all(terms is first for terms in of_keys.layers)
        rows = max(terms.shape[0] if terms.ndim == 3 else 1 for terms in (first, prepared.layers[0]))
        factors = self.stage.score_factors(prepared.layers[0], first)
        assert factors is not None
        name, heads = self.config._attn_implementation, self.config.n_head
        before = None
        if name == "sdpa" and device.type == "cpu":
            before = keys_before_chunks(length, past_length, key_length, attention_mask)
        if before is not None and self.stage.by_distance and attention_mask is None and packed is None:
            in_order = queries.start is not None and keys.start is not None
            if in_order and is_shared and fits_in_mask(heads * one_chunk(length) * key_length):
                nothing: list[Tensor | None] = [None] * len(of_keys.layers)
                return ScorePlan(nothing, shared=factors, keys_before=before, by_distance=True)
        widen = name not in MASKING
        if name == "sdpa" and not is_traced():
            share = 1.0 if before is not None else factors[0].shape[-1] / (self.config.n_embd // heads)
            widen = not fits_in_mask(rows * heads * length * key_length, share)
        if widen:
            return ScorePlan(list(of_keys.layers), widen)
        if is_shared:
            return ScorePlan([None] * len(of_keys.layers), shared=factors, keys_before=before)
        return ScorePlan(list(of_keys.layers), keys_before=before)

    def _make_mask(
        self,
        scores: ScorePlan,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache | None,
        packed: Tensor | None,
    ) -> Tensor | list[Tensor] | None:
        """The mask that layers share, with position scores where they share those; or one for each chunk."""
        dtype = hidden_states.dtype
        if scores.by_distance:
            assert scores.shared is not None
            assert scores.keys_before is not None
            return scores_by_distance(self.stage, scores.shared, self.scaling, dtype, scores.keys_before)
        mask: Tensor | None = create_causal_mask(
            config=self.config,
            inputs_embeds=hidden_states,
            attention_mask=attention_mask,
            past_key_values=past_key_values,
            position_ids=packed,
            allow_is_causal_skip=not self.has_scores or scores.widen or hidden_states.shape[1] == 1,
        )
        if scores.shared is None:
            return mask
        if mask is not None and mask.stride(0) == 0:
            mask = mask[:1]  # no padding: all rows are equal
        return add_scores(self.stage, scores.shared, self.scaling, mask, dtype, scores.keys_before)

    def _check_attention(self, kwargs: dict[str, Any] | None = None) -> None:
        """Raises when the attention implementation cannot add the scores of this encoding."""
        name = self.config._attn_implementation
        if not self.has_scores or name is None:
            return
        usable = dict.fromkeys((*MASKING, *WIDENING))
        pages = kwargs is not None and kwargs.get("cache") is not None
        if pages or name not in usable:
            raise ValueError(
                f"position encoding {self.config.position_encoding!r} of this model adds scores between "
                f"positions, which attention implementation {name!r}{' with a paged cache' if pages else ''} "
                f"cannot do; use one of {', '.join(usable)}, or another encoding"
            )


class SeqPEGPT2LMHeadModel(SeqPEGPT2PreTrainedModel, GenerationMixin):
    """GPT-2 as a language model; its output embeddings are the input embeddings."""

    _tied_weights_keys = {"lm_head.weight": "transformer.wte.weight"}
    _pp_plan = {"lm_head": (["hidden_states"], ["logits"])}

    def __init__(self, config: SeqPEGPT2Config) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # transformers guesses it from names that end differently
        self.transformer = SeqPEGPT2Model(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> SeqPEGPT2CausalLMOutput:
        """Predicts the next token of each place.

        Args:
            input_ids: (B, L).
            past_key_values: cache.
            attention_mask: (B, past + L), nonzero for real tokens; or a mask of four dimensions.
            position_ids: (1 or B, L); by default counted over real tokens, after those in the cache.
            inputs_embeds: (B, L, C), instead of input_ids.
            labels: (B, L), tokens to predict, shifted inside; -100 where there is none. In training the loss
                then has the encoding's position objectives added; in evaluation it is the main loss alone.
            use_cache: whether to return a cache.
            logits_to_keep: how many last places to predict, all by default; or which.
            **kwargs: for the loss (`num_items_in_batch`, `shift_labels`) and the attention implementation.
        """
        outputs = self.transformer(
            input_ids,
            past_key_values=past_key_values,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            return_position_losses=self.training and labels is not None,
            **kwargs,
        )
        hidden_states = slice_logits_to_keep(outputs.last_hidden_state, logits_to_keep)
        logits = self.lm_head(hidden_states)
        loss = None
        losses = outputs.position_losses
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
            if losses is not None:
                loss = loss + losses.weighted.to(loss.device) * _share_of_batch(labels, **kwargs)
        return SeqPEGPT2CausalLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            position_distance_loss=None if losses is None else losses.distance.detach(),
            position_ood_loss=None if losses is None else losses.ood.detach(),
        )


def _share_of_batch(
    labels: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    shift_labels: Tensor | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor | float:
    """Which part this step is of a batch accumulated over several steps, counted as the main loss counts."""
    if num_items_in_batch is None:
        return 1.0
    predicted = shift_labels if shift_labels is not None else labels[..., 1:]
    return (predicted != ignore_index).sum() / num_items_in_batch


__all__ = ["SeqPEGPT2LMHeadModel", "SeqPEGPT2Model", "SeqPEGPT2PreTrainedModel"]
