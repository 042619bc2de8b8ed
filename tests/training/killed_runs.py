"""Kills runs at random moments; what they leave must equal a run never killed: killed_runs.py 100 FOLDER."""

import json
import random
import sys
from collections import Counter
from multiprocessing import get_context, process
from pathlib import Path

from seqpe_zoo.training.checkpoints import is_complete, list_checkpoints
from seqpe_zoo.training.job import run_job
from seqpe_zoo.training.launch import build_job
from seqpe_zoo.training.run_config import load_run
from tests.training.helpers import image_recipe, text_recipe

OPTIONS = {"ema_decay": 0.9, "select_best": True, "steps": 22, "save_every": 2, "evaluate_every": 2}
STATES = ("model.safetensors", "averaged.safetensors", "optimizer.pt", "scheduler.pt")


def start(folder: Path, recipe_of: object) -> process.BaseProcess:
    """Begins or continues a run in a process that is forked, so that nothing is imported again."""
    recipe = recipe_of(folder, **{f"training__{name}": value for name, value in OPTIONS.items()})
    quiet = {"resume": True, "listener": lambda *_: None}
    work = get_context("fork").Process(target=lambda: run_job(build_job(load_run(recipe)), **quiet))
    work.start()
    return work


def left_behind(run: Path) -> list[object]:
    files = [run / "model.safetensors", *(run / "checkpoint-22" / name for name in STATES)]
    return [json.loads((run / "results.json").read_text())["by_model"], *(p.read_bytes() for p in files)]


def kill_and_continue(kills: int, folder: Path, seed: int = 0) -> Counter[str]:
    """Kills text and image runs, each at a random moment; says where kills met them and how they ended."""
    draw, outcomes, whole = random.Random(seed), Counter[str](), {}
    for number in range(-2, kills):  # the first two are not killed
        make, step = (text_recipe, image_recipe)[number % 2], draw.randrange(0, 24, 2)
        run, work = folder / str(number) / "run", start(folder / str(number), make)
        if number < 0:
            work.join()
            whole[make] = left_behind(run)
            continue
        while work.is_alive() and not (run / (f"checkpoint-{step}" if step else "run.yaml")).exists():
            work.join(0.001)  # the folder appears before its files
        work.join(draw.expovariate(10))
        work.kill()
        work.join()
        found = {path.name: is_complete(path) for path in list_checkpoints(run)}
        where = "during a checkpoint" if False in found.values() else "between checkpoints"
        where = "after the last step" if found.get("checkpoint-22") else where if found else "early"
        again = start(folder / str(number), make)
        again.join()
        ended = "equal" if again.exitcode == 0 and left_behind(run) == whole[make] else "DIFFERENT"
        outcomes[f"{make.__name__}, killed {where}: {ended}"] += 1
    return outcomes


if __name__ == "__main__":
    for line, count in sorted(kill_and_continue(int(sys.argv[1]), Path(sys.argv[2])).items()):
        print(f"{count:4d}  {line}")
