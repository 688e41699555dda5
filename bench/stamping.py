"""`skylane bench stamping`: the CPU time per frame that the measurement itself takes.

The real components run without a transport between them: every stage is stamped on both sides, the ledger opens and closes
the frame, the clock offset is looked up, and a journal line and a CSV row are written to this machine's disk. Work that is
needed anyway (decoding, inference, packing, sending) is not measured.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.statistics.samples import spread
from bench import harness
from bench.harness import BenchRun, rounds_text, spread_table
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.workers.worker_clocks import WorkerClocks
from ops.processes.null_worker import NullWorkerSettings, null_model
from shared import clock
from shared.clock import Exchange
from shared.imaging import geometry
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Resize
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage
from shared.runlog.latency_log import LogWriter
from shared.stages import CLOUD_STAGES, Stage, Stamp
from shared.terminal_table import Table

TARGET_US = 200.0
_WARM_UP_FRAMES = 100  # Frames that are not counted, until files and caches have settled.
_PARTS = 5  # Of the frames, each with its own mean.
_WORKER, _VEHICLE, _MODEL = "worker", "vehicle", "stamping"
_NODE, _WORKER_NODE = f"edge/{_VEHICLE}/session", f"cloud/{_WORKER}/session"
_BEFORE_SENT = (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT)
_PIXELS = np.zeros((1, 1, 3), np.uint8)  # The content of the image does not matter for its stamps.
_MASK = np.zeros((1, 1), np.uint8)
_CARD = null_model(NullWorkerSettings(model=_MODEL, height=1, width=1)).card


@dataclass(frozen=True, slots=True)
class StampingPlan:
    """Settings of the benchmark."""

    frames: int = harness.number(5000, 100, 1_000_000, "Number of frames.")


class _StampingPath:
    """The vehicle's ledger and the worker's replier, connected directly."""

    def __init__(self, log: LogWriter) -> None:
        clocks = WorkerClocks()
        self._ledger = Ledger(log, EdgeConfig(vehicle=_VEHICLE, model=_MODEL), "session", clocks=clocks)
        self._replier = Replier(_WORKER, _WORKER_NODE)
        self._replies: list[ResultMessage] = []
        for _ in range(_WARM_UP_FRAMES):
            now_ns = clock.now_ns()
            clocks.add_probe(_WORKER_NODE, Exchange(now_ns, now_ns, now_ns, now_ns + 1_000_000))

    def pass_frame(self, index: int) -> dict[str, float]:
        """Passes one frame through; returns the CPU time of each part in microseconds."""
        frame = Frame(_PIXELS, Layout.RGB8, "/sensors/camera/left", index, index, index, index)
        begin_ns = time.thread_time_ns()
        journey = self._ledger.begin(frame, clock.now_ns())
        for stage in _BEFORE_SENT:
            journey.times[stage] = clock.now_ns()
        journey.stamps = tuple(Stamp(stage.value, _NODE, at_ns) for stage, at_ns in journey.times.items())
        stamped_ns = time.thread_time_ns()
        self._ledger.open(journey)
        opened_ns = time.thread_time_ns()
        request = self._request(journey)
        received_ns = time.thread_time_ns()
        request.times[Stage.RECEIVED] = clock.now_ns()
        for stage in CLOUD_STAGES[1:-2]:  # The replier stamps the last two.
            request.stamp(stage)
        self._replier.result(request, _CARD, _MASK)
        replied_ns = time.thread_time_ns()
        reply = self._replies.pop()
        accepted = self._ledger.accept(reply)
        assert accepted is journey
        journey.times[Stage.RETURNED] = clock.now_ns()
        journey.times[Stage.MASK_DECODED] = clock.now_ns()
        self._ledger.finish(journey, reply, len(reply.data), *self._ledger.outcome_of(journey, reply))
        closed_ns = time.thread_time_ns()
        parts_ns = {
            "vehicle: stamps up to sent": stamped_ns - begin_ns,
            "vehicle: line in the journal": opened_ns - stamped_ns,
            "worker: stamps and reply": replied_ns - received_ns,
            "vehicle: reply, clock, row in the CSV": closed_ns - replied_ns,
        }
        return {name: part_ns / 1e3 for name, part_ns in parts_ns.items()}

    def _request(self, journey: FrameRecord) -> Request:
        message = FrameMessage(
            id=journey.id,
            model=_MODEL,
            layout=Layout.RGB8,
            shape=(1, 1, 3),
            codec="raw",
            geometry=geometry.plan(Resize.CROP, 1, 1, 1, 1),
            stamp_ns=0,
            data=b"",
            options=RequestOptions("raw"),
            stamps=journey.stamps,
        )
        return Request(b"", _VEHICLE, "left", _MODEL, self._replies.append, {}, 1 << 20, message=message, batch_size=1)


def measure(plan: StampingPlan, run: BenchRun) -> dict[str, Any]:
    """Measure the CPU time of stamping a frame and writing its journal line and its row."""
    with LogWriter(run.folder / "run") as log:
        path = _StampingPath(log)
        parts = [path.pass_frame(index) for index in range(_WARM_UP_FRAMES + plan.frames)][_WARM_UP_FRAMES:]
    whole = [sum(part.values()) for part in parts]
    return {
        "frames": plan.frames,
        "whole_us": spread(whole) | {"mean": float(np.mean(whole))},
        "parts_us": {name: spread([part[name] for part in parts]) for name in parts[0]},
        "target_us": TARGET_US,
        "is_met": float(np.mean(whole)) <= TARGET_US,
        "by_part_us": [float(part.mean()) for part in np.array_split(whole, _PARTS)],
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    rows = {**result["parts_us"], "whole": result["whole_us"]}
    yield spread_table(f"CPU time of measuring one frame, µs, {result['frames']} frames", rows, digits=1)
    mean_us, target_us = result["whole_us"]["mean"], result["target_us"]
    yield f"mean {mean_us:.1f} µs; target: at most {target_us:g} µs, {rounds_text(result['is_met'], target_us, result['by_part_us'])}"


stamping = harness.bench_command("stamping", StampingPlan, measure, _tables)
