"""Runs inside of this process: what they write, how they stop, continue and fail."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.hub.config_rules import config_problems
from seqpe_zoo.training.checkpoints import DiskFullError, is_complete
from seqpe_zoo.training.image_jobs import finetune_vit_job, train_vit_job
from seqpe_zoo.training.job import Outcome, dry_run, run_job
from seqpe_zoo.training.run_config import load_run
from seqpe_zoo.training.strict_config import ConfigError
from seqpe_zoo.training.text_jobs import finetune_gpt2_job, finetune_qa_job, train_gpt2_job

from .helpers import TINY_SEQPE, image_recipe, squad_file, text_recipe, write_recipe

NOTHING = {"listener": lambda *_: None}


def train_text(folder: Path, *changes: str, **options: Any) -> Outcome:
    return run_job(train_gpt2_job(load_run(text_recipe(folder), changes)), **NOTHING, **options)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished text run, for tests that only look at it."""
    return train_text(tmp_path_factory.mktemp("text")).folder


@pytest.fixture(scope="module")
def image_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished image run, for tests that only look at it."""
    folder = tmp_path_factory.mktemp("image")
    return run_job(train_vit_job(load_run(image_recipe(folder))), **NOTHING).folder


def test_text_run_leaves_model_results_and_checkpoints(text_run: Path) -> None:
    results = json.loads((text_run / "results.json").read_text())
    assert set(results["by_model"]["seqpe"]["perplexity"]) == {"32", "64"}
    assert results["details"]["steps"] == 6
    logged = [entry for entry in results["details"]["log"] if "loss" in entry]
    assert len(logged) == 3
    assert all(entry["position_distance_loss"] > 0 and entry["position_ood_loss"] >= 0 for entry in logged)
    assert sorted(path.name for path in text_run.glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    assert all(is_complete(path) for path in text_run.glob("checkpoint-*"))


def test_text_run_loads_through_transformers(text_run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(text_run)
    model = AutoModelForCausalLM.from_pretrained(text_run)
    ids = tokenizer("import os\n", return_tensors="pt")["input_ids"]
    assert model.config.position_encoding == "seqpe"
    assert model.generate(ids, max_new_tokens=3, do_sample=False).shape == (1, 13)


def test_image_run_loads_through_both_libraries(image_run: Path) -> None:
    import timm
    from transformers import AutoModelForImageClassification

    pixels = torch.randn(2, 3, 24, 24)
    with torch.no_grad():
        ours = timm.create_model(f"local-dir:{image_run}", pretrained=True).eval()(pixels)
        theirs = AutoModelForImageClassification.from_pretrained(image_run).eval()(pixels).logits
    assert torch.allclose(ours, theirs, atol=1e-5)
    config = json.loads((image_run / "config.json").read_text())
    assert config["num_classes"] == 10
    assert config["pretrained_cfg"]["input_size"] == [3, 16, 16]


def test_same_seed_gives_the_same_weights(text_run: Path, tmp_path: Path) -> None:
    again = train_text(tmp_path).folder
    assert (again / "model.safetensors").read_bytes() == (text_run / "model.safetensors").read_bytes()


def test_run_asked_to_end_saves_and_continues_exactly(text_run: Path, tmp_path: Path) -> None:
    def ask(step: int, total: int, logs: dict[str, Any]) -> None:
        if step == 3:
            os.kill(os.getpid(), signal.SIGTERM)

    recipe = text_recipe(tmp_path)
    stopped = run_job(train_gpt2_job(load_run(recipe)), listener=ask)
    assert (stopped.stopped, stopped.steps) == (signal.SIGTERM, 3)
    assert is_complete(tmp_path / "run" / "checkpoint-3")
    assert not (tmp_path / "run" / "model.safetensors").exists()
    finished = run_job(train_gpt2_job(load_run(recipe)), resume=True, **NOTHING)
    assert finished.steps == 6
    assert_same_state(tmp_path / "run" / "checkpoint-6", text_run / "checkpoint-6")


def test_image_run_with_all_augmentation_continues_exactly(tmp_path: Path) -> None:
    source = str(write_image_folder(tmp_path / "pictures", size=24, train=40, test=16))
    changes = {
        "augmentation__mixup": 0.8,
        "augmentation__cutmix": 1.0,
        "training__ema_decay": 0.9,
        "training__steps": 8,
        "training__evaluate_every": 8,
        "training__save_every": 8,
    }

    def ask(step: int, total: int, logs: dict[str, Any]) -> None:
        if step == 6:  # in the second epoch, of five steps
            os.kill(os.getpid(), signal.SIGTERM)

    whole = image_recipe(tmp_path / "whole", source, **changes)
    run_job(train_vit_job(load_run(whole)), **NOTHING)
    parts = image_recipe(tmp_path / "parts", source, **changes)
    assert run_job(train_vit_job(load_run(parts)), listener=ask).stopped
    run_job(train_vit_job(load_run(parts)), resume=True, **NOTHING)
    last = [tmp_path / name / "run" / "checkpoint-8" for name in ("parts", "whole")]
    assert_same_state(*last)
    assert (last[0] / "averaged.safetensors").read_bytes() == (last[1] / "averaged.safetensors").read_bytes()


def assert_same_state(one: Path, other: Path) -> None:
    """Weights, optimizer, schedule and random states of two checkpoints are equal bit by bit."""
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        states = [torch.load(folder / name, weights_only=False) for folder in (one, other)]
        if name == "rng_state.pth":
            # Libraries that are first imported during a run draw from Python's and NumPy's state; runs do
            # not.
            states = [state["cpu"] for state in states]
        assert_equal(*states)


def assert_equal(one: Any, other: Any) -> None:
    """Compares nested containers of tensors and numbers."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.equal(other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    elif hasattr(one, "tolist"):
        assert one.tolist() == other.tolist()
    elif not callable(one):
        assert one == other


