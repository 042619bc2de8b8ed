"""What timm must be told: the names of our Vision Transformers, and `pos_embed=` on its own models.

timm has no discovery of plug-ins, so `register_timm` runs on `import seqpe_zoo`. It adds our names to timm's
registry and wraps two functions of timm: the one by which `create_model` finds a model, so that `pos_embed=`
with one of our names is understood by models that can have it and refused by all others, and the one that
builds those models. `unregister_timm` takes all of it back.
"""

import functools
import inspect
import json
import logging
import math
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import timm.models
import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import resample_abs_pos_embed
from timm.models import (
    build_model_with_cfg,
    deit,
    eva,
    generate_default_cfgs,
    naflexvit,
    register_model,
    resolve_pretrained_cfg,
    vision_transformer,
    vision_transformer_hybrid,
)
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from .portable.encodings import position_encoding_class

if TYPE_CHECKING:
    from .portable.vit import PositionVisionTransformer

__all__ = ["register_timm", "set_timm_position_encoding", "unregister_timm"]  # timm adds the names of models

_logger = logging.getLogger(__name__)

STOCK_POS_EMBED = (None, "", "none", "learn", "learned", "factorized")
"""Values of `pos_embed` that are timm's own."""

OPTIONS = ("pos_embed_args", "keep_native", "train_img_size")
"""What `create_model` takes beside `pos_embed`; see `PositionVisionTransformer`."""

NOTE = "seqpe_zoo: "
"""Start of the entry in `pretrained_cfg["notes"]` that says which position encoding a model has. timm saves
it with the weights and hands it back when they are loaded, whether or not `model_args` are given."""

_BUILDERS: tuple[ModuleType, ...] = (vision_transformer, deit, vision_transformer_hybrid, eva, naflexvit)
"""Modules of timm whose models can have a position encoding."""
_BUILDER, _FINDER = "build_model_with_cfg", "model_entrypoint"
_originals: dict[tuple[ModuleType, str], Callable[..., Any]] = {}
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


def _shipped_cfg(card: str) -> dict[str, Any]:
    """The configuration of a model of `model_cards/`, with its weights where they are on this machine."""
    package = Path(__file__).resolve().parent
    for folder in (package / "model_cards" / card, package.parent / "model_cards" / card):
        weights = folder / "model.safetensors"
        if weights.is_file():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            chosen = {name: config["model_args"][name] for name in ("pos_embed", "pos_embed_args")}
            cfg = {**config["pretrained_cfg"], "label_names": tuple(config["label_names"])}
            cfg["input_size"] = tuple(cfg["input_size"])
            return _cfg(**{**cfg, "file": str(weights), "notes": [NOTE + json.dumps(chosen)]})
    return _cfg(input_size=(1, 28, 28), num_classes=10, crop_pct=1.0, mean=(0.286,), std=(0.353,))


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
        "vit_pico_patch4_pe_28.seqpe_fashion": _shipped_cfg("tiny-vit-seqpe-fashion"),
        "vit_pico_patch4_pe_28.rope2d_fashion": _shipped_cfg("tiny-vit-rope2d-fashion"),
        "vit_pico_patch4_pe_28.ape_fashion": _shipped_cfg("tiny-vit-ape-fashion"),
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


def vit_pico_patch4_pe_28(pretrained: bool = False, **kwargs: Any) -> "PositionVisionTransformer":
    """The same for images of 28 x 28 and any other size; weights trained on Fashion-MNIST are shipped."""
    return _create("vit_pico_patch4_pe_28", pretrained, **{"dynamic_img_size": True, **_PICO, **kwargs})


MODELS: tuple[Callable[..., "PositionVisionTransformer"], ...] = (
    vit_tiny_patch16_seqpe_224,
    vit_small_patch16_seqpe_224,
    vit_base_patch16_seqpe_224,
    vit_small_patch16_seqpe_384,
    vit_tiny_patch16_pe_224,
    vit_small_patch16_pe_224,
    vit_base_patch16_pe_224,
    vit_pico_patch4_pe_32,
    vit_pico_patch4_pe_28,
)


