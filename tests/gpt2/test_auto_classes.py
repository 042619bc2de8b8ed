"""Both roads to a model: the installed package, and the code that travels with a checkpoint."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from seqpe_zoo.auto_classes import register_auto_classes
from seqpe_zoo.portable.configuration_seqpe import SeqPEGPT2Config, auto_map_of
from seqpe_zoo.portable.modeling_seqpe import SeqPEGPT2LMHeadModel, SeqPEGPT2Model
from tests.gpt2.cases import tiny_config, tiny_model
from tests.without_package import PREAMBLE

REPOSITORY = Path(__file__).parents[2]
PORTABLE = REPOSITORY / "seqpe_zoo" / "portable"
TOKENS = torch.arange(1, 25).reshape(2, 12)

IMPORT_LAZILY = """
import sys
from seqpe_zoo.auto_classes import register_auto_classes
register_auto_classes()
register_auto_classes()
assert "transformers" not in sys.modules, "registering must not import transformers"
FIRST_IMPORT
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
config = AutoConfig.for_model("seqpe_gpt2", n_embd=32, n_head=4, n_layer=2, vocab_size=50)
assert type(AutoModelForCausalLM.from_config(config)).__name__ == "SeqPEGPT2LMHeadModel"
assert type(AutoModel.from_config(config)).__name__ == "SeqPEGPT2Model"
"""

LOAD_REMOTE_CODE = (
    PREAMBLE
    + """
import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

source, copies = Path(sys.argv[1]), Path(sys.argv[2])
for folder in sorted(source.iterdir()):
    expected = torch.load(folder / "expected.pt")
    tokens = expected["tokens"]
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    assert config.model_type == "seqpe_gpt2"
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    base = AutoModel.from_pretrained(folder, trust_remote_code=True)
    with torch.no_grad():
        torch.testing.assert_close(model(tokens).logits, expected["logits"], atol=0, rtol=0)
        torch.testing.assert_close(base(tokens)[0], expected["hidden"], atol=0, rtol=0)
    generated = model.generate(tokens, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert torch.equal(generated, expected["generated"])
    model.train()
    model(tokens, labels=tokens).loss.backward()
    model.eval().save_pretrained(copies / "head" / folder.name)
    torch.save(expected, copies / "head" / folder.name / "expected.pt")
    base.save_pretrained(copies / "base" / folder.name)
    again = AutoModelForCausalLM.from_config(config, trust_remote_code=True)
    assert type(again).__name__ == "SeqPEGPT2LMHeadModel"
print("all equal")
"""
)


@pytest.fixture(autouse=True)
def _registered() -> None:
    register_auto_classes()


def run_python(script: str, *args: Path, cwd: Path) -> str:
    environment = {
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(cwd / "hf_home"),
        "OMP_NUM_THREADS": "1",
        "PATH": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, args)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def save_with_expectations(case: str, folder: Path) -> None:
    model = tiny_model(case)
    model.save_pretrained(folder)
    with torch.no_grad():
        expected = {
            "tokens": TOKENS,
            "logits": model(TOKENS).logits,
            "hidden": model.transformer(TOKENS)[0],
            "generated": model.generate(
                TOKENS, max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0
            ),
        }
    torch.save(expected, folder / "expected.pt")


def test_installed_package_needs_no_trust(tmp_path: Path) -> None:
    model = tiny_model("seqpe_bias_shared")
    model.save_pretrained(tmp_path)
    assert type(AutoConfig.from_pretrained(tmp_path)) is SeqPEGPT2Config
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is SeqPEGPT2LMHeadModel
    assert type(AutoModel.from_pretrained(tmp_path)) is SeqPEGPT2Model
    torch.testing.assert_close(loaded(TOKENS).logits, model(TOKENS).logits, atol=0, rtol=0)


@pytest.mark.parametrize("kind", ["head", "base", "config"])
def test_saving_writes_the_whole_auto_map(kind: str, tmp_path: Path) -> None:
    model = tiny_model("seqpe_bias_shared")
    saved = {"head": model, "base": model.transformer, "config": model.config}[kind]
    saved.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["auto_map"] == auto_map_of(SeqPEGPT2Config)


def test_saving_copies_exactly_the_code_that_is_needed(tmp_path: Path) -> None:
    tiny_model("seqpe_bias_shared").save_pretrained(tmp_path)
    copied = {path.name for path in tmp_path.glob("*.py")}
    needed, waiting = set(), ["modeling_seqpe.py", "configuration_seqpe.py"]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            lines = (PORTABLE / name).read_text().splitlines()
            waiting += [line.split()[1][1:] + ".py" for line in lines if line.startswith("from .")]
    assert copied == needed
    for name in copied:
        assert (tmp_path / name).read_text() == (PORTABLE / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "first_import",
    [
        "pass",
        "import seqpe_zoo.portable.modeling_seqpe",
        "from transformers import GPT2LMHeadModel",
        "from transformers import Trainer, pipeline",
        "from transformers import AutoModelForImageClassification",
    ],
)
def test_registering_waits_for_transformers(first_import: str, tmp_path: Path) -> None:
    run_python(IMPORT_LAZILY.replace("FIRST_IMPORT", first_import), cwd=tmp_path)


@pytest.mark.slow
def test_code_beside_the_weights_is_enough_offline_and_can_be_saved_again(tmp_path: Path) -> None:
    source, copies, second = tmp_path / "source", tmp_path / "copies", tmp_path / "second"
    for case in ("ape_learn", "alibi", "rope", "seqpe_bias_shared", "seqpe_mul_per_layer"):
        save_with_expectations(case, source / case)
    assert "all equal" in run_python(LOAD_REMOTE_CODE, source, copies, cwd=tmp_path)
    assert "all equal" in run_python(LOAD_REMOTE_CODE, copies / "head", second, cwd=tmp_path)
    for folder in (copies / "base").iterdir():
        assert json.loads((folder / "config.json").read_text())["auto_map"] == auto_map_of(SeqPEGPT2Config)


def test_config_survives_a_round_trip(tmp_path: Path) -> None:
    config = tiny_config("seqpe_bias_shared", train_length=48)
    config.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).to_diff_dict() == config.to_diff_dict()
