"""What transformers must be told when the package is installed: which classes its Auto classes find.

transformers takes seconds to import, so nothing happens before its Auto classes are imported. Then they look
classes of ours up where `from_config` and `from_pretrained` look for registered ones; a configuration or a
model is imported when it is used.
"""

from importlib import import_module
from typing import Any

from .after_import import run_after_import

PREFIX = "seqpe_"
PORTABLE = "seqpe_zoo.portable"


def register_auto_classes() -> None:
    """Registers our configurations and models now or, if transformers is not imported yet, when it is."""
    run_after_import("transformers.models.auto.configuration_auto", _register_configs)
    run_after_import("transformers.models.auto.modeling_auto", _register_models)


def _register_configs() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if not isinstance(CONFIG_MAPPING._extra_content, _Configs):
        CONFIG_MAPPING._extra_content = _Configs(CONFIG_MAPPING._extra_content)


def _register_models() -> None:
    from transformers.models.auto import modeling_auto

    _register_configs()
    for auto_class in _AUTO_CLASSES:
        mapping = getattr(modeling_auto, auto_class)._model_mapping
        if not isinstance(mapping._extra_content, _Models):
            mapping._extra_content = _Models(mapping._extra_content, auto_class)


_AUTO_CLASSES = (
    "AutoModel",
    "AutoModelForCausalLM",
    "AutoModelForMaskedLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
    "AutoModelForQuestionAnswering",
    "AutoModelForImageClassification",
)


class _Configs(dict[str, Any]):
    """Registered configurations by model type; ours are found by their prefix."""

    def __contains__(self, model_type: object) -> bool:
        return super().__contains__(model_type) or _exists(str(model_type))

    def __missing__(self, model_type: str) -> Any:
        if not _exists(model_type):
            raise KeyError(model_type)
        if model_type == "seqpe_vit":
            return import_module(f"{PORTABLE}.configuration_seqpe_vit").SeqPEViTConfig
        return import_module(f"{PORTABLE}.configuration_seqpe").config_of_model_type(model_type)


def _exists(model_type: str) -> bool:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    native = model_type.removeprefix(PREFIX).removeprefix("hf_")
    return model_type.startswith(PREFIX) and native in CONFIG_MAPPING_NAMES


class _Models(dict[Any, Any]):
    """Registered models of an Auto class by configuration; ours say in `auto_map` where they are."""

    def __init__(self, registered: dict[Any, Any], auto_class: str) -> None:
        super().__init__(registered)
        self.auto_class = auto_class

    def __contains__(self, config: object) -> bool:
        return super().__contains__(config) or self._place(config) is not None

    def __missing__(self, config: Any) -> Any:
        place = self._place(config)
        if place is None:
            raise KeyError(config)
        module, name = place.split(".")
        return getattr(import_module(f"{PORTABLE}.{module}"), name)

    def _place(self, config: Any) -> str | None:
        module = getattr(config, "__module__", "")
        if not module.startswith(PORTABLE):
            return None
        places: dict[str, str] = import_module(module).auto_map_of(config)
        return places.get(self.auto_class)
