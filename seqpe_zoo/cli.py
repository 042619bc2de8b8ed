"""The command line, `seqpe-zoo`: it parses arguments and hands over to the room that does the work.

Nothing heavy is imported before a command runs, so that `--help` answers at once. Each command sets
`handler`, a function of the parsed arguments that returns an exit code. A `DataError` is a mistake in what
was typed: it is printed without a traceback.
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
from .data.errors import DataError
from .data.names import ENCODINGS, did_you_mean, is_own_timm_name, timm_names
from .data.recipes import describe_recipe, list_recipes
from .evaluation.commands import add_subcommands as add_evaluation_commands
from .hub.commands import add_subcommands as add_hub_commands
from .training.commands import add_subcommands as add_training_commands

EXIT_WRONG_INPUT, EXIT_INTERRUPTED = 2, 130


class CommandParser(argparse.ArgumentParser):
    """Parses `COMMAND ...` with options anywhere, and answers mistyped commands with a suggestion."""

    commands: dict[str, argparse.ArgumentParser]

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `ArgumentParser`."""
        words = list(sys.argv[1:] if args is None else args)
        place = next((place for place, word in enumerate(words) if word in self.commands), None)
        if place is not None:
            rest = words[:place] + words[place + 1 :]
            words = [words[place], *arrange_words(self.commands[words[place]], rest)]
        elif words and not words[0].startswith("-"):
            self.error(f"there is no command {words[0]!r}{did_you_mean(words[0], self.commands)}")
        return super().parse_args(words, namespace)


def build_parser() -> CommandParser:
    """Returns the parser of all commands."""
    parser = CommandParser(
        prog="seqpe-zoo",
        description="Position encodings for timm and transformers: look at, train, measure, publish them.",
    )
    parser.add_argument("--version", action="version", version=f"seqpe-zoo {__version__}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=argparse.ArgumentParser
    )
    _add_own_commands(subparsers)
    for add_subcommands in (
        add_training_commands,
        add_evaluation_commands,
        add_app_commands,
        add_convert_commands,
        add_hub_commands,
    ):
        add_subcommands(subparsers)
    parser.commands = dict(subparsers.choices)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    options = build_parser().parse_args(arguments)
    try:
        return int(options.handler(options) or 0)
    except DataError as error:
        sys.stderr.write(f"error: {error}\n")
        return EXIT_WRONG_INPUT
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return EXIT_INTERRUPTED


def arrange_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """Puts what belongs to no option before all options, so that options may stand anywhere.

    Values of an option that takes several numbers end at the first word that is none. Words after `--` belong
    to no option.
    """
    known = parser._option_string_actions
    plain: list[str] = []
    options: list[str] = []
    rest = list(words)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        if not word.startswith("--") and word not in known:
            plain.append(word)
            continue
        options.append(word)
        name, equals, _ = word.partition("=")
        matching = [name] if name in known else [option for option in known if option.startswith(name)]
        if not matching:
            parser.error(f"there is no option {name}{did_you_mean(name, known)}")
        action = known[matching[0]]
        several = action.nargs in ("+", "*")
        count = 0 if equals or action.nargs == 0 else len(rest) if several else 1
        while count and rest and not rest[0].startswith("--") and (not several or _converts(action, rest[0])):
            options.append(rest.pop(0))
            count -= 1
    return [*options, *rest[:1], *plain, *rest[1:]] if rest else [*plain, *options]


def _converts(action: argparse.Action, word: str) -> bool:
    try:
        action.type(word) if callable(action.type) else word
    except (ValueError, argparse.ArgumentTypeError):
        return False
    return True


