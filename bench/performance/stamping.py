"""`skylane bench stamping`: the CPU time that measuring itself takes of a frame.

The real parts do their work without a wire between them: every stage of a frame is stamped on both sides, the ledger
opens and closes it, the clock is looked up, a line goes to the journal and a row to the CSV on this machine's disk.
What is not measured is what happens without measuring too: decoding, inference, packing, sending.
"""

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console

from bench.harness.output import machine_line
from bench.harness.samples import spread, spread_table
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.worker_clocks import Clocks
from shared import clock
from shared.clock import Exchange
from shared.imaging.frames import Frame, Layout
from shared.imaging.geometry import Resize, plan
from shared.imaging.labels import Labels
from shared.messages.frame import FrameMessage, RequestOptions, ResultMessage
from shared.messages.model_card import ModelCard, Task
from shared.runlog.latency_log import LogWriter
from shared.runtime.machine import machine
from shared.stages import CLOUD_STAGES, Stage, Stamp

TARGET_US = 200.0
_SETTLING = 100  # Frames that are not counted: files and caches settle.
_WORKER, _VEHICLE, _MODEL = "worker", "vehicle", "stamping"
_NODE, _WORKER_NODE = f"edge/{_VEHICLE}/session", f"cloud/{_WORKER}/session"
_BEFORE_SENT = (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED, Stage.SENT)
_PIXELS = np.zeros((1, 1, 3), np.uint8)  # Whatever is in a picture, its stamps are the same.
_MASK = np.zeros((1, 1), np.uint8)
_CARD = ModelCard(
    name=_MODEL,
    version="1",
    sha256="0" * 64,
    task=Task.SEGMENTATION,
    height=1,
    width=1,
    layout=Layout.RGB8,
    resize=Resize.CROP,
    labels=Labels(("road",), ((0, 0, 0),)),
    trained=False,
)


class _Desk:
    """A ledger and a worker's replies, each frame handed from one to the other."""

    def __init__(self, log: LogWriter) -> None:
        clocks = Clocks()
        self._ledger = Ledger(log, vehicle=_VEHICLE, session="session", model=_MODEL, clocks=clocks)
        self._replier = Replier(_WORKER, _WORKER_NODE)
        self._answers: list[ResultMessage] = []
        for _ in range(_SETTLING):
            now_ns = clock.now_ns()
            clocks.probed(_WORKER_NODE, Exchange(now_ns, now_ns, now_ns, now_ns + 1_000_000))

    def pass_frame(self, index: int) -> dict[str, float]:
        """Take one frame through; the CPU time of each part of that, in microseconds."""
        frame = Frame(_PIXELS, Layout.RGB8, "/sensors/camera/left", index, index, index, index)
        began_ns = time.thread_time_ns()
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
        answer = self._answers.pop()
        accepted = self._ledger.accept(answer)
        assert accepted is journey
        journey.times[Stage.RETURNED] = clock.now_ns()
        journey.times[Stage.MASK_DECODED] = clock.now_ns()
        self._ledger.finish(journey, answer, len(answer.data))
        closed_ns = time.thread_time_ns()
        parts_ns = {
            "vehicle: stamps up to sent": stamped_ns - began_ns,
            "vehicle: line in the journal": opened_ns - stamped_ns,
            "worker: stamps and reply": replied_ns - received_ns,
            "vehicle: answer, clock, row in the CSV": closed_ns - replied_ns,
        }
        return {name: part_ns / 1e3 for name, part_ns in parts_ns.items()}

    def _request(self, journey: FrameRecord) -> Request:
        message = FrameMessage(
            id=journey.id,
            model=_MODEL,
            layout=Layout.RGB8,
            shape=(1, 1, 3),
            codec="raw",
            geometry=plan(Resize.CROP, 1, 1, 1, 1),
            frame_stamp_ns=0,
            data=b"",
            want=RequestOptions("raw"),
            stamps=journey.stamps,
        )
        return Request(b"", _VEHICLE, "left", _MODEL, self._answers.append, {}, 1 << 20, message=message, batch_size=1)


def measure(frames: int) -> dict[str, Any]:
    """Take so many frames through. Returns what `--json` prints."""
    with tempfile.TemporaryDirectory(prefix="skylane-stamping-") as folder, LogWriter(Path(folder) / "run") as log:
        desk = _Desk(log)
        parts = [desk.pass_frame(index) for index in range(_SETTLING + frames)][_SETTLING:]
    whole = [sum(part.values()) for part in parts]
    return {
        "frames": frames,
        "whole_us": spread(whole) | {"mean": float(np.mean(whole))},
        "parts_us": {name: spread([part[name] for part in parts]) for name in parts[0]},
        "target_us": TARGET_US,
        "is_met": float(np.mean(whole)) <= TARGET_US,
        "machine": machine(),
    }


@click.command()
@click.option("--frames", type=click.IntRange(100, 1_000_000), default=5000, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON alone.")
def stamping(frames: int, *, as_json: bool) -> None:
    """Measure the CPU time of stamping a frame's whole journey and writing its journal line and its row."""
    result = measure(frames)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    rows = {**result["parts_us"], "whole": result["whole_us"]}
    console.print(spread_table(f"CPU time of measuring one frame, µs, {result['frames']} frames", rows, digits=1))
    verdict = "met" if result["is_met"] else "NOT met"
    console.print(
        f"mean {result['whole_us']['mean']:.1f} µs; target: at most {result['target_us']:g} µs, {verdict}",
        highlight=False,
    )
    console.print(machine_line(result["machine"]), highlight=False)
