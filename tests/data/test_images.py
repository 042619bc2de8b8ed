import random
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from seqpe_zoo.data.digits_images import write_image_folder
from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.images import (
    SeededImages,
    check_same_classes,
    class_names,
    evaluation_transform,
    open_image_split,
)
from seqpe_zoo.data.seeding import seeded_randomness


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_image_folder(tmp_path_factory.mktemp("digits"), size=16, train=40, test=30)


def test_folder_is_read_by_split_and_synonym(folder: Path) -> None:
    assert len(open_image_split(str(folder), "train")) == 40
    assert len(open_image_split(str(folder), "val")) == 30
    assert class_names(open_image_split(str(folder), "train")) == list("0123456789")


def test_tar_file_is_read(folder: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for path in sorted((folder / "train").rglob("*.png")):
            archive.add(path, arcname=path.relative_to(folder / "train"))
    assert len(open_image_split(str(tmp_path), "train")) == 40


def test_missing_split_lists_what_is_there(folder: Path) -> None:
    with pytest.raises(DataError, match=r"no split 'test'.*found train, validation"):
        open_image_split(str(folder), "test")


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="does not exist"):
        open_image_split(str(tmp_path / "absent"), "train")


def test_empty_split_is_refused(tmp_path: Path) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no images"):
        open_image_split(str(tmp_path), "train")


@pytest.mark.parametrize("source", ["hfds/nobody/nothing", "wds/nothing"])
def test_named_set_that_is_not_there_is_refused(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"cannot open|not installed"):
        open_image_split(source, "train", root=tmp_path)


def test_other_classes_in_validation_are_refused(folder: Path, tmp_path: Path) -> None:
    write_image_folder(tmp_path, size=16, train=3, test=3)
    with pytest.raises(DataError, match="different classes"):
        check_same_classes(
            open_image_split(str(folder), "train"), open_image_split(str(tmp_path), "val"), "val"
        )


@pytest.mark.parametrize(("resolution", "resized"), [(224, 256), (320, 365), (672, 768)])
def test_transform_of_the_paper(resolution: int, resized: int) -> None:
    transform = evaluation_transform(resolution)
    assert transform.transforms[0].size == resized
    assert transform(Image.new("RGB", (300, 200))).shape == (3, resolution, resolution)


def test_seeded_block_repeats_and_leaves_no_trace() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = draw()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    with seeded_randomness(3, 4):
        first = draw()
    with seeded_randomness(3, 4):
        second = draw()
    with seeded_randomness(3, 5):
        third = draw()
    assert first == second != third
    assert draw() == expected


def test_view_depends_on_epoch_and_index_alone(folder: Path) -> None:
    from torchvision import transforms

    crop = transforms.Compose([transforms.RandomResizedCrop(12), transforms.ToTensor()])
    images = SeededImages(open_image_split(str(folder), "train"), crop, seed=5)
    first = images[3]["pixel_values"]
    images[4]
    again = images[3]["pixel_values"]
    images.set_epoch(1)
    later = images[3]["pixel_values"]
    assert first.equal(again)
    assert not first.equal(later)
