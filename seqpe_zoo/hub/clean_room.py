"""Fresh interpreters for loading models and running card snippets: no seqpe_zoo, no inherited paths.

Both are done by `probe_script.py`. Torch is only imported in the processes started here, so that the caller
stays light.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from .card import LOCAL_DIR
from .config_rules import libraries_of
from .errors import HubError, redact
from .files import sha256_of
from .manifest import MANIFEST

LOGIT_TOLERANCE = 1e-5  # relative to the largest logit when that exceeds 1
_SCRIPT = Path(__file__).with_name("probe_script.py")
_PACKAGE_PATH = str(Path(__file__).parents[2])
_TIMEOUT = 900
_FOR_THE_HUB = ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_DISABLE_XET")


def _run(
    request: dict[str, Any], scratch: Path, home: Path, online: bool
) -> tuple[list[dict[str, Any]], str]:
    """Return the reports of `probe_script.py`, and the end of what it said beside them."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HF_", "TRANSFORMERS_"))}
    env |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(home)}
    # The code of a local folder runs without a token and without the network.
    env |= {n: os.environ[n] for n in _FOR_THE_HUB if n in os.environ} if online else {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-I", str(_SCRIPT), json.dumps({**request, "package_path": _PACKAGE_PATH})]
    try:
        done = subprocess.run(
            command,
            env={**env, "TOKENIZERS_PARALLELISM": "false"},
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    except subprocess.TimeoutExpired as error:
        raise HubError(f"loading the model or running the snippets took more than {_TIMEOUT} s") from error
    lines = [line.removeprefix("PROBE ") for line in done.stdout.splitlines() if line.startswith("PROBE ")]
    tail = "\n".join(done.stderr.splitlines()[-8:])
    return [json.loads(redact(line)) for line in lines], redact(f"exit {done.returncode}:\n{tail}")


def probe(
    config: dict[str, Any],
    place: str | Path,
    *,
    revision: str | None = None,
    with_package: bool = False,
    weights: Path | None = None,
    home: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Load `place` (a folder, or a repository when `revision` is given) with each library and run it once.

    Without `with_package` transformers must do with the code beside the weights: seqpe_zoo cannot be
    imported. timm may import it when it does not know the architecture, because no code travels for timm.

    Returns by library `problems` (sentences), `class`, `fingerprint` of the logits, and `tensors_equal`, the
    number of tensors that equal those in the folder `weights` bit by bit.
    """
    libraries = libraries_of(config)
    place = str(place) if revision else str(Path(place).resolve())  # the process runs in another folder
    request = {"libraries": libraries, "config": config, "place": place, "revision": revision}
    request |= {"with_package": with_package, "weights": str(Path(weights).resolve()) if weights else None}
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_probe_") as scratch:
        reports, tail = _run(request, Path(scratch), home or Path(scratch) / "home", bool(revision))
    found = {report["library"]: report for report in reports}
    silent = {"problems": [f"the loading process ended without a report ({tail})"]}
    return {library: found.get(library, silent) for library in libraries}


def loading_problems(
    reports: dict[str, dict[str, Any]], recorded: dict[str, Any] | None = None
) -> tuple[list[str], list[str]]:
    """Return what is wrong with the outcome of `probe`, and a sentence for each library that loaded well.

    Args:
        reports: by library.
        recorded: the fingerprints that the logits must have.
    """
    problems, fine = [], []
    for library, report in reports.items():
        wrong = list(report["problems"])
        if recorded is not None and not wrong:
            if library not in recorded:
                wrong.append("no logits fingerprint was recorded; stage again")
            elif difference := compare_fingerprints(report["fingerprint"], recorded[library]):
                wrong.append(difference)
        problems += [f"{library}: {problem}" for problem in wrong]
        if not wrong and recorded is not None:
            fine.append(
                f"{library}: {report['tensors_equal']} tensors equal, logits equal ({report['class']})"
            )
    return problems, fine


def compare_fingerprints(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Return how two logits fingerprints differ, or None when they agree."""
    if found["shape"] != wanted["shape"]:
        return f"logits have shape {found['shape']}, recorded was {wanted['shape']}"
    allowed = LOGIT_TOLERANCE * max(1.0, wanted["absmax"])
    worst = max(abs(a - b) for a, b in zip(found["sample"], wanted["sample"], strict=True))
    if worst > allowed:
        return f"logits differ by {worst:.3g} from those recorded by stage (allowed {allowed:.3g})"
    return None


def _fill_cache(home: Path, folder: Path, repo_id: str, tag: str | None) -> None:
    """Lay out `HF_HOME` as if `folder` had been published as `repo_id`, tagged `tag`, and downloaded."""
    commit = sha256_of(folder / MANIFEST)[:40]
    cache = home / "hub" / f"models--{repo_id.replace('/', '--')}"
    shutil.copytree(folder, cache / "snapshots" / commit)
    for name in filter(None, ("main", tag)):
        (cache / "refs" / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / "refs" / name).write_text(commit, encoding="utf-8")


def run_snippets(
    blocks: list[tuple[int, str]], folder: Path, repo_id: str, tag: str | None = None
) -> list[str]:
    """Execute numbered python blocks where `folder` is in the Hub's cache; return what failed, as sentences.

    The network is not used. Blocks that import seqpe_zoo run with it, all others in a process where it cannot
    be imported.
    """
    problems = []
    for with_package in (False, True):
        group = [(n, code) for n, code in blocks if ("import seqpe_zoo" in code) == with_package]
        if not group:
            continue
        with tempfile.TemporaryDirectory(prefix="seqpe_zoo_snippets_") as scratch:
            home = Path(scratch) / "home"
            _fill_cache(home, folder, repo_id, tag)
            shutil.copytree(folder, Path(scratch) / LOCAL_DIR)  # downloaded before, as offline use asks
            request = {"blocks": group, "with_package": with_package}
            reports, tail = _run(request, Path(scratch), home, False)
        problems += [f"python block {r['block']} fails: {r['problem']}" for r in reports if r["problem"]]
        if len(reports) < len(group):
            problems.append(f"the snippets crashed ({tail})")
    return [f"README.md: {problem}" for problem in problems]
