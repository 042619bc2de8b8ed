"""Start-up: what importing the package adds, and how soon the command line answers; in fresh processes."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.report import Row
from benchmarks.timing import compare

IMPORT_BAR = 1.15
HELP_BAR = 0.5


def run(full: bool) -> list[Row]:
    """Measures imports against those of timm and transformers, and `--help` against Python alone."""
    rounds = 9 if full else 3
    libraries = "import timm, transformers"
    candidates = {
        libraries: _python("import timm, transformers"),
        "import timm, transformers, seqpe_zoo": _python("import timm, transformers, seqpe_zoo"),
        "import seqpe_zoo": _python("import seqpe_zoo"),
    }
    rows = [
        Row.slower(ratio.name, ratio, IMPORT_BAR if "timm" in ratio.name else None)
        for ratio in compare(candidates, libraries, rounds)
    ]
    own = _seconds(_python("from seqpe_zoo.cli import main; main(['--help'])"), rounds)
    own -= _seconds(_python("pass"), rounds)
    return [*rows, Row.value("seqpe-zoo --help, beyond starting Python", own, "s", HELP_BAR)]


def _python(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)


def _seconds(function: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return statistics.median(times)
