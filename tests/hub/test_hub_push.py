"""Push against a loopback hub with the real client: what is sent, what is refused, what a second run does."""

import json

from tests.hub.helpers import REPO, folder_hashes, put_collection, restage, safetensors_bytes


def change_weights(folder, values=b"\1" * 64):
    """Give the folder other weights, as a new training run would."""
    (folder / "model.safetensors").write_bytes(safetensors_bytes(values))
    restage(folder)


def test_push_makes_one_private_commit_and_the_tag(hub, folder):
    ran = hub.push(folder)
    assert ran.code == 0, ran.text
    assert hub.commits() == 1
    assert hub.files() == folder_hashes(folder)
    assert hub.state()["tags"] == {"v1.0": hub.head()}
    assert hub.state()["private"] is True
    assert hub.head() in ran.out


def test_second_push_of_the_same_folder_makes_no_commit(hub, folder):
    hub.push(folder)
    head = hub.head()
    ran = hub.push(folder)
    assert ran.code == 0, ran.text
    assert "no commit is made" in ran.out
    assert (hub.head(), hub.commits()) == (head, 1)


def test_push_without_yes_shows_the_plan_and_sends_nothing(hub, folder):
    ran = hub.run("push", folder, "--create")
    assert ran.code == 3
    assert "add" in ran.out
    assert "--yes" in ran.err
    assert not hub.exists()


def test_plan_lists_every_file_with_action_size_and_hash(hub, folder):
    hub.push(folder)
    (folder / "results.json").write_text("{}")
    change_weights(folder)
    ran = hub.run("plan", folder, "--json")
    assert ran.code == 0, ran.text
    plan = json.loads(ran.out)
    actions = {file["path"]: file["action"] for file in plan["files"]}
    assert actions == {
        "MANIFEST.json": "update",
        "README.md": "same",
        "config.json": "same",
        "model.safetensors": "update",
        "results.json": "add",
    }
    assert plan["parent"] == hub.head()
    hashes = {file["path"]: file["sha256"] for file in plan["files"]}
    assert hashes == folder_hashes(folder)
    table = hub.run("plan", folder).out
    assert REPO in table
    assert "private" in table
    assert hub.head() in table
    assert hub.commits() == 1


def test_missing_repository_needs_create(hub, folder):
    ran = hub.run("push", folder, "--yes")
    assert ran.code == 12
    assert "--create" in ran.err
    assert not hub.exists()


def test_unchecked_folder_is_refused(hub, folder):
    (folder.parent / "folder.checked.json").unlink()
    ran = hub.push(folder)
    assert ran.code == 2
    assert "seqpe-zoo check" in ran.err
    assert hub.steps() == []


def test_folder_changed_after_the_check_is_refused(hub, folder):
    (folder / "config.json").write_text('{"model_type": "gpt2", "n_layer": 3}')
    ran = hub.push(folder)
    assert ran.code == 30
    assert "config.json has changed since it was staged" in ran.err
    assert hub.steps() == []


def test_a_tag_is_not_moved_unless_told(hub, folder):
    hub.push(folder)
    first = hub.head()
    change_weights(folder)
    ran = hub.push(folder)
    assert ran.code == 40
    assert "--move-tag" in ran.err
    assert (hub.head(), hub.state()["tags"]["v1.0"]) == (first, first)
    ran = hub.push(folder, "--move-tag")
    assert ran.code == 0, ran.text
    assert hub.state()["tags"]["v1.0"] == hub.head() != first


def test_a_new_tag_leaves_the_old_one(hub, folder):
    hub.push(folder)
    first = hub.head()
    change_weights(folder)
    ran = hub.push(folder, "--tag", "v1.1")
    assert ran.code == 0, ran.text
    assert hub.state()["tags"] == {"v1.0": first, "v1.1": hub.head()}


def test_unknown_remote_files_are_refused_kept_or_deleted(hub, folder):
    hub.push(folder)
    (folder / "results.json").write_text("{}")
    restage(folder)
    hub.push(folder, "--tag", "v2")
    (folder / "results.json").unlink()
    restage(folder)
    before = hub.head()

    refused = hub.push(folder, "--tag", "v3")
    assert refused.code == 41
    assert "results.json" in refused.err
    assert hub.head() == before

    kept = hub.push(folder, "--tag", "v3", "--keep-unknown")
    assert kept.code == 0, kept.text
    assert "results.json" in hub.files()

    deleted = hub.push(folder, "--tag", "v4", "--delete-unknown")
    assert deleted.code == 0, deleted.text
    assert hub.files() == folder_hashes(folder)


def test_pull_request_leaves_main_alone(hub, folder):
    hub.push(folder)
    head = hub.head()
    change_weights(folder)
    ran = hub.push(folder, "--pr")
    assert ran.code == 0, ran.text
    assert "/discussions/1" in ran.out
    assert hub.head() == head
    pull = hub.state()["pulls"]["refs/pr/1"]
    assert hub.files(commit=pull) == folder_hashes(folder)


def test_pull_request_with_tag_is_refused(hub, folder):
    ran = hub.push(folder, "--pr", "--tag", "v9")
    assert ran.code == 2
    assert hub.steps() == []


def test_revision_commits_to_a_branch_made_on_request(hub, folder):
    hub.push(folder)
    head = hub.head()
    change_weights(folder)
    refused = hub.run("push", folder, "--yes", "--revision", "next", "--tag", "v2")
    assert refused.code == 12
    ran = hub.push(folder, "--revision", "next", "--tag", "v2")
    assert ran.code == 0, ran.text
    state = hub.state()
    assert state["branches"]["main"] == head
    assert hub.files(commit=state["branches"]["next"]) == folder_hashes(folder)
    assert state["tags"]["v2"] == state["branches"]["next"]


def test_collection_receives_the_repository_once(hub, folder):
    slug = put_collection(hub)
    assert hub.push(folder, "--collection", slug).code == 0
    assert hub.push(folder, "--collection", slug).code == 0
    items = json.loads((hub.root / "collections.json").read_text())[slug]["items"]
    assert [item["id"] for item in items] == [REPO]


def test_public_only_after_verification(hub, folder):
    ran = hub.push(folder, "--public", "--verify", "files")
    assert ran.code == 0, ran.text
    assert hub.state()["private"] is False
    steps = hub.steps()
    assert steps.index("commit") < steps.index("resolve") < steps.index("settings")


def test_repository_stays_private_when_verification_fails(hub, folder):
    hub.fault("resolve", "corrupt", path="model.safetensors", times=9)
    ran = hub.push(folder, "--public", "--verify", "files")
    assert ran.code == 50
    assert "model.safetensors arrived corrupted" in ran.err
    assert hub.state()["private"] is True


def test_large_files_travel_in_parts(tmp_path, folder):
    from tests.hub.helpers import LoopbackHub

    parts = ("--multipart-above", "50000", "--chunk-size", "30000")
    hub = LoopbackHub.start(tmp_path / "parts", tmp_path / "home", *parts)
    try:
        ran = hub.push(folder)
        assert ran.code == 0, ran.text
        assert hub.steps().count("lfs-part") == 4
        assert hub.files() == folder_hashes(folder)
    finally:
        hub.stop()
