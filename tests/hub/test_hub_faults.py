"""The fault matrix: every row breaks one thing on the way, on a real client and a real server.

In each row nothing is lost, nothing is half-published (the main branch holds either what it held or exactly
the folder, the tag names only a complete commit), the exit code and the message say what to do, and running
the same command again finishes the work with one commit in all.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from tests.hub.helpers import LIGHT, REPO, folder_hashes, hub_environment, put_collection, restage


def assert_published_once(hub, folder, ran):
    assert ran.code == 0, ran.text
    assert hub.commits() == 1
    assert hub.files() == folder_hashes(folder)
    assert hub.state()["tags"] == {"v1.0": hub.head()}


def assert_nothing_published(hub):
    if hub.exists():
        assert hub.files() == {}
        assert hub.commits() == 0
        assert hub.state()["tags"] == {}


def assert_says(ran, code, *words):
    assert ran.code == code, ran.text
    assert "what to do:" in ran.err
    for word in words:
        assert word in ran.err


def commit_as_somebody_else(hub):
    """Commit a file to the repository while a push is under way."""
    lines = [{"key": "header", "value": {"summary": "meanwhile"}}]
    lines += [{"key": "file", "value": {"path": "README.md", "content": "aGVsbG8=", "encoding": "base64"}}]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    request = urllib.request.Request(f"{hub.url}/api/models/{REPO}/commit/main", data=body, method="POST")
    request.add_header("Authorization", "Bearer hf_loopback_write")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()


def start_push(hub, folder, *options):
    command = [sys.executable, str(LIGHT), "push", str(folder), "--yes", "--create", *options]
    env = hub_environment(hub.home, hub.url)
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_step(hub, step, seconds=30):
    """Wait until the hub has answered a step; the fault's delay holds the next one."""
    end = time.monotonic() + seconds
    while step not in hub.steps():
        assert time.monotonic() < end, f"{step} never came: {hub.steps()}"
        time.sleep(0.05)


# Who you are and where you are going --------------------------------------------------------------


def test_401_bad_token(hub, folder):
    ran = hub.push(folder, token="hf_thisTokenIsNotKnownToTheHubAtAll0000")
    assert_says(ran, 10, "hf auth login")
    assert_nothing_published(hub)


def test_401_no_token(hub, folder):
    assert_says(hub.push(folder, token=None), 10, "HF_TOKEN")
    assert_nothing_published(hub)


def test_403_read_token_cannot_create(hub, folder):
    assert_says(hub.push(folder, token="hf_loopback_read"), 11, "write access")
    assert not hub.exists()


