"""Makes the pages of the zoo, in a clone: the paper's results, the table of all models, and means over seeds.

    python model_cards/maintain.py pages
    python model_cards/maintain.py samples
    python model_cards/maintain.py seeds model_cards/NAME/results.json RUN_0/results.json RUN_1/results.json

`pages` writes `COLLECTION.md` and, from `evaluation/paper_tables.yaml`, the `results.json` of the paper's
models, so that no number is typed twice. `seeds` writes the `results.json` of a model that was trained with
several seeds: the first run is the one whose weights are published, its numbers stay; each gets the seeds,
the mean and the standard deviation (n - 1) over all runs. `samples` runs the first snippet of each card of
transformers that has weights and notes in `results.json` what it prints.
"""

from __future__ import annotations

import contextlib
import io
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from seqpe_zoo.hub.card import NOT_MEASURED, render_card
from seqpe_zoo.hub.card_facts import Facts, Result, load_facts, load_results, size_of_setting
from seqpe_zoo.hub.check import python_blocks
from seqpe_zoo.hub.errors import HubError, UsageError
from seqpe_zoo.hub.files import read_json

CARDS = Path(__file__).parent

PAGE = """\
# The zoo

Made from the models' facts and results by `python model_cards/maintain.py pages`; do not edit.

| model | encoding | data | metric | as trained | about twice | largest tested | origin |
|---|---|---|---|---|---|---|---|
{rows}

"as trained" is the length or resolution of training, or the smallest one reported. Numbers reported in the
paper are of the authors' own code and weights; each card names the table, or the command that measured. A
number with ± is the mean over the seeds that the card names, with their standard deviation.

## Models

{models}
"""


def render_collection(folder: Path) -> str:
    """Return the page of all models below `model_cards`."""
    rows, models = [], []
    for path in sorted(folder.glob("*/facts.yaml")):
        facts, results = load_facts(path), load_results(path.with_name("results.json"))
        rows += _rows(path.parent.name, facts, results)
        models.append(f"- [{facts.title}]({path.parent.name}/README.md): trained on {facts.trained_on}.")
    return PAGE.format(rows="\n".join(rows), models="\n".join(models))


def _rows(folder: str, facts: Facts, results: list[Result]) -> list[str]:
    encoding = facts.position_encoding
    name = " ".join(str(encoding[key]) for key in ("name", "integration") if encoding.get(key))
    start = f"| [{facts.repo_id.split('/')[-1]}]({folder}/README.md) | {name} |"
    groups: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        groups.setdefault((result.dataset["name"], result.metric, result.origin), []).append(result)
    if not groups:
        return [f"{start} - | - | {' | '.join([NOT_MEASURED] * 4)} |"]
    return [
        f"{start} {dataset} | {metric} | {' | '.join(_cells(group))} | {_origin(origin)} |"
        for (dataset, metric, origin), group in groups.items()
    ]


def _cells(group: Iterable[Result]) -> list[str]:
    """Return the first, the one nearest to twice it, and the last setting; "-" where they coincide."""
    ordered = sorted(group, key=size_of_setting)
    first, last = ordered[0], ordered[-1]
    between = min(
        ordered[1:-1],
        key=lambda result: abs(size_of_setting(result) - 2 * size_of_setting(first)),
        default=None,
    )
    return [
        _cell(first),
        _cell(between) if between is not None else "-",
        _cell(last) if last is not first else "-",
    ]


def _cell(result: Result) -> str:
    value = NOT_MEASURED if result.value is None else f"{result.value:.6g}"
    if result.mean is not None:
        value = f"{result.mean:.4g} ± {result.spread:.2g}"
    setting = ", ".join(f"{name} {value}" for name, value in result.setting.items())
    return f"{value} ({setting})" if setting else value


def _origin(origin: str) -> str:
    return "reported in the paper" if origin == "paper" else "measured here"


IMAGENET = {"name": "ImageNet-1k", "id": "ILSVRC/imagenet-1k", "split": "validation"}
WIKITEXT = {
    "name": "WikiText-103",
    "id": "Salesforce/wikitext",
    "config": "wikitext-103-raw-v1",
    "split": "test",
}
RULER = {"name": "RULER-SQuAD", "id": "rajpurkar/squad", "split": "validation"}

