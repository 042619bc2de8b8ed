"""What the files of a model name must be there, and `config.json` must build the model that was trained.

Read from text, without importing torch, timm or transformers: shards of the weights, code named by
`auto_map`, the siblings that code imports, and the numbers that timm leaves at an architecture's defaults
unless it is told.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from .errors import UsageError
from .files import read_json, read_text

INDEX = "model.safetensors.index.json"
# The task's own class, without which only the headless model would load.
_HEADS = {"seqpe_gpt2": "AutoModelForCausalLM", "seqpe_vit": "AutoModelForImageClassification"}


# Portable modules by the names that older checkpoints have for them.
_RENAMED = {"configuration_seqpe_gpt2": "configuration_seqpe", "modeling_seqpe_gpt2": "modeling_seqpe"}


def update_auto_map(config: dict[str, Any]) -> None:
    """Let the `auto_map` of a config that was saved by an older version name today's portable modules."""
    mapped = config.get("auto_map")
    for name, place in mapped.items() if isinstance(mapped, dict) else ():
        if isinstance(place, str):
            module, _, kind = place.rpartition(".")
            mapped[name] = f"{_RENAMED.get(module, module)}.{kind}"


def reference_problems(folder: Path, names: set[str]) -> list[str]:
    """Check that what the files name is here: shards of the index, code of the auto_map and its siblings."""
    problems = []
    for name, look in ((INDEX, _index_problems), ("config.json", _config_file_problems)):
        try:
            if name in names and (folder / name).is_file() and not (folder / name).is_symlink():
                problems += [f"{name}{problem}" for problem in look(read_json(folder / name), names)]
        except UsageError:
            continue  # whoever reads the contents says so
        except (AttributeError, TypeError, KeyError, ValueError):
            problems.append(f"{name}: an entry has another type than the libraries write")
    for name in sorted(names):
        if name.endswith(".py") and not (folder / name).is_symlink():
            problems += _code_problems(folder / name, names)
    return problems


def _index_problems(index: dict[str, Any], names: set[str]) -> list[str]:
    shards = sorted(set(index.get("weight_map", {}).values()))
    return [f" names {shard!r}, which is not in the folder" for shard in shards if shard not in names]


def _config_file_problems(config: dict[str, Any], names: set[str]) -> list[str]:
    problems = [f": {problem}" for problem in config_problems(config)]
    for module in auto_map_modules(config):
        if "--" in module:
            problems.append(f": auto_map takes code from another repository ({module})")
        elif f"{module}.py" not in names:
            problems.append(f": auto_map names {module}.py, which is not in the folder")
    return problems


def type_problems(config: dict[str, Any]) -> list[str]:
    """Return which entries of a config have another type than the libraries write."""
    objects = ("auto_map", "model_args", "pretrained_cfg", "position_encoding_args", "id2label")
    kinds: dict[str, tuple[type, str]] = {
        **dict.fromkeys(("architecture", "model_type"), (str, "a name")),
        **dict.fromkeys(objects, (dict, "an object")),
        "architectures": (list, "a list"),
    }
    wrong = [key for key in kinds if config.get(key) and not isinstance(config[key], kinds[key][0])]
    return [f"{key} must be {kinds[key][1]}" for key in wrong]


def config_problems(config: dict[str, Any]) -> list[str]:
    """Return what would make a library build another model than the one that was trained."""
    libraries = libraries_of(config)
    if problems := type_problems(config):
        return problems
    if not libraries:
        problems.append("fits neither timm ('architecture') nor transformers ('model_type')")
    if "timm" in libraries:
        problems += _timm_config_problems(config)
    problems += shared_problems(config)
    if str(config.get("model_type", "")).startswith("seqpe_"):
        mapped = config.get("auto_map") or {}
        wanted = ("AutoConfig", "AutoModel", _HEADS.get(config["model_type"], "AutoModel"))
        missing = [name for name in dict.fromkeys(wanted) if name not in mapped]
        problems += [f"auto_map has no {name}: transformers would not find the code" for name in missing]
        named = {str(reference).rsplit(".", 1)[-1] for reference in mapped.values()}
        lost = [name for name in config.get("architectures") or [] if name not in named]
        problems += [f"auto_map does not name {name}, the class that was saved" for name in lost]
    return problems


