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
from .demo_jobs import IMAGE_RESOLUTION, IMAGE_SIZES, TEXT_LENGTH, TEXT_MULTIPLES, DemoJob

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


def show_tables(report: Report, jobs: list[DemoJob], console: Any) -> None:
    """Prints the tables of the report."""
    from ..evaluation.commands import print_table

    for task, metric, _, _, title in SECTIONS:
        if any(m.task == task for m in report.measurements):
            header, rows, best = rows_with_winners(report, jobs, task, metric)
            marked = [
                [f"{cell} *" if column in best[row] else cell for column, cell in enumerate(cells)]
                for row, cells in enumerate(rows)
            ]
            print_table(console, f"{title}; * is the best of a column", header, marked)
            console.print(verdict(report, task, metric), markup=False)


def rows_with_winners(
    report: Report, jobs: list[DemoJob], task: str, metric: str
) -> tuple[list[str], list[list[str]], list[set[int]]]:
    """Returns header and rows of a table, and for each row the columns that it wins."""
    kind = "text" if task == "text-generation" else "images"
    header, rows = extrapolation_rows([m for m in report.measurements if m.task == task], metric)
    by_label = {job.label: job for job in jobs if job.kind == kind}
    for row in rows:
        job = by_label[row[0]]
        count = report.details[job.weights_of or job.name]["parameters"]
        row[-1] = f"{count:,}"  # in place of the average
    best: list[set[int]] = [set() for _ in rows]
    for column in range(1, len(header) - 1):
        values = [float(row[column]) for row in rows]
        winner = (max if metric == "accuracy" else min)(values)
        for row, value in enumerate(values):
            if value == winner:
                best[row].add(column)
    return [*header[:-1], "parameters"], rows, best


def verdict(report: Report, task: str, metric: str) -> str:
    """Says in one sentence what the numbers of a task show, whoever wins."""
    of_task = [m for m in report.measurements if m.task == task]
    table = {name: values[metric] for name, values in by_model(of_task).items()}
    settings = sorted({int(setting) for values in table.values() for setting in values})
    first, last = str(settings[0]), str(settings[-1])
    better, digits = (max, 1) if metric == "accuracy" else (min, 2)

    def best(names: list[str], setting: str) -> str:
        name = better(names, key=lambda name: table[name][setting] or 0.0)
        return f"{name} ({table[name][setting]:.{digits}f})"

    ours = [name for name in table if "SeqPE" in name]
    others = [name for name in table if name not in ours]
    if not (ours and others):
        return f"At {last}, best is {best(list(table), last)}."
    return (
        f"As trained ({first}) the best row with SeqPE is {best(ours, first)} and the best of the others "
        f"{best(others, first)}; at {settings[-1] / settings[0]:g} times that ({last}) they are "
        f"{best(ours, last)} and {best(others, last)}."
    )


def write_demo_report(report: Report, jobs: list[DemoJob], output: Path) -> Path:
    """Writes `index.html` and returns its path."""
    parts = [
        "<h1>Position encodings beyond the context they were trained on</h1>",
        "<p>Tiny models, trained by this demo a moment ago on data that every Python installation has: the "
        "source of the standard library as bytes, read by a Llama of two layers, and letters in the fonts "
        "of matplotlib, seen by a vision transformer of four. Within a task, models differ in their "
        "position encoding only; bold is the best of a column. One seed, one learning rate: an illustration, "
        "not a benchmark.</p>",
        "<p>RoPE + SeqPE is a Llama that keeps its rotation and adds SeqPE's scores to attention "
        "(<code>keep_native=True</code>). Rows of the kind "
        "&quot;stretched&quot;, &quot;positions scaled&quot; and &quot;NTK base&quot; are the models of "
        "another row, measured again with their positions fitted to the longer context: nothing is trained "
        "for them.</p>",
        "<p class=note>How data and settings were chosen: the data comes with Python and matplotlib, so that "
        "nothing is downloaded, and its pictures hold more at a larger size. (The 8 x 8 digits of "
        "scikit-learn, which an earlier demo had, do not; a stretched table was best there.) Options and "
        "learning rates are those of the recipes mini_llama and mini_photos, which were chosen on validation "
        "data of other texts and pictures. All models of a task have the same steps, as many as five minutes "
        "on two cores allow.</p>",
        f"<pre>{html.escape(report.command)}</pre>",
    ]
    for task, metric, axis, trained_at, title in SECTIONS:
        of_task = [m for m in report.measurements if m.task == task]
        if not of_task:
            continue
        curves = {
            model: {int(setting): value for setting, value in values[metric].items()}
            for model, values in by_model(of_task).items()
        }
        parts += [
            f"<h2>{title}</h2>",
            f"<p class=note>Trained at {axis} {trained_at}, tested at larger ones.</p>",
        ]
        parts.append(html_table(*rows_with_winners(report, jobs, task, metric)))
        parts.append(f"<p>{html.escape(verdict(report, task, metric))}</p>")
        parts.append(picture(plot_extrapolation(curves, metric, axis, trained_at), f"{metric} by {axis}"))
    kinds = {job.kind for job in jobs}
    if "text" in kinds:
        parts += _text_heatmaps(output)
    if "images" in kinds:
        parts += _image_heatmaps(output)
        parts.append(
            "<p class=note>Every picture was drawn at 64 pixels, and smaller ones are averages of those: a "
            "larger picture shows more. The test is in fonts that no training picture has. Where the picture "
            "grows as a whole, stretching positions with it is right; that is why stretched rows do well "
            "here.</p>"
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


def html_table(header: list[str], rows: list[list[str]], bold: list[set[int]] | None = None) -> str:
    """Writes a table; `bold` are the columns of each row that are written so."""
    lines = ["<table>", f"<tr>{''.join(f'<th>{html.escape(cell)}</th>' for cell in header)}</tr>"]
    for number, row in enumerate(rows):
        strong = bold[number] if bold else set()
        cells = [
            f"<td><b>{html.escape(cell)}</b></td>" if column in strong else f"<td>{html.escape(cell)}</td>"
            for column, cell in enumerate(row)
        ]
        lines.append(f"<tr>{''.join(cells)}</tr>")
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
        "<p>How alike the vectors of two positions are (dot products; bright is alike): row and column "
        f"are positions 0 to {positions - 1:,}; training texts had the first {TEXT_LENGTH}. A bright "
        "band along the diagonal that fades away from it is what a position encoding should look like: near "
        "positions alike, far ones not. Stripes that repeat every ten or hundred positions mean that the "
        "encoder reads digits, not where they are. The objectives of SeqPE are there to replace the first "
        "picture by the second (the paper's Figure 2); the table says how far they did here.</p>",
        picture(plot_similarity(matrices), "similarity of positions"),
        html_table(header, rows),
    ]


def _image_heatmaps(output: Path) -> list[str]:
    from .demo import MODELS

    parts = [
        "<h2>Similarity of position vectors, images</h2>",
        f"<p>Each panel is a grid of patches, {IMAGE_SIZES[-1] // IMAGE_RESOLUTION} times as large as in "
        "training. The cross is one position, and brightness says how alike the vectors of all others are "
        "to its own (the paper's Figure 3): a bright spot around the cross that fades in all directions "
        "means that the vectors know neighbours in both dimensions.</p>",
    ]
    for name, title in (("vit_seqpe", "SeqPE"), ("vit_ape_learn", "APE-learn")):
        encoding = encoding_with_vectors(load_image_model(str(output / MODELS / name)).model)
        side = encoding.train_shape[0] * IMAGE_SIZES[-1] // IMAGE_RESOLUTION
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
