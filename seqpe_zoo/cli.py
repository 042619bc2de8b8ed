"""The command line, `seqpe-zoo`: it parses arguments and hands over to the room that does the work.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Each command sets
`handler`, a function of the parsed arguments that returns an exit code.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
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
    listing = subparsers.add_parser("list", help="position encodings and timm models of this package")
    listing.set_defaults(handler=_list)
    info = subparsers.add_parser("info", help="a position encoding and its options")
    info.add_argument("name", help="as printed by `seqpe-zoo list`")
    info.set_defaults(handler=_info)


def _list(options: argparse.Namespace) -> int:
    import timm
    from rich.console import Console
    from rich.table import Table

    from .portable.registry import POSITION_ENCODINGS, list_position_encodings

    table = Table("name", "text", "images", "what it is", title="position encodings")
    text, images = list_position_encodings(1), list_position_encodings(2, causal=False)
    for name, encoding in POSITION_ENCODINGS.items():
        summary = (encoding.__doc__ or "").splitlines()[0]
        table.add_row(name, "yes" if name in text else "", "yes" if name in images else "", summary)
    console = Console()
    console.print(table)
    console.print("timm models:", ", ".join(timm.list_models(["vit_*_seqpe_*", "vit_*_pe_*"])))
    return 0


def _info(options: argparse.Namespace) -> int:
    from .portable.registry import position_encoding_class

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


if __name__ == "__main__":
    sys.exit(main())
