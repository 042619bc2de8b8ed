"""Command line of this room: `convert` and `graft`.

Definitions import nothing heavy; handlers import what they need and return an exit code: 0 when the folder
was written, 2 when the source or an option is bad, and then nothing was written.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

FORMATS = ("authors", "timm", "gpt2")
INTEGRATIONS = ("input", "mul", "sum", "bias")


def add_subcommands(subparsers: Any) -> None:
    """Adds the commands to the parser of the command line."""
    _add_convert(subparsers)
    _add_graft(subparsers)


def _add_convert(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "convert",
        help="turn weights of others into a checkpoint of the zoo",
        description="Turns the authors' release (huayangli/seqpe), timm's and naver-ai's rotary ViTs, or "
        "GPT-2 into a folder that timm or transformers loads. Every key is checked before a file is written.",
    )
    parser.add_argument("source", help="folder, Hub id, timm name or weights file")
    parser.add_argument("target", type=Path, help="folder to make; must not exist")
    parser.add_argument("--format", choices=FORMATS, help="what the source is (default: look at it)")
    parser.add_argument("--subfolder", help="of the release: image_seqpe_ckpt, lm_seqpe_ckpt, qa_seqpe_ckpt")
    parser.add_argument("--revision", help="of a Hub repository")
    parser.add_argument(
        "--weights", help="of the release: which step (default best_model.pth, or the folder best_model)"
    )
    parser.add_argument("--train-length", type=int, help="of a text run whose files do not tell it")
    parser.add_argument("--image-size", type=int, default=224, help="of a file of naver-ai (224)")
    _add_library(parser)
    parser.set_defaults(handler=_explaining(_convert))


def _add_graft(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "graft",
        help="put SeqPE into a trained GPT-2 or ViT, warm",
        description="Replaces the learned position table of a GPT-2 (openai-community/gpt2), or of a ViT or "
        "DeiT of timm, by SeqPE, fitted to the table, and says how far the logits moved. Fine-tune the "
        "result: SeqPE then reaches beyond the length or resolution of the table.",
    )
    parser.add_argument("source", help="folder or Hub id of a GPT-2, or timm name (also local-dir:, hf-hub:)")
    parser.add_argument("target", type=Path, help="folder to make; must not exist")
    parser.add_argument(
        "--integration",
        choices=INTEGRATIONS,
        default="input",
        help="input (default) keeps the model as it was",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of SeqPE, as num_digits=4; repeatable",
    )
    parser.add_argument("--fit-steps", type=int, default=500, help="of fitting the encoder (500)")
    parser.add_argument("--revision", help="of a Hub repository")
    parser.add_argument("--seed", type=int, default=0)
    _add_library(parser)
    parser.set_defaults(handler=_explaining(_graft))


def _add_library(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--library",
        choices=("both", "timm", "transformers"),
        default="both",
        help="that loads a ViT (both, from the same weights; timm where transformers has no such model)",
    )


def _explaining(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Turns errors about the user's input into a sentence and exit code 2."""

    def handler(arguments: argparse.Namespace) -> int:
        from .errors import ConversionError

        try:
            if arguments.target.exists():
                raise ConversionError(f"{arguments.target} exists; give a new name, nothing is overwritten")
            return run(arguments)
        except ConversionError as error:
            sys.stderr.write(f"error: {error}\n")
            return 2
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; nothing was written\n")
            return 130

    return handler


def _convert(arguments: argparse.Namespace) -> int:
    kind = arguments.format or guess_format(arguments.source, arguments.subfolder)
    if kind == "authors":
        from .authors_release import load_authors

        converted = load_authors(
            arguments.source,
            arguments.subfolder,
            arguments.revision,
            arguments.weights,
            arguments.train_length,
        )
    elif kind == "timm":
        from .timm_rope import convert_timm_rope

        converted = convert_timm_rope(arguments.source, arguments.image_size)
    else:
        from .gpt2 import convert_gpt2

        converted = convert_gpt2(arguments.source, arguments.revision)
    converted = _write(converted, arguments)
    count = sum(converted.record["tensors"].values())
    libraries = "both libraries" if converted.library == "both" else converted.library
    _say(f"{arguments.target}: {count} tensors of {converted.record['format']} for {libraries}")
    for name in converted.record["left_out"]:
        _say(f"  left out: {name}")
    _say_how_to_load(converted, arguments.target)
    return 0


