"""Measures, and writes benchmarks/results.json and the page benchmarks/RESULTS.md.

python -m benchmarks.run                  # the ratios of the front page, less than five minutes
python -m benchmarks.run --full           # all sizes, more rounds
python -m benchmarks.run --only vit gpt2  # some sections; the others of the file stay
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks.report import describe_run, read_results, render_page, write_results

RESULTS = Path(__file__).parent / "results.json"
PAGE = Path(__file__).parent / "RESULTS.md"
SECTION_NAMES = ("vit", "vit_training", "gpt2", "gpt2_training", "llama", "encoder", "compiled")
ROUNDS = {"short": 3, "full": 7, "tiny": 1}

# glibc gives freed memory back to the system at moments that depend on the order of allocations; getting it
# again costs page faults, up to a tenth of a forward pass, which one model has and its twin has not. With
# these settings memory is kept, as PyTorch's tuning guide advises, and equal models measure equal.
KEEP_MEMORY = dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), "64000000000")
SECTION_PROCESS = "SEQPE_BENCH_SECTION"
"""Tells a process that it was started, with these settings, to measure one section."""


def main() -> None:
    """Parses arguments and measures section by section; an interrupted run keeps what it had."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--full", action="store_true", help="all sizes, more rounds")
    sizes.add_argument("--tiny", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--only", choices=SECTION_NAMES, nargs="+", default=SECTION_NAMES, metavar="SECTION")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file; the page is beside it")
    options = parser.parse_args()
    mode = "full" if options.full else "tiny" if options.tiny else "short"
    if os.environ.get(SECTION_PROCESS):
        measure(options.only[0], mode, options.output)
        return
    begin = time.perf_counter()
    for name in options.only:
        # A process for each section: what one has kept of memory is not missing in the next.
        command = [sys.executable, "-m", "benchmarks.run", "--only", name, "--output", str(options.output)]
        command += [f"--{mode}"] if mode != "short" else []
        ended = subprocess.run(command, env={**os.environ, **KEEP_MEMORY, SECTION_PROCESS: "1"}, check=False)
        if ended.returncode:
            sys.exit(f"section {name} failed; what was measured before is in {options.output}")
    page = render_page(read_results(options.output))
    target = PAGE if options.output == RESULTS else options.output.with_suffix(".md")
    target.write_text(page, encoding="utf-8")
    print(f"{page}\nall in {(time.perf_counter() - begin) / 60:.1f} minutes")


def measure(name: str, mode: str, output: Path) -> None:
    """Measures a section and puts it into the file, in the place of an older one."""
    from benchmarks.cases import SECTIONS, SIZES
    from benchmarks.timing import SHORTEST, compare

    title, cases = SECTIONS[name]
    rows = []
    for case in cases(SIZES[mode]):
        for ratio in compare(
            case.functions,
            case.baseline,
            ROUNDS[mode],
            case.warmup,
            shortest=0 if mode == "tiny" else SHORTEST,
        ):
            rows.append({"what": case.what, **asdict(ratio)})
            print(f"{title}, {case.what}: {ratio.name} {ratio.median:.3f} x {ratio.baseline}", flush=True)
    if rows:
        results = read_results(output)
        results[name] = {"title": title, "measured": describe_run(mode), "rows": rows}
        write_results({known: results[known] for known in SECTION_NAMES if known in results}, output)


if __name__ == "__main__":
    main()
