"""The `results.json` of the paper's models, made from the paper's tables, so that no number is typed twice.

    python -m seqpe_zoo.hub.paper_results model_cards

Tables are in `evaluation/paper_tables.yaml`; which of them belong to which model is here.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

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
    from ..evaluation.paper_tables import load_paper_tables

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


def write_paper_results(folder: Path) -> None:
    """Write `results.json` of all the paper's models below `model_cards`."""
    for model in PAPER_MODELS:
        text = json.dumps(paper_results(model), indent=1) + "\n"
        (folder / model / "results.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write_paper_results(Path(sys.argv[1]))
