"""The release is read from a Hub repository, with the real client, from a loopback hub."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import timm
from timm.models import save_for_hf

from tests.hub.helpers import LoopbackHub, hub_environment

from .release import write_image_run, write_text_run
from .test_graft_sources import save_decoder

UPLOAD = """
import sys
from huggingface_hub import CommitOperationAdd, HfApi
from pathlib import Path
root, repo_id = Path(sys.argv[1]), sys.argv[2]
api = HfApi()
api.create_repo(repo_id)
files = [path for path in root.rglob("*") if path.is_file()]
added = [CommitOperationAdd(path.relative_to(root).as_posix(), str(path)) for path in files]
api.create_commit(repo_id, added, commit_message="as it was")
"""
CONVERT_ALL = """
import json, os, sys
from seqpe_zoo.cli import main
os.chdir(sys.argv[1])
print([main(words) for words in json.loads(sys.argv[2])])
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
        uploaded = python(UPLOAD, env, tmp_path / "release", "huayangli/seqpe")
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


@pytest.mark.slow
def test_models_of_the_hub_are_grafted(tmp_path: Path) -> None:
    save_decoder(tmp_path / "llama", "Llama")
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 1, "num_heads": 1}
    vit = timm.create_model("deit_tiny_patch16_224", num_classes=5, **sizes)
    save_for_hf(vit, tmp_path / "vit", model_args=sizes, safe_serialization=True)
    hub = LoopbackHub.start(tmp_path / "hub", tmp_path / "home")
    try:
        env = hub_environment(tmp_path / "home", hub.url)
        for name in ("llama", "vit"):
            uploaded = python(UPLOAD, env, tmp_path / name, f"org/{name}")
            assert uploaded.returncode == 0, uploaded.stderr
        commands = [
            ["graft", "org/llama", "from_llama", "--keep-native"],
            ["graft", "hf-hub:org/vit", "from_vit", "--fit-steps", "5"],
            ["graft", "org/vit@main", "pinned", "--fit-steps", "5"],
            ["graft", "org/llama", "absent", "--revision", "v9"],
        ]
        done = python(CONVERT_ALL, env, tmp_path, json.dumps(commands))
        assert done.stdout.splitlines()[-1] == "[0, 0, 0, 2]", done.stderr
        for name in ("from_llama", "from_vit", "pinned"):
            assert (tmp_path / name / "model.safetensors").is_file()
        assert not (tmp_path / "absent").exists()
    finally:
        hub.stop()
