"""Fresh interpreters for loading models and running card snippets: no seqpe_zoo, no inherited paths.

`probe` starts `probe_script.py` and returns its report; `run_snippets` executes a card's python blocks. Torch
is only imported in the processes started here, so that the caller stays light.
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

from .card_snippets import LOCAL_DIR
from .errors import HubError, redact
from .manifest import MANIFEST, sha256_of

LOGIT_TOLERANCE = 1e-5  # relative to the largest logit when that exceeds 1
_SCRIPT = Path(__file__).with_name("probe_script.py")
_PACKAGE_PATH = str(Path(__file__).parents[2])
_TIMEOUT = 900
_FOR_THE_HUB = ("HF_ENDPOINT", "HF_TOKEN", "HF_HUB_DISABLE_XET")


def _environment(home: Path, **extra: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HF_", "TRANSFORMERS_"))}
    quiet = {
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {**kept, **quiet, "HF_HOME": str(home), **extra}


def probe(
    libraries: list[str],
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
    place = str(place) if revision else str(Path(place).resolve())  # the process runs in another folder
    request: dict[str, Any] = {"libraries": libraries, "place": place, "revision": revision}
    request |= {"with_package": with_package, "package_path": _PACKAGE_PATH}
    if weights is not None:
        request["weights"] = str(Path(weights).resolve())
    with tempfile.TemporaryDirectory(prefix="seqpe_zoo_probe_") as scratch:
        # The code of a local folder runs without a token and without the network.
        extra = {"HF_HUB_OFFLINE": "1"}
        if revision:
            extra = {name: os.environ[name] for name in _FOR_THE_HUB if name in os.environ}
        done = subprocess.run(
            [sys.executable, "-I", str(_SCRIPT), json.dumps(request)],
            env=_environment(home or Path(scratch) / "home", **extra),
            cwd=scratch,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
    reports = {}
    for line in done.stdout.splitlines():
        if line.startswith("PROBE "):
            report = json.loads(line.removeprefix("PROBE "))
            report["problems"] = [redact(problem) for problem in report["problems"]]
            reports[report["library"]] = report
    tail = redact("\n".join(done.stderr.splitlines()[-8:]))
    silent = {"problems": [f"the loading process ended without a report (exit {done.returncode}):\n{tail}"]}
    return {library: reports.get(library, silent) for library in libraries}


def compare_fingerprints(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Return how two logits fingerprints differ, or None when they agree."""
    if found["shape"] != wanted["shape"]:
        return f"logits have shape {found['shape']}, recorded was {wanted['shape']}"
    allowed = LOGIT_TOLERANCE * max(1.0, wanted["absmax"])
    worst = max(abs(a - b) for a, b in zip(found["sample"], wanted["sample"], strict=True))
    if worst > allowed:
        return f"logits differ by {worst:.3g} from those recorded by stage (allowed {allowed:.3g})"
    return None


_SNIPPET_RUNNER = """
import json, sys
request = json.loads(sys.argv[1])
if request["package_path"]:
    sys.path.insert(0, request["package_path"])
else:
    class Forbidden:
        def find_spec(self, fullname, path=None, target=None):
            if fullname.split(".")[0] == "seqpe_zoo":
                raise ModuleNotFoundError(f"No module named {fullname!r} (hidden by the check)")
    sys.meta_path.insert(0, Forbidden())
for number, code in request["blocks"]:
    try:
        exec(compile(code, f"<snippet {number}>", "exec"), {"__name__": "__main__"})
    except BaseException as error:
        print(f"SNIPPET {number} {type(error).__name__}: {error}"[:1500].replace("\\n", " "))
print("SNIPPETS DONE")
"""


def fill_cache(home: Path, folder: Path, repo_id: str, tag: str | None = None) -> None:
    """Lay out `HF_HOME` as if `folder` had been published as `repo_id`, tagged `tag`, and downloaded."""
    commit = sha256_of(folder / MANIFEST)[:40]
    cache = home / "hub" / f"models--{repo_id.replace('/', '--')}"
    shutil.copytree(folder, cache / "snapshots" / commit)
    (cache / "refs").mkdir()
    for name in filter(None, ("main", tag)):
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
        request = {"blocks": group, "package_path": _PACKAGE_PATH if with_package else None}
        with tempfile.TemporaryDirectory(prefix="seqpe_zoo_snippets_") as scratch:
            home = Path(scratch) / "home"
            fill_cache(home, folder, repo_id, tag)
            shutil.copytree(folder, Path(scratch) / LOCAL_DIR)  # downloaded before, as offline use asks
            try:
                done = subprocess.run(
                    [sys.executable, "-I", "-c", _SNIPPET_RUNNER, json.dumps(request)],
                    env=_environment(home, HF_HUB_OFFLINE="1"),
                    cwd=scratch,
                    capture_output=True,
                    text=True,
                    timeout=_TIMEOUT,
                )
            except subprocess.TimeoutExpired as error:
                raise HubError("the card's snippets did not end in time") from error
        failed = [line for line in done.stdout.splitlines() if line.startswith("SNIPPET ")]
        for line in failed:
            _, number, message = line.split(" ", 2)
            problems.append(redact(f"README.md: python block {number} fails: {message}"))
        if "SNIPPETS DONE" not in done.stdout:
            problems.append(
                redact("README.md: the snippets crashed:\n" + "\n".join(done.stderr.splitlines()[-5:]))
            )
    return problems