def test_403_read_token_on_an_existing_repository_moves_no_data(hub, folder):
    hub.push(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    restage(folder)
    head, uploads = hub.head(), hub.steps().count("preupload")
    assert_says(hub.push(folder, "--tag", "v2", token="hf_loopback_read"), 11, "write access")
    assert (hub.head(), hub.steps().count("preupload")) == (head, uploads)


def test_wrong_endpoint_that_answers_with_web_pages(hub, folder):
    hub.fault("*", "html", times=99)
    assert_says(hub.push(folder), 13, "HF_ENDPOINT")
    assert_nothing_published(hub)


def test_endpoint_where_nobody_listens(hub, folder):
    ran = hub.push(folder, "--deadline", "2", HF_ENDPOINT="http://127.0.0.1:9")
    assert ran.code in (18, 19), ran.text
    assert "what to do:" in ran.err


def test_offline_mode(hub, folder):
    assert_says(hub.push(folder, HF_HUB_OFFLINE="1"), 20, "HF_HUB_OFFLINE")
    assert hub.steps() == []


def test_server_without_xet_storage(hub, folder):
    ran = hub.push(folder, HF_HUB_DISABLE_XET="0")
    assert_says(ran, 14, "HF_HUB_DISABLE_XET=1")
    assert_nothing_published(hub)
    assert_published_once(hub, folder, hub.push(folder))


# Conflicts ----------------------------------------------------------------------------------------


def test_409_repository_made_by_somebody_else_meanwhile(hub, folder):
    hub.fault("create-repo", "lost-answer")
    assert_published_once(hub, folder, hub.push(folder))
    assert hub.steps().count("create-repo") == 2


def test_409_at_the_commit(hub, folder):
    hub.fault("commit", status=409)
    assert_says(hub.push(folder), 15, "run the same command again")
    assert_nothing_published(hub)
    assert_published_once(hub, folder, hub.push(folder))


def test_409_tag_set_by_somebody_else(hub, folder):
    hub.push(folder, "--tag", "other")
    hub.fault("tag", status=409)
    ran = hub.push(folder)
    assert_says(ran, 40, "choose a new tag")
    assert hub.files() == folder_hashes(folder)


def test_412_somebody_commits_between_plan_and_commit(hub, folder):
    hub.push(folder)
    commit_as_somebody_else(hub)
    theirs = hub.head()
    hub.fault("preupload", "delay", seconds=2)
    process = start_push(hub, folder, "--tag", "v2")
    wait_for_count(hub, "validate-yaml", 2)
    commit_as_somebody_else(hub)
    later = hub.head()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 16, err
    assert "run plan again" in err
    assert hub.head() == later != theirs
    assert "v2" not in hub.state()["tags"]


def wait_for_count(hub, step, count, seconds=30):
    end = time.monotonic() + seconds
    while hub.steps().count(step) < count:
        assert time.monotonic() < end, f"{step} never came {count} times: {hub.steps()}"
        time.sleep(0.05)


# Busy servers -------------------------------------------------------------------------------------

OUR_STEPS = ["whoami", "create-repo", "repo-info", "refs", "validate-yaml", "commit", "tag"]
CLIENT_STEPS = ["preupload", "lfs-batch", "lfs-put", "lfs-verify", "tree"]


@pytest.mark.parametrize("step", OUR_STEPS + CLIENT_STEPS)
def test_429_then_503_with_retry_after_passes(hub, folder, step):
    hub.fault(step, status=429, retry_after=0)
    hub.fault(step, status=503, retry_after=0)
    assert_published_once(hub, folder, hub.push(folder))
    faults = [line for line in hub.log() if line.get("fault")]
    assert [line["status"] for line in faults] == [429, 503]
    assert {line["step"] for line in faults} == {step}


def test_503_when_made_public_and_write_check_passes(hub, folder):
    hub.push(folder)
    hub.fault("auth-check", status=503, retry_after=0)
    hub.fault("settings", status=429, retry_after=0)
    ran = hub.push(folder, "--public", "--verify", "files")
    assert_published_once(hub, folder, ran)
    assert hub.state()["private"] is False


def test_503_at_a_new_branch_a_collection_and_the_download_passes(hub, folder):
    slug = put_collection(hub)
    hub.push(folder)
    steps = ("branch", "collections", "resolve-head", "resolve", "commits")
    for step in steps:
        hub.fault(step, status=503, retry_after=0)
    hub.fault("commit", "lost-answer")  # after which the history ("commits") is read
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    restage(folder)
    options = ("--revision", "next", "--tag", "v2", "--collection", slug, "--verify", "files")
    ran = hub.push(folder, *options)
    assert ran.code == 0, ran.text
    assert {line["step"] for line in hub.log() if line.get("fault")} == {*steps, "commit"}
    assert hub.commits() == 2
    assert hub.files(commit=hub.state()["tags"]["v2"]) == folder_hashes(folder)


@pytest.mark.parametrize("step", ["whoami", "validate-yaml", "commit"])
def test_503_that_does_not_pass_gives_up_after_five_attempts(hub, folder, step):
    hub.fault(step, status=503, retry_after=0, times=99)
    assert_says(hub.push(folder), 17, "run the same command again")
    assert len([line for line in hub.log() if line.get("fault")]) == 5
    assert_nothing_published(hub)


def test_retry_after_beyond_the_deadline_ends_at_once(hub, folder):
    hub.fault("lfs-put", status=429, retry_after=86400, times=99)
    started = time.monotonic()
    ran = hub.push(folder, "--deadline", "60")
    assert_says(ran, 19, "--deadline")
    assert time.monotonic() - started < 50
    assert_nothing_published(hub)


def test_silent_server_ends_with_the_deadline(hub, folder):
    hub.fault("commit", "delay", seconds=30)
    started = time.monotonic()
    ran = hub.push(folder, "--deadline", "5")
    assert_says(ran, 19, "run the same command again")
    assert time.monotonic() - started < 25


# Broken connections -------------------------------------------------------------------------------


def test_connection_reset_in_a_put(hub, folder):
    hub.fault("lfs-put", "reset", after_bytes=1000)
    assert_published_once(hub, folder, hub.push(folder))
    assert hub.steps().count("lfs-put") == 2


def test_lost_commit_answer_is_found_in_the_history(hub, folder):
    hub.fault("commit", "lost-answer")
    ran = hub.push(folder)
    assert_published_once(hub, folder, ran)
    assert "the commit is there" in ran.err
    assert hub.steps().count("commit") == 1


def test_lost_commit_answer_and_unreadable_history_end_without_a_second_commit(hub, folder):
    hub.fault("commit", "lost-answer")
    hub.fault("commits", status=403)
    ran = hub.push(folder)
    assert_says(ran, 11, "makes no second one")
    assert hub.files() == folder_hashes(folder)
    assert_published_once(hub, folder, hub.push(folder))


def test_lost_answer_of_a_pull_request_opens_no_second_one(hub, folder):
    hub.push(folder, "--tag", "v1.0")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    restage(folder)
    hub.fault("commit", "lost-answer")
    ran = hub.push(folder, "--pr")
    assert ran.code == 0, ran.text
    again = hub.push(folder, "--pr")
    assert again.code == 0, again.text
    assert "/discussions/1" in again.out
    assert list(hub.state()["pulls"]) == ["refs/pr/1"]


def test_pull_request_that_never_arrived_is_not_sent_blindly_again(hub, folder):
    hub.push(folder)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    restage(folder)
    hub.fault("commit", "reset")
    assert_says(hub.push(folder, "--pr"), 18, "run the same command again")
    assert hub.state()["pulls"] == {}
    assert hub.push(folder, "--pr").code == 0
    assert list(hub.state()["pulls"]) == ["refs/pr/1"]


def test_commit_that_never_arrived_is_sent_again(hub, folder):
    hub.fault("commit", "reset")
    assert_published_once(hub, folder, hub.push(folder))
    assert hub.steps().count("commit") == 2


@pytest.mark.parametrize("step", ["tag", "settings"])
def test_lost_answer_of_a_later_step(hub, folder, step):
    hub.fault(step, "lost-answer")
    ran = hub.push(folder, "--public", "--verify", "files")
    assert_published_once(hub, folder, ran)
    assert hub.state()["private"] is False


@pytest.mark.parametrize(
    ("before", "held"), [("lfs-batch", "lfs-put"), ("lfs-verify", "commit"), ("commit", "tag")]
)
def test_killed_client_and_second_run(hub, folder, before, held):
    hub.fault(held, "delay", seconds=1.5)
    process = start_push(hub, folder)
    wait_for_step(hub, before)
    time.sleep(0.5)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_for_step(hub, held)  # the server finishes what it had received
    assert_published_once(hub, folder, hub.push(folder))


# Downloads ----------------------------------------------------------------------------------------


def test_corrupted_download_is_noticed(hub, folder):
    hub.push(folder)
    hub.fault("resolve", "corrupt", path="model.safetensors")
    ran = hub.run("verify", REPO, "--files-only")
    assert_says(ran, 50, "model.safetensors arrived corrupted", "do not announce")
    assert hub.run("verify", REPO, "--files-only", "--folder", folder).code == 0


def test_download_cut_off_is_resumed(hub, folder):
    hub.push(folder)
    hub.fault("resolve", "truncate", path="model.safetensors")
    ran = hub.run("verify", REPO, "--revision", "v1.0", "--files-only")
    assert ran.code == 0, ran.text
    assert hub.head() in ran.out


def test_repository_that_differs_from_the_staged_folder_is_noticed(hub, folder):
    hub.push(folder)
    commit_as_somebody_else(hub)
    assert_says(hub.run("verify", REPO, "--files-only", "--folder", folder), 50, "README.md differs")
    assert hub.run("verify", REPO, "--revision", "v1.0", "--files-only", "--folder", folder).code == 0


# Full disks: the kernel refuses to write more than a limit ----------------------------------------


def run_with_small_disk(hub, *arguments, bytes_per_file=50_000):
    limit = (
        "import resource, runpy, signal, sys;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({bytes_per_file}, {bytes_per_file}));"
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(LIGHT)!r}, run_name='__main__')"
    )
    command = [sys.executable, "-c", limit, str(LIGHT), *map(str, arguments)]
    env = hub_environment(hub.home, hub.url)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.skipif(os.name != "posix", reason="uses POSIX file-size limits")
