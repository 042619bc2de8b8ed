"""Imports go one way, and the portable folder keeps to what transformers can copy (DESIGN.md, section 2).

The checker is a handful of functions over source text. The first tests feed it small wrong snippets, so that
it is known to be able to fail; the last ones apply it to the tree.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = "seqpe_zoo"

# Highest first. A room may import rooms below it, and rooms beside it as long as no circle arises.
# PACKAGE itself stands for its __init__.py, the public names: above what it gathers, below what uses it.
LEVELS = (
    {"tests"},
    {"cli", "__main__", "train_scripts", "benchmarks"},
    {"training", "hub", "app"},
    {PACKAGE},
    {"evaluation", "data", "convert", "hosts", "timm_models", "auto_classes"},
    {"portable", "after_import", "cpu_features", "zoo"},
)
HEIGHT = {room: -depth for depth, rooms in enumerate(LEVELS) for room in rooms}
FOLDERS_BESIDE_PACKAGE = {"tests", "train_scripts", "benchmarks"}
CHECKED_FOLDERS = (PACKAGE, "train_scripts", "benchmarks")

# How transformers finds the files to copy (dynamic_module_utils.get_relative_imports): by text, not syntax.
TEXT_SEARCHES = (
    re.compile(r"^\s*import\s+\.(\S+)\s*$", re.MULTILINE),
    re.compile(r"^\s*from\s+\.(\S+)\s+import", re.MULTILINE),
)


class Import(NamedTuple):
    """One imported name: `from ..data import text` in the hub room is (line, "seqpe_zoo.data.text")."""

    line: int
    target: str


def module_name(path: str) -> str:
    """The dotted name of a file given by its path in the repository; a package is named by its folder."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(dotted: str) -> str | None:
    """The room a dotted name belongs to, or None for a library of others."""
    first, _, rest = dotted.partition(".")
    if first != PACKAGE:
        return first if first in FOLDERS_BESIDE_PACKAGE else None
    return rest.split(".")[0] or PACKAGE


def imported_room(dotted: str) -> str | None:
    """As `room_of`, but `seqpe_zoo.SeqPE`, which is no room, is a public name of the package."""
    room = room_of(dotted)
    is_public_name = dotted.count(".") == 1 and room not in HEIGHT
    return PACKAGE if dotted.startswith(f"{PACKAGE}.") and is_public_name else room


def dynamic_import(node: ast.AST) -> str | None:
    """The module named in a call of import_module or __import__, "?" if computed; None for anything else."""
    if not isinstance(node, ast.Call):
        return None
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if called not in {"import_module", "__import__"}:
        return None
    name = node.args[0] if node.args else None
    return name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else "?"


def imports_of(source: str, path: str) -> Iterator[Import]:
    """Every import of a file, relative ones resolved, also those in functions and below `if`."""
    module = module_name(path)
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)
        elif name := dynamic_import(node):
            yield Import(node.lineno, name)


def room_violations(source: str, path: str) -> list[str]:
    """Where a file imports upwards, or stands in or imports a room that nobody planned."""
    room = room_of(module_name(path))
    if room not in HEIGHT:
        return [f"{path}: {room} is not a room of DESIGN.md; give it a place in LEVELS"]
    found = []
    for line, target in imports_of(source, path):
        other = imported_room(target)
        if other is None:
            continue
        if other not in HEIGHT:
            found.append(f"{path}:{line}: imports {target}, which is in no known room")
        elif HEIGHT[other] > HEIGHT[room]:
            found.append(f"{path}:{line}: {room} must not import {other}, which is above it")
    return found


def room_graph(sources: dict[str, str]) -> dict[str, set[str]]:
    """Which room imports which other rooms."""
    graph: dict[str, set[str]] = {}
    for path, source in sources.items():
        room = room_of(module_name(path)) or path
        others = {imported_room(target) for _, target in imports_of(source, path)}
        graph.setdefault(room, set()).update(other for other in others if other and other != room)
    return graph


