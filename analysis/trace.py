"""`skylane trace`: the frames of a run as a trace for Perfetto, with every stage of both nodes on one time axis.

The format is the JSON of Chrome's trace viewer ("Trace Event Format"), which https://ui.perfetto.dev opens. Times are
microseconds with three decimals, so exact nanoseconds, from the first due frame. A worker's stamps are moved to the
vehicle's clock by the offset that the log gives for the frame.
"""

import heapq
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import click

from shared.clock import format_span
from shared.errors import SkylaneError, unwritable_message
from shared.files import check_writable, new_file
from shared.runlog.columns import LATENCY
from shared.runlog.latency_log import CSV_NAME, LogError, read_rows
from shared.runlog.presented_log import PRESENTED_NAME, read_presented
from shared.runlog.run_manifest import read_manifest
from shared.sanitize import printable, printable_lines
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage

Event = Mapping[str, Any]
Lane = tuple[int, int]  # The numbers of a process and of one of its threads.
Stamps = Sequence[tuple[Stage, int]]

_MAX_PROBLEMS = 5
_NS_PER_US = 1000
_LONGEST_NS = 30 * 86_400 * 10**9  # Up to there, a floating-point number of microseconds has every nanosecond.
_VEHICLE = 1  # Number of the vehicle's process; workers follow.
_FIRST_THREAD = (
    1_000_000  # Above all numbers of processes: the viewer takes a thread of the same number for the main one.
)
_CLOCK_ARGUMENTS = ("clock_offset_ms", "clock_error_ms", "uplink_resolved", "downlink_resolved")
_ARGUMENTS = ("frame_index", "batch_size", "attempts", "bytes_up", "bytes_down", *_CLOCK_ARGUMENTS)


