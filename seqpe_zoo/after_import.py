"""Running a function once another package has been imported.

timm and transformers take seconds to import and must be told of our models. So `import seqpe_zoo` imports
neither: each is told at once when it is there already, else right after it is imported. This keeps
`seqpe-zoo --help` and `from seqpe_zoo import SeqPE` quick.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def run_after_import(module: str, function: Callable[[], None]) -> None:
    """Runs a function now if the module has been imported, else right after its first import."""
    if module in sys.modules:
        function()
    elif not any(isinstance(finder, _Waiting) and finder.module == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting(module, function))


class _Waiting(MetaPathFinder):
    """Finds one module as Python would, and has a function run after it is loaded.

    It stays in place until the module is really loaded: libraries also look for modules only to see whether
    they are installed.
    """

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
                spec.loader = _LoadThenRun(spec.loader, self)
                return spec
        return None


class _LoadThenRun(Loader):
    """Loads a module with the loader it would have had, then runs the function that waits for it."""

    def __init__(self, loader: Loader, waiting: _Waiting) -> None:
        self.loader, self.waiting = loader, waiting

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.loader.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        module.__loader__ = self.loader
        if self.waiting in sys.meta_path:
            sys.meta_path.remove(self.waiting)
            self.waiting.function()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