def test_full_disk_while_staging_leaves_nothing(hub, staged_once, tmp_path):
    source = staged_once.parent
    target = tmp_path / "out" / "folder"
    done = run_with_small_disk(
        hub, "stage", source / "run", target, "--card", source / "card", "--no-fingerprint"
    )
    assert done.returncode == 32, done.stderr
    assert "free some space" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.skipif(os.name != "posix", reason="uses POSIX file-size limits")
def test_full_disk_while_verifying(hub, folder):
    hub.push(folder)
    done = run_with_small_disk(hub, "verify", REPO, "--files-only")
    assert done.returncode == 32, done.stderr
    assert "free some space" in done.stderr


# Things that must not travel ----------------------------------------------------------------------


def test_card_the_hub_refuses(hub, folder):
    hub.fault("validate-yaml", status=400)
    assert_says(hub.push(folder), 21)
    assert_nothing_published(hub)


def put_pickle(folder):
    import pickle

    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"weight": [1.0]}))


def put_pickle_under_another_name(folder):
    import pickle

    (folder / "vocab.json").write_bytes(pickle.dumps({"weight": [1.0]}, protocol=4))


def put_symlink(folder):
    (folder / "merges.txt").symlink_to("/etc/hostname")


def put_folder(folder):
    (folder / "logs").mkdir()
    (folder / "logs" / "events.txt").write_text("x")


