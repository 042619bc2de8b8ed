"""The allow-list, the safetensors reader, the import closure, staging, and errors that never show a token."""

import json
import re
import subprocess
import sys

import pytest

from seqpe_zoo.hub import errors
from seqpe_zoo.hub.clean_room import compare_fingerprints
from seqpe_zoo.hub.client import Deadline, backoff
from seqpe_zoo.hub.commands import find_card
from seqpe_zoo.hub.config_rules import code_closure, config_problems, libraries_of
from seqpe_zoo.hub.contents import find_problems, name_problem
from seqpe_zoo.hub.errors import UsageError
from seqpe_zoo.hub.files import git_sha1_of
from seqpe_zoo.hub.manifest import PORTABLE, compare_with_manifest, read_manifest
from seqpe_zoo.hub.plan import Target
from seqpe_zoo.hub.stage import add_prefix, stage
from tests.hub.helpers import FACTS, LIGHT, safetensors_bytes, write_card_folder


@pytest.mark.parametrize(
    "name",
    ["model.safetensors", "model-00001-of-00002.safetensors", "README.md", "pe_seqpe.py", "merges.txt"],
)
def test_files_of_a_model_may_travel(name):
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        "../config.json",
        "a/b.py",
        ".env",
        "con.py",
        "Model.PY",
        "x\u202ey.py",
        "training.log",
        "a\\b",
    ],
)
def test_all_others_stay_at_home(name):
    assert name_problem(name) is not None