PAPER_MODELS: dict[str, list[tuple[str, str, dict[str, str], str]]] = {
    "vit_small_patch16_seqpe_224.mul_in1k": [
        ("image_classification", "image-classification", IMAGENET, "resolution")
    ],
    "gpt2-seqpe-bias-wikitext103": [("language_modelling", "text-generation", WIKITEXT, "length")],
    "gpt2-seqpe-bias-squad-qa": [
        ("question_answering", "text-generation", RULER, "length"),
        ("question_answering_match", "text-generation", RULER, "length"),
    ],
}
"""Folder of `model_cards/`: for each of its tables the name, the task, the data set, and what varies."""


def paper_results(model: str, row: str = "seqpe") -> dict[str, Any]:
    """Return the content of a model's `results.json`."""
    from seqpe_zoo.evaluation.paper_tables import load_paper_tables

    results = []
    for name, task, dataset, setting in PAPER_MODELS[model]:
        table = load_paper_tables()[name]
        results += [
            {
                "task": task,
                "dataset": dataset,
                "metric": table.metric,
                "setting": {setting: size},
                "value": table.value(row, size),
                "origin": "paper",
                "where": table.table,
            }
            for size in table.settings
        ]
    return {"results": results}


def merge_seeds(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run's content with seeds, mean and spread of all runs at every number.

    Args:
        runs: contents of `results.json`, as `evaluation.report.Report` writes them.
    """
    if len(runs) < 2:
        raise UsageError("a mean needs the results of at least two runs")
    tables = [{_key(result): result for result in run["results"]} for run in runs]
    seeds = [run.get("seed") for run in runs]
    if None in seeds or len(set(seeds)) < len(seeds):
        raise UsageError(f"the runs must have different seeds; they have {seeds}")
    merged = []
    for key, result in tables[0].items():
        values = [table[key]["value"] if key in table else None for table in tables]
        if None in values:
            raise UsageError(f"not every run has a number for {' '.join(map(str, key))}")
        spread = {"seeds": seeds, "mean": statistics.fmean(values), "spread": statistics.stdev(values)}
        merged.append({**result, **spread})
    return {**runs[0], "results": merged}


def _key(result: dict[str, Any]) -> tuple[str, ...]:
    dataset, setting = result["dataset"], result.get("setting") or {}
    where = [str(dataset[name]) for name in ("name", "split") if name in dataset]
    return (result["metric"], *where, *(f"{name}={value}" for name, value in setting.items()))


def write_pages(folder: Path = CARDS) -> None:
    """Write `results.json` of the paper's models, and the table of all models."""
    for model in PAPER_MODELS:
        text = json.dumps(paper_results(model), indent=1) + "\n"
        (folder / model / "results.json").write_text(text, encoding="utf-8")
    (folder / "COLLECTION.md").write_text(render_collection(folder), encoding="utf-8")


def write_samples(folder: Path = CARDS) -> None:
    """Run the first snippet of each model of transformers with weights, and note what it prints."""
    for weights in sorted(folder.glob("*/model.safetensors")):
        card, path = weights.parent, weights.with_name("results.json")
        facts = load_facts(card / "facts.yaml")
        if facts.libraries[0] == "transformers":
            (_, code), *_ = python_blocks(render_card(card))
            program = compile(code.replace(f'"{facts.repo_id}"', repr(str(card))), str(card), "exec")
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(program, {})
            record = {**read_json(path), "sample": printed.getvalue().strip()}
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Carry out one of the three commands; return the exit code."""
    try:
        if arguments == ["pages"]:
            write_pages()
        elif arguments == ["samples"]:
            write_samples()
        elif arguments[:1] == ["seeds"] and len(arguments) > 3:
            merged = merge_seeds([read_json(Path(path)) for path in arguments[2:]])
            Path(arguments[1]).write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
        else:
            raise UsageError("the arguments are none of these commands", __doc__)
    except HubError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
