"""Any position encoding in models of transformers, on transformers' own extension points.

A model keeps its layers. Its attention layers look up an attention function by name; here they find one that
applies the encoding and then calls the function that the user chose (eager, sdpa, flex or flash attention).
What it needs travels down as a keyword argument of `forward`. `PositionHost` is put before the class of a
base model (as `GPT2Model`), `PositionHead` before that of a model with a head. Nothing here knows an encoding
by name. What cannot work is refused when the model is built, with the reason.
"""

import functools
import inspect
import re
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple, logging
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from .encodings import build_position_encoding
from .objectives import share_of_batch
from .position_encoding import (
    AttentionOperation,
    PositionEncoding,
    PositionInputs,
    PositionLosses,
    is_traced,
    position_scores,
    widen_heads,
)
from .positions import Positions, positions_from_mask

logger = logging.get_logger(__name__)

PREFIX = "positions|"
"""Attention functions with positions have the name of transformers' own with this before it."""

MAX_SCORE_MASK = 12 * 2048 * 2048
"""Largest matrix of position scores, in elements, that goes into the mask; above it heads are widened."""

MAX_FLASH_HEAD = 256

# Attention.


class PositionContext:
    """What attention layers need of the positions of a forward pass.

    No dataclass: FSDP hands each layer a copy of those, and layers tell each other what they have done.

    Attributes:
        encoding: the position encoding.
        operation: what attention does with positions.
        inputs: position inputs of the new tokens.
        key_layers: position inputs of all keys, for each layer; only for operations that add scores.
        masks: masks with position scores in them, for layers that share W_PE. None under gradient
            checkpointing, where each layer is computed twice and must compute the same, and in graphs.
        placed: layers whose keys have their positions already, because they passed the cache.
        is_reached: whether an attention layer has run.
    """

    def __init__(
        self,
        encoding: PositionEncoding,
        operation: AttentionOperation,
        inputs: PositionInputs,
        key_layers: list[Tensor],
        masks: dict[Any, tuple[Any, Tensor]] | None,
    ) -> None:
        self.encoding, self.operation = encoding, operation
        self.inputs, self.key_layers, self.masks = inputs, key_layers, masks
        self.placed: set[int] = set()
        self.is_reached = False


