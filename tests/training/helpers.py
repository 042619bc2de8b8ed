"""Small recipes and real small data for the tests of runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPTS = REPOSITORY / "train_scripts"

TINY_SEQPE = {"num_digits": 4, "num_pivots": 4, "num_candidates": 8, "num_starts": 4, "num_transfer": 8}
TINY_TEXT = {"n_embd": 32, "n_layer": 2, "n_head": 4}


def text_recipe(folder: Path, **changes: object) -> Path:
    """Writes a recipe that trains a byte-level model for a few steps."""
    content = {
        "task": "train_gpt2",
        "model": {
            "position_encoding": "seqpe",
            "position_encoding_args": TINY_SEQPE,
            "tokenizer": "bytes",
            "architecture": TINY_TEXT,
        },
        "data": {"source": "stdlib", "length": 32, "max_train_tokens": 4000, "max_validation_tokens": 700},
        "training": {
            "output": str(folder / "run"),
            "steps": 6,
            "batch_size": 4,
            "learning_rate": 0.003,
            "log_every": 2,
            "evaluate_every": 2,
            "save_every": 2,
            "threads": 1,
        },
        "evaluation": {"lengths": [32, 64], "max_tokens": 500},
    }
    return write_recipe(folder, content, changes)


def image_recipe(folder: Path, source: str = "digits", **changes: object) -> Path:
    """Writes a recipe that trains a tiny ViT for a few steps."""
    content = {
        "task": "train_vit",
        "model": {
            "name": "vit_pico_patch4_pe_32",
            "position_encoding": "seqpe",
            "position_encoding_args": {**TINY_SEQPE, "num_digits": 2, "integration": "bias"},
            "architecture": {"embed_dim": 32, "depth": 2, "num_heads": 2},
        },
        "data": {"source": source, "resolution": 16},
        "training": {
            "output": str(folder / "run"),
            "steps": 6,
            "batch_size": 8,
            "evaluation_batch_size": 64,
            "learning_rate": 0.002,
            "log_every": 2,
            "evaluate_every": 3,
            "save_every": 3,
            "threads": 1,
        },
        "evaluation": {"resolutions": [16, 24]},
    }
    return write_recipe(folder, content, changes)


def write_recipe(folder: Path, content: dict, changes: dict) -> Path:
    """Writes a recipe as YAML with changes `section__key=value`."""
    import yaml

    for path, value in changes.items():
        section, _, key = path.partition("__")
        content.setdefault(section, {})[key] = value
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def squad_file(path: Path, articles: int = 4, paragraphs: int = 3) -> Path:
    """Writes a SQuAD-format file about modules of the standard library: real names, real first lines."""
    import ast
    import sysconfig

    stdlib = Path(sysconfig.get_paths()["stdlib"])
    data = []
    for source in sorted(stdlib.glob("*.py"))[: 8 * articles]:
        tree = ast.parse(source.read_text(encoding="utf-8"))
        functions = [
            node for node in tree.body if isinstance(node, ast.FunctionDef) and ast.get_docstring(node)
        ]
        if len(functions) < paragraphs:
            continue
        entries = []
        for node in functions[:paragraphs]:
            text = f"Function {node.name} of {source.stem}: {(ast.get_docstring(node) or '')[:80]}"
            question = f"Which function of {source.stem} is at line {node.lineno}?"
            answers = [{"text": node.name, "answer_start": 9}]
            entries.append({"context": text, "qas": [{"id": "0", "question": question, "answers": answers}]})
        data.append({"title": source.stem, "paragraphs": entries})
    path.write_text(json.dumps({"version": "1.1", "data": data[:articles]}))
    return path


def logged_losses(run: Path) -> list[float]:
    """Returns the training losses that a finished run logged."""
    log = json.loads((run / "results.json").read_text())["details"]["log"]
    return [entry["loss"] for entry in log if "loss" in entry]


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a script: one thread, this source tree, no network."""
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), **offline, **more}


def run_script(name: str, *words: str | Path, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs a script of train_scripts in a process of its own."""
    command = [sys.executable, str(SCRIPTS / name), *map(str, words)]
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
