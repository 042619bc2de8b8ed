"""What timm must be told: the names of our Vision Transformers, and `pos_embed=` on its own.

timm has no discovery of plug-ins, so `register_timm` runs on `import seqpe_zoo`. It adds our names to timm's
registry, and puts a doorman before the builder of timm's ViT and DeiT: `pos_embed="seqpe"` or another name of
ours builds `PositionVisionTransformer`, anything else goes to timm untouched. `unregister_timm` takes both
back.
"""

import inspect
import logging
import math
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import timm.models
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import resample_abs_pos_embed
from timm.models import (
    build_model_with_cfg,
    deit,
    generate_default_cfgs,
    register_model,
    resolve_pretrained_cfg,
    vision_transformer,
    vision_transformer_hybrid,
)
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor

from .portable.encodings import position_encoding_class

if TYPE_CHECKING:
    from .portable.vit import PositionVisionTransformer

__all__ = ["register_timm", "unregister_timm"]  # timm adds the names of models

_logger = logging.getLogger(__name__)

STOCK_POS_EMBED = (None, "", "none", "learn")
"""Values of `pos_embed` that are timm's own."""

_HOOKED_MODULES: tuple[ModuleType, ...] = (vision_transformer, deit, vision_transformer_hybrid)
_HOOKED_CLASSES = (VisionTransformer, VisionTransformerDistilled)
_BUILDER = "build_model_with_cfg"
_originals: dict[ModuleType, Callable[..., Any]] = {}
_warned = False


def _cfg(**kwargs: Any) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "crop_pct": 0.875,  # of the paper's evaluation, at every resolution
        "interpolation": "bicubic",
        "fixed_input_size": True,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
        "license": "apache-2.0",
        **kwargs,
    }


default_cfgs = generate_default_cfgs(
    {
        "vit_tiny_patch16_seqpe_224": _cfg(),
        "vit_small_patch16_seqpe_224": _cfg(),
        "vit_base_patch16_seqpe_224": _cfg(),
        "vit_small_patch16_seqpe_384": _cfg(input_size=(3, 384, 384), crop_pct=1.0),
        "vit_tiny_patch16_pe_224": _cfg(),
        "vit_small_patch16_pe_224": _cfg(),
        "vit_base_patch16_pe_224": _cfg(),
        "vit_pico_patch4_pe_32": _cfg(input_size=(3, 32, 32), num_classes=10, crop_pct=1.0),
    }
)

_TINY = {"patch_size": 16, "embed_dim": 192, "depth": 12, "num_heads": 3}
_SMALL = {"patch_size": 16, "embed_dim": 384, "depth": 12, "num_heads": 6}
_BASE = {"patch_size": 16, "embed_dim": 768, "depth": 12, "num_heads": 12}
_PICO = {"patch_size": 4, "embed_dim": 64, "depth": 4, "num_heads": 4}


def vit_tiny_patch16_seqpe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-Ti/16 with SeqPE (AttnMul unless `pos_embed_args` says otherwise)."""
    return _create("vit_tiny_patch16_seqpe_224", pretrained, **{**_TINY, **kwargs})


def vit_small_patch16_seqpe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-S/16 with SeqPE, the paper's image model."""
    return _create("vit_small_patch16_seqpe_224", pretrained, **{**_SMALL, **kwargs})


def vit_base_patch16_seqpe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-B/16 with SeqPE."""
    return _create("vit_base_patch16_seqpe_224", pretrained, **{**_BASE, **kwargs})


def vit_small_patch16_seqpe_384(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-S/16 with SeqPE for images of 384 x 384."""
    return _create("vit_small_patch16_seqpe_384", pretrained, **{**_SMALL, **kwargs})


def vit_tiny_patch16_pe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-Ti/16 with the position encoding that `pos_embed` names."""
    return _create("vit_tiny_patch16_pe_224", pretrained, **{**_TINY, **kwargs})


def vit_small_patch16_pe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-S/16 with the position encoding that `pos_embed` names."""
    return _create("vit_small_patch16_pe_224", pretrained, **{**_SMALL, **kwargs})


