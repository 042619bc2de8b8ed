"""One row of the results, and the page they are written to."""

import platform
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.timing import ENOUGH, Ratio

PACKAGES = ("torch", "timm", "transformers")


@dataclass(frozen=True)
class Row:
    """What was measured, and whether it reached its bar."""

    what: str
    measured: str
    bar: str = ""
    reached: bool | None = None

    @classmethod
    def slower(cls, what: str, ratio: Ratio, bar: float | None) -> "Row":
        """A cost: the time against the baseline's, which should stay below the bar."""
        noise = "" if ratio.stable else ", noisy"
        spread = f"[{ratio.lowest:.3f} to {ratio.highest:.3f}, {ratio.rounds} rounds{noise}]"
        measured = f"{ratio.median:.3f}x {ratio.baseline} {spread}"
        if bar is None:
            return cls(what, measured)
        if ratio.stable and ratio.rounds >= ENOUGH:
            reached: bool | None = ratio.median <= bar
        else:
            reached = within(ratio.lowest, ratio.highest, bar)
        return cls(what, measured, f"at most {bar:.2f}x", reached)

    @classmethod
    def faster(cls, what: str, ratio: Ratio, bar: float | None) -> "Row":
        """A gain: how many times faster than the baseline, which should reach the bar."""
        low, middle, high = 1 / ratio.highest, 1 / ratio.median, 1 / ratio.lowest
        measured = f"{middle:.1f}x faster than {ratio.baseline} [{low:.1f} to {high:.1f}]"
        if bar is None:
            return cls(what, measured)
        return cls(what, measured, f"at least {bar:g}x", middle >= bar)

    @classmethod
    def plain(cls, what: str, ratio: Ratio, factor: float = 1.0) -> "Row":
        """A ratio without a bar, multiplied by a factor."""
        low, middle, high = (factor * value for value in (ratio.lowest, ratio.median, ratio.highest))
        return cls(what, f"{middle:.2f}x [{low:.2f} to {high:.2f}]")

    @classmethod
    def value(cls, what: str, number: float, unit: str, bar: float | None = None) -> "Row":
        """A measured quantity that should stay below the bar."""
        if bar is None:
            return cls(what, f"{number:.2f} {unit}")
        return cls(what, f"{number:.2f} {unit}", f"below {bar:g} {unit}", number < bar)


def within(low: float, high: float, bar: float) -> bool | None:
    """Whether something between two numbers is at most the bar; None where that is not decided."""
    return True if high <= bar else False if low > bar else None


def write_section(title: str, rows: list[Row], origin: str, target: Path) -> None:
    """Writes one section of the page, in the place of an older one of the same title; the others stay.

    Args:
        title: of the section.
        rows: what was measured.
        origin: how, when and with what.
        target: the page.
    """
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    machine = f"Machine: {_machine()}. {versions}."
    lines = [
        f"## {title}",
        "",
        origin,
        "",
        machine,
        "",
        "| what | measured | bar | reached |",
        "|---|---|---|---|",
    ]
    for row in rows:
        undecided = "not decided" if row.bar else ""
        reached = undecided if row.reached is None else "yes" if row.reached else "**no**"
        lines.append(f"| {row.what} | {row.measured} | {row.bar} | {reached} |")
    head = (
        "# Benchmark results\n\nMedians of ratios, [lowest to highest], over rounds in which the machine "
        "was quiet; time that its host gave to others does not count (`timing.py` says how both are known). "
        "A bar is judged by the median of three such rounds or more; of fewer only when all lie on one side "
        "of it. The allocator keeps freed memory (`KEEP_MEMORY` in `run.py` says why)."
    )
    sections = target.read_text().strip().split("\n\n## ")[1:] if target.exists() else []
    bodies = {section.splitlines()[0]: f"## {section}" for section in sections}
    bodies[title] = "\n".join(lines)
    target.write_text("\n\n".join([head, *bodies.values()]) + "\n")


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [
            line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line
        ]
        model = names[0] if names else model
    return f"{model}, {torch.get_num_threads()} threads, Python {platform.python_version()}"
