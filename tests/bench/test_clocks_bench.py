import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench.clocks import clock_accuracy as clocks_bench
from bench.clocks.cli import _print, clocks
from bench.clocks.clock_accuracy import Judged, judge
from bench.load.null_worker import ClockReading
from shared.runlog.latency_log import milliseconds
from shared.runtime.machine import machine

MS = 10**6
VEHICLE = ClockReading(monotonic_ns=0, now_ns=10**18)
WORKER = ClockReading(monotonic_ns=0, now_ns=10**18 + 3000 * MS, drift_ppm=100)


def row(up_ms: int, down_ms: int, offset_error_ms: int, *, at_ms: int = 60_000) -> dict[str, str]:
    """A row as a vehicle would log it whose estimate of WORKER's clock is off by so much."""
    sent, received = at_ms * MS, (at_ms + up_ms) * MS
    replied = received + 2 * MS
    returned = replied + down_ms * MS
    stamps = {
        "sent": VEHICLE.now_at(sent),
        "received": WORKER.now_at(received),
        "replied": WORKER.now_at(replied),
        "returned": VEHICLE.now_at(returned),
    }
    offset = WORKER.now_at(returned) - VEHICLE.now_at(returned) + offset_error_ms * MS
    return {
        **{f"t_{stage}_ns": str(stamp) for stage, stamp in stamps.items()},
        "clock_offset_ms": milliseconds(offset),
        "clock_error_ms": "9.000000",
        "uplink_ms": milliseconds(stamps["received"] - stamps["sent"] - offset),
        "downlink_ms": milliseconds(stamps["returned"] - stamps["replied"] + offset),
    }


@pytest.mark.parametrize("error_ms", [0, 4, -12])
def test_the_judge_knows_the_truth(error_ms: int) -> None:
    """It un-skews a clock that is 3 s ahead and drifts: what is left must be the estimate's own error."""
    judged = judge(row(25, 5, error_ms), VEHICLE, WORKER)
    # The offset is as of `returned`; 100 ppm of a crossing is some microseconds.
    assert judged.offset_ms == pytest.approx(error_ms, abs=1e-5)
    assert judged.uplink_ms == pytest.approx(-error_ms, abs=0.005)
    assert judged.downlink_ms == pytest.approx(error_ms, abs=0.005)
    assert judged.bound_ms == 9


def test_a_bound_that_is_too_small_is_found_out() -> None:
    """A proof that cannot fail proves nothing."""
    good = [Judged(0.5, -0.5, 0.5, 9.0)] * 99
    case = clocks_bench._case([*good, Judged(12.0, -0.5, 0.5, 9.0)], 25, 5)
    assert case["within"] == {"offset": 0.99, "uplink": 1.0, "downlink": 1.0}
    assert case["is_met"]
    assert not clocks_bench._case([*good, *[Judged(0.5, -12.0, 0.5, 9.0)] * 2], 25, 5)["is_met"]


def test_a_symmetric_link_must_be_known_well() -> None:
    """Within the bound is not enough there: half a round trip is a wide bound."""
    off = [Judged(1.5, -1.5, 1.5, 9.0)] * 10
    case = clocks_bench._case(off, 10, 10)
    assert (case["close"], case["is_met"]) == (0.0, False)
    assert clocks_bench._case(off, 25, 5)["is_met"]


@pytest.mark.mosquitto
def test_the_bound_holds_over_a_real_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole bench, short: five workers behind one shared subscription, each with another clock."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clocks_bench, "LINKS_MS", ((12.0, 4.0),))
    done = CliRunner().invoke(clocks, ["--frames", "20", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert [case["clock"]["name"] for case in result["cases"]] == [clock.name for clock in clocks_bench.CLOCKS]
    for case in result["cases"]:
        assert case["rows"] > 0
        assert min(case["within"].values()) >= clocks_bench.SHARE_TARGET, case
        assert case["bound_ms"]["median"] >= 8 - 1e-3  # Half of what the link takes at least.
    assert result["rows"] == 100


def test_the_table_fits_a_terminal() -> None:
    """Of eighty characters, without a figure cut off."""
    judged = [Judged(10.0, -10.0, 10.0, 17.5), Judged(12.0, -0.5, 0.5, 9.0)]
    cases = [{"clock": asdict(wrong), **clocks_bench._case(judged, 25, 25)} for wrong in clocks_bench.CLOCKS]
    result = {
        "cases": cases,
        "is_met": False,
        "targets": {"share": 0.99, "symmetric_error_ms": 1.0},
        "rows": 10,
        "jitter_ms": 2.0,
        "seed": 0,
        "link_late_ms": {"median": 0.1, "p99": 2.0},
        "broker": "Mosquitto",
        "machine": machine(),
    }
    said = StringIO()
    _print(result, Console(file=said, width=80))
    assert "…" not in said.getvalue()
    line = next(line for line in said.getvalue().splitlines() if "gaining" in line)
    assert line.split()[-8:] == ["2", "50.0%", "0.0%", "11.00", "–", "12.00", "13.25", "missed"]