def attention_with_positions(
    implementation: str,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    position_context: PositionContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention of transformers with the positions of a context; arguments as of any attention function."""
    if position_context is None:
        raise RuntimeError(
            f"{type(module).__name__} was called without positions: call the whole model, not one of its "
            "parts. If you did, it does not pass keyword arguments on to its attention layers and cannot "
            "have another position encoding"
        )
    context, layer, width = position_context, module.position_layer, value.shape[-1]
    context.is_reached = True
    operation, inputs = context.operation, context.inputs.layers[layer].to(query.device)
    if inputs.shape[-2] != query.shape[2]:
        raise RuntimeError(
            f"{query.shape[2]} tokens reached attention, but {inputs.shape[-2]} have positions"
        )
    query = operation.on_query(query, inputs)
    if layer not in context.placed:
        key = operation.on_key(key, inputs)
    if operation.has_scores:
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        # OPT multiplies queries by its scaling beforehand and has attention multiply by 1.
        own_scaling = getattr(module, "scaling", None) or scaling
        factors = operation.score_factors(inputs, context.key_layers[layer].to(query.device))
        if fits_in_mask(implementation, query, key, factors):
            attention_mask = score_mask(context, layer, factors, attention_mask, own_scaling, query.dtype)
        else:
            factors = (factors[0] * (own_scaling / scaling), factors[1])
            query, key, value = widen_heads(query, key, value, factors, operation.groups)
            check_wider_heads(implementation, query.shape[-1])
            kwargs["scaling"] = scaling
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own)
    output, probabilities = attend(module, query, key, value, attention_mask, **kwargs)
    return output[..., :width], probabilities


def fits_in_mask(implementation: str, query: Tensor, key: Tensor, factors: tuple[Tensor, Tensor]) -> bool:
    """Whether scores go into the mask; only eager attention and sdpa take one, and only of moderate size."""
    if implementation != "sdpa" or is_traced():
        return implementation in ("eager", "sdpa")
    rows = factors[0][..., 0, 0, 0].numel()
    share = min(1.0, factors[0].shape[-1] / query.shape[-1])  # narrow factors cost less in heads
    return rows * query.shape[1] * query.shape[2] * key.shape[2] <= MAX_SCORE_MASK * share


def score_mask(
    context: PositionContext,
    layer: int,
    factors: Any,
    mask: Tensor | None,
    scaling: float,
    dtype: torch.dtype,
) -> Tensor:
    """The mask with position scores in it, (1 or B, H, L, S); made once for layers that share W_PE."""
    masks, key = context.masks, None
    if masks is None:
        masks = {}
    else:  # layers with a sliding window keep fewer keys
        key = (id(mask), id(context.inputs.layers[layer]), context.key_layers[layer].shape[-2])
    if key not in masks:
        scores = position_scores(factors, scaling, context.operation.groups)
        # The mask is kept too, so that no other gets its id.
        masks[key] = mask, mask_with_scores(scores, mask, dtype, context.encoding.host.causal)
    return masks[key][1]


def mask_with_scores(scores: Tensor, mask: Tensor | None, dtype: torch.dtype, causal: bool = False) -> Tensor:
    """Hides in scores (1 or B, H, L, S) what a mask, bool or additive, hides; without one, later keys."""
    if mask is None and causal and scores.shape[-2] > 1:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    elif mask is not None and mask.stride(0) == 0:
        mask = mask[:1]  # no padding: all rows are equal
    if mask is not None:
        hidden = torch.where(mask, 0.0, torch.finfo(scores.dtype).min) if mask.dtype == torch.bool else mask
        scores = scores + hidden
    if torch.finfo(dtype).eps > torch.finfo(scores.dtype).eps:
        # ALiBi's scores grow with the position of the key. Far into a text half precision rounds neighbours
        # to one number; relative to the largest of its row, which attention does not notice, they stay apart.
        largest = scores.amax(dim=-1, keepdim=True)
        scores = scores - largest.masked_fill(largest < torch.finfo(scores.dtype).min / 2, 0.0)
    return scores.clamp(min=torch.finfo(dtype).min).to(dtype)  # minus infinity would make padding NaN


def check_wider_heads(implementation: str, width: int) -> None:
    """Raises ValueError where attention cannot have wider heads."""
    if implementation.startswith("paged|"):
        raise ValueError(
            f"this position encoding adds scores to attention, which {implementation!r} cannot do; use "
            "attn_implementation='sdpa', 'eager' or 'flex_attention'"
        )
    if "flash" in implementation and width > MAX_FLASH_HEAD:
        raise ValueError(
            f"position scores make heads {width} wide, and flash attention takes at most {MAX_FLASH_HEAD}; "
            "use attn_implementation='sdpa'"
        )


class AttentionConfig:
    """A model's config as its attention layers see it: their attention function is ours, else the same."""

    def __init__(self, config: Any) -> None:
        self._config = config

    @property
    def _attn_implementation(self) -> str:
        name = PREFIX + self._config._attn_implementation
        if name not in ALL_ATTENTION_FUNCTIONS:
            function = functools.partial(attention_with_positions, name.removeprefix(PREFIX))
            ALL_ATTENTION_FUNCTIONS.register(name, function)
        return name

    def __getattr__(self, name: str) -> Any:
        if name == "_config":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._config, name)


