"""Running a function once another package has been imported.

timm and transformers take seconds to import and must be told of our models. So `import seqpe_zoo` imports
neither: each is told at once when it is there already, else right after it is imported. This keeps
`seqpe-zoo --help` and `from seqpe_zoo import SeqPE` quick.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
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
                self._run_after(spec.loader)
                return spec
        return None

    def _run_after(self, loader: Any) -> None:
        load = loader.exec_module

        def load_then_run(module: ModuleType) -> None:
            load(module)
            if module.__name__ == self.module and self in sys.meta_path:
                sys.meta_path.remove(self)
                self.function()

        loader.exec_module = load_then_run
