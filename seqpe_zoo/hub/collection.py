"""The zoo in one page: `model_cards/COLLECTION.md`, one comparison table from all facts and results.

    python -m seqpe_zoo.hub.collection model_cards

Each row is a metric of a model: its value at the size of training, at twice that size or the next one
measured, and at the largest. A size that was not measured reads "not measured".
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from .card import NOT_MEASURED
from .card_facts import Facts, Result, load_facts, load_results

PAGE = """\
# The zoo

Made from the models' facts and results by `python -m seqpe_zoo.hub.collection model_cards`; do not edit.

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
    """The first, the one nearest to twice the first, and the last setting; "-" where they coincide."""
    ordered = sorted(group, key=_size)
    first, last = ordered[0], ordered[-1]
    between = min(ordered[1:-1], key=lambda result: abs(_size(result) - 2 * _size(first)), default=None)
    return [
        _cell(first),
        _cell(between) if between is not None else "-",
        _cell(last) if last is not first else "-",
    ]


def _size(result: Result) -> float:
    return float(next((value for value in result.setting.values() if isinstance(value, int | float)), 0))


def _cell(result: Result) -> str:
    value = NOT_MEASURED if result.value is None else f"{result.value:.6g}"
    if result.mean is not None:
        value = f"{result.mean:.4g} ± {result.spread:.2g}"
    setting = ", ".join(f"{name} {value}" for name, value in result.setting.items())
    return f"{value} ({setting})" if setting else value


def _origin(origin: str) -> str:
    return "reported in the paper" if origin == "paper" else "measured here"


def write_collection(folder: Path) -> None:
    """Write the page into `model_cards`."""
    (folder / "COLLECTION.md").write_text(render_collection(folder), encoding="utf-8")


if __name__ == "__main__":
    write_collection(Path(sys.argv[1]))
