"""Image classification sets through the readers of timm.data: folders, tar files, Hub and web datasets.

One transform of the paper's evaluation is defined here, so that training and evaluation agree on it: the
shorter side to int(256/224 R), bicubic, then the central R x R pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch.utils.data import Dataset

from .errors import DataError
from .image_streams import SeededStream
from .names import IMAGE_READERS
from .seeding import seeded_randomness


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
        source: a folder `SPLIT/CLASS/*.jpg`, a tar file of classes, or a reader with a name or folder
            (`hfds/...`, `wds/...`).
        split: "train", "validation", "test", synonyms as in timm; of webdataset a name of `_info.json`, or
            shards with their number of pictures, as `train-{0000..0063}.tar|1281167`.
        root: cache of the named readers; folder or address of the shards of webdataset.
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

    reader, _, name = source.partition("/")
    if name and reader in IMAGE_READERS and not Path(source).exists():
        streaming = {"is_training": is_training, "batch_size": batch_size, "num_samples": num_samples}
        return _open_named(reader, name, split, root, seed, streaming)
    path = _split_path(Path(source), split)
    try:
        return create_dataset("", root=str(path), search_split=False)
    except (RuntimeError, AssertionError, OSError) as error:
        raise DataError(
            f"no images in {path}; expected one folder a class, CLASS/*.jpg or .png, or a tar file of such"
        ) from error


def _open_named(
    reader: str, name: str, split: str, root: Path | None, seed: int, streaming: dict[str, Any]
) -> Any:
    from timm.data import create_dataset

    source = f"{reader}/{name}"
    place = None if root is None else str(root)
    if reader == "wds" and place is None:
        place = name
    try:
        if reader == "hfds":
            return _open_hub_set(name, split, place)
        opened = create_dataset(source, root=place, split=split, seed=seed, **streaming)
        if reader == "wds":
            _check_shards(opened.reader)
    except ImportError as error:
        raise DataError(
            f"the reader {reader!r} needs a package that is not installed: {error.name}"
        ) from error
    except DataError:
        raise
    except (OSError, ValueError, RuntimeError, AssertionError, KeyError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"cannot open {source!r}, split {split!r}: {reason}") from error
    return SeededStream(opened, seed)


def _open_hub_set(name: str, split: str, root: str | None) -> Any:
    """Opens a set of `datasets`, by its name or its folder."""
    from timm.data import ImageDataset
    from timm.data.readers.reader_hfds import ReaderHfds

    # timm's own function writes names in small letters, which are then no longer those of a folder.
    return ImageDataset(root, reader=ReaderHfds(name=name, root=root, split=split))


def _check_shards(reader: Any) -> None:
    """Refuses shards that are not there: webdataset leaves them out, and repeats what remains for ever."""
    if "://" in str(reader.root):
        return
    missing = [name for name in reader.split_info.filenames if not (Path(reader.root) / name).is_file()]
    if missing or not reader.split_info.filenames:
        raise DataError(
            f"{reader.root} lacks {len(missing)} of the {len(reader.split_info.filenames)} shards of the "
            f"split: {', '.join(missing[:4])}"
        )


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
    reader = getattr(dataset, "reader", None)
    mapping = getattr(reader, "class_to_idx", None)
    if not mapping:
        listed = getattr(reader, "info", {}).get("class_names")  # of webdataset's _info.json
        return None if listed is None else [str(name) for name in listed]
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
    """The paper's transform at any resolution: crop share 224/256 of the side; one mean makes grey."""
    from torchvision import transforms

    return transforms.Compose(
        [
            *([transforms.Grayscale()] if len(mean) == 1 else []),
            transforms.Resize(
                int(256 / 224 * resolution), interpolation=transforms.InterpolationMode.BICUBIC
            ),
            transforms.CenterCrop(resolution),
            transforms.ToTensor(),
            transforms.Normalize(mean, std),
        ]
    )


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
