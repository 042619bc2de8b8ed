"""How benchmarks come to their verdicts; nothing here measures time."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import timing
from benchmarks.report import Row, within, write_section
from benchmarks.timing import Ratio, compare


class Clock:
    """A clock that stands still but for what the functions under test say they take."""

    def __init__(self) -> None:
        self.now = 0.0
        self.stolen = 0.0

    def takes(self, *seconds: float) -> Callable[[], None]:
        """Returns a function that takes so many seconds, call by call; the last number from then on."""
        left = list(seconds)

        def function() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return function


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    monkeypatch.setattr(timing, "stolen_seconds", lambda: clock.stolen)
    return clock


def test_a_ratio_is_against_the_baseline_before_and_after(clock: Clock) -> None:
    # Warm-up, counting calls, before; then 1.0 and 1.08 around the first timing.
    plain = clock.takes(1.0, 1.0, 1.0, 1.08, 1.0)
    (ratio,) = compare({"plain": plain, "ours": clock.takes(9.0, 1.3)}, "plain", rounds=3)
    assert (ratio.lowest, ratio.median, ratio.highest) == pytest.approx((1.25, 1.25, 1.3))
    assert (ratio.rounds, ratio.stable, ratio.seconds) == (3, True, pytest.approx(1.3))


def test_time_that_the_host_gave_to_others_does_not_count(clock: Clock) -> None:
    work = clock.takes(2.0)

    def disturbed() -> None:
        work()
        clock.stolen += 0.5

    (ratio,) = compare({"plain": clock.takes(1.0), "ours": disturbed}, "plain", rounds=3)
    assert ratio.median == pytest.approx(1.5)


def test_the_clock_of_lost_time_is_linux_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = timing.stolen_seconds()
    assert 0.0 <= first <= timing.stolen_seconds()
    counters = tmp_path / "stat"
    monkeypatch.setattr(timing, "Path", lambda _: counters)
    assert timing.stolen_seconds() == 0.0  # another system
    counters.write_text("cpu  1 2 3 4 5 6 7 250 0 0\ncpu0 1 2 3 4 5 6 7 9 0 0\n")
    assert timing.stolen_seconds() == pytest.approx(250 / os.sysconf("SC_CLK_TCK"))


def test_disturbed_rounds_do_not_count_and_are_made_up_for(clock: Clock) -> None:
    plain = clock.takes(1.0, 1.0, 1.0, 5.0, 1.0)
    (ratio,) = compare({"plain": plain, "ours": clock.takes(2.0)}, "plain", rounds=3)
    assert (ratio.rounds, ratio.stable) == (3, True)
    assert (ratio.lowest, ratio.highest) == pytest.approx((2.0, 2.0))


def test_a_machine_that_is_never_quiet_is_said_to_be_noisy(clock: Clock) -> None:
    plain = clock.takes(*[1.0, 2.0] * 20)
    (ratio,) = compare({"plain": plain, "ours": clock.takes(3.0)}, "plain", rounds=3)
    assert not ratio.stable
    assert Row.slower("it", ratio, 1.5).reached is False  # all rounds are above the bar
    assert Row.slower("it", ratio, 2.1).reached is True
    assert "noisy" in Row.slower("it", ratio, None).measured


def test_the_interval_of_a_median_narrows_with_rounds(clock: Clock) -> None:
    functions = {"plain": clock.takes(1.0), "ours": clock.takes(*[0.9, 1.0, 1.1, 1.2] * 100)}
    (few,), (many,) = (compare(functions, "plain", rounds) for rounds in (4, 300))
    assert few.interval == (few.lowest, few.highest)
    assert many.lowest < many.interval[0] <= many.median <= many.interval[1] < many.highest


@pytest.mark.parametrize(
    ("low", "median", "high", "rounds", "reached"),
    [
        (0.9, 1.0, 1.2, 3, True),
        (1.0, 1.2, 1.3, 3, False),
        (0.9, 1.0, 1.2, 2, None),
        (0.9, 1.0, 1.05, 2, True),
        (1.2, 1.2, 1.2, 1, False),
    ],
)
def test_few_rounds_decide_only_when_they_agree(
    low: float, median: float, high: float, rounds: int, reached: bool | None
) -> None:
    ratio = Ratio("ours", "plain", median, low, high, 1.0, rounds)
    assert Row.slower("it", ratio, bar=1.1).reached is reached
    assert within(low, high, 1.1) is (reached if rounds < 3 else None)


def test_a_section_replaces_its_older_self_and_leaves_the_others(tmp_path: Path) -> None:
    page = tmp_path / "RESULTS.md"
    for title, measured in (("One", "1x"), ("Two", "2x"), ("One", "3x")):
        write_section(title, [Row("it", measured, "at most 1.00x", None)], "By hand.", page)
    text = page.read_text()
    assert text.count("## One") == text.count("## Two") == text.count("# Benchmark results") == 1
    assert text.index("## One") < text.index("## Two")
    assert "1x |" not in text
    assert re.search(r"By hand\.\n\nMachine: .+\. torch .+\.\n\n\| what \| measured \|", text)
    assert "| it | 3x | at most 1.00x | not decided |" in text
