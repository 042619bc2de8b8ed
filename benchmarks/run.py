"""Runs the benchmarks and writes benchmarks/RESULTS.md.

python -m benchmarks.run --short          # few sizes and rounds
python -m benchmarks.run --full           # everything
python -m benchmarks.run --only core      # one section; the others of the page stay

Sections of a short run have titles of their own, and leave those of full runs alone.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.report import Row, write_section

SECTIONS = {
    "core": "Position encoder",
    "vit:224": "ViT-S at 224 pixels against timm and transformers",
    "vit:448": "ViT-S at 448 pixels against timm and transformers",
    "vit:672": "ViT-S at 672 pixels against timm and transformers",
    "vit:cost": "ViT-S, what positions cost",
    "vit:training": "ViT-S, training steps",
    "vit:large": "ViT-S, large batches",
    "gpt2": "GPT-2 124M against transformers",
    "gpt2:others": "GPT-2 124M, the other encodings",
    "gpt2:long": "GPT-2 124M, long contexts",
    "gpt2:longest": "GPT-2 124M, the longest contexts",
    "gpt2:memory": "GPT-2 124M, memory",
    "gpt2:caches": "GPT-2 124M, memory of decoding",
    "release": "Against the authors' release",
    "compiled": "torch.compile and bf16",
    "startup": "Start-up",
    "training": "Our trainer against a loop by hand",
}
GELU_NOTE = (
    "Our GPT-2 computes GELU in fewer passes over memory than transformers' does by default and the release "
    "did, which is part of why it can be faster than the baseline. What PyTorch's GELU does for the baseline "
    'stands under "GPT-2 124M against transformers" (training) and "the other encodings" (inference).'
)
NOTES = {
    **dict.fromkeys(
        ("vit:224", "vit:448", "vit:672"),
        "timm's rotary ViTs are of another class (Eva), whose layers are scaled.",
    ),
    "vit:cost": "A forward pass cannot show a cost of one percent on a shared machine, where the same model "
    'built twice ("a second time") differs as much. So one attention layer is timed, in hundreds of short '
    "pairs; brackets then hold the median with 95 percent. The pass is computed from that, from the share "
    "of its layers in it and from the time of preparing positions, and judged by the bracket.",
    **dict.fromkeys(
        ("gpt2", "gpt2:others", "gpt2:long", "gpt2:longest", "release", "compiled"),
        GELU_NOTE,
    ),
    "gpt2:memory": "A fresh process for each model: building it and a first pass, which also encodes all "
    f"positions; that pass is timed once, later ones stand in the sections above. {GELU_NOTE}",
    "gpt2:caches": "A fresh process for each figure: building the model, filling a cache and decoding four "
    "tokens.",
}
"""What a reader must know of a section."""

THREADS = 2
RESULTS = Path(__file__).parent / "RESULTS.md"

# glibc gives freed memory back to the system at moments that depend on the order of allocations; getting it
# again costs page faults, up to a tenth of a forward pass, which one model has and its twin has not. With
# these settings memory is kept, as PyTorch's tuning guide advises, and equal models measure equal. More than
# any model here needs: with 4 GB a training step that needs a little more paid for what another had for free.
KEEP_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "64000000000")
SECTION_PROCESS = "SEQPE_BENCH_SECTION"
"""Tells a process that it was started, with these settings, to measure one section."""


def main() -> None:
    """Parses arguments, measures section by section, shows and writes the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--short", action="store_true", help="few repetitions (the default)")
    length.add_argument("--full", action="store_true", help="all sizes, more repetitions")
    parser.add_argument("--only", choices=SECTIONS, nargs="+", help="measure these sections alone")
    options = parser.parse_args()
    length = "--full" if options.full else "--short"
    if os.environ.pop(SECTION_PROCESS, None):
        for setting in KEEP_MEMORY:  # processes that measure peaks of memory must not inherit them
            os.environ.pop(setting, None)
        torch.set_num_threads(THREADS)
        _measure(options.only[0], options.full, f"python -m benchmarks.run {length} --only {options.only[0]}")
        return
    begin = time.perf_counter()
    for name in options.only or SECTIONS:
        # A process for each section: what one has kept of memory is not missing in the next.
        command = [sys.executable, "-m", "benchmarks.run", length, "--only", name]
        ended = subprocess.run(command, env={**os.environ, **KEEP_MEMORY, SECTION_PROCESS: "1"}, check=False)
        if ended.returncode:
            sys.exit(f"section {name} failed; what was measured before is in {RESULTS}")
    print(f"all in {(time.perf_counter() - begin) / 60:.1f} minutes; results are in {RESULTS}")


def _measure(name: str, full: bool, command: str) -> None:
    """Measures a section, shows it and writes it row by row: an interrupted run keeps what it had."""
    begin = time.perf_counter()
    origin = f"Measured by `{command}` on {date.today()}, commit {_commit()}. {NOTES.get(name, '')}".strip()
    title = SECTIONS[name] if full else f"{SECTIONS[name]} (short run)"
    module, _, part = name.partition(":")
    measure = getattr(importlib.import_module(f"benchmarks.{module}"), f"run_{part}" if part else "run")
    rows = []
    for row in measure(full):
        print(f"{row.what}: {row.measured} {row.bar}", flush=True)
        rows.append(row)
        write_section(title, rows, origin, RESULTS)
    if rows:
        print(f"{name}: {(time.perf_counter() - begin) / 60:.1f} minutes")
        _show(title, rows)


def _commit() -> str:
    """The commit that is measured, marked when files differ from it; results themselves may."""
    if shutil.which("git") is None:
        return "unknown"
    git = ["git", "-C", str(RESULTS.parent)]
    found = subprocess.run(
        [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    if found.returncode:
        return "unknown"
    changed = subprocess.run(
        [*git, "status", "--porcelain", "--", "..", f":!{RESULTS.name}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() + (" with changes" if changed.stdout.strip() else "")


def _show(title: str, rows: list[Row]) -> None:
    table = Table("what", "measured", "bar", "reached", title=title)
    for row in rows:
        table.add_row(row.what, row.measured, row.bar, {True: "yes", False: "NO", None: ""}[row.reached])
    Console().print(table)


if __name__ == "__main__":
    main()
