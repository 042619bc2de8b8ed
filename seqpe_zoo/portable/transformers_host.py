"""Any position encoding in models of transformers, on transformers' own extension points.

A model keeps its layers. Its attention layers look up an attention function by name; here they find one that
applies the encoding and then calls the function that the user chose (eager, sdpa, flex or flash attention).
What it needs travels down as a keyword argument of `forward`. `PositionHost` is put before the class of a base
model (as `GPT2Model`), `PositionHead` before that of a model with a head. Nothing here knows an encoding by
name. What cannot work is refused when the model is built, with the reason.
"""

import functools
import inspect
import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple, logging
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from .encodings import build_position_encoding
from .objectives import share_of_batch
from .position_encoding import (
    PositionEncoding,
    PositionInputs,
    PositionLosses,
    is_traced,
    position_scores,
    widen_heads,
)
from .positions import Positions, grid_positions, positions_from_mask

logger = logging.get_logger(__name__)

PREFIX = "positions|"
"""Attention functions with positions are registered under the name of transformers' own with this before it."""

MAX_SCORE_MASK = 12 * 2048 * 2048
"""Largest matrix of position scores, in elements, that goes into the mask; above it heads are widened."""

MAX_FLASH_HEAD = 256

# Attention.


class PositionContext:
    """What attention layers need of the positions of a forward pass.

    Attributes:
        encoding: the position encoding.
        inputs: position inputs of the new tokens.
        key_layers: position inputs of all keys, for each layer.
        shares_masks: whether layers that share W_PE share their mask with position scores; not under gradient
            checkpointing, where each layer is computed twice and must compute the same.
        placed: layers whose keys have their positions already, because they passed the cache.
        reached: layers that were reached, counted.
    """

    def __init__(
        self, encoding: PositionEncoding, inputs: PositionInputs, key_layers: list[Tensor], shares_masks: bool
    ) -> None:
        self.encoding, self.operation, self.inputs = encoding, encoding.make_operation(), inputs
        self.key_layers, self.shares_masks = key_layers, shares_masks
        self.placed: set[int] = set()
        self.reached = 0
        self._masks: dict[Any, tuple[Any, Tensor]] = {}

    def on_key(self, key: Tensor, layer: int) -> Tensor:
        """Gives new keys (B, H, L, D) their positions."""
        return self.operation.on_key(key, self.inputs.layers[layer].to(key.device))

    def score_mask(
        self, module: Any, q: Tensor, k: Tensor, factors: Any, mask: Tensor | None, scaling: float
    ) -> Tensor:
        """The mask with position scores in it, (1 or B, H, L, S); made once for layers that share W_PE."""
        layer = module.position_layer
        key = (id(mask), id(self.inputs.layers[layer]), id(self.key_layers[layer]), k.shape[2], scaling)
        if key in self._masks:
            return self._masks[key][1]
        visible = mask
        if visible is None and getattr(module, "is_causal", False) and q.shape[2] > 1:
            visible = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        elif visible is not None and visible.stride(0) == 0:
            visible = visible[:1]  # no padding: all rows are equal
        scores = position_scores(factors, scaling, self.operation.groups)
        joined = mask_with_scores(scores, visible, q.dtype)
        if self.shares_masks:
            self._masks[key] = (mask, joined)
        return joined


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
            f"{type(module).__name__} was called without positions: call the whole model, not one of its "
            "parts. If you did, it does not pass keyword arguments on to its attention layers and cannot "
            "have another position encoding"
        )
    context, layer, width = position_context, module.position_layer, value.shape[-1]
    context.reached += 1
    operation, inputs = context.operation, context.inputs.layers[layer].to(query.device)
    if inputs.shape[-2] != query.shape[2]:
        raise RuntimeError(f"{query.shape[2]} tokens reached attention, but {inputs.shape[-2]} have positions")
    query = operation.on_query(query, inputs)
    if layer not in context.placed:
        key = context.on_key(key, layer)
    if operation.has_scores:
        scaling = kwargs.get("scaling") or query.shape[-1] ** -0.5
        key_inputs = context.key_layers[layer].to(query.device)
        factors = operation.score_factors(inputs, key_inputs)
        if fits_in_mask(implementation, query, key, factors):
            attention_mask = context.score_mask(module, query, key, factors, attention_mask, scaling)
        else:
            query, key, value = widen_heads(query, key, value, factors, operation.groups)
            check_wider_heads(implementation, query.shape[-1])
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
        return self.cache.update(self.context.on_key(key, layer), value, layer_idx, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name == "cache":
            raise AttributeError(name)
        return getattr(self.cache, name)


# Positions of tokens and of keys in a text.


def query_positions(
    length: int, past: Any, position_ids: Tensor | None, attention_mask: Any, device: Any
) -> Positions:
    """Decides the positions of new tokens: what the caller says, else counted over real tokens.

    A device other than the CPU is not asked for values while a text is continued, so that it need not wait.

    Args:
        length: new tokens in a row.
        past: tokens in the cache, a tensor for caches of fixed size in a graph.
        position_ids: (1 or B, L); has the last word.
        attention_mask: (B, past + L), nonzero for real tokens. Prepared masks say nothing about positions.
        device: where tokens are.
    """
    if position_ids is not None:
        if not isinstance(position_ids, Tensor) or position_ids.shape[-1] != length:
            shown = position_ids.shape if isinstance(position_ids, Tensor) else type(position_ids).__name__
            raise ValueError(
                f"position_ids must be a tensor with an entry for each of the {length} tokens, got {shown}"
            )
        return _as_range(position_ids.reshape(-1, length))
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        waits = attention_mask.device.type == "cpu" or (isinstance(past, int) and past == 0)
        if is_traced() or not waits or bool((attention_mask == 0).any()):
            places = torch.arange(length, device=attention_mask.device) + past
            counted = positions_from_mask(attention_mask)[:, places]
            return Positions(ids=counted, bound=attention_mask.shape[1])
    if isinstance(past, Tensor):
        return Positions(ids=(torch.arange(length, device=device) + past).unsqueeze(-1))
    return Positions((length,), (past,))


def key_positions(cache: Any, new: Positions, past: Any, attention_mask: Any) -> Positions:
    """Returns the positions of all keys, those of the new tokens last, and remembers them on the cache.

    A cache that was not filled by this model knows none. Then they are counted over the mask, and must fit to
    those of the new tokens.
    """
    known = getattr(cache, "key_positions", None)
    if isinstance(past, int) and past == 0:
        known = new
    elif known is not None:
        known = _join(known, new, past)
    else:
        is_2d = isinstance(attention_mask, Tensor) and attention_mask.ndim == 2
        known = query_positions(past, 0, None, attention_mask[:, :past] if is_2d else None, None)
        first, last = new.tensor()[..., 0, 0], known.tensor(new.tensor().device)[..., -1, 0]
        if not is_traced() and bool((first != last + 1).any()):
            raise ValueError(
                f"position_ids begin at {first.tolist()}, which does not continue the {past} keys of the cache; "
                "pass a cache that this model has filled"
            )
        known = _join(known, new, past)
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
    bound = new.limit()[0] if new.size is not None else new.bound
    return Positions(ids=torch.cat([old, more], dim=1), bound=bound if known.bound is not None else None)


def _pad(keys: Positions, length: int) -> Positions:
    """Adds places of a cache of fixed size that hold no keys yet; they are hidden, whatever their position."""
    ids = keys.tensor()
    if ids.shape[-2] >= length:
        return keys
    filler = ids[..., -1:, :].expand(*ids.shape[:-2], length - ids.shape[-2], 1)
    return Positions(ids=torch.cat([ids, filler], dim=-2), bound=keys.bound)


def _as_range(ids: Tensor) -> Positions:
    """Positions (1 or B, L), as a range where all rows are known to be one."""
    if ids.device.type == "cpu" and not is_traced() and ids.numel() > 0:
        start = int(ids[0, 0])
        if start >= 0 and bool((ids == torch.arange(start, start + ids.shape[1])).all()):
            return Positions((ids.shape[1],), (start,))
    return Positions(ids=(ids[0] if ids.shape[0] == 1 else ids).unsqueeze(-1))


def _given(arguments: dict[str, Any], name: str) -> bool:
    return arguments.get(name) is not None


def has_gaps(position_ids: Tensor) -> bool:
    """Whether positions jump forwards, which transformers takes for the next of several packed texts."""
    return not is_traced() and bool((torch.diff(position_ids, dim=-1) > 1).any())


# The models.


class PositionModel:
    """What models with and without a head share: signatures, initialisation and what they refuse."""

    argument_names: list[str] = []
    position_host: Any
    """The base model, which holds the position encoding; the model itself where it has no head."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not issubclass(cls, nn.Module) or "forward" in vars(cls):
            return
        native = next(base.forward for base in cls.__mro__ if not issubclass(base, PositionModel))
        cls.argument_names = list(inspect.signature(native).parameters)[1:]
        cls.forward = with_signature(cls.forward, native)

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**dict(zip(self.argument_names, args, strict=False)), **kwargs}

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
        trains = any(p.requires_grad for p in self.position_host.position_encoding.parameters())
        if enable and trains and getattr(function, "keywords", {}).get("use_reentrant"):
            raise ValueError(
                "reentrant gradient checkpointing cannot train a position encoding that all layers share; use "
                "gradient_checkpointing_kwargs={'use_reentrant': False}, the default of transformers"
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
    """Gives a base model of transformers the position encoding that its config names."""

    wants_objectives = False
    """Whether the next forward pass computes the position objectives, into `step_losses`."""
    step_losses: PositionLosses | None = None
    position_encoding: PositionEncoding

    @property
    def position_host(self) -> Any:  # type: ignore[override]
        """The model itself."""
        return self

    def add_positions(self) -> None:
        """Builds the encoding and puts it into every attention layer; the model's own positions end."""
        config: Any = self.config  # type: ignore[attr-defined]
        check_supported(config)
        layers = attention_layers(self)  # type: ignore[arg-type]
        _CAN_RECORD_REGISTRY[str(type(self))] = self._can_record_outputs  # type: ignore[attr-defined]
        spec = host_spec(self, layers)
        self.position_encoding = build_position_encoding(
            config.position_encoding, **spec, **(config.position_encoding_args or {})
        )
        self.position_encoding.initialize(getattr(config, "initializer_range", 0.02))
        for number, layer in enumerate(layers):
            layer.config = AttentionConfig(layer.config)
            layer.position_layer = number
        self._layer_numbers = {getattr(layer, "layer_idx", n): n for n, layer in enumerate(layers)}
        if not config.keep_native:
            remove_native_positions(self)  # type: ignore[arg-type]
        if spec["num_dims"] == 2 and self.position_encoding.changes_input:
            first_block(self, layers[0]).register_forward_pre_hook(add_to_input, with_kwargs=True)
        self._announce(self.position_encoding)

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As of the model without an encoding."""
        given = self._named(args, kwargs)
        asked, self.wants_objectives = self.wants_objectives, False
        tokens = given.get(self.main_input_name)  # type: ignore[attr-defined]
        tokens = given.get("inputs_embeds") if tokens is None else tokens
        if not isinstance(tokens, Tensor):
            return super().forward(**given, return_dict=True)  # type: ignore[misc]  # says what is missing
        cache = self._cache(given)
        past = 0 if cache is None else cache.get_seq_length()
        past = int(past) if isinstance(past, Tensor) and not is_traced() else past
        if self.position_encoding.host.num_dims == 2:
            new = self._image_positions(given, tokens)
        else:
            mask, ids = given.get("attention_mask"), given.get("position_ids")
            new = query_positions(tokens.shape[1], past, ids, mask, tokens.device)
        # A continued text is not shifted in training: its keys would not be.
        batch = tokens.shape[0] if isinstance(past, int) and past == 0 else 0
        inputs = self.position_encoding(new, batch, tokens.device, asked)
        self.step_losses = inputs.losses
        keys = inputs.layers
        if cache is not None and self.position_encoding.make_operation().has_scores:
            keys = self._key_inputs(cache, new, past, given.get("attention_mask"), inputs, tokens)
        checkpoints = self.training and self.is_gradient_checkpointing  # type: ignore[attr-defined]
        context = PositionContext(self.position_encoding, inputs, keys, not checkpoints)
        if cache is not None:
            given["past_key_values"] = CacheWithPositions(cache, context, self._layer_numbers)
        if self.position_encoding.host.num_dims == 1:
            self._prepare_text(given, context, cache, tokens)
        outputs = super().forward(**given, position_context=context, return_dict=True)  # type: ignore[misc]
        if context.reached < len(inputs.layers):
            raise RuntimeError(
                f"{type(self).__name__} has {len(inputs.layers)} attention layers, and positions reached "
                f"{context.reached}: it does not pass keyword arguments on to them"
            )
        if outputs.get("past_key_values") is not None:
            outputs["past_key_values"] = cache
        return outputs

    def _prepare_text(self, given: dict[str, Any], context: PositionContext, cache: Any, tokens: Tensor) -> None:
        """Changes arguments of the model: embedded tokens with positions, and what packed texts need."""
        ids = given.get("position_ids") if self.config.keep_native else given.pop("position_ids", None)  # type: ignore[attr-defined]
        if ids is not None and cache is None and given.get("attention_mask") is None:
            if has_gaps(ids):  # would be taken for packed texts
                given["attention_mask"] = torch.ones(tokens.shape[:2], dtype=torch.long, device=ids.device)
            else:
                given["position_ids"] = ids
        if hasattr(getattr(self, "embeddings", None), "token_type_embeddings") and not _given(given, "token_type_ids"):
            # BERT's own default ends at the length of its table of positions.
            given["token_type_ids"] = torch.zeros(tokens.shape[:2], dtype=torch.long, device=tokens.device)
        if self.position_encoding.changes_input:
            embeds = given.get("inputs_embeds")
            if embeds is None:
                embeds = self.get_input_embeddings()(given.pop("input_ids"))  # type: ignore[attr-defined]
            encoded = context.inputs.encoded.to(embeds.device)
            given["inputs_embeds"] = self.position_encoding.on_input(embeds, encoded)

    def _image_positions(self, given: dict[str, Any], pixels: Tensor) -> Positions:
        """Positions of the patches of images (B, channels, height, width)."""
        patch = _pair(self.config.patch_size)  # type: ignore[attr-defined]
        size = (pixels.shape[-2] // patch[0], pixels.shape[-1] // patch[1])
        if "interpolate_pos_encoding" in self.argument_names and not self.config.keep_native:  # type: ignore[attr-defined]
            given["interpolate_pos_encoding"] = True  # any size; what would be interpolated is zero
        if "noise" not in self.argument_names:
            return Positions(size, (0, 0))
        # Masked autoencoders keep the patches of least noise, in that order.
        count = size[0] * size[1]
        if given.get("noise") is None:
            given["noise"] = torch.rand(pixels.shape[0], count, device=pixels.device)
        kept = given["noise"].argsort(dim=1)[:, : int(count * (1 - self.config.mask_ratio))]  # type: ignore[attr-defined]
        return Positions(ids=grid_positions(size, device=pixels.device)[kept], bound=max(size))

    def _cache(self, given: dict[str, Any]) -> Any:
        """The cache of this pass, a new one where the model would make one."""
        config: Any = self.config  # type: ignore[attr-defined]
        cache, use_cache = given.get("past_key_values"), given.get("use_cache")
        use_cache = getattr(config, "use_cache", False) if use_cache is None else use_cache
        checkpointing = self.is_gradient_checkpointing and self.training  # type: ignore[attr-defined]
        if cache is None and use_cache and self.position_encoding.host.causal and not checkpointing:
            cache = DynamicCache(config=config)
        return cache

    def _key_inputs(
        self, cache: Any, new: Positions, past: Any, mask: Any, inputs: PositionInputs, tokens: Tensor
    ) -> list[Tensor]:
        """Position inputs of all keys that each layer meets, which sliding windows and fixed caches choose."""
        length = tokens.shape[1]
        keys = key_positions(cache, new, past, mask)
        sizes = [cache.get_mask_sizes(length, index) for index in self._layer_numbers]
        if all(size == (length, 0) for size in sizes):
            return inputs.layers  # the keys are the new tokens
        longest = max(count + offset for count, offset in sizes)
        layers = self.position_encoding(_pad(keys, longest), 0, tokens.device).layers
        return [
            layer[..., offset : offset + count, :]
            for layer, (count, offset) in zip(layers, sizes, strict=True)
        ]


class PositionHead(PositionModel):
    """Gives a model with a head a base model with positions, and its loss their objectives."""

    def add_positions(self, host_class: Any) -> None:
        """Makes the base model one of `host_class`, which has its class among its bases."""
        native = next(base for base in host_class.__mro__[1:] if not issubclass(base, PositionModel))
        host: Any = next(part for part in self.modules() if type(part) is native)  # type: ignore[attr-defined]
        host.__class__ = host_class
        host.add_positions()
        self._host_name = next(name for name, part in self.named_modules() if part is host)  # type: ignore[attr-defined]
        self._announce(host.position_encoding)

    @property
    def position_host(self) -> Any:  # type: ignore[override]
        """The base model."""
        return self.get_submodule(self._host_name)  # type: ignore[attr-defined]

    @can_return_tuple  # type: ignore[untyped-decorator]
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As of the model without an encoding; in training with labels the loss has the position objectives added.

        Their unweighted values are in the outputs, as `position_distance_loss` and `position_ood_loss`.
        """
        given, host = self._named(args, kwargs), self.position_host
        labels = given.get("labels")
        has_loss = labels is not None or "labels" not in self.argument_names
        host.wants_objectives = self.training and has_loss  # type: ignore[attr-defined]
        if self.training and not has_loss and host.position_encoding.has_objectives():  # type: ignore[attr-defined]
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


def with_signature(forward: Any, native: Any) -> Any:
    """A forward that shows the arguments of the model's own, which generation and the Trainer ask for."""

    @functools.wraps(native)
    def forward_with_positions(self: Any, *args: Any, **kwargs: Any) -> Any:
        return forward(self, *args, **kwargs)

    return forward_with_positions


# What a model is, and what it must lose.

UNSUPPORTED = {
    "keyword arguments do not reach its attention layers": "stablelm nemotron siglip_vision_model aimv2_vision_model",
    "its attention does not go through transformers' attention interface": "gpt_neo gptj falcon mpt codegen bloom",
}


def check_supported(config: Any) -> None:
    """Raises ValueError, with the reason, for a model that cannot have another position encoding."""
    native = config.native_model_type
    reasons = [why for why, names in UNSUPPORTED.items() if native in names.split()]
    if getattr(config, "attn_logit_softcapping", None):
        reasons.append("it caps its scores (attn_logit_softcapping), which sdpa cannot do")
    if getattr(config, "kv_lora_rank", None):
        reasons.append("its heads are compressed (kv_lora_rank)")
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        reasons.append("it has cross-attention, whose keys are another text")
    if getattr(config, "hidden_size", None) is None:
        reasons.append("its config is made of several; give the text or the vision model by itself")
    if reasons:
        raise ValueError(
            f"a model of type {native!r} cannot have another position encoding: {'; '.join(reasons)}. "
            "seqpe_zoo.list_hosts() lists what works"
        )


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


def host_spec(model: Any, layers: list[Any]) -> dict[str, Any]:
    """What an encoding must know of a model, the fields of `HostSpec`.

    Raises:
        ValueError: layers differ in what an encoding must know.
    """
    config, first = model.config, layers[0]
    heads, dim = config.num_attention_heads, config.hidden_size
    for name in ("head_dim", "scaling", "num_key_value_groups"):
        found = sorted({getattr(layer, name, None) or 0 for layer in layers})
        if len(found) > 1:
            raise ValueError(
                f"the attention layers of {type(model).__name__} differ in {name}: {found}; one position "
                "encoding cannot serve all of them"
            )
    is_image = model.main_input_name == "pixel_values"
    if is_image:
        sides, patch = _pair(config.image_size), _pair(config.patch_size)
        train_shape: tuple[int, ...] = (sides[0] // patch[0], sides[1] // patch[1])
    else:
        train_shape = (getattr(config, "train_length", None) or config.max_position_embeddings,)
    return {
        "dim": dim,
        "num_heads": heads,
        "num_kv_heads": heads // (getattr(first, "num_key_value_groups", None) or 1),
        "head_dim": getattr(first, "head_dim", None) or dim // heads,
        "num_layers": len(layers),
        "num_dims": 2 if is_image else 1,
        "num_prefix": count_prefix_tokens(model) if is_image else 0,
        "train_shape": train_shape,
        "causal": all(getattr(layer, "is_causal", False) for layer in layers),
        "scaling": getattr(first, "scaling", None),
    }


def count_prefix_tokens(model: Any) -> int:
    """Counts class, distillation and register tokens, which come before the patches."""
    embeddings = model.embeddings
    single = ("cls_token", "class_embedding", "distillation_token")
    registers = getattr(embeddings, "register_tokens", None)
    count = sum(getattr(embeddings, name, None) is not None for name in single)
    return count + (registers.shape[1] if isinstance(registers, Tensor) else 0)


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)


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
BIAS_NAMES = ("relative_position_bias", "shared_position_bias", "rel_pos_bias")


def remove_native_positions(model: nn.Module) -> None:
    """Replaces a model's rotation, tables and biases of positions by modules that do nothing."""
    for parent in list(model.modules()):
        if not isinstance(parent, PositionEncoding) and hasattr(parent, "interpolate_pos_encoding"):
            _remove_image_table(parent)
            continue
        for name, child in list(parent.named_children()):
            kind = type(child).__name__
            if "RotaryEmbedding" in kind or "RopePositionEmbedding" in kind:
                setattr(parent, name, NoRotation(child))
            elif name in TABLE_NAMES and isinstance(child, nn.Embedding):
                setattr(parent, name, NoTable())
            elif name in BIAS_NAMES:
                setattr(parent, name, None)


def _remove_image_table(embeddings: Any) -> None:
    """Leaves the table of an image model out of its sums; its weights stay in the checkpoint, unused."""
    clip = getattr(embeddings, "position_embedding", None)
    table = getattr(embeddings, "position_embeddings", None) if clip is None else clip.weight
    if table is None:
        return
    table.requires_grad_(False)
    patches = embeddings if clip is not None else embeddings.patch_embeddings
    extra = table.shape[-2] - patches.num_patches
    # In the instance, where it is found before the method of the class.
    embeddings.__dict__["interpolate_pos_encoding"] = functools.partial(no_image_table, embeddings.patch_size, extra)


def no_image_table(patch_size: Any, extra: int, embeddings: Tensor, height: int, width: int) -> Tensor:
    """Zeros that are added to patches and the tokens before them, (1, tokens, 1)."""
    patch = _pair(patch_size)
    return embeddings.new_zeros(1, (height // patch[0]) * (width // patch[1]) + extra, 1)


def first_block(model: nn.Module, attention: nn.Module) -> nn.Module:
    """The first of a model's blocks, the one with its first attention layer."""
    for part in model.modules():
        if isinstance(part, nn.ModuleList) and any(module is attention for module in part[0].modules()):
            return part[0]
    raise ValueError(f"{type(model).__name__} has no list of blocks; integration 'input' cannot be added to it")


def add_to_input(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A hook of an image model's first block: adds what the encoding adds to embedded tokens."""
    context = kwargs["position_context"]
    x = kwargs["hidden_states"] if not args else args[0]
    x = context.encoding.on_input(x, context.inputs.encoded.to(x.device))
    return ((x, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": x})