@pytest.fixture
def run_folder(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(safetensors_bytes())
    (folder / "config.json").write_text('{"model_type": "gpt2", "_name_or_path": "somewhere/on/my/disk"}')
    return folder


@pytest.fixture
def card_folder(tmp_path):
    return write_card_folder(tmp_path / "card")


def test_a_card_is_found_by_name_beside_the_run_or_by_the_name_of_the_run(tmp_path, card_folder, run_folder):
    assert find_card(str(card_folder), run_folder) == card_folder
    named = find_card("tiny-gpt2-seqpe-austen", run_folder)
    assert (named / "facts.yaml").is_file()
    assert find_card(None, tmp_path / "tiny-gpt2-seqpe-austen") == named
    (run_folder / "facts.yaml").write_text(FACTS)
    assert find_card(None, run_folder) == run_folder
    with pytest.raises(UsageError, match="did you mean tiny-gpt2-seqpe-austen"):
        find_card("tiny-gpt2-sekpe-austen", run_folder)


def test_stage_takes_only_listed_files_and_forgets_local_paths(run_folder, card_folder, tmp_path):
    (run_folder / "optimizer.pt").write_bytes(b"x")
    (run_folder / ".env").write_text("x")
    (run_folder / "checkpoint-10").mkdir()
    staged = stage(run_folder, tmp_path / "out", card_folder=card_folder, fingerprint=False)
    assert staged.files == ["MANIFEST.json", "README.md", "config.json", "model.safetensors"]
    assert staged.left_out == [".env", "checkpoint-10/", "optimizer.pt"]
    assert "_name_or_path" not in json.loads((tmp_path / "out" / "config.json").read_text())
    assert compare_with_manifest(tmp_path / "out", read_manifest(tmp_path / "out")) == []


def test_staging_twice_gives_the_same_bytes(run_folder, card_folder, tmp_path):
    for name in ("a", "b"):
        stage(run_folder, tmp_path / name, card_folder=card_folder, fingerprint=False)
    first, second = ({p.name: p.read_bytes() for p in (tmp_path / n).iterdir()} for n in ("a", "b"))
    assert first == second


def test_stage_replaces_only_what_it_made(run_folder, card_folder, tmp_path):
    target = tmp_path / "out"
    stage(run_folder, target, card_folder=card_folder, fingerprint=False)
    with pytest.raises(errors.UsageError, match="exists"):
        stage(run_folder, target, card_folder=card_folder, fingerprint=False)
    stage(run_folder, target, card_folder=card_folder, fingerprint=False, overwrite=True)
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("x")
    with pytest.raises(errors.UsageError, match=r"MANIFEST\.json"):
        stage(run_folder, precious, card_folder=card_folder, fingerprint=False, overwrite=True)
    assert (precious / "thesis.txt").is_file()


def test_stage_refuses_pickled_weights_and_links(run_folder, card_folder, tmp_path):
    (run_folder / "model.safetensors").rename(run_folder / "pytorch_model.bin")
    (run_folder / "merges.txt").symlink_to(run_folder / "config.json")
    with pytest.raises(errors.CheckFailed) as refused:
        stage(run_folder, tmp_path / "out", card_folder=card_folder)
    assert "pytorch_model.bin may hold a pickle" in str(refused.value)
    assert "merges.txt: a symbolic link" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_stage_refuses_a_card_of_another_encoding(run_folder, tmp_path):
    config = json.loads((run_folder / "config.json").read_text())
    config["position_encoding"], config["position_encoding_args"] = "seqpe", {"integration": "bias"}
    (run_folder / "config.json").write_text(json.dumps(config))
    changed = re.sub("position_encoding: .*", "position_encoding: {name: seqpe, integration: sum}", FACTS)
    cards = write_card_folder(tmp_path / "card", changed)
    with pytest.raises(errors.CheckFailed, match="integration: sum, but config"):
        stage(run_folder, tmp_path / "staged", card_folder=cards, fingerprint=False)
    assert not (tmp_path / "staged").exists()


def test_stage_refuses_a_card_of_another_input_size(run_folder, tmp_path):
    config = json.loads((run_folder / "config.json").read_text())
    config["pretrained_cfg"] = {"input_size": [1, 28, 28]}
    (run_folder / "config.json").write_text(json.dumps(config))
    cards = write_card_folder(tmp_path / "card", FACTS + "input_size: [3, 28, 28]\n")
    with pytest.raises(errors.CheckFailed, match=r"\[3, 28, 28\], but config.json has \[1, 28, 28\]"):
        stage(run_folder, tmp_path / "staged", card_folder=cards, fingerprint=False)
    assert not (tmp_path / "staged").exists()


def test_failed_stage_leaves_nothing(run_folder, tmp_path):
    bad = write_card_folder(tmp_path / "card", FACTS + "colour: red\n")
    with pytest.raises(errors.UsageError):
        stage(run_folder, tmp_path / "place" / "out", card_folder=bad)
    assert list((tmp_path / "place").iterdir()) == []


def test_code_closure_follows_sibling_imports(tmp_path):
    (tmp_path / "a.py").write_text("from .b import x\n")
    (tmp_path / "b.py").write_text("import math\nfrom .c import y\n")
    (tmp_path / "c.py").write_text("y = 1\n")
    (tmp_path / "d.py").write_text("z = 1\n")
    assert [path.name for path in code_closure(tmp_path, ["a"])] == ["a.py", "b.py", "c.py"]


def test_the_portable_code_may_travel():
    modules = [path.stem for path in PORTABLE.glob("*.py") if path.stem != "__init__"]
    names = [path.name for path in code_closure(PORTABLE, modules)]
    assert [problem for name in names if (problem := name_problem(name))] == []


def test_missing_sibling_and_missing_auto_map_code_are_named(folder):
    (folder / "modeling_x.py").write_text("from .layers_x import y\n")
    config = {"model_type": "x", "auto_map": {"AutoModel": "modeling_y.Y"}}
    (folder / "config.json").write_text(json.dumps(config))
    problems = "\n".join(find_problems(folder))
    assert "modeling_x.py imports .layers_x, but layers_x.py is not in the folder" in problems
    assert "auto_map names modeling_y.py, which is not in the folder" in problems


def test_a_pickle_called_safetensors_is_noticed(folder):
    (folder / "model.safetensors").write_bytes(b"\x80\x04\x95" + b"x" * 200)
    assert any("not a safetensors file" in problem for problem in find_problems(folder))


def test_oversize_files_are_noticed(folder):
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(6 * 10**9)  # sparse: takes no room on disk
    (folder / "vocab.json").write_text("[" + " " * (11 << 20) + "]")
    problems = "\n".join(find_problems(folder))
    assert "model.safetensors: 6.0 GB; split the weights" in problems
    assert "vocab.json: 11 MiB" in problems


VIT = {
    "architecture": "vit_small_patch16_seqpe_224",
    "num_classes": 10,
    "model_args": {"img_size": 64},
    "pretrained_cfg": {"num_classes": 10, "input_size": [3, 64, 64]},
}
GPT2 = {
    "model_type": "seqpe_gpt2",
    "architectures": ["SeqPEGPT2LMHeadModel"],
    "auto_map": {
        "AutoConfig": "configuration_seqpe_gpt2.SeqPEGPT2Config",
        "AutoModel": "modeling_seqpe_gpt2.SeqPEGPT2Model",
        "AutoModelForCausalLM": "modeling_seqpe_gpt2.SeqPEGPT2LMHeadModel",
    },
}


SHARED_VIT = VIT | {
    "model_type": "seqpe_vit",
    "architectures": ["SeqPEViTForImageClassification"],
    "image_size": 64,
    "id2label": {str(number): str(number) for number in range(10)},
    "auto_map": {
        "AutoConfig": "configuration_seqpe_vit.SeqPEViTConfig",
        "AutoModel": "modeling_seqpe_vit.SeqPEViTModel",
        "AutoModelForImageClassification": "modeling_seqpe_vit.SeqPEViTForImageClassification",
    },
}


@pytest.mark.parametrize("config", [VIT, GPT2, SHARED_VIT], ids=["timm", "transformers", "both"])
def test_complete_configs_pass(config):
    assert config_problems(config) == []


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "neither timm"),
        (
            VIT | {"pretrained_cfg": {"num_classes": 1000, "input_size": [3, 64, 64]}},
            "pretrained_cfg says 1000",
        ),
        (VIT | {"pretrained_cfg": {"num_classes": 10, "input_size": [3, 224, 224]}}, "img_size 64"),
        (VIT | {"pretrained_cfg": {"num_classes": 10}}, "needs input_size"),
        (GPT2 | {"auto_map": {"AutoConfig": "c.SeqPEGPT2Config"}}, "no AutoModel"),
        (GPT2 | {"architectures": ["SeqPEGPT2ForSequenceClassification"]}, "the class that was saved"),
        (
            SHARED_VIT | {"auto_map": {"AutoConfig": "c.C", "AutoModel": "m.M"}},
            "no AutoModelForImageClassification",
        ),
        (
            SHARED_VIT | {"id2label": {"0": "a", "1": "b"}},
            "but transformers' id2label has 2",
        ),
        (SHARED_VIT | {"image_size": [64, 32]}, "but transformers' fields say [3, 64, 32]"),
    ],
)
def test_configs_that_build_another_model_are_noticed(config, words):
    assert any(words in problem for problem in config_problems(config))


