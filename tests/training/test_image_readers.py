"""Training on sets that timm reads by name: shards of webdataset, and sets of the library `datasets`."""

import io
import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.images import class_names, open_image_split
from seqpe_zoo.training.image_jobs import train_vit_job
from seqpe_zoo.training.job import dry_run, run_job
from seqpe_zoo.training.run_config import load_run

from .helpers import image_recipe

DIGITS = list("0123456789")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("pictures"), size=16, train=40, test=30)


@pytest.fixture(scope="module")
def shards(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes two shards of each split, and `_info.json` as timm's own sets have it."""
    folder = tmp_path_factory.mktemp("Shards")
    info: dict[str, Any] = {"name": "digits", "class_names": DIGITS, "splits": {}}
    for split in ("train", "validation"):
        files = sorted((pictures / split).rglob("*.png"), key=lambda path: path.name)
        halves = {f"digits-{split}-{number}.tar": files[number::2] for number in (0, 1)}
        for name, chosen in halves.items():
            with tarfile.open(folder / name, "w") as archive:
                for path in chosen:
                    add_file(archive, f"{path.stem}.png", path.read_bytes())
                    add_file(archive, f"{path.stem}.cls", path.parent.name.encode())
        lengths = [len(chosen) for chosen in halves.values()]
        entry = {"name": split, "filenames": list(halves), "shard_lengths": lengths}
        info["splits"][split] = {**entry, "num_samples": sum(lengths)}
    (folder / "_info.json").write_text(json.dumps(info))
    return folder


def add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def labels(stream: Any, epoch: int) -> list[int]:
    stream.set_epoch(epoch)
    return [label for _, label in stream]


def test_order_of_shards_depends_on_seed_and_epoch_alone(shards: Path) -> None:
    one, two = (open_image_split(f"wds/{shards}", "train", is_training=True, batch_size=8) for _ in range(2))
    other = open_image_split(f"wds/{shards}", "train", is_training=True, batch_size=8, seed=1)
    epochs = [labels(one, epoch) for epoch in (0, 1)]
    assert labels(two, 1) == epochs[1] != epochs[0]  # without having read the epoch before
    assert labels(other, 1) != epochs[1]
    assert len(epochs[0]) == len(one) == 40
    assert class_names(one) == DIGITS


def test_shards_can_be_named_with_their_number(shards: Path) -> None:
    stream = open_image_split("wds/digits", "digits-validation-{0..1}.tar|30", root=shards)
    assert len(labels(stream, 0)) == len(stream) == 30


def test_missing_shard_is_refused(shards: Path) -> None:
    with pytest.raises(DataError, match=r"lacks 2 of the 4 shards .*digits-train-2\.tar"):
        open_image_split(f"wds/{shards}", "digits-train-{0..3}.tar|80", is_training=True)


def test_unknown_split_of_shards_is_refused(shards: Path) -> None:
    with pytest.raises(DataError, match="split test not found"):
        open_image_split(f"wds/{shards}", "test")


def test_shards_are_trained_on_and_continued_exactly(shards: Path, tmp_path: Path) -> None:
    def ask(step: int, total: int, logs: dict[str, Any]) -> None:
        if step == 7:  # in the second epoch of five steps
            os.kill(os.getpid(), signal.SIGTERM)

    changes = {
        "training__steps": 9,
        "training__evaluate_every": 9,
        "training__save_every": 9,
        "augmentation__mixup": 0.8,
    }
    whole, parts = (image_recipe(tmp_path / name, f"wds/{shards}", **changes) for name in ("whole", "parts"))
    done = run_job(train_vit_job(load_run(whole)), listener=lambda *_: None)
    assert run_job(train_vit_job(load_run(parts)), listener=ask).stopped
    again = run_job(train_vit_job(load_run(parts)), resume=True, listener=lambda *_: None)
    assert [m.metric for m in done.measurements] == ["accuracy", "top5_accuracy"] * 2
    assert done.measurements == again.measurements
    weights = [(outcome.folder / "model.safetensors").read_bytes() for outcome in (done, again)]
    assert weights[0] == weights[1]


def test_dry_run_on_shards_names_the_cost(shards: Path, tmp_path: Path) -> None:
    lines = " ".join(dry_run(train_vit_job(load_run(image_recipe(tmp_path, f"wds/{shards}")))))
    assert "6 steps of 8 examples" in lines
    assert "for an evaluation, 2 of them" in lines


def test_set_of_the_hub_library_is_trained_on(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=DIGITS)})
    (tmp_path / "Digits").mkdir()
    for split in ("train", "validation"):
        files = sorted((pictures / split).rglob("*.png"))
        rows = {"image": [Image.open(path) for path in files], "label": [int(p.parent.name) for p in files]}
        datasets.Dataset.from_dict(rows, features=kinds).to_parquet(tmp_path / "Digits" / f"{split}.parquet")
    source = f"hfds/{tmp_path / 'Digits'}"
    assert class_names(open_image_split(source, "validation")) == DIGITS
    recipe = image_recipe(tmp_path, source, training__steps=2, training__evaluate_every=2)
    outcome = run_job(train_vit_job(load_run(recipe)), listener=lambda *_: None)
    assert [m.setting["resolution"] for m in outcome.measurements if m.metric == "accuracy"] == [16, 24]
