"""How benchmarks come to their verdicts; nothing here measures time."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import timing
from benchmarks.compare import compare_results
from benchmarks.report import describe_run, read_results, render_page
from benchmarks.run import PAGE, RESULTS, SECTION_NAMES
from benchmarks.scaling import GPT2, VIT, Host, count_prefixes, encoder_operations
from benchmarks.timing import Ratio, compare
from seqpe_zoo import SeqPE, grid_positions


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
    assert "| ~2.00 |" in render_page({"one": section("One", [row(**vars(ratio))])})


def row(**changes: Any) -> dict[str, Any]:
    ratio = Ratio("ours", "plain", 1.2, 1.1, 1.3, 1.0, 3)
    return {"what": "forward", **asdict(ratio), **changes}


def section(title: str, rows: list[dict[str, Any]], date: str = "2026-01-01") -> dict[str, Any]:
    return {"title": title, "measured": {**describe_run("short"), "date": date}, "rows": rows}


def test_the_page_has_a_column_for_each_candidate_and_names_one_machine_once() -> None:
    rows = [row(), row(name="other", median=2.0), row(what="decode", median=0.9)]
    page = render_page({"one": section("One", rows), "two": section("Two", [row()])})
    assert "| 1.00 = plain | ours | other |" in page
    assert "| forward | 1.20 | 2.00 |\n| decode | 0.90 |  |" in page
    assert page.count("short run of 2026-01-01") == 1


def test_sections_of_other_days_say_so() -> None:
    page = render_page({"one": section("One", [row()]), "two": section("Two", [row()], "2026-02-02")})
    assert page.index("## One") < page.index("2026-01-01") < page.index("## Two") < page.index("2026-02-02")


def test_two_runs_are_compared_where_both_measured() -> None:
    first = {"one": section("One", [row(), row(name="other")])}
    second = {"one": section("One", [row(median=1.8, lowest=1.7, highest=1.9), row(name="new")])}
    table = compare_results(first, second)
    assert "| One, forward, ours | 1.20 | 1.80 | 1.50 | differs |" in table
    assert "other" not in table
    assert "new" not in table
    assert "nothing was measured in both" in compare_results({}, second)


def test_the_page_is_that_of_the_stored_results() -> None:
    assert PAGE.read_text(encoding="utf-8") == render_page(read_results(RESULTS))


@pytest.mark.parametrize(
    ("host", "options"),
    [(GPT2, {"dim": 768, "num_digits": 5}), (VIT, {"dim": 384, "num_dims": 2, "num_digits": 2})],
    ids=["text", "images"],
)
@torch.no_grad()
def test_the_operations_of_the_encoder_are_what_torch_counts(host: Host, options: dict[str, int]) -> None:
    encoder = SeqPE(**options).eval().encoder
    positions = grid_positions(host.sides)
    for encode, shared in ((encoder, True), (encoder.encode_each, False)):
        with FlopCounterMode(display=False) as counter:
            encode(positions)
        assert encoder_operations(host, shared) == pytest.approx(counter.get_total_flops(), rel=0.002)


def test_prefixes_of_a_grid_are_counted() -> None:
    written = {
        f"{row:02}{column:02}"[:length] for row in range(14) for column in range(3) for length in range(1, 5)
    }
    assert count_prefixes((14, 3), digits=2) == len(written)


@pytest.mark.slow
def test_everything_runs_in_tiny_sizes(tmp_path: Path) -> None:
    output = tmp_path / "tiny.json"
    command = [sys.executable, "-m", "benchmarks.run", "--tiny", "--output", str(output)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    results = read_results(output)
    assert list(results) == [name for name in SECTION_NAMES if name != "compiled"]
    assert all(row["median"] > 0 for section in results.values() for row in section["rows"])
    assert "## GPT-2 124M" in output.with_suffix(".md").read_text(encoding="utf-8")
