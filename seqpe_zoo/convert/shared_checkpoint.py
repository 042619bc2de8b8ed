"""One checkpoint for both libraries: a `config.json` with timm's and transformers' parts, one weights file.

timm reads `architecture`, `model_args`, `num_classes` and `pretrained_cfg`; transformers `model_type`, its
fields and `auto_map`; neither minds the other's. The weights have transformers' names, timm's behind `vit.`,
which our timm models read as well.
"""

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .vit_formats import transformers_config, vit_for_transformers
from .zoo_checkpoint import ConversionError, Converted, set_pretrained_cfg

ARCHITECTURE = "vit_small_patch16_pe_224"
"""The timm name of models that come from transformers; `model_args` say all that a name would."""
PROCESSOR = "preprocessor_config.json"
_PILLOW_FILTERS = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


class SharedFiles(NamedTuple):
    """What the two libraries read beside the weights."""

    config: dict[str, Any]
    processor: dict[str, Any]
    """`preprocessor_config.json`."""


def share_config(config: Mapping[str, Any]) -> SharedFiles:
    """Completes the `config.json` of either library.

    Args:
        config: of timm (it names an `architecture`), else of our ViT in transformers.

    Raises:
        ConversionError: the other library has no such model.
    """
    if "architecture" not in config:
        return _complete_transformers(config)
    args = dict(config.get("model_args") or {})
    return _complete_timm(config, _build(config["architecture"], args, config["num_classes"]), args)


def write_shared(converted: Converted, folder: Path) -> None:
    """Writes a timm model of ours for both libraries into a folder that exists.

    Raises:
        ConversionError: transformers has no such model.
    """
    model = converted.model
    set_pretrained_cfg(model)
    args = {name: value for name, value in converted.model_args.items() if name != "num_classes"}
    config, processor = _complete_timm(_timm_part(model, args), model, args)
    vit_for_transformers(converted).model.save_pretrained(folder)
    for name, content in (("config.json", config), (PROCESSOR, processor)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _build(architecture: str, args: Mapping[str, Any], num_classes: int) -> Any:
    """Builds a timm model without memory."""
    import timm

    from .. import timm_models  # noqa: F401 (registers the architectures)

    try:
        with torch.device("meta"):
            return timm.create_model(architecture, **{**args, "num_classes": num_classes})
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        raise ConversionError(f"timm does not build {architecture!r}: {error}") from error


def _complete_timm(config: Mapping[str, Any], model: Any, args: Mapping[str, Any]) -> SharedFiles:
    # timm takes the channels from model_args and leaves those of the architecture in its pretrained_cfg.
    size = config["pretrained_cfg"].get("input_size") or (3, *model.patch_embed.img_size)
    channels = model.patch_embed.proj.in_channels
    pixels = {**config["pretrained_cfg"], "input_size": [channels, *size[1:]]}
    config = {**config, "pretrained_cfg": pixels}
    labels = config.get("label_names")
    ours = transformers_config(
        model,
        args,
        labels if isinstance(labels, list) and len(labels) == model.num_classes else None,
        **{f"image_{name}": list(pixels[name]) for name in ("mean", "std") if name in pixels},
    )
    return SharedFiles(_joined(json.loads(ours.to_json_string()), config), _processor(ours, pixels))


def _complete_transformers(config: Mapping[str, Any]) -> SharedFiles:
    from ..portable.configuration_seqpe_vit import SeqPEViTConfig

    try:
        ours = SeqPEViTConfig.from_dict(dict(config))
    except (ValueError, TypeError) as error:
        raise ConversionError(f"config.json describes no ViT of ours: {error}") from error
    args = ours.vit_arguments()
    model = _build(ARCHITECTURE, args, ours.num_labels)
    set_pretrained_cfg(model, mean=list(ours.image_mean), std=list(ours.image_std), crop_pct=1.0)
    part = _timm_part(model, args)
    names = [ours.id2label[number] for number in range(ours.num_labels)]
    if names != [f"LABEL_{number}" for number in range(ours.num_labels)]:
        part["label_names"] = names
    return SharedFiles(_joined(config, part), _processor(ours, part["pretrained_cfg"]))


def _timm_part(model: Any, args: Mapping[str, Any]) -> dict[str, Any]:
    """What timm itself would write as `config.json`."""
    from timm.models._hub import save_config_for_hf

    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "config.json"
        save_config_for_hf(model, path, model_args=dict(args))
        part: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return part


def _joined(transformers_part: Mapping[str, Any], timm_part: Mapping[str, Any]) -> dict[str, Any]:
    # In a local folder with a `pretrained_cfg` AutoImageProcessor looks for the type in config.json.
    return {**transformers_part, **timm_part, "image_processor_type": "ViTImageProcessor"}


def _processor(config: Any, pixels: Mapping[str, Any]) -> dict[str, Any]:
    """The pictures that timm's evaluation transform makes, as transformers' image processor makes them."""
    height, width = config.image_height_width
    crop = float(pixels.get("crop_pct") or 1.0)
    processor: dict[str, Any] = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": _PILLOW_FILTERS.get(str(pixels.get("interpolation")), 3),
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(config.image_mean),
        "image_std": list(config.image_std),
    }
    if crop < 1.0 and height == width and pixels.get("crop_mode", "center") == "center":
        edge = math.floor(height / crop)
        processor |= {"size": {"shortest_edge": edge}, "do_center_crop": True}
        processor["crop_size"] = {"height": height, "width": width}
    if config.num_channels == 3:
        processor["do_convert_rgb"] = True
    return processor
