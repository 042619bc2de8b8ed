"""Fixtures of the hub tests. Every test has a hub of its own, so that faults and state do not meet."""

import json
import shutil
import subprocess
import sys

import pytest

from tests.hub.helpers import LIGHT, LoopbackHub, safetensors_bytes, write_card_folder


@pytest.fixture
def hub(tmp_path):
    server = LoopbackHub.start(tmp_path / "hub_root", tmp_path / "client_home")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def staged_once(tmp_path_factory):
    """Stage a folder whose weights are a stand-in: enough for everything that does not load the model."""
    base = tmp_path_factory.mktemp("staged")
    run = base / "run"
    run.mkdir()
    (run / "model.safetensors").write_bytes(safetensors_bytes(bytes(range(256)) * 400))
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 64, "n_positions": 32}
    (run / "config.json").write_text(json.dumps(config | {"n_embd": 32, "n_layer": 1, "n_head": 2}))
    card = write_card_folder(base / "card")
    command = [sys.executable, str(LIGHT), "stage", run, base / "folder", "--card", card, "--no-fingerprint"]
    subprocess.run(command, check=True, capture_output=True)
    return base / "folder"


@pytest.fixture
def folder(staged_once, tmp_path):
    """Give a copy of the staged folder, with a receipt as `check` writes it."""
    from seqpe_zoo.hub.check import write_receipt

    copy = tmp_path / "folder"
    shutil.copytree(staged_once, copy)
    write_receipt(copy)
    return copy
