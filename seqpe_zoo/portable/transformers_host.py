"""Any position encoding in models of transformers, on transformers' own extension points.

A model keeps its layers. Its attention layers look up an attention function by name; here they find one that
applies the encoding and then calls the function that the user chose (eager, sdpa, flex or flash attention).
What it needs travels down as a keyword argument of `forward`. `PositionHost` is put before the class of a base
model (as `GPT2Model`), `PositionHead` before that of a model with a head. Nothing here knows an encoding or a
model by name.
"""

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

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
from .positions import Positions, positions_from_mask

PREFIX = "positions|"
"""Attention functions with positions are registered under the name of transformers' own with this before it."""

MAX_SCORE_MASK = 12 * 2048 * 2048
"""Largest matrix of position scores, in elements, that goes into the mask; above it heads are widened."""

MAX_FLASH_HEAD = 256

KIND_KEY = r"position_encoding\.kind$"
"""Checkpoints of the first edition do not say what their weights are for."""


class PositionContext:
    """What attention layers need of the positions of a forward pass.

    Attributes:
        operation: what attention does with positions.
        layers: position inputs of the new tokens, for each layer.
        key_layers: those of all keys.
        placed: layers whose keys have their positions already, because they passed the cache.
        reached: layers that were reached, counted.
    """

    def __init__(self, operation: AttentionOperation, layers: list[Tensor], key_layers: list[Tensor]) -> None:
        self.operation, self.layers, self.key_layers = operation, layers, key_layers
        self.placed: set[int] = set()
        self.reached = 0
        self._masks: dict[Any, tuple[Any, Tensor]] = {}

    def score_mask(
        self, module: Any, q: Tensor, k: Tensor, factors: Any, mask: Tensor | None, scaling: float
    ) -> Tensor:
        """The mask with position scores in it, (1 or B, H, L, S); made once for layers that share W_PE."""
        layer = module.position_layer
        key = (id(mask), id(self.layers[layer]), id(self.key_layers[layer]), k.shape[2], scaling)
        if key not in self._masks:
            visible = mask
            if visible is None and getattr(module, "is_causal", False) and q.shape[2] > 1:
                visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
            elif visible is not None and visible.stride(0) == 0:
                visible = visible[:1]  # no padding: all rows are equal
            scores = position_scores(factors, scaling, self.operation.groups)
            self._masks[key] = (mask, mask_with_scores(scores, visible, q.dtype))
        return self._masks[key][1]