def test_finished_run_is_not_overwritten_unasked(text_run: Path) -> None:
    with pytest.raises(ConfigError, match="holds a run at step 6"):
        train_text(text_run.parent)


def test_other_configuration_does_not_continue_a_run(text_run: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.learning_rate was 0\.003, is 0\.001"):
        train_text(text_run.parent, "training.learning_rate=0.001", resume=True)
    changes = ["model.position_encoding=rope", "model.position_encoding_args={}"]
    with pytest.raises(ConfigError, match=r"model\.position_encoding was 'seqpe', is 'rope'"):
        train_text(text_run.parent, *changes, resume=True)


def test_full_disk_keeps_the_last_good_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train_gpt2_job(load_run(text_recipe(tmp_path)))
    really_save = torch.save

    def save(content: Any, path: Any, *arguments: Any, **options: Any) -> None:
        if "checkpoint-4" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        really_save(content, path, *arguments, **options)

    monkeypatch.setattr(torch, "save", save)
    with pytest.raises(DiskFullError, match=r"checkpoint-4 could not be written.*kept: checkpoint-2"):
        run_job(job, **NOTHING)
    assert is_complete(tmp_path / "run" / "checkpoint-2")
    assert not (tmp_path / "run" / "checkpoint-4").exists()


def test_best_model_is_kept_and_given(tmp_path: Path) -> None:
    # A learning rate that ruins the model after the first steps: the best is not the last.
    changes = ["training.learning_rate=0.5", "training.schedule=constant", "training.clip=100.0"]
    changes += ["training.select_best=true", "training.keep_checkpoints=1"]
    outcome = train_text(tmp_path, *changes)
    details = json.loads((outcome.folder / "results.json").read_text())["details"]
    best = outcome.folder / f"checkpoint-{details['best_step']}"
    evaluated = [entry["eval_perplexity"] for entry in details["log"] if "eval_perplexity" in entry]
    assert details["best_metric"] == min(evaluated)
    weights = load_file(outcome.folder / "model.safetensors")
    assert all(value.equal(weights[name]) for name, value in load_file(best / "model.safetensors").items())


def test_dry_run_writes_nothing_and_names_the_cost(tmp_path: Path) -> None:
    lines = " ".join(dry_run(train_gpt2_job(load_run(text_recipe(tmp_path)))))
    assert not (tmp_path / "run").exists()
    assert "6 steps of 4 examples (128 tokens), 768 tokens in all" in lines
    assert "MiB a checkpoint" in lines
    assert "for an evaluation" in lines


def test_objectives_can_be_turned_off(tmp_path: Path) -> None:
    weights = "{num_digits: 4, distance_weight: 0.0, ood_weight: 0.0, shift_probability: 0.0}"
    outcome = train_text(tmp_path, f"model.position_encoding_args={weights}", "training.steps=2")
    log = json.loads((outcome.folder / "results.json").read_text())["details"]["log"]
    assert not any("position_distance_loss" in entry for entry in log)


@pytest.mark.parametrize("encoding", ["nope", "ape_sin", "ape_learn", "rope", "alibi"])
def test_every_text_baseline_trains(tmp_path: Path, encoding: str) -> None:
    changes = [f"model.position_encoding={encoding}", "model.position_encoding_args={}"]
    outcome = train_text(tmp_path, *changes, "training.steps=2", "training.evaluate_every=0")
    assert len(outcome.measurements) == 2


@pytest.mark.parametrize("encoding", ["nope", "ape_sin", "ape_learn", "rope2d_axial", "rope2d_mixed"])
def test_every_image_baseline_trains(tmp_path: Path, encoding: str) -> None:
    recipe = image_recipe(tmp_path, training__evaluate_every=0, training__steps=2)
    changes = [f"model.position_encoding={encoding}", "model.position_encoding_args={}"]
    outcome = run_job(train_vit_job(load_run(recipe, changes)), **NOTHING)
    assert {m.setting["resolution"] for m in outcome.measurements} == {16, 24}


def test_text_is_fine_tuned_from_a_folder_with_the_encoder_frozen(text_run: Path, tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for split in ("train", "valid", "test"):
        (tmp_path / "text" / f"{split}.txt").write_text(f"the {split} text goes on and on\n" * 60)
    content = {
        "task": "finetune_gpt2",
        "model": {"checkpoint": str(text_run), "position_encoding": "seqpe"},
        "data": {"source": str(tmp_path / "text"), "length": 48},
        "training": {
            "output": str(tmp_path / "run"),
            "steps": 3,
            "batch_size": 4,
            "layer_decay": 0.8,
            "freeze_position_encoder": True,
            "threads": 1,
        },
        "evaluation": {"lengths": [48, 96]},
    }
    outcome = run_job(finetune_gpt2_job(load_run(write_recipe(tmp_path, content, {}))), **NOTHING)
    before, after = load_file(text_run / "model.safetensors"), load_file(outcome.folder / "model.safetensors")
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed
    assert not any(".wpe." in name for name in changed)


def test_questions_are_fine_tuned_and_measured(text_run: Path, tmp_path: Path) -> None:
    questions = str(squad_file(tmp_path / "squad.json"))
    content = {
        "task": "finetune_gpt2_qa",
        "model": {"checkpoint": str(text_run)},
        "data": {"train": questions, "validation": questions, "length": 640, "validation_questions": 4},
        "training": {
            "output": str(tmp_path / "run"),
            "steps": 2,
            "batch_size": 2,
            "accumulate": 2,
            "evaluate_every": 2,
            "save_every": 2,
            "select_best": True,
            "threads": 1,
        },
        "evaluation": {"lengths": [640, 800], "questions": 3},
    }
    outcome = run_job(finetune_qa_job(load_run(write_recipe(tmp_path, content, {}))), **NOTHING)
    found = {(m.metric, m.setting["length"]) for m in outcome.measurements}
    metrics = ("answer_perplexity", "exact_match", "containment_match")
    assert found == {(metric, length) for metric in metrics for length in (640, 800)}


def test_pictures_are_fine_tuned_at_another_resolution(image_run: Path, tmp_path: Path) -> None:
    source = str(write_image_folder(tmp_path / "pictures", size=32, train=24, test=30))
    content = {
        "task": "finetune_vit",
        "model": {"checkpoint": str(image_run), "position_encoding": "seqpe"},
        "data": {"source": source, "resolution": 24},
        "augmentation": {"mixup": 0.0, "cutmix": 0.0, "auto_augment": None},
        "training": {"output": str(tmp_path / "run"), "steps": 2, "batch_size": 4, "threads": 1},
        "evaluation": {"resolutions": [24, 32]},
    }
    outcome = run_job(finetune_vit_job(load_run(write_recipe(tmp_path, content, {}))), **NOTHING)
    assert [m.setting["resolution"] for m in outcome.measurements if m.metric == "accuracy"] == [24, 32]
    saved = json.loads((outcome.folder / "config.json").read_text())
    assert config_problems(saved) == [], "what is tuned can be published"
    assert (saved["model_args"]["img_size"], "label_names" in saved["pretrained_cfg"]) == (24, False)


def test_model_of_grey_pictures_is_fine_tuned_on_coloured_ones(tmp_path: Path) -> None:
    recipe = image_recipe(tmp_path)
    grey = run_job(train_vit_job(load_run(recipe, ["model.architecture.in_chans=1"])), **NOTHING).folder
    source = str(write_image_folder(tmp_path / "pictures", size=32, train=24, test=30))
    content = {
        "task": "finetune_vit",
        "model": {"checkpoint": str(grey)},
        "data": {"source": source, "resolution": 16},
        "training": {"output": str(tmp_path / "tuned"), "steps": 2, "batch_size": 4, "threads": 1},
        "evaluation": {"resolutions": [16, 24]},
    }
    outcome = run_job(finetune_vit_job(load_run(write_recipe(tmp_path, content, {}))), **NOTHING)
    saved = json.loads((outcome.folder / "config.json").read_text())
    assert saved["pretrained_cfg"]["input_size"] == [1, 16, 16]
    assert len(outcome.measurements) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.source=absent", "does not exist"),
        ("data.length=20000", "num_digits=4"),
        ("evaluation.lengths=[32, 10001]", "num_digits=4"),
        ("model.tokenizer=absent-folder/nothing", "cannot load the tokenizer"),
    ],
)
def test_wrong_input_is_refused_before_training(
    tmp_path: Path, change: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises((DataError, ConfigError), match=message):
        train_gpt2_job(load_run(text_recipe(tmp_path), [change]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.source=absent", "does not exist"),
        ("data.resolution=18", "divis"),
        ("evaluation.resolutions=[16, 30]", "patches of 4 pixels; use 28 or 32"),
        ("evaluation.resolutions=[1000]", "num_digits=2"),
        ("model.num_classes=3", "has 10 classes"),
        ("model.name=vit_enormous", "Unknown model"),
    ],
)
def test_wrong_picture_input_is_refused_before_training(tmp_path: Path, change: str, message: str) -> None:
    with pytest.raises((DataError, ConfigError), match=message):
        train_vit_job(load_run(image_recipe(tmp_path), [change]))


def test_checkpoint_of_another_encoding_is_refused(text_run: Path, tmp_path: Path) -> None:
    content = {
        "task": "finetune_gpt2",
        "model": {"checkpoint": str(text_run), "position_encoding": "alibi"},
        "data": {"source": "stdlib"},
        "training": {"output": str(tmp_path / "run"), "steps": 1},
    }
    with pytest.raises(DataError, match=r"has the position encoding 'seqpe'.*'alibi'"):
        finetune_gpt2_job(load_run(write_recipe(tmp_path, content, {})))


def test_picture_model_without_our_encoding_is_refused(tmp_path: Path) -> None:
    import timm
    from timm.models import save_for_hf

    plain = timm.create_model("vit_tiny_patch16_224", depth=1, embed_dim=32, num_heads=2, img_size=32)
    arguments = {"depth": 1, "embed_dim": 32, "num_heads": 2, "img_size": 32}
    save_for_hf(plain, str(tmp_path / "plain"), model_args=arguments, safe_serialization=True)
    content = {
        "task": "finetune_vit",
        "model": {"checkpoint": str(tmp_path / "plain")},
        "data": {"source": "digits", "resolution": 32},
        "training": {"output": str(tmp_path / "run"), "steps": 1},
    }
    recipe = write_recipe(tmp_path, content, {})
    with pytest.raises(ConfigError, match=r"no position encoding of seqpe_zoo.*seqpe-zoo graft"):
        finetune_vit_job(load_run(recipe))
    with pytest.raises(ConfigError, match=r"model\.new_encoding.*language models.*seqpe-zoo graft"):
        finetune_vit_job(load_run(recipe, ["model.new_encoding=seqpe"]))
    job = finetune_vit_job(load_run(recipe, ["model.position_encoding=native"]))
    assert job.model.model.num_classes == 10


def test_shift_and_objectives_are_off_in_validation(tmp_path: Path) -> None:
    from seqpe_zoo.training.job import build_trainer

    shifting = {**TINY_SEQPE, "shift_probability": 1.0}
    recipe = text_recipe(tmp_path, model__position_encoding_args=shifting)
    trainer, _, _ = build_trainer(train_gpt2_job(load_run(recipe)), **NOTHING)
    values = {trainer.evaluate()["eval_perplexity"] for _ in range(3)}
    assert len(values) == 1


def test_freezing_what_is_not_there_is_refused(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    from seqpe_zoo.data.byte_tokenizer import build_byte_tokenizer

    GPT2LMHeadModel(GPT2Config(vocab_size=256, n_embd=32, n_layer=1, n_head=2)).save_pretrained(
        tmp_path / "gpt2"
    )
    build_byte_tokenizer().save_pretrained(tmp_path / "gpt2")
    content = {
        "task": "finetune_gpt2",
        "model": {"checkpoint": str(tmp_path / "gpt2")},
        "data": {"source": "stdlib", "length": 32, "max_train_tokens": 500, "max_validation_tokens": 500},
        "training": {"output": str(tmp_path / "run"), "steps": 1, "freeze_position_encoder": True},
    }
    job = finetune_gpt2_job(load_run(write_recipe(tmp_path, content, {})))
    with pytest.raises(ConfigError, match="no position encoding of seqpe_zoo"):
        run_job(job, **NOTHING)
