"""The whole road with models that load: stage, check, push, verify, and back with timm and transformers.

Both are loaded where seqpe_zoo cannot be imported: their code travels with the weights. The image model is
written by timm and loaded by both libraries.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seqpe_zoo.hub.check import CheckFailed, check, receipt_path, write_receipt
from seqpe_zoo.hub.clean_room import compare_fingerprints
from seqpe_zoo.hub.manifest import PORTABLE, read_manifest
from seqpe_zoo.portable.position_encoding import PORTABLE_VERSION
from tests.hub.helpers import (
    LoopbackHub,
    folder_hashes,
    hub_environment,
    restage,
    write_card_folder,
)

HERE = Path(__file__).parent
LM, VIT = "zoo/tiny-lm", "zoo/tiny-vit"
LM_FACTS = f"""
title: A tiny SeqPE language model
repo_id: {LM}
tag: v1.0
summary: Two layers, made by a test.
license: mit
libraries: [transformers]
pipeline_tag: text-generation
position_encoding: {{name: seqpe, integration: bias, base: 10, num_digits: 5}}
trained_on: nothing
tokenizer: false
"""
VIT_FACTS = f"""
title: A tiny SeqPE ViT
repo_id: {VIT}
tag: v1.0
summary: Two layers, made by a test.
license: apache-2.0
libraries: [timm]  # what the training wrote; staging adds transformers
pipeline_tag: image-classification
position_encoding: {{name: seqpe, integration: mul, base: 10, num_digits: 2}}
trained_on: nothing
input_size: [3, 32, 32]
"""

CHANGED_MODEL = """

_forward = SeqPEGPT2LMHeadModel.forward


def _louder(self, *args, **kwargs):
    output = _forward(self, *args, **kwargs)
    output.logits = output.logits * 2
    return output


SeqPEGPT2LMHeadModel.forward = _louder
"""

LOAD_BACK = """
import json, sys
sys.modules["seqpe_zoo"] = None  # as if it were not installed
import timm, torch
from huggingface_hub import snapshot_download
from PIL import Image
from transformers import (
    AutoConfig, AutoImageProcessor, AutoModel, AutoModelForCausalLM, AutoModelForImageClassification
)
pinned = {"trust_remote_code": True, "revision": "v1.0"}
lm = AutoModelForCausalLM.from_pretrained("zoo/tiny-lm", **pinned).eval()
remote = AutoModelForImageClassification.from_pretrained("zoo/tiny-vit", **pinned).eval()
features = AutoModel.from_pretrained("zoo/tiny-vit", **pinned).eval()
assert AutoConfig.from_pretrained("zoo/tiny-vit", **pinned).num_labels == 10
folder, picture = snapshot_download("zoo/tiny-vit"), Image.effect_noise((50, 40), 60).convert("RGB")
pixels = [
    AutoImageProcessor.from_pretrained(place)(picture, return_tensors="pt")["pixel_values"]
    for place in ("zoo/tiny-vit", folder)
]
assert torch.equal(*pixels) and pixels[0].shape == (1, 3, 32, 32)
del sys.modules["seqpe_zoo"]
sys.path.insert(0, sys.argv[1])
import seqpe_zoo  # timm learns our architectures from it
vit = timm.create_model("hf-hub:zoo/tiny-vit@v1.0", pretrained=True).eval()
installed = AutoModelForImageClassification.from_pretrained("zoo/tiny-vit").eval()
assert [type(m).__module__.startswith("seqpe_zoo.") for m in (installed, remote)] == [True, False]
ids, image = torch.arange(16)[None], torch.linspace(-1, 1, 3 * 32 * 32).reshape(1, 3, 32, 32)
with torch.no_grad():
    print(json.dumps({
        "lm": lm(ids).logits.flatten()[:8].tolist(),
        "vit": vit(image).flatten().tolist(),
        "remote": remote(image).logits.flatten().tolist(),
        "installed": installed(image).logits.flatten().tolist(),
        "features": remote.vit.head(features(image).pooler_output).flatten().tolist(),
    }))
