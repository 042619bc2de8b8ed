"""What transformers must be told when the package is installed: which classes its Auto classes find.

Registering needs our classes, and they need most of transformers, which takes seconds to import. So nothing
happens before the Auto classes of transformers are imported, and then it happens at once.

Our classes are also marked for saving: `save_pretrained` puts their code beside the weights, with the whole
`auto_map`, so that a checkpoint works where this package is not installed (`trust_remote_code=True`).
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def register_auto_classes() -> None:
    """Registers our configurations and models now or, if transformers is not imported yet, when it is."""
    for module, register in _AFTER.items():
        if module in sys.modules:
            register()
        elif not any(
            isinstance(finder, _RunAfterImport) and finder.module == module for finder in sys.meta_path
        ):
            sys.meta_path.insert(0, _RunAfterImport(module, register))


def _register_configs() -> None:
    from transformers import AutoConfig

    from .portable.configuration_seqpe_gpt2 import SeqPEGPT2Config

    for config in (SeqPEGPT2Config,):
        AutoConfig.register(config.model_type, config, exist_ok=True)
        config.register_for_auto_class()


def _register_models() -> None:
    if _is_half_imported(_GPT2):
        return  # our file imports transformers' Auto classes, not the other way round: its turn comes later
    from transformers import AutoModel, AutoModelForCausalLM

    from .portable.configuration_seqpe_gpt2 import SeqPEGPT2Config
    from .portable.modeling_seqpe_gpt2 import SeqPEGPT2LMHeadModel, SeqPEGPT2Model

    _register_configs()
    for auto_class, config, model in (
        (AutoModel, SeqPEGPT2Config, SeqPEGPT2Model),
        (AutoModelForCausalLM, SeqPEGPT2Config, SeqPEGPT2LMHeadModel),
    ):
        auto_class.register(config, model, exist_ok=True)
        model.register_for_auto_class(auto_class.__name__)


def _is_half_imported(module: str) -> bool:
    spec = getattr(sys.modules.get(module), "__spec__", None)
    return getattr(spec, "_initializing", False) and not hasattr(sys.modules[module], "__all__")


_GPT2 = "seqpe_zoo.portable.modeling_seqpe_gpt2"
_AFTER: dict[str, Callable[[], None]] = {
    "transformers.models.auto.configuration_auto": _register_configs,
    "transformers.models.auto.modeling_auto": _register_models,
    _GPT2: _register_models,
}


class _RunAfterImport(MetaPathFinder):
    """Finds one module as Python would, and runs a function after it was imported."""

    def __init__(self, module: str, function: Callable[[], None]) -> None:
        self.module, self.function = module, function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                sys.meta_path.remove(self)
                spec.loader = _LoadThenRun(spec.loader, self.function)
                return spec
        return None


class _LoadThenRun(Loader):
    """Loads a module with the loader it would have had, then runs a function."""

    def __init__(self, loader: Loader, function: Callable[[], None]) -> None:
        self.loader, self.function = loader, function

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        self.function()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
