"""Machines that announce AMX and hide how its tiles are made."""

import os
from pathlib import Path

import pytest

from seqpe_zoo.cpu_features import avoid_undescribed_tiles

SETTING = "ONEDNN_MAX_CPU_ISA"


def described(folder: Path, flags: str, level: int) -> Path:
    path = folder / "cpuinfo"
    path.write_text(f"processor\t: 0\ncpuid level\t: {level}\nflags\t\t: fpu {flags}\nbugs\t\t:\n\n" * 2)
    return path


@pytest.mark.parametrize(
    ("flags", "level", "avoided"),
    [("avx512_bf16 amx_tile", 28, True), ("avx512_bf16 amx_tile", 32, False), ("avx512_bf16", 28, False)],
)
def test_tiles_are_avoided_where_they_are_not_described(
    flags: str, level: int, avoided: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SETTING, "")  # so that it is put back
    monkeypatch.delenv(SETTING)
    assert avoid_undescribed_tiles(described(tmp_path, flags, level)) is avoided
    assert os.environ.get(SETTING) == ("AVX512_CORE_FP16" if avoided else None)


def test_what_the_user_has_set_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "AVX2")
    avoid_undescribed_tiles(described(tmp_path, "amx_tile", 28))
    assert os.environ[SETTING] == "AVX2"


def test_other_systems_have_nothing_to_read(tmp_path: Path) -> None:
    assert avoid_undescribed_tiles(tmp_path / "cpuinfo") is False
