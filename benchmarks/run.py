"""Runs the benchmarks and writes benchmarks/RESULTS.md.

python -m benchmarks.run --short          # some twenty minutes on 2 cores
python -m benchmarks.run --full           # everything
python -m benchmarks.run --only core      # one section; the others of the page stay
"""

import argparse
import importlib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import Row, write_section

SECTIONS = {
    "core": "Position encoder",
    "vit": "ViT-S against timm",
    "gpt2": "GPT-2 124M against transformers",
    "training": "Our trainer against a loop by hand",
}
RESULTS = Path(__file__).parent / "RESULTS.md"


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
    command = f"python -m benchmarks.run --{'full' if options.full else 'short'}"
    for name in options.only or SECTIONS:
        rows = importlib.import_module(f"benchmarks.{name}").run(options.full)
        _show(SECTIONS[name], rows)
        # After each section, so that an interrupted run keeps what it measured.
        write_section(SECTIONS[name], rows, f"{command} --only {name}" if options.only else command, RESULTS)


def _show(title: str, rows: list[Row]) -> None:
    table = Table("what", "measured", "bar", "reached", title=title)
    for row in rows:
        table.add_row(row.what, row.measured, row.bar, {True: "yes", False: "NO", None: ""}[row.reached])
    Console().print(table)


if __name__ == "__main__":
    main()
