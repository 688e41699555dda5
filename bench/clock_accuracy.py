"""`skylane bench clocks`: compares clock offsets in the log with the truth, for known clocks and links.

One vehicle plays through a link to a broker, behind which several workers share one subscription; the clock of each worker is
wrong by a known amount. All processes run on this machine and read their clock once together with CLOCK_MONOTONIC, which they
share: so every stamp can be converted to one axis, and the true offsets and transfer times follow with an error below a
microsecond. They are compared with the values in the log.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from analysis.statistics.samples import spread
from bench import harness
from bench.harness import BenchRun
from edge.config import EdgeConfig
from edge.run import run as play
from ops.broker.broker import Broker
from ops.link.link import Link
from ops.processes.child import BenchError
from ops.processes.null_worker import MODEL, ClockReading, NullWorkerProcess, NullWorkerSettings
from rosbag_tools.drive.recording import sample_bag
from shared.network.link_spec import LinkSpec
from shared.runlog.latency_log import Outcome, read_rows
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

SHARE_TARGET = 0.99  # Share of rows.
ERROR_TARGET_MS = 1.0  # Error of the offset on a symmetric link; on other links, only the error bound can hold.
_HEIGHT, _WIDTH = 152, 242  # Small images, because only the link and the clocks are measured.
_SAMPLE_FRAMES = 20
_JITTER_MS = 2.0


@dataclass(frozen=True, slots=True)
class ClocksPlan:
    """Settings of the benchmark."""

    frames: int = harness.number(250, 20, 100_000, "Frames per clock and link.")
    seed: int = harness.number(0, 0, 1 << 62, "Seed of the links' jitter.")


@dataclass(frozen=True, slots=True)
class WrongClock:
    """The known error of a worker's clock."""

    name: str
    offset_s: float = 0.0
    drift_ppm: float = 0.0


CLOCKS = (
    WrongClock("right"),
    WrongClock("3 s ahead", offset_s=3),
    WrongClock("3 s behind", offset_s=-3),
    WrongClock("gaining 100 ppm", drift_ppm=100),
    WrongClock("losing 100 ppm", drift_ppm=-100),
)
LINKS_MS = ((10.0, 10.0), (25.0, 5.0), (5.0, 25.0))  # Delays up and down.


@dataclass(frozen=True, slots=True)
class ClockErrors:
    """The signed errors of a row compared with the truth, and the error bound that it states, in milliseconds."""

    offset_ms: float
    uplink_ms: float
    downlink_ms: float
    bound_ms: float


def measure(plan: ClocksPlan, run: BenchRun) -> dict[str, Any]:
    """Compare the log's clock offsets with the truth: clocks with known errors, over links with known delays."""
    run.step("starting a broker, a link and five workers")
    broker = run.enter_context(Broker.start(kind="mosquitto"))
    workers = []
    for number, wrong in enumerate(CLOCKS):
        settings = NullWorkerSettings(worker=f"clock-{number}", height=_HEIGHT, width=_WIDTH)
        worker = NullWorkerProcess(broker.url, settings, clock_offset_s=wrong.offset_s, clock_drift_ppm=wrong.drift_ppm)
        workers.append(run.enter_context(worker))
    link = run.enter_context(Link(LinkSpec(), broker.listener.host, broker.listener.port))
    cases = []
    for number, (up_ms, down_ms) in enumerate(LINKS_MS):
        run.step(f"{plan.frames} frames a clock over {up_ms:g} ms up, {down_ms:g} ms down")
        link.set(LinkSpec(delay_up_ms=up_ms, delay_down_ms=down_ms, jitter_ms=_JITTER_MS, seed=plan.seed + number))
        rows = _play(link.url, run.folder / str(number), plan.frames * len(CLOCKS))
        vehicle = ClockReading.take()
        for wrong, worker in zip(CLOCKS, workers, strict=True):
            own = [row for row in rows if row["worker"] == worker.name]
            if not own:
                raise BenchError(f"{worker.name} answered none of {len(rows)} frames: give more --frames")
            errors = [clock_errors(row, vehicle, worker.clock) for row in own]
            cases.append({"clock": asdict(wrong), **summarise_case(errors, up_ms, down_ms)})
    counts = link.counts()
    return {
        "cases": cases,
        "is_met": all(case["is_met"] for case in cases),
        "targets": {"share": SHARE_TARGET, "symmetric_error_ms": ERROR_TARGET_MS},
        "rows": sum(case["rows"] for case in cases),
        "jitter_ms": _JITTER_MS,
        "seed": plan.seed,
        "link_late_ms": {"median": counts.late_p50_ms, "p99": counts.late_p99_ms},
        "broker": broker.description,
    }