def _graft(arguments: argparse.Namespace) -> int:
    from .graft import graft_gpt2, graft_vit
    from .graft_sources import load_for_graft, text_probe
    from .zoo_checkpoint import public_name

    options = parse_options(arguments.option)
    source = load_for_graft(arguments.source, arguments.revision)
    shared = {"fit_steps": arguments.fit_steps, "seed": arguments.seed}
    if source.kind == "vit":
        converted, report = graft_vit(
            source.model, source.architecture, source.model_args, arguments.integration, options, **shared
        )
    else:
        length = source.model.config.n_positions
        probe, name = text_probe(source, length)
        converted, report = graft_gpt2(
            source.model, arguments.integration, options, probe=probe, probe_name=name, **shared
        )
        if source.tokenizer is not None:
            converted.companions.append(source.tokenizer)
    converted.record["source"] = public_name(arguments.source)
    converted = _write(converted, arguments)
    for line in report.lines():
        _say(line)
    _say_how_to_load(converted, arguments.target)
    _say("next: fine-tune it; beyond the old table it knows nothing yet")
    return 0


def _write(converted: Any, arguments: argparse.Namespace) -> Any:
    """Writes the checkpoint for the library asked for, and returns what was written."""
    from dataclasses import replace

    from .errors import ConversionError
    from .vit_formats import transformers_config, vit_for_transformers
    from .zoo_checkpoint import write_checkpoint

    if converted.library == "timm" and arguments.library == "transformers":
        converted = vit_for_transformers(converted)
    elif converted.library == "timm" and arguments.library == "both":
        try:
            transformers_config(converted.model, converted.model_args)
            converted = replace(converted, library="both")
        except ConversionError as error:
            _say(f"for timm alone: {error}")
    write_checkpoint(converted, arguments.target)
    return converted


def guess_format(source: str, subfolder: str | None) -> str:
    """Tells what a source is by looking at it.

    Raises:
        ConversionError: it cannot be told.
    """
    from .errors import ConversionError

    path = Path(source)
    if path.is_file() or source.startswith(("local-dir:", "hf-hub:")):
        return "timm"
    if subfolder is not None or (path / "pe_config.json").is_file() or any(path.glob("*.pth")):
        return "authors"
    if (path / "config.json").is_file():
        return "gpt2"
    if not path.exists() and source.count("/") == 1 and not source.startswith((".", "~")):
        return "gpt2" if "gpt2" in source.lower() else "authors"
    if "/" not in source and not path.exists():
        import timm

        if timm.is_model(source.split(".")[0]):
            return "timm"
    raise ConversionError(f"{source} is no known source; say what it is by --format {'|'.join(FORMATS)}")


def parse_options(words: list[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words; values as in YAML.

    Raises:
        ConversionError: a word has no '=', or its value is not YAML.
    """
    import yaml

    from .errors import ConversionError

    options = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise ConversionError(f"--option {word!r} must be NAME=VALUE, as num_digits=4")
        try:
            options[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConversionError(f"--option {word!r}: the value is not YAML") from error
    return options


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say_how_to_load(converted: Any, target: Path) -> None:
    if converted.library in ("timm", "both"):
        _say(f'load it: import seqpe_zoo, timm; timm.create_model("local-dir:{target}", pretrained=True)')
    if converted.library in ("transformers", "both"):
        text = getattr(getattr(converted.model, "config", None), "model_type", "").endswith("gpt2")
        kind = "CausalLM" if text else "ImageClassification"
        _say(f'load it: AutoModelFor{kind}.from_pretrained("{target}", trust_remote_code=True)')
