"""The scripts as users start them: processes of their own, killed, continued, in parallel."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.training.job import run_job
from seqpe_zoo.training.run_config import load_run
from seqpe_zoo.training.text_jobs import train_gpt2_job

from .helpers import (
    SCRIPTS,
    environment,
    image_recipe,
    logged_losses,
    run_script,
    squad_file,
    text_recipe,
    write_recipe,
)

pytestmark = pytest.mark.slow


def wait_for(path: Path, process: subprocess.Popen[bytes], seconds: float = 200) -> None:
    end = time.monotonic() + seconds
    while not path.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < end, f"{path.name} did not appear"
        time.sleep(0.002)


def test_killed_run_continues_to_the_same_bits(tmp_path: Path) -> None:
    changes = {"training__steps": 40, "training__save_every": 4, "training__evaluate_every": 8}
    whole, parts = (text_recipe(tmp_path / name, **changes) for name in ("whole", "parts"))
    run_job(train_gpt2_job(load_run(whole)), listener=lambda *_: None)
    command = [sys.executable, str(SCRIPTS / "train_gpt2_wikitext.py"), str(parts)]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.DEVNULL)
    # The folder appears before its files: the kill meets a checkpoint that is being written.
    wait_for(tmp_path / "parts" / "run" / "checkpoint-20", process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    finished = run_script("train_gpt2_wikitext.py", parts, "--resume")
    assert finished.returncode == 0, finished.stderr
    assert "continuing from checkpoint-" in finished.stderr
    assert "missing keys" not in finished.stderr  # the output weights are the input embeddings
    one, other = (tmp_path / name / "run" for name in ("whole", "parts"))
    assert (one / "model.safetensors").read_bytes() == (other / "model.safetensors").read_bytes()
    states = [torch.load(run / "checkpoint-40" / "optimizer.pt") for run in (one, other)]
    assert repr(flatten(states[0])) == repr(flatten(states[1]))


def flatten(value: object) -> object:
    """Turns tensors inside of containers into lists, for comparison."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flatten(entry) for key, entry in value.items()}
    return [flatten(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def test_terminated_run_saves_and_ends_cleanly(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, training__steps=100_000, training__save_every=50_000)
    command = [
        sys.executable,
        str(SCRIPTS / "train_gpt2_wikitext.py"),
        str(recipe),
        "training.evaluate_every=0",
    ]
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step 4 "):
            break
    process.terminate()
    words = process.stderr.read()
    assert process.wait(60) == 0
    assert "continue with --resume" in words
    assert len(list((tmp_path / "run").glob("checkpoint-*/complete.json"))) == 1


# Dropout and drawn positions differ between processes, as they should; without them losses must agree.
QUIET = [
    "model.position_encoding_args="
    "{num_digits: 4, distance_weight: 0.0, ood_weight: 0.0, shift_probability: 0.0, dropout: 0.0}",
    "model.architecture="
    "{n_embd: 32, n_layer: 2, n_head: 4, resid_pdrop: 0.0, embd_pdrop: 0.0, attn_pdrop: 0.0}",
    "training.log_every=1",
]


@pytest.fixture(scope="module")
def run_of_one_process(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = text_recipe(tmp_path_factory.mktemp("one"), training__batch_size=8)
    return run_job(train_gpt2_job(load_run(recipe, QUIET)), listener=lambda *_: None).folder


def run_two_processes(*words: str | Path) -> None:
    # accelerate's own launcher of CPU processes needs MPI; that of several GPUs starts them without.
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    launch += ["--num_cpu_threads_per_process", "1", "--main_process_port", "0"]
    both = subprocess.run(
        [*launch, *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert both.returncode == 0, both.stderr[-3000:]


def test_two_processes_give_the_loss_of_one(tmp_path: Path, run_of_one_process: Path) -> None:
    recipe = text_recipe(tmp_path, training__batch_size=4)
    run_two_processes(SCRIPTS / "train_gpt2_wikitext.py", recipe, *QUIET)
    assert logged_losses(tmp_path / "run") == pytest.approx(logged_losses(run_of_one_process), rel=2e-4)


def test_sharded_processes_give_the_model_of_one(tmp_path: Path, run_of_one_process: Path) -> None:
    recipe = text_recipe(tmp_path, training__batch_size=4, training__select_best=True)
    starter = Path(__file__).with_name("sharded_on_cpu.py")
    script = SCRIPTS / "train_gpt2_wikitext.py"
    run_two_processes(starter, script, recipe, *QUIET, "training.fsdp=true")
    run = tmp_path / "run"
    assert (run / "checkpoint-6" / "pytorch_model_fsdp.bin").is_file()  # it was sharded
    assert logged_losses(run) == pytest.approx(logged_losses(run_of_one_process), rel=2e-4)
    one, two = (load_file(folder / "model.safetensors") for folder in (run_of_one_process, run))
    assert one.keys() == two.keys()
    assert all(
        value.allclose(one[name], atol=3e-4) for name, value in two.items()
    )  # AdamW magnifies rounding


def test_images_train_and_fine_tune_from_the_command_line(tmp_path: Path) -> None:
    import timm

    source = str(write_image_folder(tmp_path / "pictures", size=24, train=40, test=30))
    trained = run_script("train_vit_imagenet.py", image_recipe(tmp_path, source, training__ema_decay=0.9))
    assert trained.returncode == 0, trained.stderr
    content = {
        "task": "finetune_vit",
        "model": {"checkpoint": str(tmp_path / "run")},
        "data": {"source": source, "resolution": 24},
        "training": {"output": str(tmp_path / "tuned"), "steps": 2, "batch_size": 4, "layer_decay": 0.8},
        "evaluation": {"resolutions": [24, 32]},
    }
    tuned = run_script("finetune_vit.py", write_recipe(tmp_path / "second", content, {}))
    assert tuned.returncode == 0, tuned.stderr
    model = timm.create_model(f"local-dir:{tmp_path / 'tuned'}", pretrained=True)
    assert model.position_encoding.name == "seqpe"
    assert model.num_classes == 10


def test_questions_and_text_fine_tune_from_the_command_line(tmp_path: Path) -> None:
    run_job(train_gpt2_job(load_run(text_recipe(tmp_path))), listener=lambda *_: None)
    questions = str(squad_file(tmp_path / "squad.json"))
    training = {"output": str(tmp_path / "qa"), "steps": 2, "batch_size": 2}
    content = {
        "task": "finetune_gpt2_qa",
        "model": {"checkpoint": str(tmp_path / "run")},
        "data": {"train": questions, "validation": questions, "length": 640, "validation_questions": 2},
        "training": training,
        "evaluation": {"lengths": [640], "questions": 2, "generate": False},
    }
    tuned = run_script("finetune_gpt2_qa.py", write_recipe(tmp_path / "second", content, {}))
    assert tuned.returncode == 0, tuned.stderr
    content = {
        "task": "finetune_gpt2",
        "model": {"checkpoint": str(tmp_path / "qa")},
        "data": {"source": "stdlib", "length": 64, "max_train_tokens": 2000, "max_validation_tokens": 500},
        "training": {**training, "output": str(tmp_path / "tuned")},
        "evaluation": {"lengths": [64], "max_tokens": 300},
    }
    tuned = run_script("finetune_gpt2.py", write_recipe(tmp_path / "third", content, {}))
    assert tuned.returncode == 0, tuned.stderr
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("run", "tuned")]
    assert weights[0].keys() == weights[1].keys()