class CacheWithPositions:
    """Stands before a cache for one forward pass: keys get their positions as they enter it.

    Attributes:
        cache: the cache itself.
        context: positions of the pass.
        numbers: for the index of a layer in the cache its number among attention layers.
    """

    def __init__(self, cache: Any, context: PositionContext, numbers: dict[int, int]) -> None:
        self.cache, self.context, self.numbers = cache, context, numbers

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Changes the new keys, then updates the cache."""
        context, layer = self.context, self.numbers[layer_idx]
        context.placed.add(layer)
        key = context.operation.on_key(key, context.inputs.layers[layer].to(key.device))
        return self.cache.update(key, value, layer_idx, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "cache":  # while it is copied
            raise AttributeError(name)
        return getattr(self.cache, name)


# Positions of tokens and of keys in a text.


def query_positions(
    length: int,
    past: Any,
    position_ids: Tensor | None,
    attention_mask: Any,
    device: Any,
    bound: tuple[int] | None = None,
) -> Positions:
    """Decides the positions of new tokens: what the caller says, else counted over real tokens.

    A device other than the CPU is not asked for values while a text is continued, so that it need not wait.

    Args:
        length: new tokens in a row.
        past: tokens in the cache, a tensor for caches of fixed size.
        position_ids: (1 or B, L); has the last word.
        attention_mask: (B, past + L), nonzero for real tokens. Prepared masks say nothing about positions.
        device: where tokens are.
        bound: what positions in a cache of fixed size are below.
    """
    if position_ids is not None:
        return given_positions(position_ids, length, bound)
    if (
        isinstance(attention_mask, Tensor)
        and attention_mask.ndim == 2
        and may_be_padded(attention_mask, past)
    ):
        places = torch.arange(length, device=attention_mask.device) + past
        return Positions(ids=positions_from_mask(attention_mask)[:, places], bound=(attention_mask.shape[1],))
    if isinstance(past, Tensor):
        ids = (torch.arange(length, device=device) + past).unsqueeze(-1)
        return Positions(ids=ids, bound=bound)
    return Positions((length,), (past,))


def may_be_padded(mask: Tensor, past: Any) -> bool:
    """Whether a padding mask hides tokens, or would have to be read from a device to know."""
    is_known = mask.device.type == "cpu" or (isinstance(past, int) and past == 0)
    return is_traced() or not is_known or bool((mask == 0).any())


def given_positions(position_ids: Any, length: int, bound: tuple[int] | None = None) -> Positions:
    """Positions that the caller gives, as a range where all rows are known to be one."""
    if not isinstance(position_ids, Tensor) or position_ids.shape[-1] != length:
        shown = position_ids.shape if isinstance(position_ids, Tensor) else type(position_ids).__name__
        raise ValueError(
            f"position_ids must be a tensor with an entry for each of the {length} tokens, got {shown}"
        )
    ids = position_ids.reshape(-1, length)
    if ids.device.type == "cpu" and not is_traced() and ids.numel() > 0:
        start, bound = int(ids[0, 0]), None
        if start >= 0 and bool((ids == torch.arange(start, start + length)).all()):
            return Positions((length,), (start,))
    ids = (ids[0] if ids.shape[0] == 1 else ids).unsqueeze(-1)
    return Positions(ids=ids, bound=bound)


def key_positions(cache: Any, new: Positions, past: Any, attention_mask: Any, length: int) -> Positions:
    """Returns the positions of all keys, those of the new tokens last, and remembers them on the cache.

    Args:
        cache: of transformers.
        new: positions of the new tokens.
        past: tokens in the cache; what it remembers of more is dropped, for it may have been cropped.
        attention_mask: padding mask of all tokens, for a cache that another model has filled.
        length: rows of its longest layer; one of fixed size has some that hold no keys yet.
    """
    known = getattr(cache, "key_positions", None)
    if isinstance(past, int) and past == 0:
        known = new
    elif known and known.size and new.size and known.start[0] + past == new.start[0]:
        known = Positions((past + new.size[0],), known.start)
    else:
        known = join_positions(known or keys_of_other_cache(new, past, attention_mask), new, past, length)
    cache.key_positions = known
    return known


def keys_of_other_cache(new: Positions, past: Any, attention_mask: Any) -> Positions:
    """Positions in a cache that was not filled by this model: counted; the new tokens must continue them."""
    is_2d = isinstance(attention_mask, Tensor) and attention_mask.ndim == 2
    known = query_positions(past, 0, None, attention_mask[:, :past] if is_2d else None, None)
    first, last = new.tensor()[..., 0, 0], known.tensor(new.tensor().device)[..., -1, 0]
    if not is_traced() and bool((first != last + 1).any()):
        raise ValueError(
            f"position_ids begin at {first.tolist()}, which does not continue the {past} keys of the cache; "
            "pass a cache that this model has filled"
        )
    return known


def join_positions(known: Positions, new: Positions, past: Any, length: int) -> Positions:
    """Positions of the first `past` keys of a cache, then those of new tokens, in `length` rows."""
    old, more = known.tensor(), new.tensor()
    old, more = (ids if ids.ndim == 3 else ids.unsqueeze(0) for ids in (old.to(more.device), more))
    rows = max(old.shape[0], more.shape[0])
    if rows % old.shape[0] or rows % more.shape[0]:
        raise ValueError(
            f"the cache holds {old.shape[0]} rows of different positions and the batch has {more.shape[0]}; "
            "select rows of the cache and of its key_positions alike"
        )
    old, more = (ids.repeat_interleave(rows // ids.shape[0], dim=0) for ids in (old, more))
    places = torch.arange(more.shape[1], device=more.device) + past
    joined = fit_rows(old, 0, length).index_copy(1, places, more)
    limits = [known.limit(), new.limit()]
    return Positions(ids=joined, bound=None if None in limits else tuple(max(limits)))  # type: ignore


def fit_rows(inputs: Tensor, start: int, count: int) -> Tensor:
    """Rows `start` to `start + count` of (..., L, T), zeros where there are none."""
    rows = inputs[..., start : start + count, :]
    missing = count - rows.shape[-2]
    return F.pad(rows, (0, 0, 0, missing)) if missing else rows


# The models.


class PositionModel:
    """What models with and without a head share: signatures, initialisation and what they refuse."""

    argument_names: tuple[str, ...] = ()
    position_host: Any
    """The base model, which holds the position encoding; the model itself where it has no head."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        is_done = hasattr(getattr(cls, "forward", None), "takes_positions")  # by the class it is based on
        if not issubclass(cls, nn.Module) or "forward" in vars(cls) or is_done:
            return
        native = next(base.forward for base in cls.__mro__ if not issubclass(base, PositionModel))
        cls.argument_names = tuple(inspect.signature(native).parameters)[1:]
        forward = cls.forward

        # Shows the arguments of the model's own forward, which generation and the Trainer ask for.
        @functools.wraps(native)
        def forward_with_positions(self: Any, *args: Any, **kwargs: Any) -> Any:
            return forward(self, {**dict(zip(self.argument_names, args, strict=False)), **kwargs})

        forward_with_positions.takes_positions = True  # type: ignore[attr-defined]
        cls.forward = can_return_tuple(forward_with_positions)

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        # In code that is not its own, transformers skips modules without parameters of their own, as an
        # encoding made of parts. All initialisers leave loaded weights alone, so none need be skipped.
        super()._initialize_weights(module)  # type: ignore[misc]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, PositionEncoding):
            module.initialize(getattr(self.config, "initializer_range", 0.02))  # type: ignore[attr-defined]
        else:
            super()._init_weights(module)  # type: ignore[misc]

    def _set_gradient_checkpointing(self, enable: bool = True, *args: Any, **kwargs: Any) -> None:
        function = args[0] if args else kwargs.get("gradient_checkpointing_func")
        # A config may enable it while the model is built, before there is an encoding.
        encodings = [part for part in self.modules() if isinstance(part, PositionEncoding)]  # type: ignore[attr-defined]
        trains = any(p.requires_grad for encoding in encodings for p in encoding.parameters())
        if enable and trains and getattr(function, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "reentrant gradient checkpointing cannot train a position encoding that all layers share; "
                "use gradient_checkpointing_kwargs={'use_reentrant': False}, the default of transformers"
            )
        super()._set_gradient_checkpointing(enable, *args, **kwargs)  # type: ignore[misc]

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; weights of another encoding or integration are refused."""
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.position_host.position_encoding.check_kind()
        return loaded

    def _announce(self, encoding: PositionEncoding) -> None:
        """Tells transformers what it must know of the encoding for placing and loading."""
        own: Any = self
        own._no_split_modules = {*(own._no_split_modules or ()), type(encoding).__name__}
        # Checkpoints of version 0.1 do not say what their weights are for.
        own._keys_to_ignore_on_load_missing = {*(own._keys_to_ignore_on_load_missing or ()), r"\.kind$"}


class PositionHost(PositionModel):
    """Gives a base model of transformers the position encoding that its config names; this one for texts."""

    wants_objectives = False
    """Whether the next forward pass computes the position objectives, into `step_losses`."""
    step_losses: PositionLosses | None = None
    position_encoding: PositionEncoding
    position_operation: AttentionOperation

    @property
    def position_host(self) -> Any:  # type: ignore[override]
        """The model itself."""
        return self

    def add_positions(self) -> None:
        """Builds the encoding and puts it into every attention layer; the model's own positions end."""
        config: Any = self.config  # type: ignore[attr-defined]
        if getattr(config, "add_cross_attention", False):
            raise ValueError(
                "add_cross_attention=True: cross-attention, whose keys are another text, cannot have one"
            )
        layers = attention_layers(self)  # type: ignore[arg-type]
        encoding = build_position_encoding(
            config.position_encoding, **self.host_spec(layers), **(config.position_encoding_args or {})
        )
        if not config.keep_native:
            refuse_native_positions(self, layers)  # type: ignore[arg-type]
            self.remove_native_positions()
        encoding.initialize(getattr(config, "initializer_range", 0.02))
        self.position_encoding, self.position_operation = encoding, encoding.make_operation()
        _CAN_RECORD_REGISTRY[str(type(self))] = self._can_record_outputs  # type: ignore[attr-defined]
        for number, layer in enumerate(layers):
            layer.config = AttentionConfig(layer.config)
            layer.position_layer = number
        self._layer_numbers = {getattr(layer, "layer_idx", n): n for n, layer in enumerate(layers)}
        self._announce(self.position_encoding)

    def forward(self, given: dict[str, Any]) -> Any:
        """Runs the model with positions; the arguments are those of the model without an encoding."""
        tokens = given.get(self.main_input_name)  # type: ignore[attr-defined]
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if not isinstance(tokens, Tensor):
            return super().forward(**given)  # type: ignore[misc]  # says what is missing
        cache = given.get("past_key_values")
        cache = self._new_cache(given) if cache is None else cache
        context = self.make_context(given, tokens, cache)
        if cache is not None:
            given["past_key_values"] = CacheWithPositions(cache, context, self._layer_numbers)
        self.step_losses, self.wants_objectives = context.inputs.losses, False
        outputs = super().forward(**given, position_context=context, return_dict=True)  # type: ignore[misc]
        if not context.is_reached:
            raise RuntimeError(
                f"the attention layers of {type(self).__name__} did not call the attention function that its "
                "config names; it cannot have another position encoding"
            )
        if "past_key_values" in outputs:
            outputs["past_key_values"] = cache
        return outputs

    def make_context(self, given: dict[str, Any], tokens: Tensor, cache: Any) -> PositionContext:
        """Makes the context of a forward pass, and changes the arguments of the model to fit."""
        length, past, bound, sizes = tokens.shape[1], 0, None, []
        if cache is not None:
            past = cache.get_seq_length()
            sizes = [cache.get_mask_sizes(length, index) for index in self._layer_numbers]
            bound = (max(count + offset for count, offset in sizes),)
        mask, ids = given.get("attention_mask"), given.get("position_ids")
        new = query_positions(length, past, ids, mask, tokens.device, bound)
        # A continued text is not shifted in training: its keys would not be.
        batch = tokens.shape[0] if isinstance(past, int) and past == 0 else 0
        inputs = self.position_encoding(new, batch, tokens.device, self.wants_objectives)
        layers = inputs.layers
        if self.position_operation.has_scores and cache is not None:
            keys = key_positions(cache, new, past, mask, bound[0])  # type: ignore[index]
            if keys is not new:
                layers = self.position_encoding(keys, 0, tokens.device).layers
            # Sliding windows keep the last keys only, caches of fixed size have room for more.
            layers = [
                fit_rows(layer, start, count) for layer, (count, start) in zip(layers, sizes, strict=True)
            ]
        if ids is not None:
            self._pass_position_ids(given, tokens, cache)
        if self.position_encoding.changes_input:
            self._add_to_input(given, inputs)
        return self.context(inputs, layers)

    def context(self, inputs: PositionInputs, key_layers: list[Tensor]) -> PositionContext:
        """What attention layers get, given the position inputs of new tokens and of all keys."""
        computed_twice = self.training and self.is_gradient_checkpointing  # type: ignore[attr-defined]
        masks: Any = None if computed_twice or is_traced() else {}
        return PositionContext(self.position_encoding, self.position_operation, inputs, key_layers, masks)

    def _pass_position_ids(self, given: dict[str, Any], tokens: Tensor, cache: Any) -> None:
        """Leaves `position_ids` to a model that keeps its own positions or tells packed texts by them."""
        ids = given["position_ids"]
        if cache is None and given.get("attention_mask") is None:
            if is_traced() or not bool((torch.diff(ids, dim=-1) > 1).any()):
                return
            # These positions jump, and transformers would take them for the next of several packed texts.
            given["attention_mask"] = torch.ones(tokens.shape[:2], dtype=torch.long, device=ids.device)
        if not self.config.keep_native:  # type: ignore[attr-defined]
            del given["position_ids"]

    def _add_to_input(self, given: dict[str, Any], inputs: PositionInputs) -> None:
        """Adds what the encoding adds to embedded tokens."""
        embeds = given.get("inputs_embeds")
        if embeds is None:
            embeds = self.get_input_embeddings()(given.pop("input_ids"))  # type: ignore[attr-defined]
        given["inputs_embeds"] = self.position_encoding.on_input(embeds, inputs.encoded.to(embeds.device))

    def _new_cache(self, given: dict[str, Any]) -> Any:
        """A cache where the model would make one."""
        config: Any = self.config  # type: ignore[attr-defined]
        use_cache = given.get("use_cache")
        use_cache = getattr(config, "use_cache", False) if use_cache is None else use_cache
        checkpoints = self.is_gradient_checkpointing and self.training  # type: ignore[attr-defined]
        if not use_cache or checkpoints or not self.position_encoding.host.causal:
            return None
        return DynamicCache(config=config)

    def host_spec(self, layers: list[Any]) -> dict[str, Any]:
        """What an encoding must know of the model, the fields of `HostSpec`."""
        config: Any = self.config  # type: ignore[attr-defined]
        length = config.train_length or getattr(config, "max_position_embeddings", None)
        if length is None:
            raise ValueError(
                f"the config of {type(self).__name__} does not say max_position_embeddings; give train_length"
            )
        return spec_of_attention(self, layers) | {"num_dims": 1, "train_shape": (length,)}

    def remove_native_positions(self) -> None:
        """Silences rotations, tables and biases of positions."""
        for parent in list(self.modules()):  # type: ignore[attr-defined]
            for name, child in list(parent.named_children()):
                if is_rotation(child):
                    child.register_forward_hook(no_rotation)
                elif is_table(name, child):
                    setattr(parent, name, NoTable())
                elif name in BIAS_NAMES:
                    setattr(parent, name, None)
            if "token_type_ids" in parent._buffers:
                parent.register_forward_pre_hook(give_token_types, with_kwargs=True)


