from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from transformers import TrainerControl, TrainerState

from seqpe_zoo.training.callbacks import EndTrained, TellEpoch
from seqpe_zoo.training.checkpoints import mark_complete


class Numbers(torch.utils.data.Dataset[int]):
    """Eighty numbers that know their epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return 80

    def __getitem__(self, index: int) -> int:
        return 1000 * self.epoch + index


def loader(processes: int) -> Any:
    numbers = Numbers()
    sampler = torch.utils.data.RandomSampler(numbers, generator=torch.Generator().manual_seed(0))
    plain = torch.utils.data.DataLoader(numbers, batch_size=4, sampler=sampler)
    options = {"num_processes": processes, "process_index": 0, "use_seedable_sampler": True, "data_seed": 3}
    return prepare_data_loader(plain, **options)


def epoch_of(batches: Any, number: int, skipped: int = 0) -> list[int]:
    """Goes through an epoch as transformers does, from a step inside of it on."""
    step = number * len(batches) + skipped
    arguments = SimpleNamespace(gradient_accumulation_steps=1)
    TellEpoch().on_epoch_begin(
        arguments, TrainerState(global_step=step), TrainerControl(), train_dataloader=batches
    )
    if skipped:
        batches = skip_first_batches(batches, skipped)
    batches.set_epoch(number)
    return [value for batch in batches for value in batch.tolist()]


@pytest.mark.parametrize("processes", [1, 2])
def test_every_epoch_has_its_own_order_and_views(processes: int) -> None:
    batches = loader(processes)
    first, second = epoch_of(batches, 0), epoch_of(batches, 1)
    assert {value // 1000 for value in first} == {0}
    assert {value // 1000 for value in second} == {1}
    assert [value % 1000 for value in first] != [value % 1000 for value in second]


@pytest.mark.parametrize("processes", [1, 2])
def test_resume_inside_of_an_epoch_has_its_order_and_views(processes: int) -> None:
    whole = loader(processes)
    epoch_of(whole, 0)
    assert epoch_of(loader(processes), 1, skipped=3) == epoch_of(whole, 1)[12:]


def test_best_checkpoint_is_found_where_the_run_is_now(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"x")
    mark_complete(tmp_path / "checkpoint-4")
    state = TrainerState(max_steps=8, best_global_step=4, best_model_checkpoint=None)
    EndTrained().on_train_begin(SimpleNamespace(output_dir=str(tmp_path)), state, TrainerControl())
    assert state.best_model_checkpoint == str(tmp_path / "checkpoint-4")
