"""The commands stage, check, plan, push, verify, sync-code and card: arguments in, exit code out.

`add_subcommands` only declares arguments; a handler imports what it needs when it runs. Every handler ends
with an exit code from `errors.py` and, on failure, with a sentence on stderr that says what to do. Tokens
never reach the output.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..data.names import did_you_mean
from ..zoo import zoo_folder
from .client import open_client
from .errors import UNEXPECTED, HubError, UsageError, explain, guard_output, redact
from .files import parse_json
from .manifest import PORTABLE, read_manifest
from .plan import Target, format_plan, make_plan

_EXIT_CODES = """exit codes: 0 done; 2 arguments; 3 push without --yes; 10 not signed in; 11 not permitted;
12 not found; 13 not a Hub; 14 no xet storage; 15 conflict; 16 somebody committed meanwhile; 17 server busy;
18 connection lost; 19 deadline; 20 offline; 21 refused by the Hub; 30 check failed; 32 disk full;
40 tag exists; 41 unknown remote files; 50 verification failed; 130 interrupted; 1 anything else"""
Handler = Callable[[argparse.Namespace], None]


def _say(text: str) -> None:
    sys.stdout.write(redact(text) + "\n")
    sys.stdout.flush()


def _guarded(run: Handler) -> Callable[[argparse.Namespace], int]:
    """Turn failures of a handler into exit codes and sentences."""

    def guarded(options: argparse.Namespace) -> int:
        guard_output()
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        try:
            run(options)
            return 0
        except KeyboardInterrupt:
            sys.stderr.write("\ninterrupted; run the same command again: it continues where it was\n")
            return 130
        except Exception as error:  # noqa: BLE001 (the last resort: explained, without tokens)
            explained = explain(error, options.command)
            if explained.remedy == UNEXPECTED:
                sys.stderr.write(redact(traceback.format_exc()))
            sys.stderr.write(f"error: {explained}\n")
            return explained.exit_code

    return guarded


def run_stage(options: argparse.Namespace) -> None:
    """Make a folder to publish."""
    from .stage import stage

    staged = stage(
        options.run_folder,
        options.target,
        card_folder=find_card(options.card, options.run_folder),
        source=parse_json(options.source, "--source") if options.source else None,
        overwrite=options.overwrite,
        fingerprint=not options.no_fingerprint,
        portable=options.portable or PORTABLE,
    )
    _say(f"staged {len(staged.files)} files for {' and '.join(staged.libraries)}: {', '.join(staged.files)}")
    if staged.one_library_because:
        _say(f"not for both libraries: {staged.one_library_because}")
    if staged.left_out:
        _say(f"left behind: {', '.join(staged.left_out)}")


def find_card(name: str | None, run_folder: Path) -> Path:
    """Return the folder with `facts.yaml`: the one named, one of the zoo's, or that of the run itself."""
    if name is None and (run_folder / "facts.yaml").is_file():
        return run_folder
    wanted = name or run_folder.resolve().name
    if name is not None and Path(name).is_dir():
        return Path(name)
    known = sorted(path.parent.name for path in zoo_folder().glob("*/facts.yaml"))
    if wanted not in known:
        remedy = f"give --card a folder with facts.yaml, or one of {', '.join(known)}"
        raise UsageError(f"there is no card {wanted!r}{did_you_mean(wanted, known)}", remedy)
    return zoo_folder() / wanted


def run_check(options: argparse.Namespace) -> None:
    """Look at a staged folder."""
    from .check import check

    load = not options.static
    for line in check(options.folder, load=load, snippets=load and not options.no_snippets):
        _say(line)


def _target(options: argparse.Namespace) -> Target:
    """Return the target the folder's manifest names, unless told otherwise. A pull request has no tag."""
    published_as = read_manifest(options.folder)["published_as"]
    return Target(
        repo_id=options.repo or str(published_as.get("repo_id")),
        revision=options.revision,
        tag=options.tag or (None if options.pr else published_as.get("tag")),
        pull_request=options.pr,
        create=options.create,
        unknown_files="keep" if options.keep_unknown else "delete" if options.delete_unknown else "refuse",
        move_tag=options.move_tag,
    )


def run_plan(options: argparse.Namespace) -> None:
    """Show what a push would do."""
    target = _target(options)
    with open_client(options.deadline) as client:
        plan = make_plan(client, options.folder, target)
    _say(json.dumps(asdict(plan), indent=2) if options.json else format_plan(plan))


def run_push(options: argparse.Namespace) -> None:
    """Publish a staged folder."""
    from .push import push
    from .verify import verify

    if options.public and options.verify == "none":
        raise UsageError("--public needs a verification", "drop --verify none")
    target, how = _target(options), options.verify or ("full" if options.public else "none")
    with open_client(options.deadline) as client:

        def verify_commit(commit: str) -> None:
            for line in verify(client, target.repo_id, commit, folder=options.folder, load=how == "full"):
                _say(f"verified {line}")

        where = push(
            client,
            options.folder,
            target,
            yes=options.yes,
            message=options.message,
            public=options.public,
            verify=verify_commit if how != "none" else None,
            collection=options.collection,
            checked=not options.unchecked,
            show=lambda plan: _say(format_plan(plan)),
            progress=lambda line: _say(f"- {line}"),
        )
    _say(f"done: {where}")


def run_verify(options: argparse.Namespace) -> None:
    """Download and compare."""
    from .verify import verify

    target, load = Target(options.repo, revision=options.revision), not options.files_only
    with open_client(options.deadline) as client:
        for line in verify(client, target.repo_id, target.revision, folder=options.folder, load=load):
            _say(line)