def register_timm() -> None:
    """Makes our models and encodings known to timm; a second call changes nothing."""
    for model in MODELS:
        if not timm.is_model(model.__name__):
            register_model(model)
    wrapped = [_wrap(module, _BUILDER, _with_positions) for module in _BUILDERS]
    wrapped.append(_wrap(sys.modules["timm.models._factory"], _FINDER, _find_with_positions))
    if not all(wrapped):
        _warn_once(
            f"timm {timm.__version__} builds its models otherwise than the versions seqpe_zoo knows: "
            "pos_embed='seqpe' may not work on its stock names there. seqpe_zoo.set_position_encoding(model, "
            f"'seqpe') does, and so do our own names: {', '.join(model.__name__ for model in MODELS)}."
        )


def unregister_timm() -> None:
    """Leaves timm as it was before `register_timm`; models that exist go on working."""
    while _originals:
        (module, name), original = _originals.popitem()
        setattr(module, name, original)
    for model in MODELS:
        _forget(model.__name__)


def set_timm_position_encoding(
    model: nn.Module, name: str = "seqpe", keep_native: bool = False, **options: Any
) -> nn.Module:
    """Gives a model of timm another position encoding, in place; see `seqpe_zoo.set_position_encoding`.

    Args:
        model: of one of the families that can have it.
        name: of the encoding.
        keep_native: keep the model's own positions too.
        **options: of the encoding, and `train_img_size`.

    Raises:
        ValueError: the model cannot have the encoding; says why.
        TypeError: the encoding has no such option.
    """
    from .portable.timm_hosts import add_position_encoding

    position_encoding_class(name)
    if "forward" in vars(model):
        raise ValueError(
            f"the forward of this {type(model).__name__} was replaced, as wrappers and offloading do; call "
            "set_position_encoding first"
        )
    size = options.pop("train_img_size", None)
    add_position_encoding(model, name, options, keep_native, size)
    if isinstance(getattr(model, "pretrained_cfg", None), dict):
        _note(model, {"pos_embed": name, "pos_embed_args": options, "keep_native": keep_native})
    return model


def _note(model: Any, chosen: dict[str, Any]) -> None:
    """Writes into the `pretrained_cfg` of a model what builds its position encoding again."""
    cfg = model.pretrained_cfg
    host = getattr(model, "model", model)  # inside of what features_only returns
    size = getattr(getattr(host, "patch_embed", None), "img_size", None)
    if chosen.get("train_img_size") is None and size is not None:
        chosen = {**chosen, "train_img_size": list(size)}
    others = [note for note in cfg.get("notes") or () if not note.startswith(NOTE)]
    cfg["notes"] = [*others, NOTE + json.dumps(chosen)]
    model.pretrained_cfg = model.default_cfg = cfg


def _noted(variant: str, cfg: Any) -> dict[str, Any]:
    """What `_note` wrote into the `pretrained_cfg` of a model; nothing for models without."""
    for note in resolve_pretrained_cfg(variant, cfg).notes or ():
        if note.startswith(NOTE):
            return dict(json.loads(note.removeprefix(NOTE)))
    return {}


def _create(variant: str, pretrained: bool, **kwargs: Any) -> "PositionVisionTransformer":
    """Builds one of our named models; they have SeqPE unless told otherwise."""
    kwargs.setdefault("feature_cfg", {"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"})
    chosen = _chosen(variant, kwargs) or {"pos_embed": kwargs.pop("pos_embed", "seqpe"), **_options(kwargs)}
    return _build(VisionTransformer, variant, pretrained, checkpoint_filter_fn, chosen, **kwargs)


