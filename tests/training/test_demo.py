import json
import re
from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.evaluation.report import Measurement, Report
from seqpe_zoo.training.demo import run_demo
from seqpe_zoo.training.demo_jobs import DEMO_JOBS, demo_recipe
from seqpe_zoo.training.demo_report import findings
from seqpe_zoo.training.run_config import RUNS
from seqpe_zoo.training.strict_config import build_config


@pytest.mark.parametrize("job", DEMO_JOBS, ids=lambda job: job.name)
def test_recipes_of_the_demo_are_valid(job: object) -> None:
    recipe = demo_recipe(job, "out", 1.0, 0)
    assert build_config(RUNS[recipe["task"]], recipe).training.threads == 1


def test_models_of_a_task_differ_in_their_encoding_only() -> None:
    for kind in ("text", "images"):
        recipes = [demo_recipe(job, "out", 1.0, 0) for job in DEMO_JOBS if job.kind == kind]
        for recipe in recipes:
            del recipe["model"]["position_encoding"], recipe["model"]["position_encoding_args"]
        assert all(recipe == recipes[0] for recipe in recipes)


def test_words_name_the_winner_whoever_it_is() -> None:
    values = {"a": (5.0, 50.0), "b": (6.0, 6.5)}
    measurements = [
        Measurement(
            name, "text-generation", {"name": "x", "id": "x"}, "perplexity", {"length": length}, value
        )
        for name, pair in values.items()
        for length, value in zip((64, 1024), pair, strict=True)
    ]
    words = findings(Report("x", 0, measurements), "text-generation", "perplexity")
    assert words[0].startswith("As trained (64), a is best with 5.0")
    assert words[1].startswith("At 16 times that (1024), b is best with 6.5")


def test_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("important")
    with pytest.raises(DataError, match="holds other files"):
        run_demo(tmp_path)


@pytest.mark.slow
def test_demo_trains_reports_and_leaves_loadable_models(tmp_path: Path) -> None:
    import timm
    from transformers import AutoModelForCausalLM, AutoModelForImageClassification

    output = tmp_path / "report"
    assert run_demo(output, processes=2, scale=0.005) == 0
    results = json.loads((output / "results.json").read_text())
    assert {entry["metric"] for entry in results["results"]} >= {"perplexity", "accuracy"}
    assert set(results["by_model"]) >= {"SeqPE", "SeqPE without objectives", "RoPE", "ALiBi", "RoPE2D"}
    page = (output / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.findall(r'(?:src|href)="(?!data:)', page), "the report must need no other file"
    language = AutoModelForCausalLM.from_pretrained(output / "models" / "text_seqpe")
    assert language(torch.arange(5)[None]).logits.shape == (1, 5, 256)
    vit = timm.create_model(f"local-dir:{output / 'models' / 'vit_seqpe'}", pretrained=True)
    assert vit(torch.zeros(1, 3, 24, 24)).shape == (1, 10)
    AutoModelForImageClassification.from_pretrained(output / "models" / "vit_seqpe")
    assert not list(output.glob("models/*/checkpoint-*"))
