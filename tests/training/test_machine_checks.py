from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from seqpe_zoo.training.launch import run_script
from seqpe_zoo.training.run_config import TrainingConfig
from seqpe_zoo.training.strict_config import ConfigError
from seqpe_zoo.training.trainer import check_machine, training_arguments

from .helpers import text_recipe

without_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is not None, reason="deepspeed is installed")


def config(**changes: object) -> TrainingConfig:
    return TrainingConfig(**{"output": "run", "steps": 5, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, "fp16 needs a GPU"),
        ({"fsdp": True}, "accelerate launch --num_processes"),
        ({"deepspeed": "absent.json"}, "absent.json cannot be read"),
        ({"report_to": ("tensorbord",)}, "must be one of tensorboard, wandb, trackio"),
    ],
)
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_what_the_machine_cannot_do_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_machine(config(**changes))


def test_what_the_machine_can_do_is_accepted() -> None:
    check_machine(config(precision="bf16", report_to=("tensorboard",)))


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_logger_that_is_not_installed_is_named(name: str) -> None:
    if find_spec(name) is not None:
        pytest.skip(f"{name} is installed")
    with pytest.raises(ConfigError, match=f"pip install {name}"):
        check_machine(config(report_to=(name,)))


@without_deepspeed
def test_deepspeed_is_asked_for_before_data_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings, empty = deepspeed_settings(tmp_path), tmp_path / "empty.txt"
    empty.touch()  # reading it would be the error
    words = [str(text_recipe(tmp_path)), f"training.deepspeed={settings}", f"data.source={empty}"]
    assert run_script("train_gpt2", "", words) == 2
    assert "pip install deepspeed" in capsys.readouterr().err


@without_deepspeed
def test_deepspeed_settings_reach_transformers(tmp_path: Path) -> None:
    with pytest.raises(PackageNotFoundError, match="deepspeed"):
        training_arguments(config(deepspeed=str(deepspeed_settings(tmp_path))), "perplexity")


def test_sharding_reaches_transformers() -> None:
    arguments = training_arguments(config(fsdp=True, fsdp_config={"cpu_offload": True}), "perplexity")
    assert arguments.fsdp_plugin_args["fsdp_version"] == 2
    assert arguments.fsdp_plugin_args["cpu_offload"]


def deepspeed_settings(folder: Path) -> Path:
    path = folder / "zero.json"
    path.write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": "auto"}')
    return path
