import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.image_sources import open_small_images
from seqpe_zoo.data.small_images import resize_images, shift_images


def test_resizing_keeps_the_range() -> None:
    larger = resize_images(torch.rand(4, 1, 8, 8).round(), 24)
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


def test_pixels_have_the_channels_of_the_model() -> None:
    digits = open_small_images("digits")
    assert digits is not None
    images = digits.split("validation").images[:2]
    assert digits.pixels(images, 16).shape == (2, 3, 16, 16)
    assert digits.pixels(images, 16, channels=1).shape == (2, 1, 16, 16)


def test_unknown_split_is_refused() -> None:
    digits = open_small_images("digits")
    assert digits is not None
    with pytest.raises(DataError, match="no split 'holdout'; choose one of train, validation, test"):
        digits.split("holdout")


def test_other_sources_are_not_small() -> None:
    assert open_small_images("some/folder") is None
