"""Kills runs at random moments, continues them, and compares all that they leave with a run never killed.

PYTHONPATH=. OMP_NUM_THREADS=1 python tests/training/killed_runs.py 100
"""

import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from seqpe_zoo.training.checkpoints import is_complete, list_checkpoints
from seqpe_zoo.training.job import run_job
from seqpe_zoo.training.launch import build_job
from seqpe_zoo.training.run_config import load_run
from tests.training.helpers import image_recipe, text_recipe

OPTIONS = {"ema_decay": 0.9, "select_best": True, "steps": 22, "save_every": 2, "evaluate_every": 2}
CHANGES = {f"training__{name}": value for name, value in OPTIONS.items()}
STATES = ("model.safetensors", "averaged.safetensors", "optimizer.pt", "scheduler.pt")


def start(recipe: Path) -> multiprocessing.Process:
    """Begins or continues a run in a process that is forked, so that nothing is imported again."""
    work = lambda: run_job(build_job(load_run(recipe)), resume=True, listener=lambda *_: None)  # noqa: E731
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    return process


def left_behind(run: Path) -> dict[str, object]:
    """Returns what a finished run holds: its weights, its last checkpoint, and its figures."""
    states = [run / "model.safetensors", *(run / "checkpoint-22" / name for name in STATES)]
    figures = json.loads((run / "results.json").read_text())["by_model"]
    return {"figures": figures, **{str(path.relative_to(run)): path.read_bytes() for path in states}}


def kill_and_continue(kills: int, folder: Path, seed: int = 0) -> Counter[str]:
    """Kills text and image runs, each at a random moment; says where kills met them and how they ended."""
    draw, outcomes, whole, duration = random.Random(seed), Counter[str](), {}, {}
    makers = {"text": text_recipe, "images": image_recipe}
    for kind, make in makers.items():
        begun = time.monotonic()
        start(make(folder / kind, **CHANGES)).join()
        duration[kind], whole[kind] = time.monotonic() - begun, left_behind(folder / kind / "run")
    for number in range(kills):
        kind = ("text", "images")[number % 2]
        recipe = makers[kind](folder / f"{kind}-{number}", **CHANGES)
        run, process = recipe.parent / "run", start(recipe)
        process.join(draw.uniform(0.0, 1.1 * duration[kind]))
        when = "killed" if process.is_alive() else "finished before the kill"
        process.kill()
        process.join()
        found = {path.name: is_complete(path) for path in list_checkpoints(run)}
        if when == "killed":
            where = "writing a checkpoint" if False in found.values() else "between checkpoints"
            where = where if found else "before any checkpoint"
            when += " after the last step" if found.get("checkpoint-22") else f" {where}"
        again = start(recipe)
        again.join()
        is_equal = again.exitcode == 0 and left_behind(run) == whole[kind]
        outcomes[f"{kind}, {when}: {'equal' if is_equal else 'DIFFERENT'}"] += 1
    return outcomes


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for outcome, count in sorted(kill_and_continue(int(sys.argv[1]), Path(scratch)).items()):
            print(f"{count:4d}  {outcome}")