class PositionHead(PositionModel):
    """Gives a model with a head a base model with positions, and its loss their objectives."""

    base_class: Any
    """The class of the base model with positions."""

    def add_positions(self) -> None:
        """Makes the base model one of `base_class`, which has its class among its bases."""
        native = next(base for base in self.base_class.__mro__[1:] if not issubclass(base, PositionModel))
        host: Any = next((part for part in self.modules() if isinstance(part, native)), None)  # type: ignore[attr-defined]
        if host is None:
            raise ValueError(
                f"{type(self).__name__} does not run {native.__name__}, its base model; position encodings "
                "cannot be added to it"
            )
        if type(host) is native:  # some heads have asked AutoModel for it, and got ours
            host.__class__ = self.base_class
            host.add_positions()
        self._host_name = next(name for name, part in self.named_modules() if part is host)  # type: ignore[attr-defined]
        self._announce(host.position_encoding)

    @property
    def position_host(self) -> Any:  # type: ignore[override]
        """The base model."""
        return self.get_submodule(self._host_name)  # type: ignore[attr-defined]

    def forward(self, given: dict[str, Any]) -> Any:
        """As of the model without an encoding; training with labels adds the position objectives to the loss.

        Their unweighted values are in the outputs, as `position_distance_loss` and `position_ood_loss`.
        """
        if self.training:  # type: ignore[attr-defined]
            return self._train_forward(given)
        return super().forward(**given, return_dict=True)  # type: ignore[misc]

    def _train_forward(self, given: dict[str, Any]) -> Any:
        labels, host = given.get("labels"), self.position_host
        host.wants_objectives = labels is not None or "labels" not in self.argument_names
        if not host.wants_objectives and host.position_encoding.has_objectives():
            logger.warning_once(
                "this model trains without labels, so that the loss lacks the objectives of its position "
                "encoding: pass labels, or set distance_weight=0 and ood_weight=0"
            )
        outputs = super().forward(**given, return_dict=True)  # type: ignore[misc]
        losses, host.step_losses = host.step_losses, None
        if losses is not None and outputs.get("loss") is not None:
            share = share_of_batch(labels, given.get("num_items_in_batch"), given.get("shift_labels"))
            outputs["loss"] = outputs["loss"] + losses.weighted.to(outputs["loss"].device) * share
            outputs["position_distance_loss"] = losses.distance.detach()
            outputs["position_ood_loss"] = losses.ood.detach()
        return outputs

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: Any) -> Tensor | None:
        # Without padding positions are the range that the cache implies, which no device need be asked for.
        mask = model_kwargs.get("attention_mask")
        if not self.config.keep_native and (mask is None or bool((mask == 1).all())):  # type: ignore[attr-defined]
            return None
        return super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)  # type: ignore[misc]


