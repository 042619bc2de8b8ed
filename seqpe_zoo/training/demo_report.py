"""The report of the demo: one HTML file that needs nothing else, and the same tables on the terminal."""

from __future__ import annotations

import base64
import html
from pathlib import Path
from typing import Any

import torch

from ..evaluation.diagnostics import similarity_matrix
from ..evaluation.model_loading import load_image_model, load_language_model
from ..evaluation.plots import figure_bytes, plot_extrapolation, plot_grid_heatmaps, plot_similarity
from ..evaluation.position_space import (
    diagnose_line,
    encoding_with_vectors,
    grid_heatmaps,
    position_vectors,
)
from ..evaluation.report import Report, by_model, extrapolation_rows
from .demo_jobs import IMAGE_MULTIPLES, IMAGE_RESOLUTION, TEXT_LENGTH, TEXT_MULTIPLES, DemoJob

SECTIONS = (
    ("text-generation", "perplexity", "length", TEXT_LENGTH, "Text: perplexity, lower is better"),
    ("image-classification", "accuracy", "resolution", IMAGE_RESOLUTION, "Images: accuracy in percent"),
)
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color:
#222; } h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; } table { border-collapse:
collapse; margin: 1rem 0; } th, td { padding: .3rem .8rem; border-bottom: 1px solid #ddd; }
td:not(:first-child), th:not(:first-child) { text-align: right; font-variant-numeric: tabular-nums; } img {
max-width: 100%; } pre { background: #f5f5f3; padding: .8rem; overflow-x: auto; font-size: .85rem; } .note {
color: #555; font-size: .9rem; }
"""


def show_tables(report: Report, console: Any) -> None:
    """Prints the tables of the report."""
    from ..evaluation.commands import print_table

    for task, metric, _, _, title in SECTIONS:
        of_task = [m for m in report.measurements if m.task == task]
        if of_task:
            print_table(console, title, *extrapolation_rows(of_task, metric))
            for sentence in findings(report, task, metric):
                console.print(sentence, markup=False)


def findings(report: Report, task: str, metric: str) -> list[str]:
    """Says in words what the numbers of a task show, whoever wins."""
    table = {
        name: values[metric]
        for name, values in by_model([m for m in report.measurements if m.task == task]).items()
    }
    settings = sorted({int(setting) for values in table.values() for setting in values})
    first, last = str(settings[0]), str(settings[-1])
    better, digits = (max, 1) if metric == "accuracy" else (min, 2)
    sentences = []
    for place, setting in (("As trained", first), (f"At {settings[-1] / settings[0]:g} times that", last)):
        best = better(table, key=lambda name: table[name][setting] or 0.0)
        others = ", ".join(
            f"{name} {values[setting]:.{digits}f}" for name, values in table.items() if name != best
        )
        sentences.append(
            f"{place} ({setting}), {best} is best with {table[best][setting]:.{digits}f}; {others}."
        )
    return sentences


def write_demo_report(report: Report, jobs: list[DemoJob], output: Path) -> Path:
    """Writes `index.html` and returns its path."""
    parts = [
        "<h1>Position encodings beyond the context they were trained on</h1>",
        "<p>Tiny models, trained by this demo a moment ago on data that every Python installation has: the "
        "source of the standard library as bytes, and scikit-learn's handwritten digits. Within a task, "
        "models differ in their position encoding only. One seed, one learning rate: an illustration, not "
        "a benchmark.</p>",
        f"<pre>{html.escape(report.command)}</pre>",
    ]
    for task, metric, axis, trained_at, title in SECTIONS:
        of_task = [m for m in report.measurements if m.task == task]
        if not of_task:
            continue
        header, rows = extrapolation_rows(of_task, metric)
        curves = {
            model: {int(setting): value for setting, value in values[metric].items()}
            for model, values in by_model(of_task).items()
        }
        parts += [
            f"<h2>{title}</h2>",
            f"<p class=note>Trained at {axis} {trained_at}, tested at larger ones.</p>",
        ]
        parts.append(html_table(header, rows))
        parts += [f"<p>{html.escape(sentence)}</p>" for sentence in findings(report, task, metric)]
        parts.append(picture(plot_extrapolation(curves, metric, axis, trained_at), f"{metric} by {axis}"))
    kinds = {job.kind for job in jobs}
    if "text" in kinds:
        parts += _text_heatmaps(output)
    if "images" in kinds:
        parts += _image_heatmaps(output)
        parts.append(
            "<p class=note>The digits have 8 x 8 pixels; larger sizes are upsampled and hold no further "
            "detail. That favours encodings that stretch with the picture, as interpolated APE-learn "
            "does.</p>"
        )
    parts += _loading(jobs)
    body = "\n".join(parts)
    page = output / "index.html"
    page.write_text(
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>seqpe_zoo demo</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n",
        encoding="utf-8",
    )
    return page


def html_table(header: list[str], rows: list[list[str]]) -> str:
    """Writes a table."""
    lines = ["<table>", f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in header)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def picture(figure: Any, words: str) -> str:
    """Puts a figure into the page itself."""
    data = base64.b64encode(figure_bytes(figure)).decode("ascii")
    return f'<img alt="{html.escape(words)}" src="data:image/png;base64,{data}">'


def _text_heatmaps(output: Path) -> list[str]:
    from .demo import MODELS

    positions = TEXT_LENGTH * max(TEXT_MULTIPLES)
    matrices, rows = {}, []
    for name, title in (("text_seqpe_plain", "without objectives"), ("text_seqpe", "with both objectives")):
        encoding = encoding_with_vectors(load_language_model(str(output / MODELS / name)).model)
        vectors = position_vectors(encoding, torch.arange(positions).unsqueeze(-1), [positions])
        matrices[title] = similarity_matrix(vectors)
        scores = diagnose_line(encoding, positions)
        kept = ("digit_artefact_score", "nearness_correlation", "coverage_of_all_positions")
        rows.append([title, *(f"{scores[key]:.2f}" for key in kept)])
    header = [
        "SeqPE",
        "digit artefacts (0 is best)",
        "rank correlation with nearness (1 is best)",
        "coverage (1 is best)",
    ]
    return [
        "<h2>Similarity of position vectors, text</h2>",
        "<p>Dot products of the vectors of all pairs of positions. In the paper's Figure 2, positions that "
        "share digits look alike without objectives, however far apart; with them, similarity falls with "
        "distance. The table says how far that holds here.</p>",
        picture(plot_similarity(matrices), "similarity of positions"),
        html_table(header, rows),
    ]


def _image_heatmaps(output: Path) -> list[str]:
    from .demo import MODELS

    parts = [
        "<h2>Similarity of position vectors, images</h2>",
        "<p>Five positions of a grid three times as large as in training, and how similar all others are to "
        "each (the paper's Figure 4).</p>",
    ]
    for name, title in (("vit_seqpe", "SeqPE"), ("vit_ape_learn", "APE-learn")):
        encoding = encoding_with_vectors(load_image_model(str(output / MODELS / name)).model)
        side = int(encoding.train_shape[0] * max(IMAGE_MULTIPLES))
        parts.append(
            picture(plot_grid_heatmaps(grid_heatmaps(encoding, side), title), f"{title}, {side} x {side}")
        )
    return parts


def _loading(jobs: list[DemoJob]) -> list[str]:
    from .demo import MODELS

    snippets = []
    if any(job.kind == "text" for job in jobs):
        snippets.append(
            "import seqpe_zoo  # or trust_remote_code=True, where it is not installed\n"
            "from transformers import AutoModelForCausalLM, AutoTokenizer\n"
            f'model = AutoModelForCausalLM.from_pretrained("{MODELS}/text_seqpe")\n'
            f'tokenizer = AutoTokenizer.from_pretrained("{MODELS}/text_seqpe")\n'
            'ids = tokenizer("def main(", return_tensors="pt").input_ids\n'
            "print(tokenizer.decode(model.generate(ids, max_new_tokens=200, do_sample=True)[0]))"
        )
    if any(job.kind == "images" for job in jobs):
        snippets.append(
            "import seqpe_zoo, timm\n"
            f'model = timm.create_model("local-dir:{MODELS}/vit_seqpe", pretrained=True)\n'
            "from transformers import AutoModelForImageClassification  # the same weights\n"
            f'model = AutoModelForImageClassification.from_pretrained("{MODELS}/vit_seqpe")'
        )
    shown = "".join(f"<pre>{html.escape(snippet)}</pre>" for snippet in snippets)
    return ["<h2>Load the trained models</h2><p class=note>From the folder of this report:</p>", shown]