@click.command()
@click.argument("run", type=click.Path(file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write. [RUN/trace.json]")
def trace(run: Path, out: Path | None) -> None:
    """Write every frame of RUN with its stages on the vehicle and the worker as a trace, which https://ui.perfetto.dev opens.

    The page reads the file in the browser; nothing is uploaded.
    """
    log = _read(run)
    path = out or run / "trace.json"
    if out is not None and out.exists():
        raise SkylaneError(f"{out} exists already: remove it, or choose another --out")
    check_writable(path, "--out")
    try:
        with new_file(path, run) as file:
            text = io.TextIOWrapper(file, encoding="utf-8", write_through=True)
            _write(log, run, text)
            text.detach()
    except OSError as error:
        raise SkylaneError(unwritable_message(path, error, "--out")) from error
    for problem in log.problems[:_MAX_PROBLEMS]:
        click.echo(printable_lines(f"Problem: {problem}"), err=True)
    if len(log.problems) > _MAX_PROBLEMS:
        more = len(log.problems) - _MAX_PROBLEMS
        click.echo(f"{more} more problems: `skylane report --check` lists all of them", err=True)
    without = f"; {log.without_times} without times left out" if log.without_times else ""
    click.echo(f"{path}: {len(log.frames)} frames{without}; open it at https://ui.perfetto.dev")


@dataclass(slots=True)
class _Lanes:
    """The threads of a camera or a worker: spans on one must not overlap, and frames do."""

    process: int
    numbers: Iterator[int]  # Of new threads, in all processes.
    lanes: list[int] = field(default_factory=list)
    _free: list[int] = field(default_factory=list)
    _busy: list[tuple[int, int]] = field(default_factory=list)  # End of the span, and its lane.

    def take(self, start_ns: int, end_ns: int) -> Lane:
        """Returns the lane of a span. Spans come in the order of their starts."""
        while self._busy and self._busy[0][0] <= start_ns:
            heapq.heappush(self._free, heapq.heappop(self._busy)[1])
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane = next(self.numbers)
            self.lanes.append(lane)
        heapq.heappush(self._busy, (end_ns, lane))
        return self.process, lane


@dataclass(frozen=True, slots=True)
class _Frame:
    """A row of the log, with times by the vehicle's clock."""

    texts: Mapping[str, str]  # The cells of its row.
    edge: Stamps  # Begins with the time at which the frame was due.
    cloud: Stamps  # The worker's; none if the clock offset is not known.
    values: Mapping[str, int]  # Further numbers; milliseconds as nanoseconds.

    @property
    def sequence(self) -> int:
        return self.values["sequence"]

    @property
    def due_ns(self) -> int:
        return self.edge[0][1]

    @property
    def crossing(self) -> tuple[int, int] | None:
        """When the frame was sent and when its reply came; None if either is missing."""
        stamps = dict(self.edge)
        is_known = Stage.SENT in stamps and Stage.RETURNED in stamps
        return (stamps[Stage.SENT], stamps[Stage.RETURNED]) if is_known else None


class _Log(NamedTuple):
    """The frames of a run, by the time at which they were due."""

    frames: Sequence[_Frame]
    without_times: int
    session: str
    problems: Sequence[str]  # What was skipped.


def _read(folder: Path) -> _Log:
    """Reads the rows of one run with the standard library alone, as a vehicle has no more than that.

    Raises:
        LogError: there is no latency log.
    """
    path, problems, session = folder / CSV_NAME, list[str](), None
    rows = list(read_rows(folder, problems))
    try:
        session = read_manifest(folder).get("session")
    except LogError as error:
        problems.append(str(error))
    sizes = Counter((row["vehicle"], row["session"]) for row in rows)
    run = max(sizes, key=lambda each: (each[1] == session, sizes[each]), default=("", ""))
    frames: dict[int, _Frame] = {}
    for row in rows:
        sequence = LATENCY["sequence"].number(row["sequence"])
        if (row["vehicle"], row["session"]) != run or sequence is None or sequence in frames:
            problems.append(
                f"{path}: a row of frame {row['sequence']!r} is of another run, or the second: it is skipped"
            )
        else:
            frames[sequence] = _frame(row, f"{path}: frame {sequence}", problems)
    timed = sorted((frame for frame in frames.values() if frame.edge), key=lambda frame: frame.due_ns)
    return _Log(timed, len(frames) - len(timed), run[1], problems)


def _frame(row: Mapping[str, str], name: str, problems: list[str]) -> _Frame:
    """Parses a row; one whose times are not in the order of its stages loses them."""

    def known(column: str) -> int | None:
        value = LATENCY[column].number(row[column])
        if row[column] and value is None:
            problems.append(f"{name}: its {column} is {row[column]!r}: the cell is skipped")
        return value

    edge, cloud = (
        [(stage, at_ns) for stage in stages if (at_ns := known(f"t_{stage}_ns")) is not None]
        for stages in (EDGE_STAGES, CLOUD_STAGES)
    )
    values = {column: value for column in (*_ARGUMENTS, "sequence") if (value := known(column)) is not None}
    if any(later < earlier for node in (edge, cloud) for (_, earlier), (_, later) in pairwise(node)):
        problems.append(f"{name}: its times decrease from one stage to the next: they are skipped")
        edge = []
    offset_ns = values.get("clock_offset_ms")
    moved = [] if offset_ns is None else [(stage, at_ns - offset_ns) for stage, at_ns in cloud]
    return _Frame(row, edge if dict(edge).get(Stage.DUE) is not None else [], moved, values)


def _write(log: _Log, folder: Path, file: TextIO) -> None:
    """Writes the trace of a run.

    Raises:
        LogError: no frame has times, or they are further apart than a run lasts.
    """
    if not log.frames:
        raise LogError(f"{folder / CSV_NAME}: no frame has times: `skylane report {folder} --check` says why")
    origin_ns = log.frames[0].due_ns
    span_ns = max(time_ns for frame in log.frames for _, time_ns in (*frame.edge, *frame.cloud)) - origin_ns
    if span_ns > _LONGEST_NS:
        raise LogError(
            f"{folder / CSV_NAME}: its times are {format_span(span_ns)} apart, and a trace holds {format_span(_LONGEST_NS)}: "
            f"`skylane report {folder} --check` finds damaged rows"
        )
    head = {"displayTimeUnit": "ns", "otherData": {"origin_ns": origin_ns, "session": printable(log.session)}}
    file.write(json.dumps(head)[:-1] + ',"traceEvents":[\n')
    separator = ""
    for event in _Trace(log.frames).events(folder):
        file.write(separator + json.dumps(event, separators=(",", ":")))
        separator = ",\n"
    file.write("\n]}\n")


class _Trace:
    def __init__(self, frames: Sequence[_Frame]) -> None:
        self._frames = frames
        self._origin_ns = frames[0].due_ns
        self._lanes: dict[tuple[str, str], _Lanes] = {}  # By kind and name: a camera of the vehicle, or a worker.
        self._processes: dict[str, int] = {}
        self._threads = count(_FIRST_THREAD)

    def events(self, folder: Path) -> Iterator[Event]:
        """Yields the frames of the vehicle, those of the workers, the outputs, and then the names."""
        lanes = {frame.sequence: self._lane_of(frame, frame.edge, "camera") for frame in self._frames}
        for frame in self._frames:
            yield from self._of_vehicle(frame, lanes[frame.sequence])
        away = sorted((frame for frame in self._frames if frame.cloud), key=lambda frame: frame.cloud[0][1])
        for number, frame in enumerate(away):
            lane = self._lane_of(frame, frame.cloud, "worker")
            yield from self._spans(_title(frame), lane, frame.cloud, {"batch_size": frame.values.get("batch_size")})
            yield from self._flows(frame, lanes[frame.sequence], lane, number)
        yield from self._in_flight()
        if (folder / PRESENTED_NAME).is_file():
            for tick in read_presented(folder):
                if tick.due_ns is not None and tick.due_ns >= self._origin_ns and tick.age_ns is not None:
                    yield self._counter("age of the output", "ms", tick.due_ns, tick.age_ns / 1e6)
        yield from self._names()

    def _of_vehicle(self, frame: _Frame, lane: Lane) -> Iterator[Event]:
        outcome, reason = (printable(frame.texts[name]) for name in ("outcome", "reason"))
        arguments: dict[str, Any] = {"outcome": outcome} | ({"reason": reason} if reason else {})
        arguments |= {name.replace("_ms", "_ns"): frame.values[name] for name in _ARGUMENTS if name in frame.values}
        title = _title(frame) + ("" if outcome == "answered" else f" ({outcome})")
        yield from self._spans(title, lane, frame.edge, arguments)
        if frame.crossing and frame.cloud:
            times = [frame.crossing[0], frame.cloud[0][1], frame.cloud[-1][1], frame.crossing[1]]
            if times == sorted(times):  # Else the error of the clock offset is larger than the way.
                for name, (start_ns, end_ns) in zip(("uplink", "worker", "downlink"), pairwise(times), strict=True):
                    yield self._span(name, lane, start_ns, end_ns)

    def _spans(self, title: str, lane: Lane, stamps: Stamps, arguments: Event) -> Iterator[Event]:
        """Yields the span of a frame on a node, and those of its stages there."""
        yield self._span(title, lane, stamps[0][1], stamps[-1][1], arguments)
        for (_, start_ns), (stage, end_ns) in pairwise(stamps):
            yield self._span(stage, lane, start_ns, end_ns)

    def _flows(self, frame: _Frame, vehicle: Lane, worker: Lane, number: int) -> Iterator[Event]:
        """Yields the arrows of the request and of the reply; each leaves the span that begins or lasts at its time."""
        if frame.crossing is None:
            return
        sent_ns, returned_ns = frame.crossing
        first_ns, last_ns = frame.cloud[0][1], frame.cloud[-2:][0][1]
        ends = (("request", vehicle, sent_ns, worker, first_ns), ("reply", worker, last_ns, vehicle, returned_ns))
        for index, (name, source, from_ns, target, to_ns) in enumerate(ends):
            common = {"name": name, "cat": "message", "id": 2 * number + index}
            yield {**common, "ph": "s", **self._at(source, from_ns)}
            yield {**common, "ph": "f", "bp": "e", **self._at(target, to_ns)}

    def _in_flight(self) -> Iterator[Event]:
        """Yields the number of frames that are away, of those that came back."""
        crossings = [frame.crossing for frame in self._frames if frame.crossing]
        changes = [(sent_ns, 1) for sent_ns, _ in crossings] + [(returned_ns, -1) for _, returned_ns in crossings]
        away = 0
        for at_ns, change in sorted(changes):
            away += change
            yield self._counter("in flight", "frames", at_ns, away)

    def _names(self) -> Iterator[Event]:
        for name, process in self._processes.items():
            yield _metadata("process_name", process, 0, {"name": name})
            yield _metadata("process_sort_index", process, 0, {"sort_index": process})
        for (_, name), lanes in self._lanes.items():
            for lane in lanes.lanes:
                yield _metadata("thread_name", lanes.process, lane, {"name": name})
                yield _metadata("thread_sort_index", lanes.process, lane, {"sort_index": lane})

    def _lane_of(self, frame: _Frame, stamps: Stamps, kind: str) -> Lane:
        name = printable(frame.texts[kind])
        if (kind, name) not in self._lanes:
            vehicle = f"vehicle {printable(frame.texts['vehicle'])}"
            process = f"worker {name}" if kind == "worker" else vehicle
            number = self._processes.setdefault(process, len(self._processes) + _VEHICLE)
            self._lanes[kind, name] = _Lanes(number, self._threads)
        return self._lanes[kind, name].take(stamps[0][1], stamps[-1][1])

    def _span(self, name: str, lane: Lane, start_ns: int, end_ns: int, arguments: Event | None = None) -> Event:
        duration_ns = end_ns - start_ns
        arguments = arguments or {"ns": duration_ns}
        return {"ph": "X", "name": name, **self._at(lane, start_ns), "dur": duration_ns / _NS_PER_US, "args": arguments}

    def _counter(self, name: str, unit: str, at_ns: int, value: float) -> Event:
        at_us = (at_ns - self._origin_ns) / _NS_PER_US
        return {"ph": "C", "name": name, "pid": _VEHICLE, "ts": at_us, "args": {unit: value}}

    def _at(self, lane: Lane, at_ns: int) -> Event:
        return {"pid": lane[0], "tid": lane[1], "ts": (at_ns - self._origin_ns) / _NS_PER_US}


def _title(frame: _Frame) -> str:
    return f"frame {frame.sequence}"


def _metadata(name: str, process: int, thread: int, arguments: Event) -> Event:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}
