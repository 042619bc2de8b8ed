"""Command line of this room: `convert` and `graft`.

Definitions import nothing heavy; handlers check names first, then import what they need. They return 0 when
the folder was written, or raise a `DataError` that the command line prints; then nothing was written.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..data.errors import DataError
from ..data.names import parse_model_name, timm_names

FORMATS = ("authors", "timm", "gpt2")
INTEGRATIONS = ("input", "mul", "sum", "bias")


def add_subcommands(subparsers: Any) -> None:
    """Adds the commands to the parser of the command line."""
    parser = subparsers.add_parser(
        "convert",
        help="turn other checkpoints into one of the zoo",
        description="Turns the authors' release (huayangli/seqpe), timm's and naver-ai's rotary ViTs, or "
        "GPT-2 into a folder that timm or transformers loads. Every key is checked before a file is written.",
    )
    parser.add_argument("source", help="folder, Hub id, timm name or weights file")
    parser.add_argument("--format", choices=FORMATS, help="what the source is (default: look at it)")
    parser.add_argument("--subfolder", help="of the release: image_seqpe_ckpt, lm_seqpe_ckpt, qa_seqpe_ckpt")
    parser.add_argument(
        "--weights", help="of the release: which step (default best_model.pth, or the folder best_model)"
    )
    parser.add_argument("--train-length", type=int, help="of a text run whose files do not tell it")
    parser.add_argument("--image-size", type=int, default=224, help="of a file of naver-ai (224)")
    _add_common(parser, _convert)

    parser = subparsers.add_parser(
        "graft",
        help="give a trained model SeqPE, warm",
        description="Gives a trained model SeqPE and says how far its logits moved. A learned table of "
        "positions (GPT-2; ViT, DeiT and DINOv2 of timm or transformers) is replaced by SeqPE fitted to it; "
        "rotary models (Llama, Qwen, ...) keep what they know with --keep-native, which puts SeqPE beside "
        "their own positions; else SeqPE starts from what their rotation does on average. Fine-tune the "
        "result: SeqPE then reaches beyond the length or resolution of training.",
    )
    parser.add_argument("source", help="folder, file of weights, Hub id, or timm name")
    parser.add_argument(
        "--integration",
        choices=INTEGRATIONS,
        help="default: input, which keeps the model as it was; else bias",
    )
    parser.add_argument(
        "--keep-native",
        action="store_true",
        help="keep the model's own positions; SeqPE starts by changing nothing",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of SeqPE, as num_digits=4; repeatable",
    )
    parser.add_argument("--architecture", help="timm's name of the model in a file of weights")
    parser.add_argument("--fit-steps", type=int, default=500, help="of fitting the encoder to a table (500)")
    parser.add_argument("--seed", type=int, default=0)
    _add_common(parser, _graft)


def _add_common(parser: argparse.ArgumentParser, handler: Any) -> None:
    parser.add_argument("target", type=Path, help="folder to make; must not exist")
    parser.add_argument("--revision", help="of a Hub repository")
    parser.add_argument(
        "--library",
        choices=("both", "timm", "transformers"),
        default="both",
        help="that loads a ViT of timm (both, from the same weights; timm where transformers has none such)",
    )
    parser.set_defaults(handler=handler)


def _check_target(target: Path) -> None:
    if target.exists():
        raise DataError(f"{target} exists; give a new name, nothing is overwritten")


def _convert(arguments: argparse.Namespace) -> int:
    _check_target(arguments.target)
    kind = arguments.format or guess_format(arguments.source, arguments.subfolder)
    if kind == "authors":
        from .authors_release import load_authors

        names = ("source", "subfolder", "revision", "weights", "train_length")
        converted = load_authors(*(getattr(arguments, name) for name in names))
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
    _check_target(arguments.target)
    if arguments.fit_steps < 0:
        raise DataError(f"--fit-steps {arguments.fit_steps} must not be negative")
    parse_model_name(arguments.source)
    options = parse_options(arguments.option)

    from .graft import check_options, graft, graft_vit
    from .sources import load_source, public_name, text_probe

    check_options(arguments.integration, options)
    source = load_source(arguments.source, arguments.revision, arguments.architecture)
    words: dict[str, Any] = {
        "integration": arguments.integration,
        "options": options,
        "probe_name": "random images",
    }
    words |= {"keep_native": arguments.keep_native, "fit_steps": arguments.fit_steps, "seed": arguments.seed}
    if source.architecture:
        converted, report = graft_vit(source.model, source.architecture, source.model_args, **words)
    else:
        if getattr(source.model.config, "vocab_size", None) is not None:
            words["probe"], words["probe_name"] = text_probe(source)
        converted, report = graft(source.model, **words)
        converted.companions.extend(source.companions)
    converted.record["source"] = public_name(arguments.source)
    converted = _write(converted, arguments)
    for line in report.lines():
        _say(line)
    _say_how_to_load(converted, arguments.target)
    _say("next: fine-tune it; beyond its training SeqPE knows nothing yet")
    return 0


def _write(converted: Any, arguments: argparse.Namespace) -> Any:
    """Writes the checkpoint for the library asked for, and returns what was written."""
    from dataclasses import replace

    from .shared_checkpoint import transformers_config, vit_for_transformers
    from .zoo_checkpoint import ConversionError, write_checkpoint

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
        DataError: it cannot be told.
    """
    path = Path(source)
    if path.is_file() or source.startswith(("local-dir:", "hf-hub:")):
        return "timm"
    if subfolder is not None or (path / "pe_config.json").is_file() or any(path.glob("*.pth")):
        return "authors"
    if (path / "config.json").is_file():
        return "gpt2"
    if not path.exists() and source.count("/") == 1 and not source.startswith((".", "~")):
        return "gpt2" if "gpt2" in source.lower() else "authors"
    if source.split(".")[0] in timm_names() and not path.exists():
        return "timm"
    raise DataError(f"{source} is no known source; say what it is by --format {'|'.join(FORMATS)}")


def parse_options(words: list[str]) -> dict[str, Any]:
    """Reads NAME=VALUE words; values as in YAML.

    Raises:
        DataError: a word has no '=', or its value is not YAML.
    """
    from .zoo_checkpoint import parse_yaml

    options = {}
    for word in words:
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise DataError(f"--option {word!r} must be NAME=VALUE, as num_digits=4")
        options[name] = parse_yaml(value, f"the value of --option {name}")
    return options


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _say_how_to_load(converted: Any, target: Path) -> None:
    if converted.library in ("timm", "both"):
        _say(f'load it: import seqpe_zoo, timm; timm.create_model("local-dir:{target}", pretrained=True)')
    if converted.library in ("transformers", "both"):
        is_text = getattr(getattr(converted.model, "config", None), "vocab_size", None) is not None
        kind = "CausalLM" if is_text else "ImageClassification"
        _say(f'load it: AutoModelFor{kind}.from_pretrained("{target}", trust_remote_code=True)')
