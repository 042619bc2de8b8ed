"""Pictures that come as a stream, such as shards of webdataset: the same order and the same views every time.

The readers of timm draw on from epoch to epoch, so that a run that was interrupted would continue with other
pictures. Here an epoch depends on the seed and its own number alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset, get_worker_info

from .seeding import seeded_randomness


class SeededStream(IterableDataset[tuple[Any, int]]):
    """A streamed set of timm, seeded.

    Args:
        dataset: an `IterableImageDataset` of timm.
        seed: of order and views.

    Attributes:
        transform: what to apply to a picture; None gives the picture itself.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, 0
        self.transform: Callable[[Any], Any] | None = None

    @property
    def reader(self) -> Any:
        """The reader of timm."""
        return self.dataset.reader

    def set_epoch(self, epoch: int) -> None:
        """Tells which epoch begins; called by accelerate."""
        self.epoch = epoch
        self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        worker = get_worker_info()
        number = 0 if worker is None else worker.id
        _restart(self.reader, worker, (self.seed, self.epoch, number))
        for place, (picture, label) in enumerate(self.reader):
            if self.transform is not None:
                with seeded_randomness(self.seed, self.epoch, number, place):
                    picture = self.transform(picture)
            yield picture, int(label)


def _restart(reader: Any, worker: Any | None, seeds: tuple[int, ...]) -> None:
    """Makes a reader of webdataset begin anew; the others begin by seed and epoch of their own accord."""
    from timm.data.readers.reader_wds import ReaderWds

    if not isinstance(reader, ReaderWds):
        return
    reader.ds = None  # built again by the reader, with the seed below
    reader.worker_seed = int(np.random.SeedSequence(list(seeds)).generate_state(1)[0])
    if worker is not None:  # as the reader itself does it, but for the seed, which it would take from torch
        reader.worker_info, reader.worker_id, reader.num_workers = worker, worker.id, worker.num_workers
        reader.global_num_workers = reader.dist_num_replicas * worker.num_workers
        reader.global_worker_id = reader.dist_rank * worker.num_workers + worker.id
