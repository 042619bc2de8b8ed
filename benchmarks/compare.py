"""Compares two runs: python -m benchmarks.compare benchmarks/results.json other.json."""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.report import read_results


def main() -> None:
    """Prints the ratios that both files have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    options = parser.parse_args()
    for path in (options.first, options.second):
        if not path.is_file():
            parser.error(f"{path} is not there; expected a results.json of benchmarks.run")
    print(compare_results(read_results(options.first), read_results(options.second)))


def compare_results(first: dict[str, Any], second: dict[str, Any]) -> str:
    """Returns a table of what both measured; "differs" where their rounds do not overlap."""
    known = dict(_rows(first))
    lines = [f"A: {_origin(first)}", f"B: {_origin(second)}", ""]
    lines += ["| what | A | B | B / A | |", "|---|---|---|---|---|"]
    for key, row in _rows(second):
        if key not in known:
            continue
        own = known[key]
        apart = own["highest"] < row["lowest"] or row["highest"] < own["lowest"]
        change = row["median"] / own["median"]
        words = f"{own['median']:.2f} | {row['median']:.2f} | {change:.2f} | {'differs' if apart else ''}"
        lines.append(f"| {', '.join(key)} | {words} |")
    if len(lines) == 5:
        lines.append("nothing was measured in both")
    return "\n".join(lines)


def _rows(results: dict[str, Any]) -> Iterator[tuple[tuple[str, str, str], dict[str, Any]]]:
    for section in results.values():
        for row in section["rows"]:
            yield (section["title"], row["what"], row["name"]), row


def _origin(results: dict[str, Any]) -> str:
    runs = [section["measured"] for section in results.values()]
    machines = dict.fromkeys(
        f"{run['machine']}, torch {run['versions']['torch']}, {run['date']}" for run in runs
    )
    return "; ".join(machines) or "empty"


if __name__ == "__main__":
    main()
