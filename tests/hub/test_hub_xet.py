"""A push and a download by xet, with the real hf_xet: the hub's storage is a folder."""

import pytest

from tests.hub.helpers import REPO, LoopbackHub, folder_hashes

pytest.importorskip("hf_xet")


@pytest.fixture
def xet_hub(tmp_path):
    server = LoopbackHub.start(tmp_path / "hub_root", tmp_path / "client_home", "--xet")
    yield server
    server.stop()


def test_a_push_by_xet_is_one_commit_and_comes_back_equal(xet_hub, folder):
    hub = xet_hub
    pushed = hub.push(folder, HF_HUB_DISABLE_XET="0")
    assert pushed.code == 0, pushed.text
    assert hub.files() == folder_hashes(folder)
    assert (hub.commits(), hub.state()["tags"]) == (1, {"v1.0": hub.head()})
    assert "xet-write-token" in hub.steps()
    assert not {"lfs-batch", "lfs-put"} & set(hub.steps())

    again = hub.push(folder, HF_HUB_DISABLE_XET="0")
    assert again.code == 0, again.text
    assert hub.commits() == 1

    verified = hub.run("verify", REPO, "--files-only", "--folder", folder, HF_HUB_DISABLE_XET="0")
    assert verified.code == 0, verified.text
    assert "xet-read-token" in hub.steps()
    assert not [e for e in hub.log() if e["step"] == "resolve" and e["path"].endswith("model.safetensors")]


def test_a_commit_whose_answer_is_lost_is_not_sent_twice_by_xet(xet_hub, folder):
    xet_hub.fault("commit", "lost-answer")
    pushed = xet_hub.push(folder, HF_HUB_DISABLE_XET="0")
    assert pushed.code == 0, pushed.text
    assert (xet_hub.commits(), xet_hub.steps().count("commit")) == (1, 1)
    assert xet_hub.files() == folder_hashes(folder)


def test_busy_token_route_passes(xet_hub, folder):
    xet_hub.fault("xet-write-token", status=503, retry_after=0)
    pushed = xet_hub.push(folder, HF_HUB_DISABLE_XET="0")
    assert pushed.code == 0, pushed.text
    assert xet_hub.files() == folder_hashes(folder)


def test_silent_storage_ends_with_the_deadline(xet_hub, folder):
    xet_hub.fault("xet-write-token", "delay", seconds=600)  # longer than the test waits for the command
    ran = xet_hub.push(folder, "--deadline", "5", HF_HUB_DISABLE_XET="0")
    assert ran.code == 19, ran.text
    assert "what to do:" in ran.err
    assert xet_hub.commits() == 0
