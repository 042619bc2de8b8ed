"""The loopback hub as other tools see it: the real huggingface_hub, nothing of our own between."""

import json
import subprocess
import sys

import pytest

from tests.hub.helpers import LoopbackHub, hub_environment
from tests.loopback_hub.faults import Faults

TOUR = """
import json, os, sys
import huggingface_hub as hf
api, repo = hf.HfApi(), "zoo/tour"
seen = {}
api.create_repo(repo, private=True)
api.create_repo(repo, exist_ok=True)
folder = sys.argv[1]
first = api.upload_folder(repo_id=repo, folder_path=folder, commit_message="one")
seen["unchanged"] = api.upload_folder(repo_id=repo, folder_path=folder).oid == first.oid
api.create_branch(repo, branch="next")
api.upload_file(repo_id=repo, path_or_fileobj=b"two", path_in_repo="sub/two.txt", revision="next")
api.create_tag(repo, tag="v1", tag_message="words")
refs = api.list_repo_refs(repo)
seen["refs"] = [sorted(r.name for r in refs.branches), sorted(r.name for r in refs.tags)]
seen["main"] = sorted(api.list_repo_files(repo))
seen["next"] = sorted(api.list_repo_files(repo, revision="next"))
seen["top"] = sorted(e.path for e in api.list_repo_tree(repo, revision="next"))
seen["paths"] = [p.path for p in api.get_paths_info(repo, ["model.safetensors", "nothing"])]
pull = api.upload_file(repo_id=repo, path_or_fileobj=b"p", path_in_repo="p.txt", create_pr=True)
seen["pull"] = [pull.pr_revision, api.get_repo_discussions(repo).__next__().is_pull_request]
api.delete_file("sub/two.txt", repo, revision="next")
seen["deleted"] = "sub/two.txt" not in api.list_repo_files(repo, revision="next")
collection = api.create_collection("A Zoo")
api.add_collection_item(collection.slug, repo, "model")
seen["items"] = [i.item_id for i in api.get_collection(collection.slug).items]
snapshot = hf.snapshot_download(repo, revision="v1")
seen["mismatches"] = api.verify_repo_checksums(repo, revision="v1").mismatches
for name, call in {
    "repo": lambda: api.repo_info("zoo/nothing"),
    "revision": lambda: api.repo_info(repo, revision="nothing"),
    "file": lambda: hf.hf_hub_download(repo, "nothing.txt"),
    "hidden": lambda: api.repo_info(repo, token=False),
}.items():
    try:
        call()
    except Exception as error:
        seen[name] = type(error).__name__
api.update_repo_settings(repo, private=False)
seen["public"] = api.repo_info(repo, token=False).private is False
seen["card"] = hf.ModelCard.load(repo).data.license
api.delete_branch(repo, branch="next")
api.delete_tag(repo, tag="v1")
api.delete_repo(repo)
seen["gone"] = not api.repo_exists(repo)
print(json.dumps(seen))
"""


def test_a_tour_of_the_protocol_with_the_real_client(hub, folder, tmp_path):
    command = [sys.executable, "-c", TOUR, str(folder)]
    done = subprocess.run(
        command, env=hub_environment(tmp_path / "h", hub.url), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    files = [".gitattributes", "MANIFEST.json", "README.md", "config.json", "model.safetensors"]
    assert seen == {
        "unchanged": True,
        "refs": [["main", "next"], ["v1"]],
        "main": files,
        "next": [*files, "sub/two.txt"],
        "top": [*files, "sub"],
        "paths": ["model.safetensors"],
        "pull": ["refs/pr/1", True],
        "deleted": True,
        "items": ["zoo/tour"],
        "mismatches": [],
        "repo": "RepositoryNotFoundError",
        "revision": "RevisionNotFoundError",
        "file": "RemoteEntryNotFoundError",
        "hidden": "RepositoryNotFoundError",
        "public": True,
        "card": "mit",
        "gone": True,
    }


def test_state_survives_a_restart(hub, folder, tmp_path):
    hub.push(folder)
    head = hub.head()
    hub.process.kill()
    hub.process.wait()
    second = LoopbackHub.start(hub.root, tmp_path / "home")
    try:
        assert second.run("verify", "zoo/tiny-gpt2", "--files-only").code == 0
        assert second.head() == head
    finally:
        second.stop()


def test_the_log_names_steps_and_no_tokens(hub, folder):
    hub.push(folder)
    assert hub.steps()[0] == "whoami"
    assert "hf_loopback" not in (hub.root / "requests.jsonl").read_text()


def test_unknown_faults_are_refused():
    with pytest.raises(ValueError, match="unknown fault action"):
        Faults([{"step": "commit", "action": "explode"}])
    with pytest.raises(TypeError):
        Faults([{"step": "commit", "colour": "red"}])
