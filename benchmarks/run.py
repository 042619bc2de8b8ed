"""Runs the benchmarks and writes benchmarks/RESULTS.md.

python -m benchmarks.run --short          # under ten minutes
python -m benchmarks.run --full           # everything
python -m benchmarks.run --only core      # one section; the page is printed, not written
"""

import argparse
import importlib
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.report import Row, write_results

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
    sections: dict[str, list[Row]] = {}
    for name in options.only or SECTIONS:
        module = importlib.import_module(f"benchmarks.{name}")
        sections[SECTIONS[name]] = module.run(options.full)
        _show(SECTIONS[name], sections[SECTIONS[name]])
        if options.only is None:  # after each section, so that an interrupted run keeps what it measured
            command = f"python -m benchmarks.run --{'full' if options.full else 'short'}"
            write_results(sections, command, RESULTS)


def _show(title: str, rows: list[Row]) -> None:
    table = Table("what", "measured", "bar", "reached", title=title)
    for row in rows:
        table.add_row(row.what, row.measured, row.bar, {True: "yes", False: "NO", None: ""}[row.reached])
    Console().print(table)


if __name__ == "__main__":
    main()
