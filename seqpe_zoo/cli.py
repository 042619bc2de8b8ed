"""The command line, `seqpe-zoo`: it parses arguments and hands over to the room that does the work.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Each command sets
`handler`, a function of the parsed arguments that returns an exit code.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from . import __version__
from .app.commands import add_subcommands as add_app_commands
from .convert.commands import add_subcommands as add_convert_commands
from .evaluation.commands import add_subcommands as add_evaluation_commands
from .hub.commands import add_subcommands as add_hub_commands
from .training.commands import add_subcommands as add_training_commands


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="seqpe-zoo",
        description="Position encodings for timm and transformers: look at, train, measure, publish them.",
    )
    parser.add_argument("--version", action="version", version=f"seqpe-zoo {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    _add_own_commands(subparsers)
    for add_subcommands in (
        add_training_commands,
        add_evaluation_commands,
        add_app_commands,
        add_convert_commands,
        add_hub_commands,
    ):
        add_subcommands(subparsers)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = build_parser().parse_args(arguments)
    return int(options.handler(options) or 0)


def _add_own_commands(subparsers: Any) -> None:
    listing = subparsers.add_parser("list", help="position encodings, timm models and the zoo's own weights")
    listing.set_defaults(handler=_list)
    info = subparsers.add_parser("info", help="a position encoding and its options")
    info.add_argument("name", help="as printed by `seqpe-zoo list`")
    info.set_defaults(handler=_info)
    bench = subparsers.add_parser("bench", help="compare speed and memory with timm and transformers")
    bench.add_argument("--full", action="store_true", help="all sizes, more repetitions")
    bench.add_argument("--only", nargs="+", metavar="SECTION", default=[], help="as vit, gpt2, llama")
    bench.set_defaults(handler=_bench)


def _list(options: argparse.Namespace) -> int:
    import timm
    from rich.console import Console
    from rich.table import Table

    from .portable.encodings import POSITION_ENCODINGS, list_position_encodings

    table = Table("name", "text", "images", "what it is", title="position encodings")
    text, images = list_position_encodings(1), list_position_encodings(2, causal=False)
    for name, encoding in POSITION_ENCODINGS.items():
        summary = (encoding.__doc__ or "").splitlines()[0]
        table.add_row(name, "yes" if name in text else "", "yes" if name in images else "", summary)
    console = Console()
    console.print(table)
    console.print("timm models:", ", ".join(timm.list_models(["vit_*_seqpe_*", "vit_*_pe_*"])))
    console.print(_zoo_table())
    return 0


def _zoo_table() -> Any:
    from rich.table import Table

    from .evaluation.report import format_value
    from .hub.zoo_entries import zoo_entries

    table = Table(title="trained models that come with the package: seqpe_zoo.zoo_path(NAME)")
    table.add_column("name", no_wrap=True)
    table.add_column("trained on")
    table.add_column("measured")
    for entry in zoo_entries():
        cells = [f"{size.split()[-1]}: {format_value(entry.metric, v)}" for size, v in entry.measured.items()]
        what = f"{entry.metric} at {', '.join(cells)}" if cells else "not measured"
        table.add_row(entry.name, entry.trained_on, what)
    return table


def _info(options: argparse.Namespace) -> int:
    from .portable.encodings import position_encoding_class

    try:
        encoding = position_encoding_class(options.name)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{options.name}: {encoding.__doc__}\n")
    print(f"{encoding.Options.__doc__}\nDefaults:")
    for field in fields(encoding.Options):
        print(f"  {field.name} = {field.default!r}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    repository = Path(__file__).parents[1]
    if not (repository / "benchmarks" / "run.py").is_file():
        print(
            "the benchmarks are in the repository, not in the installed package: clone it and run "
            "`make bench` there",
            file=sys.stderr,
        )
        return 2
    words = [*(["--full"] if options.full else []), *(["--only", *options.only] if options.only else [])]
    command = [sys.executable, "-m", "benchmarks.run", *words]
    return subprocess.run(command, cwd=repository, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
