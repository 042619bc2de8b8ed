"""Starts a script with accelerate's FSDP on CPU processes, as `python sharded_on_cpu.py SCRIPT WORDS...`.

torch shards on CPUs as it does on GPUs; accelerate asks for FSDP on GPUs only. Here it is told that the
processes have GPUs whose device is called "cpu"; everything else is what a user runs.
"""

import os
import runpy
import sys
from typing import Any

import torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType

really_prepare = PartialState._prepare_backend


def prepare(self: PartialState, *words: Any, **options: Any) -> tuple[str, DistributedType]:
    backend, _ = really_prepare(self, *words, **options)
    return backend, DistributedType.MULTI_GPU


if __name__ == "__main__":
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    torch.distributed.init_process_group("gloo")
    PartialState._prepare_backend = prepare  # type: ignore[method-assign]
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
