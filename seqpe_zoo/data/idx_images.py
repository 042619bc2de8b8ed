"""Fashion-MNIST from its IDX files, packed or not: from a folder, or fetched by torchvision."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .errors import DataError
from .small_images import LabelledImages, SmallImages

CLASS_NAMES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
MEAN, STD = 0.286, 0.353
"""Of the training pixels, scaled to 0..1."""
VALIDATION_IMAGES = 5000
"""The last of the 60,000 training images: the set itself has no validation split."""
_BYTES = 0x08  # the IDX code of unsigned bytes


def read_idx(path: Path) -> Tensor:
    """Reads a file of the IDX format, unsigned bytes of any number of dimensions; `.gz` is unpacked.

    Raises:
        DataError: the file is not of this format, or cut off.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if len(content) < 4 or content[:3] != bytes([0, 0, _BYTES]):
        raise DataError(f"{path} is not an IDX file of unsigned bytes")
    start = 4 + 4 * content[3]
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int).tolist()
    if len(content) - start != int(np.prod(shape)):
        raise DataError(f"{path} is cut off: {len(content) - start:,} bytes of data for the shape {shape}")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy())


def load_fashion_mnist(folder: Path | None = None) -> SmallImages:
    """Loads Fashion-MNIST.

    Args:
        folder: holds train-images-idx3-ubyte and its three companions, with or without .gz; None lets
            torchvision fetch them into its usual place under the home folder's cache.

    Raises:
        DataError: a file is missing or broken, or cannot be fetched.
    """
    folder = _fetch() if folder is None else folder
    sides = {}
    for side in ("train", "t10k"):
        images = read_idx(_find(folder, f"{side}-images-idx3-ubyte")).float().div(255).unsqueeze(1)
        labels = read_idx(_find(folder, f"{side}-labels-idx1-ubyte")).long()
        if len(images) != len(labels):
            raise DataError(f"{folder}: {len(images):,} images of {side}, but {len(labels):,} labels")
        sides[side] = (images, labels)
    images, labels = sides["train"]
    if len(images) <= VALIDATION_IMAGES:
        raise DataError(f"{folder} has {len(images):,} training images; need more than {VALIDATION_IMAGES:,}")
    splits = {
        "train": LabelledImages(images[:-VALIDATION_IMAGES], labels[:-VALIDATION_IMAGES]),
        "validation": LabelledImages(images[-VALIDATION_IMAGES:], labels[-VALIDATION_IMAGES:]),
        "test": LabelledImages(*sides["t10k"]),
    }
    return SmallImages("Fashion-MNIST", "fashion-mnist", CLASS_NAMES, MEAN, STD, splits)


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    there = ", ".join(sorted(path.name for path in folder.iterdir())[:8]) if folder.is_dir() else "no folder"
    raise DataError(f"{folder} has no {name} (or {name}.gz); found {there}")


def _fetch() -> Path:
    from torchvision.datasets import FashionMNIST

    root = Path.home() / ".cache" / "seqpe_zoo"
    try:
        FashionMNIST(str(root), download=True)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"cannot fetch Fashion-MNIST: {error}. Without internet, give the folder of its IDX files, as "
            "fashion-mnist:FOLDER"
        ) from error
    return root / "FashionMNIST" / "raw"