def _add_own_commands(subparsers: Any) -> None:
    listing = subparsers.add_parser("list", help="position encodings, timm models and the zoo's own weights")
    listing.set_defaults(handler=_list)
    info = subparsers.add_parser("info", help="a position encoding and its options, or a model")
    info.add_argument("name", help="as printed by `seqpe-zoo list`")
    info.set_defaults(handler=_info)
    recipes = subparsers.add_parser("recipes", help="recipes of `train` and comparisons of `compare`")
    recipes.set_defaults(handler=_recipes)
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
    from .hub.card_facts import zoo_entries

    table = Table(title="trained models that come with the package: seqpe_zoo.zoo_path(NAME)")
    table.add_column("name", no_wrap=True)
    table.add_column("trained on")
    table.add_column("measured")
    for entry in zoo_entries():
        cells = [f"{size.split()[-1]}: {format_value(entry.metric, v)}" for size, v in entry.measured.items()]
        what = f"{entry.metric} at {', '.join(cells)}" if cells else "not measured"
        table.add_row(entry.name, entry.trained_on, what)
    return table


def _recipes(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it is", box=None)
    for name, path in list_recipes().items():
        table.add_row(name, describe_recipe(path))
    console = Console(highlight=False)
    console.print(table)
    console.print("seqpe-zoo train NAME section.key=value --dry-run; mini_*: seqpe-zoo compare --recipe NAME")
    return 0


def _info(options: argparse.Namespace) -> int:
    from .hub.card_facts import zoo_entries

    name, entries = options.name, {entry.name: entry for entry in zoo_entries()}
    if name in ENCODINGS:
        lines = _describe_encoding(name)
    elif name in entries:
        lines = _describe_entry(entries[name])
    elif is_own_timm_name(name):
        lines = _describe_timm_model(name)
    else:
        known = [*ENCODINGS, *entries, *filter(is_own_timm_name, timm_names())]
        raise DataError(
            f"there is no position encoding or model {name!r} here (`seqpe-zoo list` shows all)"
            f"{did_you_mean(name, known)}"
        )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _describe_encoding(name: str) -> list[str]:
    from .portable.encodings import position_encoding_class

    encoding = position_encoding_class(name)
    defaults = [f"  {field.name} = {field.default!r}" for field in fields(encoding.Options)]
    return [f"{name}: {encoding.__doc__}", "", str(encoding.Options.__doc__), "Defaults:", *defaults]


def _describe_entry(entry: Any) -> list[str]:
    from .evaluation.report import format_value

    measured = [
        f"  {entry.metric} at {at}: {format_value(entry.metric, v)}" for at, v in entry.measured.items()
    ]
    return [
        f"{entry.name}: a trained model for {entry.task}; seqpe_zoo.zoo_path({entry.name!r}) is its folder",
        f"position encoding: {entry.encoding}",
        f"parameters: {entry.parameters or 'not said'}",
        f"trained on: {entry.trained_on}",
        *(["measured:", *measured] if measured else ["not measured"]),
        f"measure it: seqpe-zoo evaluate {entry.name}",
    ]


def _describe_timm_model(name: str) -> list[str]:
    import timm
    import torch

    if not timm.is_model(name):
        raise DataError(f"timm has no model {name!r}{did_you_mean(name, timm_names())}")
    with torch.device("meta"):
        model = timm.create_model(name)
    encoding, (rows, columns) = model.position_encoding, model.patch_embed.img_size
    return [
        f"{name}: {timm.model_entrypoint(name).__doc__}",
        f"images: {rows} x {columns} in training, patches of {model.patch_embed.patch_size[0]} pixels",
        f"sizes: width {model.embed_dim}, {len(model.blocks)} layers, {encoding.host.num_heads} heads, "
        f"{model.num_classes} classes",
        f"parameters: {sum(parameter.numel() for parameter in model.parameters()):,}",
        f"position encoding: {encoding.name}; another one: pos_embed=NAME, pos_embed_args={{...}}",
        f'build it: import seqpe_zoo, timm; timm.create_model("{name}")',
    ]


def _bench(options: argparse.Namespace) -> int:
    repository = Path(__file__).parents[1]
    if not (repository / "benchmarks" / "run.py").is_file():
        raise DataError(
            "the benchmarks are in the repository, not in the installed package: clone it and run `make "
            "bench` "
            "there"
        )
    words = [*(["--full"] if options.full else []), *(["--only", *options.only] if options.only else [])]
    command = [sys.executable, "-m", "benchmarks.run", *words]
    return subprocess.run(command, cwd=repository, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