def find_circle(graph: dict[str, set[str]]) -> list[str]:
    """One circle of the graph as a list of rooms, first and last the same; empty when there is none."""
    finished: set[str] = set()

    def walk(room: str, trail: list[str]) -> list[str]:
        if room in trail:
            return [*trail[trail.index(room) :], room]
        if room not in finished:
            for other in sorted(graph.get(room, ())):
                if circle := walk(other, [*trail, room]):
                    return circle
            finished.add(room)
        return []

    return next((circle for room in sorted(graph) if (circle := walk(room, []))), [])


def text_found_siblings(source: str) -> set[tuple[int, str]]:
    """The (line, sibling) pairs that the text search of transformers takes for relative imports."""
    return {
        (source.count("\n", 0, match.start(1)) + 1, match.group(1))
        for search in TEXT_SEARCHES
        for match in search.finditer(source)
    }


def allowed_libraries(filename: str) -> set[str]:
    """What a portable file may import beside the standard library."""
    allowed = {"torch"}
    if filename.startswith(("configuration_", "modeling_")) or filename == "transformers_host.py":
        allowed.add("transformers")
    if filename in {"vit.py", "timm_hosts.py", "modeling_seqpe_vit.py"}:
        allowed.add("timm")
    return allowed


def portable_violations(source: str, filename: str) -> list[str]:
    """Where a file of seqpe_zoo/portable breaks rules 1 and 2 of the portable folder."""
    found, real_siblings = [], set()
    allowed = allowed_libraries(filename) | sys.stdlib_module_names
    for node in ast.walk(ast.parse(source)):
        absolute: list[str] = []
        if isinstance(node, ast.Import):
            absolute = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            absolute = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            real_siblings.add((node.lineno, module))
            if node.level > 1 or not module.isidentifier() or any(alias.name == "*" for alias in node.names):
                found.append(f"{filename}:{node.lineno}: only `from .sibling import name` is portable")
        elif name := dynamic_import(node):
            absolute = [name]
        for name in absolute:
            if name.split(".")[0] not in allowed:
                found.append(f"{filename}:{node.lineno}: must not import {name}")
    seen = text_found_siblings(source)
    for line, sibling in sorted(seen - real_siblings):
        found.append(f"{filename}:{line}: transformers would take this text for an import of {sibling}.py")
    for line, sibling in sorted(real_siblings - seen):
        found.append(
            f"{filename}:{line}: transformers would not find {sibling}.py; put the import on its own line"
        )
    return found


def flatness_violations(paths_in_portable: list[str]) -> list[str]:
    """Files that are not directly in the portable folder; transformers copies no subfolders."""
    return [f"{path}: the portable folder is flat" for path in paths_in_portable if "/" in path]


def sources_under(*folders: str) -> dict[str, str]:
    """All Python files below the folders: path in the repository -> text."""
    return {
        path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
        for folder in folders
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
    }


