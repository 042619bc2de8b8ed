"""Bring the portable code of published repositories up to date. Weights, card and tokenizer are not touched.

For every repository: read its config, find the code files its `auto_map` needs today, show the difference,
prove that the published weights give the recorded logits with the new code, and commit code and manifest
together on the head that was read. Without `yes` only the difference is shown.
"""

from __future__ import annotations

import difflib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .client import Client
from .commit import send_commit, set_tag
from .config_rules import auto_map_modules, code_closure, update_auto_map
from .errors import CheckFailed, ParentMoved, UsageError
from .files import read_json, read_text, write_json
from .manifest import MANIFEST, PORTABLE, file_entry, package_facts, read_manifest
from .plan import Target, make_plan, read_remote


def sync_code(
    client: Client,
    target: Target,
    *,
    yes: bool,
    portable: Path = PORTABLE,
    load: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[str, str | None]:
    """Compare, and with `yes` update, the code of one repository.

    Args:
        client: an open client.
        target: a repository made by `push`, the branch, and a tag for the new commit.
        yes: make the commit.
        portable: where the current portable code lies.
        load: before committing, run the published weights with the new code and compare the logits.
        progress: called with a line a step.

    Returns:
        The difference, empty when there is none, and the commit, if one was made.
    """
    repo_id, parent = target.repo_id, read_remote(client, target).parent or ""
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_sync_") as scratch:
        folder = _download(client, repo_id, parent, Path(scratch) / "code", ["*.safetensors"])
        diff, stale = _update(folder, repo_id, portable)
        if not diff or not yes:
            return diff, None
        if load:
            progress(f"running the weights of {repo_id} with the new code")
            full = _download(client, repo_id, parent, Path(scratch) / "full")
            _update(full, repo_id, portable)
            _require_same_logits(full, repo_id)
        plan = make_plan(client, folder, replace(target, unknown_files="keep"))
        if plan.parent != parent:
            raise ParentMoved(f"somebody committed to {repo_id} meanwhile")
        plan.files = [replace(file, action="delete") if file.path in stale else file for file in plan.files]
        version = read_manifest(folder)["package"]["portable_version"]
        commit, _ = send_commit(client, folder, plan, f"seqpe_zoo: portable code {version or ''}".strip())
        progress(f"{repo_id}: commit {commit[:12]} updates {', '.join(file.path for file in plan.changes)}")
        if target.tag:
            set_tag(client, target, commit, progress)
    return diff, commit


def _update(folder: Path, repo_id: str, portable: Path) -> tuple[str, set[str]]:
    """Replace the code in a downloaded folder; return the difference and the names that are gone."""
    manifest, config = read_manifest(folder), read_json(folder / "config.json")
    update_auto_map(config)
    modules = auto_map_modules(config)
    if not modules:
        raise UsageError(f"{repo_id} carries no code: its config.json has no auto_map")
    wanted = {path.name: read_text(path) for path in code_closure(portable, modules)}
    if config != read_json(folder / "config.json"):
        wanted["config.json"] = json.dumps(config, indent=2, sort_keys=True) + "\n"
    stale = {name for name in manifest["files"] if name.endswith(".py")} - set(wanted)
    diff = ""
    for name in sorted({*wanted, *stale}):
        path, new = folder / name, wanted.get(name)
        texts = [text.splitlines(True) for text in (read_text(path) if path.is_file() else "", new or "")]
        diff += "".join(difflib.unified_diff(*texts, f"published/{name}", f"current/{name}"))
        if new is None:
            path.unlink(missing_ok=True)
            del manifest["files"][name]
        else:
            path.write_text(new, encoding="utf-8")
            manifest["files"][name] = file_entry(path)
    if diff:
        write_json(folder / MANIFEST, {**manifest, "package": package_facts(portable)})
    return diff, stale


def _download(
    client: Client, repo_id: str, commit: str, place: Path, without: list[str] | None = None
) -> Path:
    cache = place.with_suffix(".cache")
    client.download(repo_id, commit, local_dir=place, cache_dir=cache, ignore_patterns=without)
    shutil.rmtree(place / ".cache", ignore_errors=True)  # the client's notes
    return place


def _require_same_logits(folder: Path, repo_id: str) -> None:
    from .clean_room import loading_problems, probe

    recorded = read_manifest(folder)["fingerprints"]
    config = {"model_type": read_json(folder / "config.json").get("model_type")}  # no code travels for timm
    problems, _ = loading_problems(probe(config, folder, weights=folder), recorded)
    if problems:
        raise CheckFailed(
            [f"{repo_id} with the new code: {problem}" for problem in problems],
            "the new code changes a published model; nothing was sent",
        )
