"""What the hub tests share: a loopback hub and the command line in processes of their own, small folders."""

import json
import os
import subprocess
import sys
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

REPO = "zoo/tiny-gpt2"
REPOSITORY = Path(__file__).parents[2]
LIGHT = Path(__file__).with_name("light.py")
WRITE_TOKEN = "hf_loopback_write"

FACTS = f"""
title: A tiny GPT-2 for tests
repo_id: {REPO}
tag: v1.0
summary: Two layers, made by a test.
license: mit
libraries: [transformers]
pipeline_tag: text-generation
position_encoding: {{name: ape_learn}}
trained_on: nothing, random weights
tokenizer: false
"""


def hub_environment(home: Path, endpoint: str, token: str | None = WRITE_TOKEN, **extra: str) -> dict:
    """Return the environment of a client process: our endpoint, our token, an empty home."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {
        "HF_ENDPOINT": endpoint,
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "NO_PROXY": "127.0.0.1",
    }
    if token:
        env["HF_TOKEN"] = token
    return env | extra


@dataclass
class LoopbackHub:
    """A running loopback hub, its state and its log."""

    root: Path
    url: str
    process: subprocess.Popen
    home: Path

    @classmethod
    def start(cls, root: Path, home: Path, *options: str) -> "LoopbackHub":
        command = [sys.executable, "-m", "tests.loopback_hub", "--root", str(root), "--port", "0", *options]
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
        first = process.stdout.readline()
        return cls(root, first.split()[3].rstrip(","), process, home)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)
        self.process.stdout.close()

    def fault(self, step: str, action: str = "status", **options) -> None:
        """Ask for a fault."""
        body = json.dumps([{"step": step, "action": action, **options}]).encode()
        request = urllib.request.Request(f"{self.url}/__control__/faults", data=body, method="POST")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()

    def state(self, repo: str = REPO) -> dict:
        return json.loads((self.root / "repos" / repo / "state.json").read_text())

    def exists(self, repo: str = REPO) -> bool:
        return (self.root / "repos" / repo).is_dir()

    def head(self, repo: str = REPO) -> str:
        return self.state(repo)["branches"]["main"]

    def files(self, repo: str = REPO, commit: str | None = None) -> dict[str, str]:
        """Return path -> sha256 of the main branch (or a commit), without what the Hub adds itself."""
        state = self.state(repo)
        tree = state["commits"][commit or state["branches"]["main"]]["tree"]
        return {path: entry["sha256"] for path, entry in tree.items() if path != ".gitattributes"}

    def commits(self, repo: str = REPO) -> int:
        """Return the number of commits beside the initial one, on any branch."""
        return len(self.state(repo)["commits"]) - 1

    def log(self) -> list[dict]:
        path = self.root / "requests.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []

    def steps(self) -> list[str]:
        return [line["step"] for line in self.log()]

    def run(self, *arguments: str | Path, token: str | None = WRITE_TOKEN, **extra: str) -> "Ran":
        """Run a hub command in its own process and return what it said."""
        command = [sys.executable, str(LIGHT), *map(str, arguments)]
        env = hub_environment(self.home, self.url, token, **extra)
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=400)
        ran = Ran(done.returncode, done.stdout, done.stderr)
        if token:
            assert token not in ran.text, "the token reached the output"
        assert "Traceback" not in ran.text, ran.text
        return ran

    def push(self, folder: Path, *options: str, **keywords) -> "Ran":
        return self.run("push", folder, "--yes", "--create", *options, **keywords)


@dataclass
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.out + self.err


def safetensors_bytes(values: bytes = b"\0" * 64, name: str = "weight") -> bytes:
    """Return a valid safetensors file with one float32 tensor."""
    entry = {"dtype": "F32", "shape": [len(values) // 4], "data_offsets": [0, len(values)]}
    header = json.dumps({name: entry}).encode()
    return len(header).to_bytes(8, "little") + header + values


def write_card_folder(folder: Path, facts: str = FACTS, results: dict | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.yaml").write_text(facts)
    if results is not None:
        (folder / "results.json").write_text(json.dumps(results))
    return folder


def put_collection(hub: LoopbackHub) -> str:
    """Give a hub an empty collection and return its slug."""
    slug = "rehearsal/zoo-000000000000000000000000"
    entry = {"slug": slug, "title": "Zoo", "owner": {"name": "rehearsal"}, "items": [], "position": 0}
    entry |= {"lastUpdated": "2026-01-01T00:00:00.000Z", "private": False, "theme": "pink", "upvotes": 0}
    (hub.root / "collections.json").write_text(json.dumps({slug: entry}))
    return slug


def restage(folder: Path) -> None:
    """Make manifest and receipt fit the folder's files again."""
    from seqpe_zoo.hub.check import write_receipt
    from seqpe_zoo.hub.manifest import read_manifest, write_manifest

    write_manifest(folder, read_manifest(folder))
    write_receipt(folder)


def folder_hashes(folder: Path) -> dict[str, str]:
    import hashlib

    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}