# The checker itself.


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("seqpe_zoo/data/text.py", "from seqpe_zoo.training import run_training"),
        ("seqpe_zoo/data/text.py", "from ..hub.card import render"),
        ("seqpe_zoo/data/text.py", "from .. import hub"),
        ("seqpe_zoo/data/__init__.py", "from ..cli import main"),
        ("seqpe_zoo/data/text.py", "from seqpe_zoo import SeqPE"),
        ("seqpe_zoo/timm_models.py", "def f():\n    import seqpe_zoo.hub.push"),
        ("seqpe_zoo/hosts.py", "from .training import run_training"),
        ("seqpe_zoo/portable/seqpe.py", "from ..hosts import Host"),
        (
            "seqpe_zoo/auto_classes.py",
            "from importlib import import_module\nimport_module('seqpe_zoo.training')",
        ),
        ("seqpe_zoo/training/run.py", "from seqpe_zoo import cli"),
        ("seqpe_zoo/hub/push.py", "from train_scripts import train_vit"),
        ("seqpe_zoo/cli.py", "from tests.helpers import tiny_model"),
        ("seqpe_zoo/__init__.py", "from .training import run_training"),
        ("seqpe_zoo/portable/digits.py", "from seqpe_zoo.data import digits"),
        ("seqpe_zoo/portable/digits.py", "if TYPE_CHECKING:\n    from ..convert import graft"),
        ("seqpe_zoo/cli.py", "import seqpe_zoo.utils.strings"),
        ("seqpe_zoo/utils.py", ""),
    ],
)
def test_upward_import_is_reported(path: str, source: str) -> None:
    assert len(room_violations(source, path)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        (
            "seqpe_zoo/cli.py",
            "from .training import run_training\nfrom . import hub, evaluation, __version__",
        ),
        ("seqpe_zoo/hub/card.py", "from ..evaluation.report import table\nfrom .facts import Facts"),
        ("seqpe_zoo/hub/push.py", "import torch\nfrom seqpe_zoo import SeqPE\nfrom ..training import config"),
        (
            "seqpe_zoo/__init__.py",
            "from . import auto_classes, timm_models\nfrom .portable.encodings import build",
        ),
        (
            "seqpe_zoo/evaluation/length.py",
            "from seqpe_zoo.data import text\nfrom seqpe_zoo.portable import table",
        ),
        (
            "train_scripts/train_vit.py",
            "from seqpe_zoo import SeqPE\nfrom seqpe_zoo.training import run_training",
        ),
        ("seqpe_zoo/hosts.py", "from .portable.encodings import build\nfrom .auto_classes import register"),
        ("benchmarks/run.py", "import timm\nimport seqpe_zoo"),
        ("seqpe_zoo/data/text.py", "import hub  # a library of that name, not the room"),
    ],
)
def test_downward_import_is_accepted(path: str, source: str) -> None:
    assert room_violations(source, path) == []


def test_circle_between_rooms_of_one_level_is_found() -> None:
    sources = {
        "seqpe_zoo/data/text.py": "from ..evaluation.report import table",
        "seqpe_zoo/evaluation/report.py": "from ..convert import graft",
        "seqpe_zoo/convert/graft.py": "def late():\n    from seqpe_zoo.data import text",
    }
    assert find_circle(room_graph(sources)) == ["convert", "data", "evaluation", "convert"]


def test_rooms_of_one_level_may_import_each_other_without_circle() -> None:
    sources = {
        "seqpe_zoo/evaluation/report.py": "from ..data import text\nfrom . import plots",
        "seqpe_zoo/convert/graft.py": "from ..data import text\nfrom ..evaluation import report",
    }
    assert find_circle(room_graph(sources)) == []


@pytest.mark.parametrize(
    ("filename", "source"),
    [
        ("digits.py", "from .table import *"),
        ("digits.py", "import seqpe_zoo"),
        ("digits.py", "from seqpe_zoo.portable.table import Table"),
        ("digits.py", "import numpy as np"),
        ("digits.py", "import torchvision"),
        ("digits.py", "import table"),
        ("digits.py", "from transformers import PreTrainedModel"),
        ("digits.py", "import timm"),
        ("digits.py", "def f():\n    import timm.layers"),
        ("transformers_host.py", "import timm"),
        ("vit_attention.py", "from timm.layers import use_fused_attn"),
        ("digits.py", "try:\n    import timm\nexcept ImportError:\n    timm = None"),
        ("modeling_seqpe_gpt2.py", "from timm.layers import Mlp"),
        ("vit.py", "from transformers import PreTrainedModel"),
        ("vit.py", "import importlib\nimportlib.import_module(name)"),
        ("vit.py", "__import__('seqpe_zoo')"),
        ("digits.py", '"""Use it so:\n\n    from .table import Table\n"""'),
        ("digits.py", 'HELP = """\nimport .table\n"""'),
        ("digits.py", "if True: from .table import Table"),
        ("digits.py", "import math; from .table import Table"),
    ],
)
def test_unportable_import_is_reported(filename: str, source: str) -> None:
    assert len(portable_violations(source, filename)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from . import table",
        "from .folder.table import Table",
        "from ..data import text",
        "from .. import data",
    ],
)
def test_only_single_dot_sibling_imports_are_portable(source: str) -> None:
    assert "only `from .sibling import name` is portable" in portable_violations(source, "digits.py")[0]