"""


def run_python(code, *arguments, env):
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def workshop(tmp_path_factory):
    """Stage both models once and start one hub for this module."""
    base = tmp_path_factory.mktemp("workshop")
    subprocess.run([sys.executable, HERE / "stand_ins.py", base / "runs"], check=True, capture_output=True)
    hub = LoopbackHub.start(base / "hub_root", base / "client_home")
    write_card_folder(base / "cards" / "lm", LM_FACTS)
    write_card_folder(base / "cards" / "vit", VIT_FACTS)
    shutil.copytree(PORTABLE, base / "code")
    code = ("--portable", base / "code")
    for name in ("lm", "vit"):
        ran = hub.run("stage", base / "runs" / name, base / name, "--card", base / "cards" / name, *code)
        assert ran.code == 0, ran.text
    yield base, hub
    hub.stop()


@pytest.mark.slow
def test_staged_folders_hold_what_both_libraries_need(workshop):
    base, _ = workshop
    lm, vit = sorted(folder_hashes(base / "lm")), sorted(folder_hashes(base / "vit"))
    plain = ["MANIFEST.json", "README.md", "config.json", "model.safetensors"]
    assert [name for name in vit if not name.endswith(".py")] == sorted([*plain, "preprocessor_config.json"])
    assert {"modeling_seqpe_vit.py", "configuration_seqpe_vit.py", "vit.py", "seqpe.py"} <= set(vit)
    assert [name for name in lm if not name.endswith(".py")] == sorted([*plain, "generation_config.json"])
    assert {"modeling_seqpe.py", "configuration_seqpe.py", "seqpe.py", "positions.py"} <= set(lm)
    manifest = read_manifest(base / "lm")
    assert manifest["package"]["portable_version"] == PORTABLE_VERSION
    assert list(manifest["fingerprints"]) == ["transformers"]
    shared = json.loads((base / "vit" / "config.json").read_text())
    assert (shared["architecture"], shared["model_type"]) == ("vit_small_patch16_seqpe_224", "seqpe_vit")
    assert set(shared["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForImageClassification"}
    assert (shared["num_classes"], len(shared["id2label"])) == (10, 10)
    assert (shared["pretrained_cfg"]["input_size"], shared["image_size"]) == ([3, 32, 32], 32)
    fingerprints = read_manifest(base / "vit")["fingerprints"]
    assert compare_fingerprints(fingerprints["timm"], fingerprints["transformers"]) is None
    assert "AutoModelForImageClassification" in (base / "vit" / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "repo", "how", "libraries"),
    [("lm", LM, "files", []), ("vit", VIT, "full", ["timm", "transformers"])],
)
def test_the_road_to_the_hub(workshop, name, repo, how, libraries):
    base, hub = workshop
    checked = hub.run("check", base / name)
    assert checked.code == 0, checked.text
    assert "snippets of the card ran" in checked.out
    assert receipt_path(base / name).is_file()
    pushed = hub.push(base / name, "--public", "--verify", how)
    assert pushed.code == 0, pushed.text
    verified = re.findall(r"(\w+): \d+ tensors equal, logits equal", pushed.out)
    assert sorted(verified) == libraries
    assert (hub.state(repo)["private"], hub.commits(repo)) == (False, 1)
    again = hub.push(base / name)
    assert again.code == 0, again.text
    assert hub.commits(repo) == 1


@pytest.mark.slow
def test_the_road_back(workshop, tmp_path):
    """In both libraries, where seqpe_zoo cannot be imported and where it is, and once more offline."""
    base, hub = workshop
    for name in ("lm", "vit"):
        assert hub.push(base / name, "--unchecked").code == 0  # nothing to do after the test above

    local = json.loads((base / "runs" / "logits.json").read_text())
    back = run_python(LOAD_BACK, HERE.parents[1], env=hub_environment(tmp_path / "home", hub.url))
    assert back["lm"] == pytest.approx(local["lm"], abs=1e-6)
    assert back["vit"] == pytest.approx(local["vit"], abs=1e-6)
    for name in ("remote", "installed", "features"):
        assert back[name] == pytest.approx(local["vit"], abs=1e-5), name
    without_network = hub_environment(tmp_path / "home", hub.url, HF_HUB_OFFLINE="1")
    offline = run_python(LOAD_BACK, HERE.parents[1], env=without_network)
    assert offline == back


@pytest.mark.slow
def test_a_model_of_transformers_with_another_encoding_can_be_published(workshop, tmp_path):
    base, hub = workshop
    facts = LM_FACTS.replace(LM, "zoo/tiny-llama")
    card = write_card_folder(tmp_path / "card", facts.replace("base: 10, num_digits: 5", "base: 10"))
    staged = hub.run("stage", base / "runs" / "llama", tmp_path / "llama", "--card", card)
    assert staged.code == 0, staged.text
    checked = hub.run("check", tmp_path / "llama")
    assert checked.code == 0, checked.text
    assert "logits equal (SeqPELlamaForCausalLM)" in checked.out


def copy_with_receipt(source, target):
    shutil.copytree(source, target)
    write_receipt(target)
    return target


def test_weights_that_do_not_fit_the_config_are_refused(folder):
    with pytest.raises(CheckFailed) as refused:
        check(folder)
    assert "missing keys" in str(refused.value)
    assert "transformer.h.0.attn.c_attn.bias" in str(refused.value)
    assert "unexpected keys: ['weight']" in str(refused.value)


@pytest.mark.slow
def test_sync_code_updates_code_and_manifest_only(workshop, tmp_path):
    base, hub = workshop
    folder, repo = copy_with_receipt(base / "lm", tmp_path / "lm"), "zoo/synced"
    for name in ("modeling_seqpe", "configuration_seqpe"):  # as a version before named them
        shutil.copyfile(folder / f"{name}.py", folder / f"{name}_gpt2.py")
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        re.sub(r'"(modeling|configuration)_seqpe\.', r'"\1_seqpe_gpt2.', config)
    )
    restage(folder)
    assert hub.push(folder, "--repo", repo).code == 0
    before = hub.files(repo)
    code = tmp_path / "code"
    shutil.copytree(base / "code", code)
    positions = code / "positions.py"
    positions.write_text(positions.read_text() + "\n# a comment of the next release\n")

    shown = hub.run("sync-code", repo, "--portable", code)
    assert shown.code == 0, shown.text
    assert "+# a comment of the next release" in shown.out
    assert hub.files(repo) == before

    done = hub.run("sync-code", repo, "--portable", code, "--yes", "--tag", "v1.0.1")
    assert done.code == 0, done.text
    after = hub.files(repo)
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"positions.py", "config.json", "MANIFEST.json"}
    assert set(before) - set(after) == {"modeling_seqpe_gpt2.py", "configuration_seqpe_gpt2.py"}
    assert after["config.json"] == folder_hashes(base / "lm")["config.json"]
    assert hub.state(repo)["tags"]["v1.0.1"] == hub.head(repo)
    assert hub.run("verify", repo).code == 0
    assert "up to date" in hub.run("sync-code", repo, "--portable", code, "--yes").out

    modeling = code / "modeling_seqpe.py"
    modeling.write_text(modeling.read_text() + CHANGED_MODEL)
    refused = hub.run("sync-code", repo, "--portable", code, "--yes")
    assert refused.code == 30
    assert "changes a published model" in refused.err
    assert hub.files(repo) == after
