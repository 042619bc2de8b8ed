"""Image classification sets through the readers of timm.data: folders, tar files, Hub and web datasets.

One transform of the paper's evaluation is defined here, so that training and evaluation agree on it: the
shorter side to int(256/224 R), bicubic, then the central R x R pixels.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from .errors import DataError

READERS = ("folder", "tar", "hfds", "hfids", "wds", "tfds")
"""`folder` and `tar` read local files; the others are spelled with a name, as `hfds/timm/imagenet-1k-wds`."""


def open_image_split(
    source: str,
    split: str,
    root: Path | None = None,
    is_training: bool = False,
    num_samples: int | None = None,
    batch_size: int = 1,
    seed: int = 0,
) -> Any:
    """Opens a split of an image set.

    Args:
        source: a folder `SPLIT/CLASS/*.jpg`, a tar file of classes, or a reader and a name (`hfds/...`,
            `wds/...`).
        split: "train", "validation", "test"; synonyms as in timm.
        root: cache or shard folder of the named readers.
        is_training: shuffle sets that are read as a stream.
        num_samples: size of a streamed set that does not know it.
        batch_size: hint for streamed sets.
        seed: order of streamed sets.

    Returns:
        A dataset of timm, whose `transform` attribute is still to be set.

    Raises:
        DataError: there is no such folder, split or set, or it holds no image.
    """
    from timm.data import create_dataset

    reader = source.split("/", 1)[0]
    named = "/" in source and reader in READERS and not Path(source).exists()
    if not named:
        path = _split_path(Path(source), split)
        try:
            return create_dataset("", root=str(path), search_split=False)
        except (RuntimeError, AssertionError, OSError) as error:
            raise DataError(
                f"no images in {path}; expected one folder a class, CLASS/*.jpg or .png, or a tar file of "
                "such"
            ) from error
    options: dict[str, Any] = {"is_training": is_training, "batch_size": batch_size, "seed": seed}
    options["num_samples"] = num_samples
    try:
        return create_dataset(source, root=None if root is None else str(root), split=split, **options)
    except ImportError as error:
        raise DataError(
            f"the reader {reader!r} needs a package that is not installed: {error.name}"
        ) from error
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot open {source!r}, split {split!r}: {reason}") from error


def _split_path(source: Path, split: str) -> Path:
    from timm.data.dataset_factory import _EVAL_SYNONYM, _TRAIN_SYNONYM

    if source.is_file():
        return source
    if not source.is_dir():
        raise DataError(
            f"{source} does not exist; give a folder with {split}/CLASS/*.jpg, a tar file, or a reader and "
            "a name as hfds/ORG/NAME or wds/NAME"
        )
    synonyms = next((names for names in (_TRAIN_SYNONYM, _EVAL_SYNONYM) if split in names), {split: None})
    names = [split, *(name for name in synonyms if name != split)]
    for name in names:
        for candidate in (source / name, source / f"{name}.tar"):
            if candidate.exists():
                return candidate
    there = ", ".join(sorted(path.name for path in source.iterdir())[:12]) or "nothing"
    raise DataError(f"{source} has no split {split!r}; expected a folder {' or '.join(names)}, found {there}")


def class_names(dataset: Any) -> list[str] | None:
    """Returns the names of the classes in the order of their numbers, None where the reader knows none."""
    mapping = getattr(getattr(dataset, "reader", None), "class_to_idx", None)
    if not mapping:
        return None
    return [str(name) for name, _ in sorted(mapping.items(), key=lambda item: item[1])]


def check_same_classes(train: Any, other: Any, split: str) -> None:
    """Refuses a split whose classes are numbered otherwise than those of the training split.

    Raises:
        DataError: the folders of the two splits differ.
    """
    ours, theirs = class_names(train), class_names(other)
    if ours is not None and theirs is not None and ours != theirs:
        odd = sorted(set(ours) ^ set(theirs))[:8]
        raise DataError(
            f"training and {split} images have different classes: {', '.join(odd)} in one of them only"
        )


def evaluation_transform(
    resolution: int,
    mean: Sequence[float] = (0.485, 0.456, 0.406),
    std: Sequence[float] = (0.229, 0.224, 0.225),
) -> Callable[[Image.Image], torch.Tensor]:
    """The paper's transform at any resolution: crop share 224/256 of the shorter side."""
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.Resize(
                int(256 / 224 * resolution), interpolation=transforms.InterpolationMode.BICUBIC
            ),
            transforms.CenterCrop(resolution),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )


@contextmanager
def seeded_randomness(*numbers: int) -> Iterator[None]:
    """Seeds Python, NumPy and torch for a block and restores them after it.

    Augmentation draws from all three. Seeding it by what it works on makes a picture's view independent of
    how many processes load data and of what was drawn before, so that an interrupted run continues with the
    same pictures.
    """
    mixed = int(np.random.SeedSequence([number % 2**32 for number in numbers]).generate_state(1)[0])
    python, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.random.get_rng_state()
    random.seed(mixed)
    np.random.seed(mixed)
    torch.random.default_generator.manual_seed(mixed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy_state)
        torch.random.set_rng_state(torch_state)


class SeededImages(Dataset[dict[str, Any]]):
    """Pictures under a random transform that depends on seed, epoch and index alone.

    Args:
        dataset: a dataset of timm with random access.
        transform: what to apply to a picture.
        seed: of the run.
    """

    def __init__(self, dataset: Any, transform: Callable[[Any], torch.Tensor], seed: int = 0) -> None:
        dataset.transform = None
        self.dataset, self.transform, self.seed, self.epoch = dataset, transform, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Tells which epoch begins; called by accelerate."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        picture, label = self.dataset[index]
        with seeded_randomness(self.seed, self.epoch, index):
            pixels = self.transform(picture)
        return {"pixel_values": pixels, "labels": int(label), "draw": (self.seed, self.epoch, index)}