def put_parent_path(folder):
    index = {"weight_map": {"weight": "../../other/model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def put_odd_name(folder):
    (folder / "a\\..\\x.py").write_text("x = 1")


def put_secret(folder):
    (folder / "config.json").write_text(json.dumps({"model_type": "gpt2", "note": "hf_" + "a1B2" * 9}))


def put_environment_file(folder):
    (folder / ".env").write_text("KEY=1")


def put_local_path(folder):
    (folder / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "data": "/" + "home/somebody/data"})
    )


def put_invalid_card(folder):
    card = (folder / "README.md").read_text().replace("license: mit", "license: my-own")
    (folder / "README.md").write_text(card)


def put_damaged_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def put_code_of_another_repository(folder):
    config = {"model_type": "x", "auto_map": {"AutoConfig": "somebody/else--configuration_x.XConfig"}}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("put", "words"),
    [
        (put_pickle, "pytorch_model.bin: may hold a pickle"),
        (put_pickle_under_another_name, "its content is a pickle"),
        (put_symlink, "a symbolic link"),
        (put_folder, "no folders"),
        (put_parent_path, "'../../other/model.safetensors', which is not in the folder"),
        (put_odd_name, "only plain file names may travel"),
        (put_secret, "contains a Hugging Face token"),
        (put_environment_file, "no hidden files"),
        (put_local_path, "names a folder of somebody's machine"),
        (put_invalid_card, "license 'my-own' is not on the Hub's list"),
        (put_damaged_weights, "cut off or damaged"),
        (put_code_of_another_repository, "takes code from another repository"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_folder_with_something_that_must_not_travel(hub, folder, put, words):
    put(folder)
    if put is put_invalid_card:
        restage(folder)
    ran = hub.push(folder, "--unchecked")
    assert_says(ran, 30, words, "nothing was sent")
    assert "a1B2" not in ran.text
    assert hub.steps() == []