# What a model is, and what it must lose.

TABLE_NAMES = ("wpe", "position_embeddings", "embed_positions")
BIAS_NAMES = ("relative_position_bias", "shared_position_bias", "rel_pos_bias")
POSITION_NAME = re.compile(r"(^|_)(pos|positions?|positional|rope|rotary|relative|rel|alibi)(_|$)")


def is_rotation(part: nn.Module) -> bool:
    """Whether a module is a rotary embedding, which gives cosines and sines to attention layers."""
    return "RotaryEmbedding" in type(part).__name__ or "RopePositionEmbedding" in type(part).__name__


def is_table(name: str, part: nn.Module) -> bool:
    """Whether a module is a learned table of positions, which is added to embedded tokens."""
    return name in TABLE_NAMES and isinstance(part, nn.Embedding)


def refuse_native_positions(model: nn.Module, layers: list[Any]) -> None:
    """Raises ValueError for a model with positions that `remove_native_positions` would leave there.

    They are told by names: of tensors, of modules without parts, and of a bias that attention layers hand on.
    """
    found, removed = [], ["-"]
    for path, part in model.named_modules():
        name = path.rpartition(".")[2]
        if (
            is_rotation(part)
            or is_table(name, part)
            or name in BIAS_NAMES
            or hasattr(part, "interpolate_pos_encoding")
        ):
            removed.append(path)
        if path.startswith(tuple(removed)):
            continue
        tensors = {**vars(part), **part._parameters, **part._buffers}
        names = [f"{path}.{key}" for key, value in tensors.items() if isinstance(value, Tensor)]
        names += [] if list(part.children()) else [path]
        found += [name for name in names if POSITION_NAME.search(name.rpartition(".")[2])]
    found = [name for name in found if not name.endswith("position_ids")]
    for layer in layers:
        if "position_bias" in inspect.unwrap(type(layer).forward).__code__.co_varnames:
            found.append("a bias of positions in attention")
    if found:
        raise ValueError(
            f"{type(model).__name__} has positions that cannot be taken out: "
            f"{', '.join(dict.fromkeys(found))}. With keep_native=True the encoding is added to them"
        )