def run_sync_code(options: argparse.Namespace) -> None:
    """Update the code of published repositories."""
    from .sync_code import sync_code

    targets = [Target(repo, revision=options.revision, tag=options.tag) for repo in options.repos]
    pending = 0
    with open_client(options.deadline) as client:
        for target in targets:
            diff, commit = sync_code(
                client,
                target,
                yes=options.yes,
                load=not options.no_load,
                portable=options.portable or PORTABLE,
                progress=lambda line: _say(f"- {line}"),
            )
            _say(
                f"{target.repo_id}: updated by {commit}"
                if commit
                else diff or f"{target.repo_id}: up to date"
            )
            pending += bool(diff and not commit)
    if pending:
        _say(f"{pending} of {len(targets)} repositories would change; repeat with --yes to update them")


def run_card(options: argparse.Namespace) -> None:
    """Render cards, or say which are stale."""
    from .card import render_card

    stale = []
    for folder in options.folders:
        text, path = render_card(folder), folder / "README.md"
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(folder.name)
        if not options.fresh:
            path.write_text(text, encoding="utf-8")
            _say(f"wrote {path}")
    if options.fresh and stale:
        raise HubError(f"stale cards: {', '.join(stale)}", "render them with `seqpe-zoo card`")


def add_subcommands(subparsers: Any) -> None:
    """Add these commands to `argparse`'s subparsers; each sets `handler`, which returns an exit code."""

    def command(name: str, help: str, handler: Handler) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name, help=help, description=help, epilog=_EXIT_CODES
        )
        parser.set_defaults(handler=_guarded(handler), command=name)
        return parser

    parser = command("stage", "make a folder to publish: weights, config, code, card, manifest", run_stage)
    parser.add_argument("run_folder", type=Path, help="what training, convert or graft wrote")
    parser.add_argument("target", type=Path, help="the folder to make")
    parser.add_argument(
        "--card", help="folder with facts.yaml, or name of a card; default: that of the run folder"
    )
    parser.add_argument("--source", help="where the weights come from, as a JSON object for the manifest")
    _flag(parser, "--overwrite", "replace a folder staged before")
    parser.add_argument("--portable", type=Path, help="folder with the code that travels; default: ours")
    _flag(parser, "--no-fingerprint", "do not run the model (check will then refuse)")

    parser = command("check", "check a staged folder offline: contents, card, loading, snippets", run_check)
    parser.add_argument("folder", type=Path)
    _flag(parser, "--static", "contents and card only; no loading, no snippets")
    _flag(parser, "--no-snippets", "do not run the card's snippets")

    parser = command("plan", "show what a push would do; sends nothing", run_plan)
    _add_target(parser)
    _flag(parser, "--json", "print the plan as JSON")

    parser = command("push", "publish a checked folder; shows the plan only, unless --yes", run_push)
    _add_target(parser)
    _flag(parser, "--yes", "really send")
    parser.add_argument("--message", help="commit message")
    _flag(parser, "--public", "make the repository public after verification")
    parser.add_argument(
        "--verify", choices=("full", "files", "none"), help="verify after the push; --public implies full"
    )
    parser.add_argument("--collection", help="slug of a collection to add the repository to")
    _flag(parser, "--unchecked", "do not ask for the receipt of `check`")

    parser = command("verify", "download a revision, compare every hash, load it, compare logits", run_verify)
    parser.add_argument("repo", help="owner/name")
    parser.add_argument("--revision", default="main", help="commit, tag or branch")
    parser.add_argument("--folder", type=Path, help="the staged folder it came from")
    _flag(parser, "--files-only", "compare hashes, do not load the model")
    _add_deadline(parser)

    parser = command("sync-code", "bring the code of published repositories up to date", run_sync_code)
    parser.add_argument("repos", nargs="+", help="owner/name ...")
    _flag(parser, "--yes", "commit; without it the difference is shown")
    parser.add_argument("--tag", help="tag for the new commit")
    parser.add_argument("--revision", default="main", help="branch")
    parser.add_argument("--portable", type=Path, help="folder with the current code; default: ours")
    _flag(parser, "--no-load", "do not run the weights with the new code first")
    _add_deadline(parser)

    parser = command("card", "render model cards from facts.yaml and results.json", run_card)
    parser.add_argument("folders", nargs="+", type=Path, help="model_cards/<id> ...")
    _flag(parser, "--fresh", "write nothing; fail if a README is stale")


def _flag(parser: argparse.ArgumentParser, name: str, help: str) -> None:
    parser.add_argument(name, action="store_true", help=help)


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a staged folder")
    parser.add_argument("--repo", help="owner/name; default: the one the card names")
    parser.add_argument("--tag", help="default: the one the card names")
    parser.add_argument("--revision", default="main", help="branch to commit to")
    _flag(parser, "--pr", "open a pull request instead of committing to the branch")
    _flag(parser, "--create", "create the repository (private) or branch if missing")
    _flag(parser, "--move-tag", "move the tag if it exists on another commit")
    unknown = parser.add_mutually_exclusive_group()
    unknown.add_argument("--keep-unknown", action="store_true", help="leave files that only the Hub has")
    unknown.add_argument("--delete-unknown", action="store_true", help="delete files that only the Hub has")
    _add_deadline(parser)


def _add_deadline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deadline", type=float, default=7200.0, metavar="SECONDS", help="give up after (default 7200)"
    )


def main(argv: list[str] | None = None) -> int:
    """Run these commands alone; `seqpe-zoo` has them among others."""
    parser = argparse.ArgumentParser(prog="seqpe-zoo")
    add_subcommands(parser.add_subparsers(required=True, metavar="command"))
    options = parser.parse_args(argv)
    return int(options.handler(options))
