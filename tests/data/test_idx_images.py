import gzip
from pathlib import Path

import pytest
import torch

from seqpe_zoo.data.errors import DataError
from seqpe_zoo.data.idx_images import VALIDATION_IMAGES, load_fashion_mnist, read_idx


def idx_bytes(values: torch.Tensor) -> bytes:
    sizes = b"".join(size.to_bytes(4, "big") for size in values.shape)
    return bytes([0, 0, 8, values.ndim]) + sizes + bytes(values.byte().flatten().tolist())


def write_set(folder: Path, train: int, test: int = 20) -> Path:
    """A set in the files and format of Fashion-MNIST, with pictures of 2 x 2 pixels."""
    for side, count in (("train", train), ("t10k", test)):
        images = torch.arange(count * 4).remainder(256).view(count, 2, 2)
        labels = torch.arange(count).remainder(10)
        (folder / f"{side}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images), 1))
        (folder / f"{side}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    return folder


def test_values_and_shape_are_read(tmp_path: Path) -> None:
    values = torch.arange(24).view(2, 3, 4)
    (tmp_path / "x").write_bytes(idx_bytes(values))
    assert torch.equal(read_idx(tmp_path / "x").long(), values)


def test_validation_images_are_taken_from_the_training_images(tmp_path: Path) -> None:
    fashion = load_fashion_mnist(write_set(tmp_path, VALIDATION_IMAGES + 30))
    assert {name: len(split.labels) for name, split in fashion.splits.items()} == {
        "train": 30,
        "validation": VALIDATION_IMAGES,
        "test": 20,
    }
    assert fashion.split("train").images.shape == (30, 1, 2, 2)
    assert float(fashion.split("train").images[1, 0, 0, 1]) == pytest.approx(5 / 255)
    assert fashion.class_names[9] == "Ankle boot"


@pytest.mark.parametrize(
    "content", [b"", b"PK34", idx_bytes(torch.zeros(4, 4))[:-1]], ids=["empty", "zip", "cut"]
)
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(DataError, match=r"not an IDX file|cut off"):
        read_idx(tmp_path / "x")


def test_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "readme").write_text("")
    with pytest.raises(DataError, match=r"has no train-images-idx3-ubyte .*found readme"):
        load_fashion_mnist(tmp_path)


def test_images_without_labels_are_refused(tmp_path: Path) -> None:
    write_set(tmp_path, VALIDATION_IMAGES + 1)
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(torch.zeros(3)))
    with pytest.raises(DataError, match="20 images of t10k, but 3 labels"):
        load_fashion_mnist(tmp_path)