def attention_layers(model: nn.Module) -> list[Any]:
    """The layers of a model that look up an attention function, in order."""

    def names_of(module: nn.Module) -> tuple[str, ...]:
        code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
        return () if code is None else code.co_names

    layers = [module for module in model.modules() if "ALL_ATTENTION_FUNCTIONS" in names_of(module)]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no attention layer that looks up transformers' attention functions; "
            "position encodings cannot be added to it"
        )
    return layers


def spec_of_attention(model: Any, layers: list[Any]) -> dict[str, Any]:
    """What all attention layers agree in, as fields of `HostSpec`; raises ValueError where they do not."""
    for name in ("head_dim", "scaling", "num_key_value_groups"):
        found = sorted({getattr(layer, name, None) or 0 for layer in layers})
        if len(found) > 1:
            raise ValueError(
                f"the attention layers of {type(model).__name__} differ in {name}: {found}; one position "
                "encoding cannot serve all of them"
            )
    first, heads, dim = layers[0], model.config.num_attention_heads, model.config.hidden_size
    width = getattr(first, "head_dim", None) or getattr(first, "attention_head_size", None)
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": heads // (getattr(first, "num_key_value_groups", None) or 1),
        "head_dim": width or dim // heads,
        "num_layers": len(layers),
        "causal": all(getattr(layer, "is_causal", False) for layer in layers),
        "scaling": getattr(first, "scaling", None),
    }


def no_rotation(module: nn.Module, args: Any, output: Any) -> Any:
    """A hook of a model's rotary embedding: angles of zero, in the shape that its layers expect."""
    if isinstance(output, Tensor):  # complex numbers
        return torch.ones_like(output)
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


def give_token_types(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """A hook of BERT's embeddings, whose default for token types ends at the length of its table."""
    if kwargs.get("token_type_ids") is None:
        tokens = kwargs["inputs_embeds"] if kwargs.get("input_ids") is None else kwargs["input_ids"]
        kwargs["token_type_ids"] = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)
    return args, kwargs


class NoTable(nn.Module):
    """In place of a model's learned table of positions: a zero, which is added and changes nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        return torch.zeros((), device=device)
