"""What transformers must be told when the package is installed: which classes its Auto classes find.

Our models need most of transformers, which takes seconds to import. So nothing happens before transformers'
Auto classes are imported, and then these learn where our models are; a model is imported when it is used.

Our classes are also marked for saving: `save_pretrained` puts their code beside the weights, with the whole
`auto_map`, so that a checkpoint works where this package is not installed (`trust_remote_code=True`).
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from .after_import import run_after_import


def register_auto_classes() -> None:
    """Registers our configurations and models now or, if transformers is not imported yet, when it is."""
    for module, register in _AFTER.items():
        run_after_import(module, register)


def _register_configs() -> None:
    from transformers import AutoConfig

    from .portable.configuration_seqpe_gpt2 import SeqPEGPT2Config
    from .portable.configuration_seqpe_vit import SeqPEViTConfig

    for config in (SeqPEGPT2Config, SeqPEViTConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        config.register_for_auto_class()


def _register_models() -> None:
    """Names our models to the Auto classes without importing them, which would not work here.

    transformers imports its Auto classes while half of its other files are waiting; ours need those files.
    """
    from transformers.models.auto import modeling_auto

    from .portable.configuration_seqpe_gpt2 import SeqPEGPT2Config
    from .portable.configuration_seqpe_vit import SeqPEViTConfig

    _register_configs()
    image_classifiers = modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING
    for mapping, config, module, name in (
        (modeling_auto.MODEL_MAPPING, SeqPEGPT2Config, _GPT2, "SeqPEGPT2Model"),
        (modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING, SeqPEGPT2Config, _GPT2, "SeqPEGPT2LMHeadModel"),
        (modeling_auto.MODEL_MAPPING, SeqPEViTConfig, _VIT, "SeqPEViTModel"),
        (image_classifiers, SeqPEViTConfig, _VIT, "SeqPEViTForImageClassification"),
    ):
        if not isinstance(mapping._extra_content, _LateClasses):
            mapping._extra_content = _LateClasses(mapping._extra_content)
        mapping._extra_content.setdefault(config, _Late(module, name))


def _mark_gpt2_for_saving() -> None:
    from .portable.modeling_seqpe_gpt2 import SeqPEGPT2LMHeadModel, SeqPEGPT2Model

    SeqPEGPT2Model.register_for_auto_class("AutoModel")
    SeqPEGPT2LMHeadModel.register_for_auto_class("AutoModelForCausalLM")


def _mark_vit_for_saving() -> None:
    from .portable.modeling_seqpe_vit import SeqPEViTForImageClassification, SeqPEViTModel

    SeqPEViTModel.register_for_auto_class("AutoModel")
    SeqPEViTForImageClassification.register_for_auto_class("AutoModelForImageClassification")


_GPT2 = "seqpe_zoo.portable.modeling_seqpe_gpt2"
_VIT = "seqpe_zoo.portable.modeling_seqpe_vit"
_AFTER: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_models,
    _GPT2: _mark_gpt2_for_saving,
    _VIT: _mark_vit_for_saving,
}


class _Late(NamedTuple):
    """A class that is imported when it is first asked for."""

    module: str
    name: str


class _LateClasses(dict[Any, Any]):
    """What was registered with an Auto class; entries may be `_Late`, which no reader gets to see."""

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, _Late):
            value = self[key] = getattr(import_module(value.module), value.name)
        return value

    def get(self, key: Any, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default

    def values(self) -> list[Any]:  # type: ignore[override]
        return [self[key] for key in self]

    def items(self) -> list[tuple[Any, Any]]:  # type: ignore[override]
        return [(key, self[key]) for key in self]