def vit_base_patch16_pe_224(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """ViT-B/16 with the position encoding that `pos_embed` names."""
    return _create("vit_base_patch16_pe_224", pretrained, **{**_BASE, **kwargs})


def vit_pico_patch4_pe_32(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """A ViT of 0.3 million parameters for images of 32 x 32, with the encoding that `pos_embed` names."""
    return _create("vit_pico_patch4_pe_32", pretrained, **{**_PICO, **kwargs})


MODELS: tuple[Callable[..., "PositionVisionTransformer"], ...] = (
    vit_tiny_patch16_seqpe_224,
    vit_small_patch16_seqpe_224,
    vit_base_patch16_seqpe_224,
    vit_small_patch16_seqpe_384,
    vit_tiny_patch16_pe_224,
    vit_small_patch16_pe_224,
    vit_base_patch16_pe_224,
    vit_pico_patch4_pe_32,
)


def register_timm() -> None:
    """Makes our models and encodings known to timm; a second call changes nothing."""
    for model in MODELS:
        if not timm.is_model(model.__name__):
            register_model(model)
    missing = [module.__name__ for module in _HOOKED_MODULES if not _hook(module)]
    if missing:
        _warn_once(
            f"timm {timm.__version__} builds its models otherwise than the versions seqpe_zoo knows "
            f"({', '.join(missing)} has no {_BUILDER} as expected): pos_embed='seqpe' does not work on its "
            f"stock names there. Our own names do: {', '.join(model.__name__ for model in MODELS)}."
        )


def unregister_timm() -> None:
    """Leaves timm as it was before `register_timm`; models that exist go on working."""
    while _originals:
        module, original = _originals.popitem()
        setattr(module, _BUILDER, original)
    for model in MODELS:
        _forget(model.__name__)


def _create(variant: str, pretrained: bool, **kwargs: Any) -> "PositionVisionTransformer":
    return _build(VisionTransformer, variant, pretrained, checkpoint_filter_fn, **kwargs)


def _build(
    model_cls: type[VisionTransformer],
    variant: str,
    pretrained: bool,
    filter_fn: Callable[..., dict[str, Tensor]] | None,
    **kwargs: Any,
) -> Any:
    # Imported here, because that file imports timm, and this one is loaded at the end of timm's import.
    from .portable.vit import PositionVisionTransformer, PositionVisionTransformerDistilled

    plain = model_cls is VisionTransformer
    stand_in = PositionVisionTransformer if plain else PositionVisionTransformerDistilled
    out_indices = kwargs.pop("out_indices", 3)
    kwargs.setdefault("feature_cfg", {"out_indices": out_indices, "feature_cls": "getter"})
    if pretrained and "img_size" in kwargs:
        # The weights know the grid of their training, whatever size the model is built for.
        overlay = dict(kwargs.get("pretrained_cfg_overlay") or {})
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), overlay)
        kwargs.setdefault("train_img_size", tuple(cfg.input_size[-2:]))

    def adapted(state_dict: dict[str, Any], model: VisionTransformer) -> dict[str, Tensor]:
        return adapt_checkpoint(state_dict, model, filter_fn)

    return build_model_with_cfg(stand_in, variant, pretrained, pretrained_filter_fn=adapted, **kwargs)


