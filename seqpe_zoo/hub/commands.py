"""The commands stage, check, plan, push, verify, sync-code and card: arguments in, exit code out.

`add_subcommands` only declares arguments; a handler imports what it needs when it runs. Every handler ends
with an exit code from `errors.py` and, on failure, with a sentence on stderr that says what to do. Tokens
never reach the output.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .errors import HubError, explain, guard_output, redact

_EXIT_CODES = """exit codes: 0 done; 2 arguments; 3 push without --yes; 10 not signed in; 11 not permitted;
12 not found; 13 not a Hub; 14 no xet storage; 15 conflict; 16 somebody committed meanwhile; 17 server busy;
18 connection lost; 19 deadline; 20 offline; 21 refused by the Hub; 30 check failed; 32 disk full;
40 tag exists; 41 unknown remote files; 50 verification failed; 130 interrupted; 1 anything else"""


def _say(text: str) -> None:
    sys.stdout.write(redact(text) + "\n")
    sys.stdout.flush()


def _handler(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Turn failures into exit codes and sentences."""

    @functools.wraps(run)
    def guarded(options: argparse.Namespace) -> int:
        guard_output()
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        try:
            return run(options)
        except HubError as error:
            sys.stderr.write(f"error: {error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            sys.stderr.write(
                "\ninterrupted; run the same command again: it continues from what is on the Hub\n"
            )
            return 130
        except Exception as error:  # noqa: BLE001 (the last resort: explained, with the trace, without tokens)
            explained = explain(error, options.command)
            if type(explained) is HubError:
                sys.stderr.write(redact(traceback.format_exc()))
            sys.stderr.write(f"error: {explained}\n")
            return explained.exit_code

    return guarded


# Handlers ---------------------------------------------------------------------------------------------------


@_handler
def run_stage(options: argparse.Namespace) -> int:
    """Make a folder to publish."""
    from .stage import stage

    source = json.loads(options.source) if options.source else None
    staged = stage(
        options.run_folder,
        options.target,
        card_folder=options.card,
        source=source,
        overwrite=options.overwrite,
        fingerprint=not options.no_fingerprint,
        **({"portable": options.portable} if options.portable else {}),
    )
    _say(f"staged {len(staged.files)} files for {' and '.join(staged.libraries)}: {', '.join(staged.files)}")
    if staged.one_library_because:
        _say(f"not for both libraries: {staged.one_library_because}")
    if staged.left_out:
        _say(f"left behind: {', '.join(staged.left_out)}")
    return 0


@_handler
def run_check(options: argparse.Namespace) -> int:
    """Look at a staged folder."""
    from .check import check

    done = check(
        options.folder, load=not options.static, snippets=not (options.static or options.no_snippets)
    )
    _say(f"{options.folder.name}: contents and card are fine")
    for library, found in done.libraries.items():
        _say(f"{library}: {found['class']} loads; {found['tensors_equal']} tensors equal; logits as recorded")
    if done.snippets_run:
        _say(f"{done.snippets_run} snippets of the card ran")
    _say("ready to push" if done.receipt else "not complete: push asks for a check with loading and snippets")
    return 0


def _target(options: argparse.Namespace) -> Any:
    from .plan import default_target

    unknown = "keep" if options.keep_unknown else "delete" if options.delete_unknown else "refuse"
    return default_target(
        options.folder,
        options.repo,
        options.tag,
        revision=options.revision,
        pull_request=options.pr,
        create=options.create,
        unknown_files=unknown,
        move_tag=options.move_tag,
    )


@_handler
def run_plan(options: argparse.Namespace) -> int:
    """Show what a push would do."""
    from .client import open_client
    from .plan import format_plan, make_plan

    with open_client(options.deadline) as client:
        plan = make_plan(client, options.folder, _target(options))
    _say(json.dumps(plan.to_json(), indent=2) if options.json else format_plan(plan))
    return 0


@_handler
def run_push(options: argparse.Namespace) -> int:
    """Publish a staged folder."""
    from .client import open_client
    from .plan import format_plan
    from .push import push
    from .verify import verify

    with open_client(options.deadline) as client:
        target = _target(options)

        def verify_commit(commit: str) -> None:
            found = verify(
                client, target.repo_id, commit, folder=options.folder, load=options.verify != "files"
            )
            _say(f"verified {found.files} files{_loaded(found.libraries)}")

        wanted = options.verify != "none" and (options.public or options.verify is not None)
        if options.public and not wanted:
            raise HubError("--public needs a verification", "drop --verify none")
        done = push(
            client,
            options.folder,
            target,
            yes=options.yes,
            message=options.message,
            public=options.public,
            verify=verify_commit if wanted else None,
            collection=options.collection,
            checked=not options.unchecked,
            show=lambda plan: _say(format_plan(plan)),
            progress=lambda line: _say(f"- {line}"),
        )
    where = done.pull_request_url or f"{client.endpoint}/{done.repo_id}"
    _say(f"done: {where} at {done.commit}{', private' if done.private else ''}")
    return 0


def _loaded(libraries: dict[str, Any]) -> str:
    return "".join(
        f"; {name}: {found['tensors_equal']} tensors equal, logits equal" for name, found in libraries.items()
    )


