"""The frames of a run as a trace for Perfetto: every stage of both nodes on one time axis.

The format is the JSON of Chrome's trace viewer ("Trace Event Format"), which https://ui.perfetto.dev opens. Times are
microseconds with three decimals, so exact nanoseconds, from the first due frame. A worker's stamps are moved to the
vehicle's clock by the offset that the log gives for the frame.
"""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from analysis.logs.log_rows import LogRows
from shared.clock import format_span
from shared.runlog.latency_log import CSV_NAME, LogError
from shared.runlog.presented_log import PRESENTED_NAME, PresentedRow, read_presented
from shared.sanitize import printable
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

Event = Mapping[str, Any]

_NS_PER_US = 1000
_LONGEST_NS = 30 * 86_400 * 10**9  # Up to there, a floating-point number of microseconds has every nanosecond.
_VEHICLE = 1  # Number of the vehicle's process; workers follow.
_THREADS = 1000  # Numbers of the threads of a process begin at its own, times this: the viewer takes equal numbers for the main thread.
_ARGUMENTS = ("frame_index", "batch_size", "attempts", "bytes_up", "bytes_down")
_CLOCK_ARGUMENTS = ("clock_offset_ms", "clock_error_ms", "uplink_resolved", "downlink_resolved")


@dataclass(slots=True)
class _Lanes:
    """The threads of a process: spans on one must not overlap, and frames do."""

    process: int
    numbers: Iterator[int]  # Of the threads of the process.
    lanes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _busy: list[tuple[int, int]] = field(default_factory=list)  # End of the span, and its lane.

    def take(self, start_ns: int, end_ns: int) -> int:
        """Returns the lane of a span. Spans come in the order of their starts."""
        while self._busy and self._busy[0][0] <= start_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane = next(self.numbers)
            self.lanes.append(lane)
        heapq.heappush(self._busy, (end_ns, lane))
        return lane


@dataclass(frozen=True, slots=True)
class _Frame:
    """A row of the log."""

    row: int
    stamps: Mapping[Stage, int]  # Each by the clock of its node.
    values: Mapping[str, int]  # Further numbers; milliseconds as nanoseconds.

    @property
    def edge(self) -> list[tuple[Stage, int]]:
        return [(stage, self.stamps[stage]) for stage in EDGE_STAGES if stage in self.stamps]

    @property
    def cloud(self) -> list[tuple[Stage, int]]:
        """The worker's stamps by the vehicle's clock; none if the offset is not known."""
        offset_ns = self.values.get("clock_offset_ms")
        stages = [stage for stage in CLOUD_STAGES if stage in self.stamps]
        return [] if offset_ns is None else [(stage, self.stamps[stage] - offset_ns) for stage in stages]


def write_trace(rows: LogRows, folder: Path, file: TextIO) -> int:
    """Writes the trace of a run and returns the number of frames in it; those without times are left out.

    Raises:
        LogError: no frame has times, or they are further apart than a run lasts.
    """
    frames = sorted(_frames(rows), key=lambda frame: frame.stamps[Stage.DUE])
    if not frames:
        raise LogError(f"{folder / CSV_NAME}: no frame has times: `skylane report {folder} --check` says why")
    last_ns = max(time_ns for frame in frames for _, time_ns in (*frame.edge, *frame.cloud))
    if last_ns - frames[0].stamps[Stage.DUE] > _LONGEST_NS:
        raise LogError(
            f"{folder / CSV_NAME}: its times are {format_span(last_ns - frames[0].stamps[Stage.DUE])} apart, and a trace holds "
            f"{format_span(_LONGEST_NS)}: `skylane report {folder} --check` finds damaged rows"
        )
    trace = _Trace(rows, frames)
    head = {"displayTimeUnit": "ns", "otherData": {"origin_ns": trace.origin_ns, "session": printable(rows.session)}}
    file.write(json.dumps(head)[:-1] + ',"traceEvents":[\n')
    separator = ""
    for event in trace.events(folder):
        file.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")
    return len(frames)


