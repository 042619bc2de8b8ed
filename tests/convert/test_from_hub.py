"""The release is read from a Hub repository, with the real client, from a loopback hub."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hub.helpers import LoopbackHub, hub_environment

from .release import write_image_run, write_text_run

UPLOAD = """
import sys
from huggingface_hub import CommitOperationAdd, HfApi
from pathlib import Path
root = Path(sys.argv[1])
api = HfApi()
api.create_repo("huayangli/seqpe")
files = [path for path in root.rglob("*") if path.is_file()]
added = [CommitOperationAdd(path.relative_to(root).as_posix(), str(path)) for path in files]
api.create_commit("huayangli/seqpe", added, commit_message="the release")
"""
CONVERT = "import sys; from seqpe_zoo.cli import main; sys.exit(main(sys.argv[1:]))"


def python(code: str, env: dict, *words: object) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, env=env, cwd=Path(__file__).parents[2], capture_output=True, text=True)


@pytest.mark.slow
def test_release_is_converted_from_a_hub_id(tmp_path: Path) -> None:
    write_image_run(tmp_path / "release" / "image_seqpe_ckpt", "vit_seqpe_attn_mul_multi")
    write_text_run(tmp_path / "release" / "lm_seqpe_ckpt", "gpt2_seqpe_attn_scalar_single")
    hub = LoopbackHub.start(tmp_path / "hub", tmp_path / "home")
    try:
        env = hub_environment(tmp_path / "home", hub.url)
        uploaded = python(UPLOAD, env, tmp_path / "release")
        assert uploaded.returncode == 0, uploaded.stderr
        for folder in ("image_seqpe_ckpt", "lm_seqpe_ckpt"):
            words = ("convert", "huayangli/seqpe", tmp_path / folder, "--subfolder", folder)
            done = python(CONVERT, env, *words)
            assert done.returncode == 0, done.stderr
            assert (tmp_path / folder / "model.safetensors").is_file()
        missing = python(CONVERT, env, "convert", "huayangli/other", tmp_path / "x", "--format", "authors")
        assert missing.returncode == 2
        assert missing.stderr.splitlines()[-1].startswith("error: the Hub does not give huayangli/other")
        assert not (tmp_path / "x").exists()
    finally:
        hub.stop()
