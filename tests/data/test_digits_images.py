from pathlib import Path

import torch

from seqpe_zoo.data.digits_images import load_digit_images, write_image_folder


def test_every_digit_is_in_one_split() -> None:
    splits = load_digit_images().splits
    assert {name: len(split.labels) for name, split in splits.items()} == {
        "train": 1078,
        "validation": 180,
        "test": 539,
    }
    assert all(len(split.images) == len(split.labels) for split in splits.values())


def test_pixels_are_normalised() -> None:
    digits = load_digit_images()
    pixels = digits.pixels(digits.split("train").images, 8, channels=1)
    assert abs(float(pixels.mean())) < 0.01
    assert abs(float(pixels.std()) - 1) < 0.01


def test_image_folder_has_a_folder_for_each_class(tmp_path: Path) -> None:
    write_image_folder(tmp_path, size=16, train=60, test=40)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == list("0123456789")
    assert len(list((tmp_path / "validation").rglob("*.png"))) == 40


def test_splits_do_not_share_memory_of_pictures() -> None:
    splits = load_digit_images().splits
    first_test = splits["test"].images[0]
    assert not any(torch.equal(first_test, image) for image in splits["train"].images)
