"""Saved models: loaded with the package, by the code beside the weights alone, or refused without either."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import seqpe_zoo
from tests.hosts.cases import FAST, auto_class_of, hosts, kind_of, native_model, random_tokens, tiny_model
from tests.without_package import PREAMBLE

REPOSITORY = Path(__file__).parents[2]

LOAD_REMOTE_CODE = (
    PREAMBLE
    + """
import torch, transformers

for folder in sorted(Path(sys.argv[1]).iterdir()):
    expected = torch.load(folder / "expected.pt")
    auto_class = getattr(transformers, expected["auto_class"])
    model = auto_class.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        torch.testing.assert_close(model(**expected["inputs"])[0], expected["output"], atol=0, rtol=0)
    model.save_pretrained(folder / "again")
    again = auto_class.from_pretrained(folder / "again", trust_remote_code=True)
    with torch.no_grad():
        torch.testing.assert_close(again(**expected["inputs"])[0], expected["output"], atol=0, rtol=0)
print("all equal")
"""
)

LOAD_WITHOUT_CODE = (
    PREAMBLE
    + """
from transformers import AutoModel
for path in Path(sys.argv[1]).glob("*/*.py"):
    path.unlink()
for folder in sorted(Path(sys.argv[1]).iterdir()):
    for trust in (False, True):
        try:
            AutoModel.from_pretrained(folder, trust_remote_code=trust)
        except (ValueError, OSError) as error:
            print("refused")
        else:
            raise SystemExit(f"{folder} was loaded")
"""
)


def inputs_of(host: str) -> dict[str, torch.Tensor]:
    if kind_of(host) == "vision encoder":
        noise = {"noise": torch.rand(2, 24)} if host == "vit_mae" else {}
        return {"pixel_values": torch.randn(2, 3, 16, 24), **noise}
    return {"input_ids": random_tokens(2, 12)}


def save_with_expectations(host: str, folder: Path) -> None:
    model, inputs = tiny_model(host, "seqpe_bias"), inputs_of(host)
    model.save_pretrained(folder)
    with torch.no_grad():
        output = model(**inputs)[0]
    torch.save(
        {"inputs": inputs, "output": output, "auto_class": auto_class_of(host).__name__},
        folder / "expected.pt",
    )


def run_python(script: str, *args: Path, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cwd / "hf_home")}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.parametrize("encoding", ["seqpe_bias", "rope"])
@pytest.mark.parametrize("host", hosts("decoder", "text encoder", "vision encoder"))
def test_saved_and_loaded_with_the_package(host: str, encoding: str, tmp_path: Path) -> None:
    model, inputs = tiny_model(host, encoding), inputs_of(host)
    model.save_pretrained(tmp_path)
    loaded = auto_class_of(host).from_pretrained(tmp_path).eval()
    assert type(loaded) is type(model)
    assert loaded.config.model_type.startswith("seqpe_")
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs)[0], model(**inputs)[0], atol=0, rtol=0)


@pytest.mark.parametrize("chosen", ["fast", pytest.param("all", marks=pytest.mark.slow)])
def test_code_beside_the_weights_is_enough(chosen: str, tmp_path: Path) -> None:
    listed = [one.model_type for one in seqpe_zoo.list_hosts()]
    for host in FAST if chosen == "fast" else listed:
        save_with_expectations(host, tmp_path / "models" / host)
    assert "all equal" in run_python(LOAD_REMOTE_CODE, tmp_path / "models", cwd=tmp_path)


def test_without_package_and_code_nothing_is_loaded(tmp_path: Path) -> None:
    for host in ("llama", "bert"):
        tiny_model(host, "rope").save_pretrained(tmp_path / "models" / host)
    assert run_python(LOAD_WITHOUT_CODE, tmp_path / "models", cwd=tmp_path).count("refused") == 4


@pytest.mark.parametrize("host", hosts("decoder", "text encoder", "vision encoder"))
def test_weights_of_the_host_keep_their_names(host: str, tmp_path: Path) -> None:
    native = native_model(host)
    native.save_pretrained(tmp_path / "native")
    before = load_file(tmp_path / "native" / "model.safetensors")
    seqpe_zoo.set_position_encoding(native, "rope").save_pretrained(tmp_path / "changed")
    after = load_file(tmp_path / "changed" / "model.safetensors")
    added = {name for name in after if "position_encoding" in name or ".wpe." in name}
    assert after.keys() - added <= before.keys()
    positions = ("position", "wpe", "relative", "rel_pos")
    assert all(any(word in name for word in positions) for name in before.keys() - after.keys())
    for name in after.keys() - added:
        torch.testing.assert_close(after[name], before[name], atol=0, rtol=0)


def test_weights_of_another_encoding_are_refused(tmp_path: Path) -> None:
    tiny_model("llama", "seqpe_bias").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["position_encoding_args"]["integration"] = "mul"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="these weights are of position encoding"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path)


def test_a_published_model_is_loaded_with_another_encoding(tmp_path: Path) -> None:
    native = native_model("llama")
    native.save_pretrained(tmp_path)
    config = seqpe_zoo.with_position_encoding(transformers.AutoConfig.from_pretrained(tmp_path), "alibi")
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, config=config)
    assert type(loaded).__name__ == "SeqPELlamaForCausalLM"
    weight = native.model.layers[1].mlp.up_proj.weight
    torch.testing.assert_close(loaded.model.layers[1].mlp.up_proj.weight, weight, atol=0, rtol=0)


def test_what_a_saved_language_model_carries(tmp_path: Path) -> None:
    tiny_model("llama", "seqpe_bias").save_pretrained(tmp_path)
    code = list(tmp_path.glob("*.py"))
    assert len(code) <= 9