def adapt_checkpoint(
    state_dict: dict[str, Any],
    model: VisionTransformer,
    filter_fn: Callable[..., dict[str, Tensor]] | None = checkpoint_filter_fn,
) -> dict[str, Tensor]:
    """Fits a checkpoint, ours or of a plain timm ViT or DeiT, to a model with a position encoding.

    A table `pos_embed` becomes that of 'ape_learn'. Where the model has another encoding, the table is left
    out and the encoding keeps its fresh weights; a message says so. Weights that transformers saved have
    timm's names behind `vit.`; they load as well, so that one file can serve both libraries.

    Args:
        state_dict: the checkpoint.
        model: the model that will load it.
        filter_fn: timm's filter for the architecture.
    """
    if state_dict and all(name.startswith("vit.") for name in state_dict):
        state_dict = {name.removeprefix("vit."): tensor for name, tensor in state_dict.items()}
    encoding = model.position_encoding
    rows = math.prod(encoding.train_shape)
    prefix_tokens = 0 if model.no_embed_class else model.num_prefix_tokens
    if filter_fn is not None:
        table = torch.empty(1, prefix_tokens + rows, model.embed_dim, device="meta")
        state_dict = filter_fn(state_dict, _ModelWithTable(model, table))
    state_dict = dict(state_dict)
    stock = state_dict.pop("pos_embed", None)
    fresh = {f"position_encoding.{name}": value for name, value in encoding.state_dict().items()}
    has_own = any(name.startswith("position_encoding.") for name in state_dict)
    if stock is not None and not has_own:
        if encoding.name == "ape_learn":
            state_dict["position_encoding.weight"] = stock[0, prefix_tokens:]
            if model.num_prefix_tokens:
                padding = torch.zeros(model.num_prefix_tokens - prefix_tokens, stock.shape[-1])
                state_dict["position_encoding.prefix"] = torch.cat(
                    [stock[0, :prefix_tokens], padding.to(stock)]
                )
        else:
            _logger.warning(
                "the checkpoint has a learned position table, the model uses pos_embed=%r: the table is left "
                "out and the position encoding starts untrained; fine-tune before use",
                encoding.name,
            )
            state_dict.update(fresh)
    weight = state_dict.get("position_encoding.weight")
    if weight is not None and weight.shape[0] != rows:
        resized = resample_abs_pos_embed(weight[None], list(encoding.train_shape), num_prefix_tokens=0)
        state_dict["position_encoding.weight"] = resized[0]
    return state_dict


class _ModelWithTable:
    """A model as timm's filters expect it: with a table `pos_embed`, whose size they look at."""

    def __init__(self, model: VisionTransformer, pos_embed: Tensor) -> None:
        self._model, self.pos_embed = model, pos_embed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _hook(module: ModuleType) -> bool:
    """Puts our doorman before the builder of a timm module; tells whether there is one as we know it."""
    if module in _originals:
        return True
    original = getattr(module, _BUILDER, None)
    if original is None or not {"model_cls", "variant", "pretrained", "pretrained_filter_fn"} <= set(
        inspect.signature(original).parameters
    ):
        return False

    def build_with_positions(
        model_cls: Any, variant: str, pretrained: bool, *args: Any, **kwargs: Any
    ) -> Any:
        pos_embed = kwargs.get("pos_embed")
        if pos_embed in STOCK_POS_EMBED or args or model_cls not in _HOOKED_CLASSES:
            return original(model_cls, variant, pretrained, *args, **kwargs)
        position_encoding_class(pos_embed)  # raises and lists the names when there is none
        filter_fn = kwargs.pop("pretrained_filter_fn", None)
        return _build(model_cls, variant, pretrained, filter_fn, **kwargs)

    _originals[module] = original
    setattr(module, _BUILDER, build_with_positions)
    return True


def _warn_once(message: str) -> None:
    global _warned
    if not _warned:
        warnings.warn(message, stacklevel=3)
    _warned = True


def _forget(name: str) -> None:
    """Removes a model from timm's registry, which has no function for it."""
    registry = sys.modules[register_model.__module__]
    for table in ("_model_entrypoints", "_model_to_module", "_model_default_cfgs", "_model_pretrained_cfgs"):
        getattr(registry, table, {}).pop(name, None)
    getattr(registry, "_model_with_tags", {}).pop(name, None)
    getattr(registry, "_model_has_pretrained", set()).discard(name)
    own_module = __name__.rpartition(".")[2]
    models = getattr(registry, "_module_to_models", {})
    if own_module in models:
        models[own_module].discard(name)
        if not models[own_module]:
            del models[own_module]
    exported = globals().get("__all__", [])
    while name in exported:
        exported.remove(name)


register_timm()