@pytest.mark.parametrize(
    ("filename", "source"),
    [
        ("digits.py", "from __future__ import annotations\nimport math\nimport torch.nn.functional as F"),
        ("digits.py", "from .table import (\n    Table,\n    grow,\n)\n"),
        ("digits.py", "def late():\n    from .table import Table"),
        ("digits.py", '"""Text about `from .table import Table` within a line."""'),
        ("configuration_seqpe_gpt2.py", "from transformers import PreTrainedConfig"),
        ("modeling_seqpe_vit.py", "import timm\nimport transformers\nfrom .vit import VisionTransformer"),
        ("vit.py", "from timm.models.vision_transformer import VisionTransformer"),
        ("transformers_host.py", "from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS"),
    ],
)
def test_portable_import_is_accepted(filename: str, source: str) -> None:
    assert portable_violations(source, filename) == []


def test_subfolder_of_the_portable_folder_is_reported() -> None:
    assert len(flatness_violations(["digits.py", "layers/table.py"])) == 1


# The tree.


def test_rooms_import_only_downwards() -> None:
    sources = sources_under(*CHECKED_FOLDERS)
    assert sources
    assert [line for path, source in sources.items() for line in room_violations(source, path)] == []


def test_no_circle_between_rooms() -> None:
    assert find_circle(room_graph(sources_under(*CHECKED_FOLDERS))) == []


def test_portable_files_keep_the_portable_rules() -> None:
    sources = {Path(path).name: source for path, source in sources_under(f"{PACKAGE}/portable").items()}
    assert sources
    assert [line for name, source in sources.items() for line in portable_violations(source, name)] == []


def test_portable_folder_is_flat() -> None:
    folder = REPOSITORY / PACKAGE / "portable"
    paths = [
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if "__pycache__" not in path.parts
    ]
    assert paths
    assert flatness_violations(paths) == []


def siblings_of(files: set[str], sources: dict[str, str]) -> set[str]:
    """The files that transformers copies with these, found as it finds them."""
    found = {f"{sibling}.py" for file in files for _, sibling in text_found_siblings(sources[file])}
    return files if found <= files else siblings_of(files | found, sources)


# What a saved model carries, and how many files that may be (DESIGN.md, section 2).
SAVED = {
    "language model": ({"configuration_seqpe.py", "modeling_seqpe.py"}, 9),
    "ViT of timm": ({"configuration_seqpe_vit.py", "modeling_seqpe_vit.py"}, 10),
}


def test_portable_folder_has_few_files() -> None:
    sources = sources_under(f"{PACKAGE}/portable")
    assert len(sources) - 1 <= 16  # the __init__ is not copied


@pytest.mark.parametrize("model", SAVED)
def test_saved_models_carry_few_files(model: str) -> None:
    named, most = SAVED[model]
    sources = {Path(path).name: source for path, source in sources_under(f"{PACKAGE}/portable").items()}
    carried = siblings_of(named, sources)
    assert named < carried
    assert len(carried) <= most, sorted(carried)


def test_text_search_finds_what_transformers_finds() -> None:
    from transformers.dynamic_module_utils import get_relative_imports

    for path, source in sources_under(f"{PACKAGE}/portable").items():
        ours = {sibling for _, sibling in text_found_siblings(source)}
        assert ours == set(get_relative_imports(REPOSITORY / path)), path
