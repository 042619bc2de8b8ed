import json
import re
from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.evaluation.report import Measurement, Report
from seqpe_zoo.training.demo import run_demo
from seqpe_zoo.training.demo_jobs import DEMO_JOBS, DemoJob, demo_recipe
from seqpe_zoo.training.demo_report import rows_with_winners, verdict
from seqpe_zoo.training.run_config import build_run


@pytest.mark.parametrize("job", DEMO_JOBS, ids=lambda job: job.name)
def test_recipes_of_the_demo_are_valid(job: object) -> None:
    recipe = demo_recipe(job, "out", 1.0, 0)
    assert build_run(recipe).training.threads == 1


def test_models_of_a_task_differ_in_their_encoding_only() -> None:
    for kind in ("text", "images"):
        recipes = [demo_recipe(job, "out", 1.0, 0) for job in DEMO_JOBS if job.kind == kind]
        for recipe in recipes:
            for name in ("position_encoding", "position_encoding_args", "keep_native"):
                recipe["model"].pop(name, None)
            recipe["training"].pop("position_learning_rate")
        assert all(recipe == recipes[0] for recipe in recipes)


def test_rows_that_are_measured_again_name_a_trained_one() -> None:
    trained = {job.name for job in DEMO_JOBS if job.weights_of is None}
    again = [job for job in DEMO_JOBS if job.weights_of is not None]
    assert again
    assert all(job.weights_of in trained for job in again)


def small_report(values: dict[str, tuple[float, float]]) -> Report:
    measurements = [
        Measurement(
            name, "text-generation", {"name": "x", "id": "x"}, "perplexity", {"length": length}, value
        )
        for name, pair in values.items()
        for length, value in zip((64, 1024), pair, strict=True)
    ]
    return Report("x", 0, measurements)


def test_one_sentence_names_the_best_with_and_without_seqpe() -> None:
    report = small_report({"RoPE": (5.0, 50.0), "ALiBi": (5.5, 6.0), "SeqPE": (5.2, 6.5)})
    words = verdict(report, "text-generation", "perplexity")
    assert words == (
        "As trained (64) the best row with SeqPE is SeqPE (5.20) and the best of the others RoPE (5.00); at "
        "16 times that (1024) they are SeqPE (6.50) and ALiBi (6.00)."
    )


def test_the_winner_of_each_column_is_marked_and_parameters_are_shown() -> None:
    report = small_report({"RoPE": (5.0, 50.0), "SeqPE": (5.2, 6.5)})
    jobs = [DemoJob("a", "RoPE", "text", "native"), DemoJob("b", "SeqPE", "text", "seqpe")]
    report.details = {"a": {"parameters": 1000}, "b": {"parameters": 2000}}
    header, rows, best = rows_with_winners(report, jobs, "text-generation", "perplexity")
    assert header[-1] == "parameters"
    assert [row[-1] for row in rows] == ["1,000", "2,000"]
    assert best == [{1}, {2}]


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
    assert set(results["by_model"]) == {job.label for job in DEMO_JOBS}
    page = (output / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 5
    assert not re.findall(r'(?:src|href)="(?!data:)', page), "the report must need no other file"
    language = AutoModelForCausalLM.from_pretrained(output / "models" / "text_seqpe")
    assert language(torch.arange(5)[None]).logits.shape == (1, 5, 256)
    vit = timm.create_model(f"local-dir:{output / 'models' / 'vit_seqpe'}", pretrained=True)
    assert vit(torch.zeros(1, 1, 24, 24)).shape == (1, 34)
    AutoModelForImageClassification.from_pretrained(output / "models" / "vit_seqpe")
    assert not list(output.glob("models/*/checkpoint-*"))
