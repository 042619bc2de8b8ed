from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.digits_images import (
    load_digit_images,
    normalise_digits,
    resize_images,
    shift_images,
    write_image_folder,
)
from seqpe_zoo.data.errors import DataError


def test_all_digits_are_on_one_side_or_the_other() -> None:
    digits = load_digit_images()
    assert len(digits.train_images) + len(digits.test_images) == 1797
    assert len(digits.test_images) == 539


def test_pixels_are_normalised() -> None:
    pixels = normalise_digits(load_digit_images().train_images)
    assert abs(float(pixels.mean())) < 0.01
    assert abs(float(pixels.std()) - 1) < 0.01


def test_resizing_keeps_the_range() -> None:
    larger = resize_images(load_digit_images().train_images[:4], 24)
    assert larger.shape == (4, 1, 24, 24)
    assert larger.min() >= 0
    assert larger.max() <= 1


def test_shift_moves_pixels_without_changing_them() -> None:
    image = torch.zeros(50, 1, 8, 8)
    image[:, 0, 4, 4] = 1
    moved = shift_images(image, 2, torch.Generator().manual_seed(0))
    places = moved.flatten(1).argmax(1)
    assert moved.sum() == 50
    assert len(places.unique()) > 10


def test_empty_side_is_refused() -> None:
    with pytest.raises(DataError, match="empty"):
        load_digit_images(test_share=0.0)


def test_image_folder_has_a_folder_for_each_class(tmp_path: Path) -> None:
    write_image_folder(tmp_path, size=16, train=60, test=40)
    assert sorted(path.name for path in (tmp_path / "train").iterdir()) == list("0123456789")
    assert len(list((tmp_path / "validation").rglob("*.png"))) == 40
