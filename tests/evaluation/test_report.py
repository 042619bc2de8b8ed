import json
from dataclasses import replace
from pathlib import Path

import pytest

from seqpe_zoo.evaluation.paper_tables import load_paper_tables
from seqpe_zoo.evaluation.report import (
    Measurement,
    Report,
    extrapolation_rows,
    format_setting,
    format_value,
    markdown_table,
    typed_command,
)
from seqpe_zoo.hub.card_facts import load_results

TEXT = {"name": "some text", "id": "some-text", "split": "test"}


def perplexity(model: str, length: int, value: float) -> Measurement:
    return Measurement(model, "text-generation", TEXT, "perplexity", {"length": length}, value)


@pytest.fixture
def report() -> Report:
    values = [("seqpe", 512, 20.0), ("seqpe", 1024, 19.0), ("mine", 512, 30.0), ("mine", 1024, float("nan"))]
    return Report("seqpe-zoo evaluate x", 3, [perplexity(*value) for value in values])


def test_file_says_where_numbers_come_from(report: Report, tmp_path: Path) -> None:
    content = json.loads(report.write(tmp_path).read_text())
    assert content["command"] == "seqpe-zoo evaluate x"
    assert content["versions"]["torch"]
    assert content["by_model"]["mine"]["perplexity"] == {"512": 30.0, "1024": None}
    assert content["results"][0]["seed"] == 3


def test_model_cards_can_read_the_file(report: Report, tmp_path: Path) -> None:
    results = load_results(report.write(tmp_path))
    assert [result.value for result in results] == [20.0, 19.0, 30.0, None]


def test_papers_row_stands_below_ours_where_the_paper_measured_the_same(report: Report) -> None:
    ours = [replace(m, paper_table="language_modelling") for m in report.measurements]
    header, rows = extrapolation_rows(ours, "perplexity")
    assert header == ["Model", "512", "1K", "AVG."]
    assert rows[0] == ["seqpe", "20.00", "19.00", "19.50"]
    assert rows[1][:3] == ["seqpe (paper)", "19.65", "18.74"]
    assert rows[2] == ["mine", "30.00", "-", "-"]


def test_paper_is_not_quoted_beside_other_data(report: Report) -> None:
    _, rows = extrapolation_rows(report.measurements, "perplexity")
    assert [row[0] for row in rows] == ["seqpe", "mine"]


def test_paper_is_not_quoted_at_settings_it_does_not_have() -> None:
    short = replace(perplexity("seqpe", 32, 50.0), paper_table="language_modelling")
    assert extrapolation_rows([short], "perplexity")[1] == [["seqpe", "50.00", "50.00"]]


def test_markdown_has_a_line_for_each_row() -> None:
    assert markdown_table(["Model", "512"], [["a", "1"]]) == "| Model | 512 |\n|---|---:|\n| a | 1 |\n"


@pytest.mark.parametrize(
    ("metric", "value", "shown"),
    [
        ("perplexity", 19.654, "19.65"),
        ("perplexity", 15000.0, "1.5e4"),
        ("accuracy", 81.24, "81.2"),
        ("accuracy", None, "not measured"),
    ],
)
def test_numbers_are_written_as_in_the_paper(metric: str, value: float | None, shown: str) -> None:
    assert format_value(metric, value) == shown


def test_columns_are_named_as_in_the_paper() -> None:
    assert [format_setting(setting) for setting in (224, 512, 1024, 16384)] == ["224", "512", "1K", "16K"]


def test_rows_of_the_paper_have_all_columns_and_its_averages() -> None:
    tables = load_paper_tables()
    for table in tables.values():
        assert all(len(row) == len(table.settings) for row in table.rows.values())
    # Column AVG. of Table 3, which cuts digits off and does not round.
    averages = {"seqpe": 80.1, "nope": 75.9, "rope2d_mixed": 77.8, "ape_learn": 76.1, "ape_sin": 32.7}
    for name, average in averages.items():
        row = tables["image_classification"].rows[name]
        assert sum(row) / len(row) == pytest.approx(average, abs=0.1)


def test_command_has_no_path_of_the_machine() -> None:
    assert typed_command(["/some/where/seqpe-zoo", "evaluate", "/data/model x", "--lengths", "4"]) == (
        "seqpe-zoo evaluate 'model x' --lengths 4"
    )
    assert typed_command(["seqpe-zoo", "train", "a.yaml", "data.source=/data/pictures", "a=b=c"]) == (
        "seqpe-zoo train a.yaml data.source=pictures a=b=c"
    )