def test_libraries_are_read_from_the_config():
    assert libraries_of({"architecture": "vit", "model_type": "seqpe_vit"}) == ["timm", "transformers"]
    assert libraries_of({}) == []


def test_tensors_get_a_prefix_and_keep_their_bytes(tmp_path):
    from safetensors.numpy import load

    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(bytes(range(64))))
    for _ in range(2):  # a second time changes nothing
        add_prefix(path, "vit.")
        tensors = load(path.read_bytes())
        assert list(tensors) == ["vit.weight"]
        assert tensors["vit.weight"].tobytes() == bytes(range(64))
    assert not list(tmp_path.glob("*.renamed"))


def test_a_card_that_names_a_library_which_cannot_load_the_model_is_refused(run_folder, tmp_path):
    card = write_card_folder(tmp_path / "card", FACTS.replace("[transformers]", "[timm, transformers]"))
    with pytest.raises(errors.CheckFailed, match="the card names timm, which cannot load this model"):
        stage(run_folder, tmp_path / "out", card_folder=card, fingerprint=False)


def test_git_sha1_is_the_one_of_git(tmp_path):
    (tmp_path / "x").write_text("hello\n")
    assert (
        git_sha1_of(tmp_path / "x") == "ce013625030ba8dba906f756967f9e9ca394464a"
    )  # printf 'hello\n' | git hash-object


def test_fingerprints_agree_within_the_tolerance_only():
    wanted = {"shape": [1, 2], "sample": [1.0, 200.0], "absmax": 200.0}
    assert compare_fingerprints(wanted | {"sample": [1.001, 200.0]}, wanted) is None
    assert "differ by" in compare_fingerprints(wanted | {"sample": [1.01, 200.0]}, wanted)
    assert "shape" in compare_fingerprints(wanted | {"shape": [2]}, wanted)


# Errors and tokens ----------------------------------------------------------------------------------

TOKEN = "hf_" + "x7Kq" * 9


def test_tokens_are_redacted_and_api_names_are_not():
    text = errors.redact(f"Bearer {TOKEN} from hf_hub_download")
    assert TOKEN not in text
    assert "hf_hub_download" in text


def test_error_messages_and_logs_never_show_a_token():
    assert TOKEN not in str(errors.NotAuthenticated(f"token {TOKEN} refused"))
    code = (
        "import logging, tests.hub.light\n"
        "from seqpe_zoo.hub.errors import guard_output\n"
        "guard_output()\n"
        f"logging.warning('header %s', 'Bearer {TOKEN}')\n"
        f"raise RuntimeError('{TOKEN}')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=LIGHT.parents[2])
    assert "RuntimeError" in done.stderr
    assert "header" in done.stderr
    assert "x7Kq" not in done.stdout + done.stderr


def test_every_error_has_its_own_exit_code_and_a_remedy():
    kinds = [
        kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.HubError)
    ]
    codes = [kind.exit_code for kind in kinds]
    assert len(codes) == len(set(codes)) >= 20
    assert all(kind.remedy for kind in kinds if kind not in (errors.HubError, errors.UsageError))


def test_deadline_counts_the_wait_the_server_asks_for():
    deadline = Deadline(10)
    deadline.check(5)
    with pytest.raises(errors.DeadlineExceeded, match="asks to wait 3600 s"):
        deadline.check(3600)


def test_backoff_grows_and_is_bounded():
    assert [backoff(attempt) for attempt in range(1, 7)] == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    "options", [{"repo_id": "noslash"}, {"pull_request": True, "tag": "v1"}, {"unknown_files": "maybe"}]
)
def test_targets_that_make_no_sense_are_refused(options):
    with pytest.raises(errors.UsageError):
        Target(**({"repo_id": "a/b"} | options))


def test_help_of_every_command_starts_without_heavy_libraries():
    for command in ("stage", "check", "plan", "push", "verify", "sync-code", "card"):
        done = subprocess.run([sys.executable, LIGHT, command, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        assert "exit codes" in done.stdout