def shared_problems(config: dict[str, Any]) -> list[str]:
    """Return where timm's part of a config and transformers' part describe different image models."""
    if config.get("model_type") != "seqpe_vit" or "architecture" not in config:
        return []
    problems = []
    # transformers leaves out the names of two classes, its default.
    labels, classes = len(config.get("id2label") or range(2)), config.get("num_classes")
    if labels != classes:
        problems.append(f"timm's num_classes is {classes}, but transformers' id2label has {labels}")
    size, input_size = config.get("image_size", 224), (config.get("pretrained_cfg") or {}).get("input_size")
    wanted = [config.get("num_channels", 3), *([size, size] if isinstance(size, int) else size)]
    if input_size != wanted:
        problems.append(f"timm's input_size is {input_size}, but transformers' fields say {wanted}")
    return problems


def _timm_config_problems(config: dict[str, Any]) -> list[str]:
    """Check what timm's save_for_hf leaves at the architecture's defaults unless it is told."""
    pretrained, args = config.get("pretrained_cfg") or {}, config.get("model_args") or {}
    problems = []
    classes, input_size = pretrained.get("num_classes"), pretrained.get("input_size")
    if "num_classes" not in config:
        problems.append("num_classes is missing")
    elif classes != config["num_classes"]:
        problems.append(f"num_classes is {config['num_classes']}, but pretrained_cfg says {classes}")
    if not isinstance(input_size, list) or len(input_size) != 3:
        problems.append(f"pretrained_cfg needs input_size, three numbers; it has {input_size}")
    elif (size := args.get("img_size")) is not None:
        wanted = [size, size] if isinstance(size, int) else list(size)
        if input_size[1:] != wanted:
            problems.append(
                f"model_args say img_size {size}, but pretrained_cfg says input_size {input_size}"
            )
    return problems


def _code_problems(path: Path, names: set[str]) -> list[str]:
    try:
        siblings = sibling_imports(path)
    except SyntaxError as error:
        return [f"{path.name}: not Python ({error.msg}, line {error.lineno})"]
    except (UsageError, ValueError, RecursionError, MemoryError):
        return [f"{path.name}: Python cannot read it"]
    return [
        f"{path.name} imports .{s}, but {s}.py is not in the folder"
        for s in siblings
        if f"{s}.py" not in names
    ]


def sibling_imports(path: Path) -> list[str]:
    """Return the sibling modules a portable file imports (`from .name import ...`)."""
    found = set()
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            found.add((node.module or "").split(".")[0])
    return sorted(found - {""})


def code_closure(portable: Path, roots: list[str]) -> list[Path]:
    """Return the portable files that the modules `roots` need, themselves included."""
    wanted, found = list(roots), {}
    while wanted:
        module = wanted.pop()
        if module not in found:
            path = portable / f"{module}.py"
            if not path.is_file():
                raise UsageError(f"the portable code has no module {module!r}, which config.json or it names")
            found[module] = path
            wanted += sibling_imports(path)
    return [found[module] for module in sorted(found)]


def auto_map_modules(config: dict[str, Any]) -> list[str]:
    """Return the modules named in a config's `auto_map`."""
    values = (config.get("auto_map") or {}).values()
    places = [place for value in values for place in (value if isinstance(value, list) else [value])]
    return sorted({place.rsplit(".", 1)[0] for place in places if isinstance(place, str)})


def libraries_of(config: dict[str, Any]) -> list[str]:
    """Return which libraries can load a folder with this `config.json`."""
    return [name for name, key in (("timm", "architecture"), ("transformers", "model_type")) if key in config]
