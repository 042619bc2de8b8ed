"""What oneDNN, PyTorch's library for matrix products, must be told of a CPU before it first computes.

Some virtual machines announce AMX, the tiles that multiply in bfloat16, but hide the part of CPUID that
describes them. oneDNN then sets up no tiles and uses them all the same, and the first matrix product in
bfloat16 ends the process with an illegal instruction.
"""

import os
from pathlib import Path

TILE_LEAF = 0x1D
"""Part of CPUID that describes tiles."""
WITHOUT_TILES = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16"}
"""The most that oneDNN should use where tiles are not described: bfloat16 by AVX-512."""


def avoid_undescribed_tiles(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Keeps oneDNN from AMX where its tiles are announced and not described; says whether it had to.

    A setting that the user has made stays. Child processes inherit it.
    """
    if not cpuinfo.is_file():
        return False
    facts = dict(line.split(":", 1) for line in cpuinfo.read_text().splitlines() if ":" in line)
    facts = {name.strip(): value.split() for name, value in facts.items()}
    announced = "amx_tile" in facts.get("flags", ())
    if not announced or int(facts.get("cpuid level", ["0"])[0]) >= TILE_LEAF:
        return False
    for name, value in WITHOUT_TILES.items():
        os.environ.setdefault(name, value)
    return True
