import subprocess
import sys
from pathlib import Path

import pytest

from seqpe_zoo.training.publishing import check_target
from seqpe_zoo.training.strict_config import ConfigError
from tests.hub.helpers import LoopbackHub, hub_environment

from .helpers import REPOSITORY, SCRIPTS, text_recipe


@pytest.mark.parametrize(
    ("repo_id", "license_name"),
    [
        ("model", "mit"),
        ("a/b/c", "mit"),
        ("/b", "mit"),
        ("../evil", "mit"),
        ("a b/c", "mit"),
        ("a/b", "my own"),
    ],
)
def test_impossible_targets_are_refused(repo_id: str, license_name: str) -> None:
    with pytest.raises(ConfigError):
        check_target(repo_id, license_name)


@pytest.mark.slow
def test_finished_run_goes_to_the_hub_by_the_publishing_road(tmp_path: Path) -> None:
    hub = LoopbackHub.start(tmp_path / "hub", tmp_path / "home")
    try:
        more = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
        recipe = text_recipe(tmp_path, training__steps=2, training__evaluate_every=0)
        words = [recipe, "--push-to-hub", "zoo/tiny-text", "--license", "mit"]
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "train_gpt2_wikitext.py"), *map(str, words)],
            env=hub_environment(tmp_path / "home", hub.url, **more),
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert {"model.safetensors", "README.md", "MANIFEST.json"} <= set(hub.files("zoo/tiny-text"))
    finally:
        hub.stop()
