import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from bench import clock_accuracy
from bench.clock_accuracy import ClockErrors, clock_errors, clocks, summarise_case, tables
from ops.processes.null_worker import ClockReading
from shared.runlog.latency_log import milliseconds

MS = 10**6
VEHICLE = ClockReading(monotonic_ns=0, now_ns=10**18)
WORKER = ClockReading(monotonic_ns=0, now_ns=10**18 + 3000 * MS, drift_ppm=100)
WITHIN = ClockErrors(0.5, -0.5, 0.5, 9.0)


def row(up_ms: int, down_ms: int, offset_error_ms: int, *, at_ms: int = 60_000) -> dict[str, str]:
    """A row of a vehicle whose estimate of WORKER's clock has the given error."""
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
def test_the_errors_of_a_row_are_those_of_its_estimate(error_ms: int) -> None:
    """The worker's clock is 3 s ahead and drifts; only the error of the estimate remains."""
    errors = clock_errors(row(25, 5, error_ms), VEHICLE, WORKER)
    # The offset is as of `returned`; 100 ppm of a crossing is some microseconds.
    assert errors.offset_ms == pytest.approx(error_ms, abs=1e-5)
    assert errors.uplink_ms == pytest.approx(-error_ms, abs=0.005)
    assert errors.downlink_ms == pytest.approx(error_ms, abs=0.005)
    assert errors.bound_ms == 9


def test_errors_beyond_the_bound_miss_the_target() -> None:
    """One per cent of the rows may exceed the bound, two may not."""
    case = summarise_case([*[WITHIN] * 99, ClockErrors(12.0, -0.5, 0.5, 9.0)], 25, 5)
    assert case["within"] == {"offset": 0.99, "uplink": 1.0, "downlink": 1.0}
    assert case["is_met"]
    assert not summarise_case([*[WITHIN] * 99, *[ClockErrors(0.5, -12.0, 0.5, 9.0)] * 2], 25, 5)["is_met"]


def test_a_symmetric_link_requires_a_small_error() -> None:
    """Half a round trip is a wide bound: on a symmetric link, the error must also be below a millisecond."""
    errors = [ClockErrors(1.5, -1.5, 1.5, 9.0)] * 10
    case = summarise_case(errors, 10, 10)
    assert (case["close"], case["is_met"]) == (0.0, False)
    assert summarise_case(errors, 25, 5)["is_met"]


@pytest.mark.mosquitto
def test_the_bound_holds_over_a_real_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The whole benchmark, short: five workers with different clocks share one subscription."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(clock_accuracy, "LINKS_MS", ((12.0, 4.0),))
    done = CliRunner().invoke(clocks, ["--frames", "20", "--json"], catch_exceptions=False)
    result = json.loads(done.stdout)
    assert [case["clock"]["name"] for case in result["cases"]] == [clock.name for clock in clock_accuracy.CLOCKS]
    for case in result["cases"]:
        assert case["rows"] > 0
        assert min(case["within"].values()) >= clock_accuracy.SHARE_TARGET, case
        assert case["bound_ms"]["median"] >= 8 - 1e-3  # Half of the link's minimum round trip.
    assert result["rows"] == 100


def test_the_table_fits_a_terminal_of_80_characters() -> None:
    """No value may be truncated."""
    errors = [ClockErrors(10.0, -10.0, 10.0, 17.5), ClockErrors(12.0, -0.5, 0.5, 9.0)]
    result = {
        "cases": [{"clock": asdict(clock), **summarise_case(errors, 25, 25)} for clock in clock_accuracy.CLOCKS],
        "is_met": False,
        "targets": {"share": 0.99, "symmetric_error_ms": 1.0},
        "rows": 10,
        "jitter_ms": 2.0,
        "seed": 0,
        "link_late_ms": {"median": 0.1, "p99": 2.0},
    }
    output = StringIO()
    Console(file=output, width=80).print(*tables(result))
    assert "…" not in output.getvalue()
    line = next(line for line in output.getvalue().splitlines() if "gaining" in line)
    assert line.split()[-8:] == ["2", "50.0%", "0.0%", "11.00", "–", "12.00", "13.25", "missed"]