def mask_with_scores(scores: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Hides in scores (1 or B, H, L, S) what a mask, bool or additive, hides."""
    lowest = torch.finfo(dtype).min  # not minus infinity: the rows of padding would become NaN
    if mask is not None and mask.dtype == torch.bool:
        scores = torch.where(mask, scores, torch.finfo(scores.dtype).min)
    elif mask is not None:
        scores = scores + mask
    if torch.finfo(dtype).eps > torch.finfo(scores.dtype).eps:
        # ALiBi's scores grow with the position of the key. Far into a text half precision rounds neighbours to
        # one number; relative to the largest of its row, which attention does not notice, they stay apart.
        largest = scores.amax(dim=-1, keepdim=True)
        scores = scores - largest.masked_fill(largest < torch.finfo(scores.dtype).min / 2, 0.0)
    return scores.clamp(min=lowest).to(dtype)


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
            f"{type(module).__name__} was called without positions; call the model that "
            "`set_position_encoding` returned, not one of its parts"
        )
    context, layer, width = position_context, module.position_layer, value.shape[-1]
    context.reached += 1
    operation, inputs = context.operation, context.layers[layer].to(query.device)
    query = operation.on_query(query, inputs)
    if layer not in context.placed:
        key = operation.on_key(key, inputs)
    if operation.has_scores:
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        key_inputs = context.key_layers[layer].to(query.device)
        factors = operation.score_factors(inputs, key_inputs)
        if fits_in_mask(implementation, query, key, factors):
            attention_mask = context.score_mask(module, query, key, factors, attention_mask, scaling)
        else:
            query, key, value = widen_heads(query, key, value, factors, operation.groups)
            check_width(implementation, query.shape[-1])
            kwargs["scaling"] = scaling
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, own)
    output, probabilities = attend(module, query, key, value, attention_mask, **kwargs)
    return output[..., :width], probabilities


def fits_in_mask(implementation: str, query: Tensor, key: Tensor, factors: tuple[Tensor, Tensor]) -> bool:
    """Whether scores go into the mask; only eager attention and sdpa take one, and only of moderate size."""
    if implementation == "eager" or is_traced():
        return implementation in ("eager", "sdpa")
    rows = factors[0].shape[0] if factors[0].ndim == 4 else 1
    share = min(1.0, factors[0].shape[-1] / query.shape[-1])  # narrow factors cost less in heads
    elements = rows * query.shape[1] * query.shape[2] * key.shape[2]
    return implementation == "sdpa" and (query.shape[2] == 1 or elements <= MAX_SCORE_MASK * share)


def check_width(implementation: str, width: int) -> None:
    """Raises ValueError where wider heads are too wide for flash attention."""
    if "flash" in implementation and width > MAX_FLASH_HEAD:
        raise ValueError(
            f"position scores make heads {width} wide, and flash attention takes at most {MAX_FLASH_HEAD}; "
            "use attn_implementation='sdpa'"
        )


class AttentionConfig:
    """A model's config as its attention layers see it: their attention function is ours, all else is the same."""

    def __init__(self, config: Any) -> None:
        self._config = config

    @property
    def _attn_implementation(self) -> str:
        name = PREFIX + (self._config._attn_implementation or "sdpa")
        if name not in ALL_ATTENTION_FUNCTIONS:
            function = functools.partial(attention_with_positions, name.removeprefix(PREFIX))
            ALL_ATTENTION_FUNCTIONS.register(name, function)
        return name

    def __getattr__(self, name: str) -> Any:
        if name == "_config":  # while it is copied or unpickled
            raise AttributeError(name)
        return getattr(self._config, name)


class CacheWithPositions:
    """Stands before a cache for one forward pass: keys get their positions as they enter it."""

    def __init__(self, cache: Any, context: PositionContext, numbers: dict[int, int]) -> None:
        self.cache, self.context, self.numbers = cache, context, numbers

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """Changes the new keys, then updates the cache."""
        layer = self.numbers[layer_idx]
        self.context.placed.add(layer)
        key = self.context.operation.on_key(key, self.context.layers[layer].to(key.device))
        return self.cache.update(key, value, layer_idx, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "cache":
            raise AttributeError(name)
        return getattr(self.cache, name)


# Positions of tokens and of keys.


def query_positions(
    length: int, past: Any, position_ids: Tensor | None, attention_mask: Any, device: Any
) -> Positions:
    """Decides the positions of new tokens: what the caller says, else counted over real tokens.

    Args:
        length: new tokens in a row.
        past: tokens in the cache, a tensor for caches of fixed size in a graph.
        position_ids: (1 or B, L); has the last word.
        attention_mask: (B, past + L), nonzero for real tokens. Prepared masks say nothing about positions.
        device: where tokens are.
    """
    if position_ids is not None:
        if not isinstance(position_ids, Tensor) or position_ids.shape[-1] != length:
            given = (
                tuple(position_ids.shape) if isinstance(position_ids, Tensor) else type(position_ids).__name__
            )
            raise ValueError(
                f"position_ids must be a tensor with an entry for each of the {length} tokens, got {given}"
            )
        return _as_range(position_ids.reshape(-1, length))
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 and not _all_real(attention_mask):
        places = torch.arange(length, device=attention_mask.device) + past
        return _as_range(positions_from_mask(attention_mask)[:, places, 0])
    if isinstance(past, Tensor):
        return Positions(ids=(torch.arange(length, device=device) + past).unsqueeze(-1))
    return Positions((length,), (past,))


def key_positions(cache: Any, new: Positions, past: Any, attention_mask: Any) -> Positions:
    """Returns the positions of all keys, those of the new tokens last, and remembers them on the cache.

    A cache that was not filled by this model knows none. Then they are counted over the mask, and must fit to
    those of the new tokens.
    """
    known = getattr(cache, "key_positions", None)
    if known is None and past:
        known = query_positions(past, 0, None, _first_columns(attention_mask, past), None)
        follows = new.tensor()[..., 0, 0]
        if not is_traced() and bool((follows != known.tensor(follows.device)[..., -1, 0] + 1).any()):
            raise ValueError(
                f"position_ids begin at {follows.tolist()}, which does not continue the {past} keys of the cache; "
                "pass a cache that this model has filled"
            )
    if past and known is not None:
        known = _join(known, new, past)
    else:
        known = new
    cache.key_positions = known
    return known


def _join(known: Positions, new: Positions, past: int) -> Positions:
    if known.size is not None and new.size is not None and known.start[0] + past == new.start[0]:
        return Positions((past + new.size[0],), known.start)  # a cache may have been cropped to `past`
    old, more = known.tensor()[..., :past, :], new.tensor()
    old, more = (ids if ids.ndim == 3 else ids.unsqueeze(0) for ids in (old.to(more.device), more))
    rows = max(old.shape[0], more.shape[0])
    if rows % old.shape[0] or rows % more.shape[0]:
        raise ValueError(
            f"the cache holds {old.shape[0]} rows of different positions and the batch has {more.shape[0]}; "
            "select rows of the cache and of its key_positions alike"
        )
    old, more = (ids.repeat_interleave(rows // ids.shape[0], dim=0) for ids in (old, more))
    return Positions(ids=torch.cat([old, more], dim=1))


def _pad(keys: Positions, length: int) -> Positions:
    """Adds places of a cache of fixed size that hold no keys yet; they are hidden, whatever their position."""
    ids = keys.tensor()
    if ids.shape[-2] >= length:
        return keys
    return Positions(
        ids=torch.cat([ids, ids[..., -1:, :].expand(*ids.shape[:-2], length - ids.shape[-2], 1)], -2)
    )


def _as_range(ids: Tensor) -> Positions:
    """Positions (1 or B, L), as a range where all rows are known to be one."""
    if ids.device.type == "cpu" and not is_traced() and ids.numel() > 0:
        start = int(ids[0, 0])
        if start >= 0 and bool((ids == torch.arange(start, start + ids.shape[1])).all()):
            return Positions((ids.shape[1],), (start,))
    return Positions(ids=(ids[0] if ids.shape[0] == 1 else ids).unsqueeze(-1))


def _all_real(attention_mask: Tensor) -> bool:
    """Whether a mask is known to hide nothing; while a graph is recorded, that is not known."""
    return not is_traced() and bool((attention_mask != 0).all())


def _first_columns(attention_mask: Any, count: int) -> Any:
    return (
        attention_mask[:, :count] if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2 else None
    )


def has_gaps(position_ids: Tensor) -> bool:
    """Whether positions jump forwards, which transformers takes for the next of several packed texts."""
    return not is_traced() and bool((torch.diff(position_ids, dim=-1) > 1).any())


# The models.


class InitialisesPositions:
    """What models with and without a head share: how weights of the encoding start, and what they may be."""

    argument_names: list[str] = []

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not issubclass(cls, nn.Module) or "forward" in vars(cls):
            return
        native = next(base.forward for base in cls.__mro__ if not issubclass(base, InitialisesPositions))
        cls.argument_names = list(inspect.signature(native).parameters)[1:]
        cls.forward = with_signature(cls.forward, native)

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

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As in transformers; weights of another encoding or integration are refused."""
        loaded = super().from_pretrained(*args, **kwargs)  # type: ignore[misc]
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.base_model.position_encoding.check_kind()
        return loaded


class PositionHost(InitialisesPositions):
    """Gives a base model of transformers the position encoding that its config names."""

    def add_positions(self) -> None:
        """Builds the encoding and puts it into every attention layer; the model's own positions end."""
        config: Any = self.config  # type: ignore[attr-defined]
        layers = attention_layers(self)
        _CAN_RECORD_REGISTRY[str(type(self))] = self._can_record_outputs  # type: ignore[attr-defined]
        self.position_encoding = build_position_encoding(
            config.position_encoding, **host_spec(config, layers), **(config.position_encoding_args or {})
        )
        self.position_encoding.initialize(getattr(config, "initializer_range", 0.02))
        for number, layer in enumerate(layers):
            layer.config = AttentionConfig(layer.config)
            layer.position_layer = number
        self._layer_numbers = {getattr(layer, "layer_idx", n): n for n, layer in enumerate(layers)}
        remove_native_positions(self)
        self._no_split_modules = {*self._no_split_modules, type(self.position_encoding).__name__}
        self._keys_to_ignore_on_load_missing = {*self._keys_to_ignore_on_load_missing, KIND_KEY}

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As of the model without an encoding."""
        given = {**dict(zip(self.argument_names, args, strict=False)), **kwargs}
        tokens = given.get("input_ids") if given.get("input_ids") is not None else given.get("inputs_embeds")
        if not isinstance(tokens, Tensor):
            return super().forward(**given, return_dict=True)  # type: ignore[misc]  # says what is missing
        batch, length = tokens.shape[:2]
        mask, cache = given.get("attention_mask"), self._cache(given)
        past = 0 if cache is None else cache.get_seq_length()
        past = int(past) if isinstance(past, Tensor) and not is_traced() else past
        new = query_positions(length, past, given.get("position_ids"), mask, tokens.device)
        inputs = self.position_encoding(new, batch, tokens.device, self.wants_objectives)
        self.wants_objectives, self.step_losses = False, inputs.losses

        operation = self.position_encoding.make_operation()
        keys = inputs.layers
        if operation.has_scores and cache is not None:
            keys = self._key_inputs(cache, new, past, mask, length, tokens.device)
        context = PositionContext(operation, inputs.layers, keys)
        if cache is not None:
            given["past_key_values"] = CacheWithPositions(cache, context, self._layer_numbers)
        self._give_to_host(given, inputs, cache, tokens.shape[:2])
        outputs = super().forward(**given, position_context=context, return_dict=True)  # type: ignore[misc]
        if context.reached < len(inputs.layers):
            raise RuntimeError(
                f"{type(self).__name__} has {len(inputs.layers)} attention layers, and positions reached "
                f"{context.reached}: it does not pass keyword arguments on to them"
            )
        if outputs.get("past_key_values") is not None:
            outputs["past_key_values"] = cache
        return outputs

    def _give_to_host(self, given: dict[str, Any], inputs: PositionInputs, cache: Any, shape: Any) -> None:
        """Changes the arguments of the model: embedded tokens with positions, and what packed texts need."""
        ids = given.pop("position_ids", None)
        if ids is not None and cache is None and given.get("attention_mask") is None:
            if has_gaps(ids):  # would be taken for packed texts
                given["attention_mask"] = torch.ones(shape, dtype=torch.long, device=ids.device)
            else:
                given["position_ids"] = ids
        if self.position_encoding.changes_input:
            embeds = given.get("inputs_embeds")
            if embeds is None:
                embeds = self.get_input_embeddings()(given.pop("input_ids"))  # type: ignore[attr-defined]
            given["inputs_embeds"] = self.position_encoding.on_input(embeds, inputs.encoded.to(embeds.device))

    wants_objectives = False
    """Whether the next forward pass computes the position objectives, into `step_losses`."""
    step_losses: PositionLosses | None = None

    def _cache(self, given: dict[str, Any]) -> Any:
        """The cache of this pass, a new one where the model would make one."""
        config: Any = self.config  # type: ignore[attr-defined]
        cache, use_cache = given.get("past_key_values"), given.get("use_cache")
        use_cache = getattr(config, "use_cache", False) if use_cache is None else use_cache
        checkpointing = getattr(self, "gradient_checkpointing", False) and self.training  # type: ignore[attr-defined]
        if cache is None and use_cache and self.position_encoding.host.causal and not checkpointing:
            cache = DynamicCache(config=config)
        return cache

    def _key_inputs(
        self, cache: Any, new: Positions, past: Any, mask: Any, length: int, device: Any
    ) -> list[Tensor]:
        """Position inputs of all keys that each layer meets, which sliding windows and fixed caches choose."""
        keys = key_positions(cache, new, past, mask)
        sizes = [cache.get_mask_sizes(length, index) for index in self._layer_numbers]
        longest = max(count + offset for count, offset in sizes)
        inputs = self.position_encoding(_pad(keys, longest), 1, device)
        return [
            layer[..., offset : offset + count, :]
            for layer, (count, offset) in zip(inputs.layers, sizes, strict=True)
        ]


class PositionHead(InitialisesPositions):
    """Gives a model with a head a base model with positions, and its loss their objectives."""

    def add_positions(self, host_class: type) -> None:
        """Makes the base model one of `host_class`, which has its class among its bases."""
        base: Any = self.base_model  # type: ignore[attr-defined]
        base.__class__ = host_class
        base.add_positions()
        self._no_split_modules = {*self._no_split_modules, *base._no_split_modules}
        self._keys_to_ignore_on_load_missing = {*self._keys_to_ignore_on_load_missing, KIND_KEY}

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As of the model without an encoding; in training with labels the loss has the position objectives added.

        Their unweighted values are in the outputs, as `position_distance_loss` and `position_ood_loss`.
        """
        given = {**dict(zip(self.argument_names, args, strict=False)), **kwargs}
        base: Any = self.base_model  # type: ignore[attr-defined]
        labels = given.get("labels")
        base.wants_objectives = self.training and labels is not None  # type: ignore[attr-defined]
        outputs = super().forward(**given, return_dict=True)  # type: ignore[misc]
        losses, base.step_losses = base.step_losses, None
        if losses is not None and outputs.get("loss") is not None:
            share = share_of_batch(labels, given.get("num_items_in_batch"), given.get("shift_labels"))
            outputs["loss"] = outputs["loss"] + losses.weighted.to(outputs["loss"].device) * share
            outputs["position_distance_loss"] = losses.distance.detach()
            outputs["position_ood_loss"] = losses.ood.detach()
        return outputs

    def _prepare_position_ids_for_generation(self, inputs_tensor: Tensor, model_kwargs: Any) -> Tensor | None:
        # Without padding positions are the range that the cache implies, which no device need be asked for.
        mask = model_kwargs.get("attention_mask")
        if mask is None or bool((mask == 1).all()):
            return None
        return super()._prepare_position_ids_for_generation(inputs_tensor, model_kwargs)  # type: ignore[misc]


def share_of_batch(
    labels: Tensor, num_items_in_batch: Tensor | int | None, shift_labels: Tensor | None = None
) -> Tensor | float:
    """Which part this step is of a batch accumulated over several steps, counted as the main loss counts."""
    if num_items_in_batch is None:
        return 1.0
    predicted = shift_labels if shift_labels is not None else labels[..., 1:] if labels.ndim > 1 else labels
    return (predicted != -100).sum() / num_items_in_batch


def with_signature(forward: Any, native: Any) -> Any:
    """A forward that shows the arguments of the model's own, which generation and the Trainer ask for."""

    @functools.wraps(native)
    def forward_with_positions(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    return forward_with_positions


def attention_layers(model: nn.Module) -> list[Any]:
    """The layers of a model that look up an attention function, in order."""
    layers = [
        module
        for module in model.modules()
        if "ALL_ATTENTION_FUNCTIONS"
        in getattr(inspect.unwrap(type(module).forward), "__code__", _NO_CODE).co_names
    ]
    if not layers:
        raise ValueError(
            f"{type(model).__name__} has no attention layer that looks up transformers' attention functions; "
            "position encodings cannot be added to it"
        )
    return layers


_NO_CODE = (lambda: None).__code__


def host_spec(config: Any, layers: list[Any]) -> dict[str, Any]:
    """What an encoding must know of a model."""
    heads, dim = config.num_attention_heads, config.hidden_size
    length = getattr(config, "train_length", None) or config.max_position_embeddings
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": getattr(config, "num_key_value_heads", None) or heads,
        "head_dim": getattr(layers[0], "head_dim", None) or dim // heads,
        "num_layers": len(layers),
        "train_shape": (length,),
        "causal": all(getattr(layer, "is_causal", False) for layer in layers),
        "scaling": getattr(layers[0], "scaling", None),
    }


class NoRotation(nn.Module):
    """In place of a model's rotary embedding: angles of zero, in the shape that its layers expect."""

    def __init__(self, native: nn.Module) -> None:
        super().__init__()
        self.native = native

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        cos, sin = self.native(*args, **kwargs)
        return torch.ones_like(cos), torch.zeros_like(sin)


class NoTable(nn.Module):
    """In place of a model's learned table of positions: a zero, which is added and changes nothing."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        return torch.zeros((), device=device)


TABLE_NAMES = ("wpe", "position_embeddings", "embed_positions")


def remove_native_positions(model: nn.Module) -> None:
    """Replaces a model's rotation and learned tables of positions by modules that do nothing."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if "RotaryEmbedding" in type(child).__name__:
                setattr(parent, name, NoRotation(child))
            elif name in TABLE_NAMES and isinstance(child, nn.Embedding):
                setattr(parent, name, NoTable())
