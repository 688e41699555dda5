"""Whether the clock offset in the log holds what it states: known wrong clocks, known links, and the truth beside it.

One vehicle plays through a link to a broker, behind which several workers share one subscription, each with a clock of
its own that is wrong by a known amount. All run on this machine, and every process says once what its clock shows at a
moment of CLOCK_MONOTONIC, which they share: so every stamp of a row can be put back on one axis, and the true offset
and the true time of each crossing follow to within a microsecond. They are held against what the row states.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bench.harness.sample_bag import sample_bag
from bench.harness.samples import spread
from bench.link.link import Link, LinkSpec
from bench.load.null_worker import MODEL, ClockReading, NullWorkerProcess, NullWorkerSettings
from bench.load.playback import BenchError
from edge.cli import run
from edge.config import EdgeConfig
from shared.broker.broker import Broker
from shared.runlog.latency_log import Outcome, read_rows
from shared.runtime.machine import machine

SHARE_TARGET = 0.99  # Of rows.
ERROR_TARGET_MS = 1.0  # Of the offset, on a symmetric link; on any other the bound alone can be asked for.
_HEIGHT, _WIDTH = 152, 242  # Small: the link and the clocks are measured, not the picture.
_SAMPLE_FRAMES = 20
_JITTER_MS = 2.0


@dataclass(frozen=True, slots=True)
class WrongClock:
    """How wrong a worker's clock is."""

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
LINKS_MS = ((10.0, 10.0), (25.0, 5.0), (5.0, 25.0))  # Delay up and down.


@dataclass(frozen=True, slots=True)
class Judged:
    """A row held against the truth: how far it is off, in milliseconds with their sign, and what it allows for."""

    offset_ms: float
    uplink_ms: float
    downlink_ms: float
    bound_ms: float


def measure(frames: int, on_step: Callable[[str], None], *, seed: int = 0) -> dict[str, Any]:
    """Play so many frames for each clock over each link. Returns what `--json` prints.

    Raises:
        SkylaneError: broker, link or a worker did not start, or a frame was not answered.
    """
    cases = []
    with ExitStack() as stack:
        on_step("starting a broker, a link and five workers")
        broker = stack.enter_context(Broker.start(kind="mosquitto"))
        workers = [_started(stack, broker.url, number, wrong) for number, wrong in enumerate(CLOCKS)]
        link = stack.enter_context(Link(LinkSpec(), broker.listener.host, broker.listener.port))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-clocks-")))
        for number, (up_ms, down_ms) in enumerate(LINKS_MS):
            on_step(f"{frames} frames a clock over {up_ms:g} ms up, {down_ms:g} ms down")
            link.set(LinkSpec(delay_up_ms=up_ms, delay_down_ms=down_ms, jitter_ms=_JITTER_MS, seed=seed + number))
            rows = _played(link.url, folder / str(number), frames * len(CLOCKS))
            vehicle = ClockReading.take()
            for wrong, worker in zip(CLOCKS, workers, strict=True):
                own = [row for row in rows if row["worker"] == worker.worker]
                judged = [judge(row, vehicle, worker.clock) for row in own]
                cases.append({"clock": asdict(wrong), **_case(judged, up_ms, down_ms)})
        counts = link.counts()
        description = broker.description
    return {
        "cases": cases,
        "is_met": all(case["is_met"] for case in cases),
        "targets": {"share": SHARE_TARGET, "symmetric_error_ms": ERROR_TARGET_MS},
        "rows": sum(case["rows"] for case in cases),
        "jitter_ms": _JITTER_MS,
        "seed": seed,
        "link_late_ms": {"median": counts.late_p50_ms, "p99": counts.late_p99_ms},
        "broker": description,
        "machine": machine(),
    }


def judge(row: Mapping[str, str], vehicle: ClockReading, worker: ClockReading) -> Judged:
    """Hold an answered row against the truth; the offset is stated for the whole exchange, and is tried at its end."""
    sent_ns, returned_ns = (vehicle.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("sent", "returned"))
    received_ns, replied_ns = (worker.monotonic_at(int(row[f"t_{stage}_ns"])) for stage in ("received", "replied"))
    offset_ns = worker.now_at(returned_ns) - vehicle.now_at(returned_ns)
    return Judged(
        offset_ms=float(row["clock_offset_ms"]) - offset_ns / 1e6,
        uplink_ms=float(row["uplink_ms"]) - (received_ns - sent_ns) / 1e6,
        downlink_ms=float(row["downlink_ms"]) - (returned_ns - replied_ns) / 1e6,
        bound_ms=float(row["clock_error_ms"]),
    )


def _started(stack: ExitStack, broker: str, number: int, wrong: WrongClock) -> NullWorkerProcess:
    settings = NullWorkerSettings(worker=f"clock-{number}", height=_HEIGHT, width=_WIDTH)
    return stack.enter_context(
        NullWorkerProcess(broker, settings, clock_offset_s=wrong.offset_s, clock_drift_ppm=wrong.drift_ppm)
    )


def _played(broker: str, folder: Path, frames: int) -> list[dict[str, str]]:
    """The rows of a run of the vehicle node, in this process: its clock is then the one that `ClockReading` reads."""
    config = EdgeConfig(
        broker=broker,
        vehicle="clocks",
        model=MODEL,
        closed_loop=True,
        window=1,
        loop=True,
        frames=frames,
        out=folder,
        sinks=(),
    )
    said = StringIO()
    code = run(str(sample_bag(_SAMPLE_FRAMES)), config, Console(file=said))
    rows = list(read_rows(folder))
    unanswered = [row for row in rows if row["outcome"] != Outcome.ANSWERED]
    if code or unanswered or len(rows) != frames:
        raise BenchError(f"{len(rows) - len(unanswered)} of {frames} frames were answered: {said.getvalue()[-300:]}")
    return rows


def _case(judged: Iterable[Judged], up_ms: float, down_ms: float) -> dict[str, Any]:
    """The figures of one clock over one link."""
    rows = list(judged)
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
