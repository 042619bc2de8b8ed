"""What must never go wrong silently: finished runs, two runs in a folder, damaged checkpoints, Ctrl-C."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from seqpe_zoo.training.checkpoints import LOCK, is_complete, lock_run
from seqpe_zoo.training.job import Outcome, run_job
from seqpe_zoo.training.launch import build_job
from seqpe_zoo.training.run_config import load_run
from seqpe_zoo.training.strict_config import ConfigError

from .helpers import SCRIPTS, environment, text_recipe


def train(folder: Path, *changes: str, **options: Any) -> Outcome:
    job = build_job(load_run(text_recipe(folder, training__ema_decay=0.9), changes))
    return run_job(job, listener=lambda *_: None, **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder above a finished run, to be copied."""
    folder = tmp_path_factory.mktemp("finished")
    train(folder)
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def contents(run: Path) -> dict[str, bytes]:
    return {str(path.relative_to(run)): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_resume_of_a_finished_run_trains_no_step(run: Path, tmp_path: Path) -> None:
    before = contents(run)
    outcome = train(tmp_path, resume=True)
    assert outcome.steps == 6
    after = contents(run)
    assert after.keys() == before.keys()
    assert {name for name in before if after[name] != before[name]} <= {"run.yaml", "results.json"}
    old, new = (json.loads(content["results.json"]) for content in (before, after))
    assert new["by_model"] == old["by_model"]
    assert new["details"]["seconds_a_step"] == old["details"]["seconds_a_step"]


def test_run_killed_after_its_last_step_is_saved_and_measured(run: Path, tmp_path: Path) -> None:
    before = contents(run)
    for name in ("results.json", "model.safetensors"):
        (run / name).unlink()
    train(tmp_path, "evaluation.lengths=[32]", resume=True)
    assert (run / "model.safetensors").read_bytes() == before["model.safetensors"]
    assert list(json.loads((run / "results.json").read_text())["by_model"]["seqpe"]["perplexity"]) == ["32"]


def test_a_second_run_in_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seqpe_zoo.training.checkpoints.LOCK_SECONDS", 0)
    program = (
        "import sys, time; from pathlib import Path; from seqpe_zoo.training.checkpoints import lock_run\n"
        "lock = lock_run(Path(sys.argv[1])); print('locked', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "run")]
    first = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout.readline() == "locked\n"
        with pytest.raises(ConfigError, match=r"another process is training in .*run"):
            train(tmp_path)
        assert [path.name for path in (tmp_path / "run").iterdir()] == [LOCK]
    finally:
        first.kill()
        first.wait()
    with lock_run(tmp_path / "run"):  # the lock of a dead process is free
        pass


@pytest.mark.parametrize(
    "name", ["model.safetensors", "optimizer.pt", "averaged.safetensors", "rng_state.pth"]
)
def test_a_flipped_bit_falls_back_to_the_checkpoint_before(run: Path, tmp_path: Path, name: str) -> None:
    expected = contents(run)
    path = run / "checkpoint-6" / name
    changed = bytearray(path.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    assert train(tmp_path, resume=True).steps == 6
    for file in ("model.safetensors", f"checkpoint-6/{name}"):
        assert (run / file).read_bytes() == expected[file]


@pytest.mark.parametrize("text", ["", "{", "[]", "nonsense", '{"global_step'])
@pytest.mark.parametrize("has_checksums", [True, False])
def test_garbage_as_state_falls_back_too(run: Path, tmp_path: Path, text: str, has_checksums: bool) -> None:
    path, mark = (run / "checkpoint-6" / name for name in ("trainer_state.json", "complete.json"))
    path.write_text(text.ljust(path.stat().st_size))
    if not has_checksums:  # as checkpoints of earlier versions
        mark.write_text(json.dumps({"files": json.loads(mark.read_text())["files"]}))
    assert train(tmp_path, resume=True).steps == 6
    assert json.loads(path.read_text())["global_step"] == 6


def test_run_without_an_intact_checkpoint_is_not_begun_anew(run: Path, tmp_path: Path) -> None:
    for path in run.glob("checkpoint-*/model.safetensors"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(ConfigError, match=r"checkpoint-4 is damaged \(model.safetensors.*--overwrite"):
        train(tmp_path, resume=True)


def test_finished_run_without_checkpoints_is_not_overwritten(run: Path, tmp_path: Path) -> None:
    for path in run.glob("checkpoint-*"):
        shutil.rmtree(path)
    before = (run / "model.safetensors").read_bytes()
    with pytest.raises(ConfigError, match="holds a run that is finished"):
        train(tmp_path, "training.seed=1")
    with pytest.raises(ConfigError, match="finished run without checkpoints"):
        train(tmp_path, resume=True)
    assert (run / "model.safetensors").read_bytes() == before


def test_overwriting_leaves_nothing_of_the_run_before(run: Path, tmp_path: Path) -> None:
    def fail(step: int, total: int, logs: dict[str, Any]) -> None:
        raise InterruptedError

    job = build_job(load_run(text_recipe(tmp_path), ["training.seed=1"]))
    with pytest.raises(InterruptedError):
        run_job(job, overwrite=True, listener=fail)
    assert not list(run.glob("*.safetensors"))
    assert not (run / "results.json").exists()
    assert "seed: 1" in (run / "run.yaml").read_text()


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_with_a_sentence(tmp_path: Path) -> None:
    recipe = text_recipe(tmp_path, training__steps=100_000, training__evaluate_every=0, training__workers=1)
    command = [sys.executable, str(SCRIPTS / "train_gpt2_wikitext.py"), str(recipe)]
    command.append("training.save_every=50000")
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("step 4 "):
            break
    process.send_signal(signal.SIGINT)
    words = process.stderr.read()
    assert process.wait(60) == 130
    assert "continue with --resume" in words
    assert "Traceback" not in words
    assert [is_complete(path) for path in (tmp_path / "run").glob("checkpoint-*")] == [True]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_runs_end_in_the_same_bits(tmp_path: Path) -> None:
    from .killed_runs import kill_and_continue

    outcomes = kill_and_continue(6, tmp_path)
    assert sum(outcomes.values()) == 6
    assert all(outcome.endswith("equal") for outcome in outcomes)