class _Trace:
    def __init__(self, rows: LogRows, frames: Sequence[_Frame]) -> None:
        self._table = rows.table
        self._frames = frames
        self.origin_ns = frames[0].stamps[Stage.DUE]
        self._lanes: dict[tuple[str, str], _Lanes] = {}  # By kind and name: a camera of the vehicle, or a worker.
        self._processes: dict[str, int] = {}
        self._threads: dict[int, Iterator[int]] = {}

    def events(self, folder: Path) -> Iterator[Event]:
        """Yields the frames of the vehicle, those of the workers, the outputs, and then the names."""
        lanes = {frame.row: self._lane_of(frame, frame.edge, "camera") for frame in self._frames}
        for frame in self._frames:
            yield from self._of_vehicle(frame, lanes[frame.row])
        away = sorted((frame for frame in self._frames if frame.cloud), key=lambda frame: frame.cloud[0][1])
        for number, frame in enumerate(away):
            lane = self._lane_of(frame, frame.cloud, "worker")
            yield from self._of_worker(frame, lane)
            yield from self._flows(frame, lanes[frame.row], lane, number)
        yield from self._in_flight()
        if (folder / PRESENTED_NAME).is_file():
            yield from self._outputs(read_presented(folder))
        yield from self._names()

    def _of_vehicle(self, frame: _Frame, lane: tuple[int, int]) -> Iterator[Event]:
        outcome, reason = (printable(self._table.cell(name, frame.row)) for name in ("outcome", "reason"))
        arguments: dict[str, Any] = {name: frame.values[name] for name in _ARGUMENTS if name in frame.values}
        arguments |= {
            name.replace("_ms", "_ns"): frame.values[name] for name in _CLOCK_ARGUMENTS if name in frame.values
        }
        arguments |= {"outcome": outcome} | ({"reason": reason} if reason else {})
        name = f"frame {frame.values['sequence']}" + ("" if outcome == "answered" else f" ({outcome})")
        yield self._span(name, lane, frame.stamps[Stage.DUE], frame.edge[-1][1], arguments)
        yield from self._stages(frame.edge, lane)
        sent_ns, cloud, returned_ns = frame.stamps.get(Stage.SENT), frame.cloud, frame.stamps.get(Stage.RETURNED)
        if sent_ns is None or returned_ns is None or not cloud:
            return
        times = (sent_ns, cloud[0][1], cloud[-1][1], returned_ns)
        if list(times) == sorted(times):  # Else the error of the clock offset is larger than the way.
            for what, (start_ns, end_ns) in zip(("uplink", "worker", "downlink"), pairwise(times), strict=True):
                yield self._span(what, lane, start_ns, end_ns, {"ns": end_ns - start_ns})

    def _of_worker(self, frame: _Frame, lane: tuple[int, int]) -> Iterator[Event]:
        name = f"frame {frame.values['sequence']}"
        yield self._span(
            name, lane, frame.cloud[0][1], frame.cloud[-1][1], {"batch_size": frame.values.get("batch_size")}
        )
        yield from self._stages(frame.cloud, lane)

    def _stages(self, stamps: Sequence[tuple[Stage, int]], lane: tuple[int, int]) -> Iterator[Event]:
        for (_, start_ns), (stage, end_ns) in pairwise(stamps):
            yield self._span(stage, lane, start_ns, end_ns, {"ns": end_ns - start_ns})

    def _flows(self, frame: _Frame, vehicle: tuple[int, int], worker: tuple[int, int], number: int) -> Iterator[Event]:
        """Yields the arrows of the request and of the reply; each leaves the span that begins or lasts at its time."""
        if Stage.SENT not in frame.stamps or Stage.RETURNED not in frame.stamps:
            return
        cloud = frame.cloud
        last = cloud[-2][1] if len(cloud) > 1 else cloud[-1][1]
        ends = (
            ("request", vehicle, frame.stamps[Stage.SENT], worker, cloud[0][1]),
            ("reply", worker, last, vehicle, frame.stamps[Stage.RETURNED]),
        )
        for index, (name, source, from_ns, target, to_ns) in enumerate(ends):
            common = {"name": name, "cat": "message", "id": 2 * number + index}
            yield {**common, "ph": "s", **self._at(source, from_ns)}
            yield {**common, "ph": "f", "bp": "e", **self._at(target, to_ns)}

    def _in_flight(self) -> Iterator[Event]:
        """Yields the number of frames that are away, of those that came back."""
        changes = [
            (frame.stamps[stage], change)
            for frame in self._frames
            if Stage.RETURNED in frame.stamps and Stage.SENT in frame.stamps
            for stage, change in ((Stage.SENT, 1), (Stage.RETURNED, -1))
        ]
        away = 0
        for at_ns, change in sorted(changes):
            away += change
            yield self._counter("in flight", "frames", at_ns, away)

    def _outputs(self, ticks: Iterator[PresentedRow]) -> Iterator[Event]:
        for tick in ticks:
            if tick.due_ns is not None and tick.due_ns >= self.origin_ns and tick.age_ns is not None:
                yield self._counter("age of the output", "ms", tick.due_ns, tick.age_ns / 1e6)

    def _names(self) -> Iterator[Event]:
        for name, process in self._processes.items():
            yield _metadata("process_name", process, 0, {"name": name})
            yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        for (_, name), lanes in self._lanes.items():
            for lane in lanes.lanes:
                yield _metadata("thread_name", lanes.process, lane, {"name": name})
                yield _metadata("thread_sort_index", lanes.process, lane, {"sort_index": lane})

    def _lane_of(self, frame: _Frame, stamps: Sequence[tuple[Stage, int]], kind: str) -> tuple[int, int]:
        text = printable(self._table.cell(kind, frame.row))
        if (kind, text) not in self._lanes:
            vehicle = f"vehicle {printable(self._table.cell('vehicle', frame.row))}"
            process = f"worker {text}" if kind == "worker" else vehicle
            number = self._processes.setdefault(process, len(self._processes) + _VEHICLE)
            self._lanes[kind, text] = _Lanes(number, self._threads.setdefault(number, count(_THREADS * number + 1)))
        lanes = self._lanes[kind, text]
        return lanes.process, lanes.take(stamps[0][1], stamps[-1][1])

    def _span(self, name: str, lane: tuple[int, int], start_ns: int, end_ns: int, arguments: Any) -> Event:
        return {"ph": "X", "name": name, **self._at(lane, start_ns), "dur": _us(end_ns - start_ns), "args": arguments}

    def _counter(self, name: str, unit: str, at_ns: int, value: float) -> Event:
        return {"ph": "C", "name": name, "pid": _VEHICLE, "ts": _us(at_ns - self.origin_ns), "args": {unit: value}}

    def _at(self, lane: tuple[int, int], at_ns: int) -> Event:
        return {"pid": lane[0], "tid": lane[1], "ts": _us(at_ns - self.origin_ns)}


def _frames(rows: LogRows) -> Iterator[_Frame]:
    stamps = {stage: rows.numbers[f"t_{stage}_ns"] for stage in Stage}
    named = (*_ARGUMENTS, *_CLOCK_ARGUMENTS, "sequence")
    values = {name: rows.numbers[name] for name in named}
    for row in np.flatnonzero(stamps[Stage.DUE].known).tolist():
        yield _Frame(
            row,
            {stage: int(column.data[row]) for stage, column in stamps.items() if column.known[row]},
            {name: int(column.data[row]) for name, column in values.items() if column.known[row]},
        )


def _metadata(name: str, process: int, thread: int, arguments: Event) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


def _us(time_ns: int) -> float:
    return time_ns / _NS_PER_US