@_handler
def run_verify(options: argparse.Namespace) -> int:
    """Download and compare."""
    from .client import open_client
    from .verify import verify

    with open_client(options.deadline) as client:
        found = verify(
            client, options.repo, options.revision, folder=options.folder, load=not options.files_only
        )
    _say(f"{found.repo_id} at {found.commit}: {found.files} files as published{_loaded(found.libraries)}")
    return 0


@_handler
def run_sync_code(options: argparse.Namespace) -> int:
    """Update the code of published repositories."""
    from .client import open_client
    from .sync_code import sync_code

    pending = 0
    with open_client(options.deadline) as client:
        for repo in options.repos:
            done = sync_code(
                client,
                repo,
                yes=options.yes,
                tag=options.tag,
                revision=options.revision,
                load=not options.no_load,
                **({"portable": options.portable} if options.portable else {}),
                progress=lambda line: _say(f"- {line}"),
            )
            if not done.changed:
                _say(f"{repo}: up to date")
                continue
            _say(done.diff if done.commit is None else f"{repo}: updated by {done.commit}")
            pending += done.commit is None
    if pending:
        _say(f"{pending} of {len(options.repos)} repositories would change; repeat with --yes to update them")
    return 0


@_handler
def run_card(options: argparse.Namespace) -> int:
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
        raise HubError(
            f"stale cards: {', '.join(stale)}", "render them with `seqpe-zoo card` and commit the READMEs"
        )
    return 0


# Arguments --------------------------------------------------------------------------------------------------


def add_subcommands(subparsers: Any) -> None:
    """Add these commands to `argparse`'s subparsers; each sets `handler`, which returns an exit code."""

    def command(
        name: str, help: str, handler: Callable[[argparse.Namespace], int]
    ) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = subparsers.add_parser(
            name, help=help, description=help, epilog=_EXIT_CODES
        )
        parser.set_defaults(handler=handler, command=name)
        return parser

    parser = command("stage", "make a folder to publish: weights, config, code, card, manifest", run_stage)
    parser.add_argument("run_folder", type=Path, help="what training, convert or graft wrote")
    parser.add_argument("target", type=Path, help="the folder to make")
    parser.add_argument("--card", type=Path, required=True, help="folder with facts.yaml and results.json")
    parser.add_argument("--source", help="where the weights come from, as a JSON object for the manifest")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder staged before")
    parser.add_argument("--portable", type=Path, help="folder with the code that travels; default: ours")
    parser.add_argument(
        "--no-fingerprint", action="store_true", help="do not run the model (check will then refuse)"
    )

    parser = command("check", "look at a staged folder with a stranger's eyes, offline", run_check)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--static", action="store_true", help="contents and card only; no loading, no snippets"
    )
    parser.add_argument("--no-snippets", action="store_true", help="do not run the card's snippets")

    parser = command("plan", "show what a push would do; sends nothing", run_plan)
    _add_target(parser)
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")

    parser = command("push", "publish a checked folder; shows the plan only, unless --yes", run_push)
    _add_target(parser)
    parser.add_argument("--yes", action="store_true", help="really send")
    parser.add_argument("--message", help="commit message")
    parser.add_argument("--public", action="store_true", help="make the repository public after verification")
    parser.add_argument(
        "--verify", choices=("full", "files", "none"), help="verify after the push; --public implies full"
    )
    parser.add_argument("--collection", help="slug of a collection to add the repository to")
    parser.add_argument("--unchecked", action="store_true", help="do not ask for the receipt of `check`")

    parser = command(
        "verify", "download a published revision, compare every hash, load it, compare logits", run_verify
    )
    parser.add_argument("repo", help="owner/name")
    parser.add_argument("--revision", default="main", help="commit, tag or branch")
    parser.add_argument("--folder", type=Path, help="the staged folder it came from")
    parser.add_argument("--files-only", action="store_true", help="compare hashes, do not load the model")
    _add_deadline(parser)

    parser = command("sync-code", "bring the code of published repositories up to date", run_sync_code)
    parser.add_argument("repos", nargs="+", help="owner/name ...")
    parser.add_argument("--yes", action="store_true", help="commit; without it the difference is shown")
    parser.add_argument("--tag", help="tag for the new commit")
    parser.add_argument("--revision", default="main", help="branch")
    parser.add_argument("--portable", type=Path, help="folder with the current code; default: ours")
    parser.add_argument(
        "--no-load", action="store_true", help="do not run the weights with the new code first"
    )
    _add_deadline(parser)

    parser = command("card", "render model cards from facts.yaml and results.json", run_card)
    parser.add_argument("folders", nargs="+", type=Path, help="model_cards/<id> ...")
    parser.add_argument("--fresh", action="store_true", help="write nothing; fail if a README is stale")


def _add_target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a staged folder")
    parser.add_argument("--repo", help="owner/name; default: the one the card names")
    parser.add_argument("--tag", help="default: the one the card names")
    parser.add_argument("--revision", default="main", help="branch to commit to")
    parser.add_argument(
        "--pr", action="store_true", help="open a pull request instead of committing to the branch"
    )
    parser.add_argument(
        "--create", action="store_true", help="create the repository (private) or branch if missing"
    )
    parser.add_argument("--move-tag", action="store_true", help="move the tag if it exists on another commit")
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
