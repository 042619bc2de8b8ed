"""What every test shares: seeded random numbers, the folder of golden data, and when to skip."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# Some virtual machines announce AMX and hide how its tiles are made: without this, which child processes
# inherit, the first product in bfloat16 ends the process with an illegal instruction.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Examples are timed by no one: the machine may be busy, and a first call may compile or load a library.
settings.register_profile("seqpe_zoo", deadline=None, print_blob=True)
settings.load_profile("seqpe_zoo")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def fixtures_dir() -> Path:
    """The golden data: tests/fixtures, or another set of the same structure named by SEQPE_FIXTURES."""
    named = os.environ.get("SEQPE_FIXTURES")
    folder = Path(named) if named else Path(__file__).parent / "fixtures"
    if not folder.is_dir():
        pytest.fail(f"SEQPE_FIXTURES={named!r} is not a folder")
    return folder
