"""Options of recipes: what makes no sense is one sentence before anything is read, whatever was typed."""

import math
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from seqpe_zoo.training.run_config import (
    TASKS,
    AugmentationConfig,
    TrainingConfig,
    build_run,
    load_run,
)
from seqpe_zoo.training.strict_config import ConfigError

from .helpers import text_recipe

ODD = [math.nan, math.inf, -math.inf, -1, 0, 1, 2, -0.5, 0.5, 1.5, 10**30, "", "nan", "x", "1e-3", True, None]
ODD += [[], [1], [0.9, 0.999], [math.nan, 1.0], [0.5, 0.1], {}, {"a": 1}, "\0", "../x"]


@pytest.mark.parametrize(
    "change",
    [
        "training.learning_rate=.nan",
        "training.learning_rate=.inf",
        "training.learning_rate=0",
        "training.learning_rate=nan",
        "training.seed=-1",
        "training.seed=4294967296",
        "training.weight_decay=-0.1",
        "training.warmup_steps=-1",
        "training.warmup_epochs=1",
        "training.warmup_start=1",
        "training.position_learning_rate=-1",
        "training.betas=[0.9, 1.0]",
        "training.betas=[0.9]",
        "training.epsilon=0",
        "training.clip=-1",
        "training.ema_decay=.nan",
        "training.evaluation_batch_size=0",
        "training.evaluate_every=-2",
        "training.workers=-1",
        "training.threads=0",
        "training.output=''",
        "data.length=0",
        "data.max_train_tokens=-5",
        "evaluation.lengths=[0]",
        "evaluation.lengths=[32, -32]",
        "evaluation.max_tokens=0",
    ],
)
def test_what_makes_no_sense_is_refused_by_its_name(tmp_path: Path, change: str) -> None:
    with pytest.raises(ConfigError, match=change.partition("=")[0].partition(".")[2]):
        load_run(text_recipe(tmp_path), [change])


def test_random_options_are_a_run_or_one_sentence() -> None:
    draw, accepted = random.Random(0), 0
    for _ in range(5_000):
        task = draw.choice(list(TASKS))
        recipe: dict[str, Any] = {"task": task, "training": {"output": "run", "steps": 5}}
        kinds = {"training": TrainingConfig, **TASKS[task]}
        for name in {"data", "model"} & set(kinds):
            required = [field.name for field in fields(kinds[name]) if field.default is field.default_factory]
            recipe[name] = dict.fromkeys(required, "given")
        for _ in range(draw.choice((1, 1, 2))):
            section = draw.choice(list(kinds))
            field = draw.choice(fields(kinds[section]))
            recipe.setdefault(section, {})[field.name] = draw.choice(ODD)
        try:
            run = build_run(recipe)
        except ConfigError:
            continue
        accepted += 1
        parts = [run.training, run.augmentation or AugmentationConfig()]
        numbers = [value for part in parts for value in vars(part).values() if isinstance(value, float)]
        assert all(math.isfinite(number) and number >= 0 for number in numbers)
        assert 0 <= run.training.seed < 2**32
    assert 500 < accepted < 4_500


@pytest.mark.parametrize("text", ["&a {task: *a}", "[" * 5000, "task: 2020-13-45"])
def test_yaml_that_no_recipe_is_ends_as_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.yaml"):
        load_run(tmp_path / "recipe.yaml")