def _options(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Takes `OPTIONS` out of arguments."""
    return {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}


def _chosen(variant: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Takes the position encoding that is asked for out of arguments; else it is the one that was saved.

    Returns:
        `pos_embed` and `OPTIONS`; empty when timm's own positions are wanted.
    """
    name = kwargs.pop("position_encoding", None)
    if name is None and kwargs.get("pos_embed") not in STOCK_POS_EMBED:
        name = kwargs.pop("pos_embed")
    if name == "" or (name is None and kwargs.get("pos_embed") is not None):
        return {}  # timm's own positions, by name
    noted = _noted(variant, kwargs.get("pretrained_cfg"))
    if name is None:
        return {**noted, **_options(kwargs)} if noted else {}
    position_encoding_class(name)  # raises and lists the names when there is none
    # Options that are not given are those of the saved model, if it is to have the same encoding.
    same = noted if noted.get("pos_embed") == name else {}
    return {**same, "pos_embed": name, **_options(kwargs)}


def _build(
    model_cls: type[nn.Module],
    variant: str,
    pretrained: bool,
    filter_fn: Callable[..., dict[str, Tensor]] | None,
    chosen: dict[str, Any],
    **kwargs: Any,
) -> Any:
    # Imported here, because that file imports timm, and this one is loaded at the end of timm's import.
    from .portable.timm_hosts import HOSTS, add_position_encoding, unsupported

    if model_cls not in HOSTS:
        raise unsupported(chosen["pos_embed"], variant)
    if pretrained:
        overlay = dict(kwargs.get("pretrained_cfg_overlay") or {})
        cfg = resolve_pretrained_cfg(variant, kwargs.get("pretrained_cfg"), dict(overlay))
        if "img_size" in kwargs:
            # The weights know the grid of their training, whatever size the model is built for.
            chosen = {"train_img_size": tuple(cfg.input_size[-2:]), **chosen}
        if cfg.custom_load and cfg.file is not None and not cfg.file.endswith(".npz"):
            kwargs["pretrained_cfg_overlay"] = {**overlay, "custom_load": False}

    def build_host(**arguments: Any) -> nn.Module:
        return add_position_encoding(
            model_cls(**arguments),
            chosen["pos_embed"],
            chosen.get("pos_embed_args"),
            chosen.get("keep_native", False),
            chosen.get("train_img_size"),
        )

    def adapted(state_dict: dict[str, Any], model: Any) -> dict[str, Tensor]:
        return adapt_checkpoint(state_dict, model, filter_fn)

    built = build_model_with_cfg(build_host, variant, pretrained, pretrained_filter_fn=adapted, **kwargs)
    _note(built, chosen)
    return built


def adapt_checkpoint(
    state_dict: dict[str, Any],
    model: Any,
    filter_fn: Callable[..., dict[str, Tensor]] | None = checkpoint_filter_fn,
) -> dict[str, Tensor]:
    """Fits a checkpoint, ours or of a plain model of timm, to a model with a position encoding.

    Where the model does not keep its own positions, those of the checkpoint are left out, and the encoding
    keeps its fresh weights; a message says so. A table `pos_embed` becomes that of 'ape_learn'. Weights that
    transformers saved have timm's names behind `vit.`; they load as well, so that one file can serve both
    libraries.

    Args:
        state_dict: the checkpoint.
        model: the model that will load it.
        filter_fn: timm's filter for the architecture.

    Raises:
        ValueError: the checkpoint keeps its native positions and the model does not, or the other way round.
    """
    if state_dict and all(name.startswith("vit.") for name in state_dict):
        state_dict = {name.removeprefix("vit."): tensor for name, tensor in state_dict.items()}
    encoding = model.position_encoding
    rows = math.prod(encoding.train_shape)
    prefix_tokens = 0 if getattr(model, "no_embed_class", False) else model.num_prefix_tokens
    if filter_fn is not None:
        table = torch.empty(1, prefix_tokens + rows, model.embed_dim, device="meta")
        like_timm = model if model.keep_native else _ModelWithTable(model, table)
        state_dict = filter_fn(state_dict, like_timm)
    state_dict = dict(state_dict)
    has_own = any(name.startswith("position_encoding.") for name in state_dict)
    if has_own and (KEEPS_NATIVE in state_dict) != model.keep_native:
        raise ValueError(
            f"these weights were trained with keep_native={not model.keep_native}, and the model has "
            f"keep_native={model.keep_native}; build it as the weights were"
        )
    native = {name for name in state_dict if name.startswith(NATIVE_POSITIONS)}
    if not has_own:
        state_dict.update(_fresh_state(model))
        if native and not model.keep_native and encoding.name != "ape_learn":
            _logger.warning(
                "the checkpoint has positions of its own (%s), the model uses pos_embed=%r: they are left "
                "out and the position encoding starts untrained; fine-tune before use",
                ", ".join(sorted(native)),
                encoding.name,
            )
    if not model.keep_native:
        left_out = {name: state_dict.pop(name) for name in native}
        stock = left_out.get("pos_embed")
        if stock is not None and encoding.name == "ape_learn" and not has_own:
            state_dict["position_encoding.weight"] = stock[0, prefix_tokens:]
            if model.num_prefix_tokens:
                padding = torch.zeros(model.num_prefix_tokens - prefix_tokens, stock.shape[-1])
                own = torch.cat([stock[0, :prefix_tokens], padding.to(stock)])
                state_dict["position_encoding.prefix"] = own
    weight = state_dict.get("position_encoding.weight")
    if weight is not None and weight.shape[0] != rows:
        resized = resample_abs_pos_embed(weight[None], list(encoding.train_shape), num_prefix_tokens=0)
        state_dict["position_encoding.weight"] = resized[0]
    return state_dict


KEEPS_NATIVE = "keeps_native_positions"
NATIVE_POSITIONS = ("pos_embed", "rope.", "embeds.pos_embed")
"""How names of timm's own tables and rotations start."""


def _fresh_state(model: Any) -> dict[str, Tensor]:
    """What a checkpoint of plain timm lacks."""
    state = model.position_encoding.state_dict(prefix="position_encoding.")
    return {**state, KEEPS_NATIVE: model.keeps_native_positions} if model.keep_native else dict(state)


class _ModelWithTable:
    """A model as timm's filters expect it: with a table `pos_embed`, whose size they look at."""

    def __init__(self, model: nn.Module, pos_embed: Tensor) -> None:
        self._model, self.pos_embed = model, pos_embed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _wrap(module: ModuleType, name: str, wrapper: Callable[..., Any]) -> bool:
    """Puts a wrapper around a function of timm; tells whether timm has one as we know it."""
    if (module, name) in _originals:
        return True
    original = getattr(module, name, None)
    expected = {
        _BUILDER: {"model_cls", "variant", "pretrained", "pretrained_filter_fn"},
        _FINDER: {"model_name"},
    }
    if original is None or not expected[name] <= set(inspect.signature(original).parameters):
        return False
    _originals[module, name] = original
    setattr(module, name, functools.wraps(original)(functools.partial(wrapper, original)))
    return True


def _with_positions(
    original: Callable[..., Any], model_cls: Any, variant: str, pretrained: bool, *args: Any, **kwargs: Any
) -> Any:
    """Builds a model of timm as `build_model_with_cfg` does, with a position encoding if one is chosen."""
    chosen = _chosen(variant, kwargs)
    if not chosen or args:
        given = [name for name in OPTIONS if name in kwargs]
        if given:
            raise TypeError(f"{', '.join(given)} is for pos_embed='seqpe' and other position encodings")
        return original(model_cls, variant, pretrained, *args, **kwargs)
    return _build(model_cls, variant, pretrained, kwargs.pop("pretrained_filter_fn", None), chosen, **kwargs)


def _find_with_positions(original: Callable[..., Any], model_name: str, *args: Any, **kwargs: Any) -> Any:
    """Finds a model for `create_model`; it then understands or refuses `pos_embed=` with one of our names."""
    entrypoint = original(model_name, *args, **kwargs)
    modules = {module.__name__ for module, name in _originals if name == _BUILDER} | {__name__}

    @functools.wraps(entrypoint)
    def create(*args: Any, **given: Any) -> Any:
        name = given.get("pos_embed")
        is_native = name in STOCK_POS_EMBED
        if not is_native:
            position_encoding_class(name)
        if entrypoint.__module__ in modules and name is not None:
            # By another name: some models would take ours for their native positions, or pop theirs.
            given["position_encoding"] = "" if is_native else given.pop("pos_embed")
        elif not is_native:
            from .portable.timm_hosts import unsupported

            raise unsupported(name, model_name)
        return entrypoint(*args, **given)

    return create


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