def clock_errors(row: Mapping[str, str], vehicle: ClockReading, worker: ClockReading) -> ClockErrors:
    """Compares an answered row with the truth; the offset is checked at the end of the exchange."""
    sent_ns, returned_ns = (vehicle.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("sent", "returned"))
    received_ns, replied_ns = (worker.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("received", "replied"))
    offset_ns = worker.now_at(returned_ns) - vehicle.now_at(returned_ns)
    return ClockErrors(
        offset_ms=float(row["clock_offset_ms"]) - offset_ns / 1e6,
        uplink_ms=float(row["uplink_ms"]) - (received_ns - sent_ns) / 1e6,
        downlink_ms=float(row["downlink_ms"]) - (returned_ns - replied_ns) / 1e6,
        bound_ms=float(row["clock_error_ms"]),
    )


def _play(broker: str, folder: Path, frames: int) -> list[dict[str, str]]:
    """Runs the vehicle node in this process, whose clock `ClockReading` reads; returns the rows of its log."""
    config = EdgeConfig(
        broker=broker,
        vehicle="clocks",
        model=MODEL,
        closed_loop=True,
        window=1,
        dispatch="group",  # Each worker gets its turn.
        loop=True,
        frames=frames,
        out=folder,
        sinks=(),
    )
    output = StringIO()
    code = play(str(sample_bag(_SAMPLE_FRAMES)), config, Console(file=output))
    rows = list(read_rows(folder))
    unanswered = [row for row in rows if row["outcome"] != Outcome.ANSWERED]
    if code or unanswered or len(rows) != frames:
        raise BenchError(f"{len(rows) - len(unanswered)} of {frames} frames were answered: {output.getvalue()[-300:]}")
    return rows


def summarise_case(rows: Sequence[ClockErrors], up_ms: float, down_ms: float) -> dict[str, Any]:
    """Computes the results of one clock over one link."""
    bounds = np.array([row.bound_ms for row in rows])
    errors = {name: np.array([getattr(row, f"{name}_ms") for row in rows]) for name in ("offset", "uplink", "downlink")}
    within = {name: float((np.abs(values) <= bounds).mean()) for name, values in errors.items()}
    off_ms = np.abs(errors["offset"])
    close = float((off_ms < ERROR_TARGET_MS).mean()) if up_ms == down_ms else None
    return {
        "delay_up_ms": up_ms,
        "delay_down_ms": down_ms,
        "rows": len(rows),
        "within": within,
        "close": close,
        "error_ms": {**spread(off_ms.tolist()), "max": float(off_ms.max())},
        "bound_ms": spread(bounds.tolist()),
        "is_met": min(within.values()) >= SHARE_TARGET and (close is None or close >= SHARE_TARGET),
    }


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields the table of a result and its explanation."""
    rows = []
    for case in result["cases"]:
        error_ms, bound_ms = case["error_ms"], case["bound_ms"]
        values_ms = (error_ms["median"], error_ms["p99"], error_ms["max"], bound_ms["median"])
        rows.append(
            (
                f"{case['delay_up_ms']:g} + {case['delay_down_ms']:g} ms",
                case["clock"]["name"],
                case["rows"],
                min(case["within"].values()),
                case["close"],
                *map(shown, values_ms),
                "met" if case["is_met"] else "missed",
            )
        )
    columns = {"up + down": "<", "worker": "<", "rows": "", "within": ".1%", "close": ".1%"}
    columns |= dict.fromkeys(("error p50", "p99", "max", "bound p50", "target"), "")
    is_short = any(case["error_ms"]["p99"] is None for case in result["cases"])
    yield result_table("Clock offsets compared with the truth", columns, rows, NOTE if is_short else "")
    targets = result["targets"]
    yield (
        f"up + down: delays of the link. within: share of rows whose true value lies within the stated error bound, the least "
        f"of offset, uplink and downlink. close: share whose offset error is below {targets['symmetric_error_ms']:g} ms, "
        f"required only if up and down are equal: otherwise the error is half of their difference, which no exchange of "
        f"messages can detect. error, bound: of the offset, ms. Target: {targets['share']:.0%} of each share; "
        f"{'met' if result['is_met'] else 'MISSED'} over {result['rows']} rows."
    )
    late_ms = result["link_late_ms"]
    yield (
        f"jitter of {result['jitter_ms']:g} ms each way, seed {result['seed']}; lateness of the link emulator "
        f"{shown(late_ms['median'])} ms (p99 {shown(late_ms['p99'])})"
    )


clocks = harness.bench_command("clocks", ClocksPlan, measure, tables)
