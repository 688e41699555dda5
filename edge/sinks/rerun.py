"""Rerun: the scene that its viewer shows, and the sink that writes it as a `.rrd` file."""

import colorsys
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import lz4.block
import numpy as np
import rerun as rr
import rerun.blueprint as rrb
from rerun.chunk import RrdReader

from edge.sinks.rendering import check_new, write_error
from edge.sinks.scene import (
    SHOWN_OUTCOMES,
    STACKED_PARTS,
    Drawing,
    Reduction,
    draw,
    draw_log,
    is_presented,
    number,
    stacked_ms,
)
from edge.sinks.sink import FrameResult, SinkError
from shared.imaging.geometry import UNSEEN
from shared.messages.model_card import ModelCard
from shared.runlog.latency_table import WHERE

_KINDS = ("result", "presented")
RRD_NAME = "run.rrd"
APPLICATION = "skylane"  # Rerun's "application id".
_TIME, _FRAME = "time", "frame"  # Timelines.
_FOLLOWS = rrb.TimePanel(state="collapsed", timeline=_TIME)
_OPACITY = 0.55  # Opacity of a mask over its image.
_ROW_BYTES = 2100  # Overhead of a logged row.
_COPY_BYTES = 1 << 20
_END_S = 60.0  # Time limit for writing the rest of a file.
_MAX_CAMERAS = 4  # Cameras in the layout; others are only in the list of entities.
_HUES = {"edge": 0.58, "link": 0.0, "cloud": 0.09}  # Blue, grey and orange, as in the report.
_ABOUT = """\
**Result**: the newest result that came back, on the frame that it was computed for.
**Presented**: the output made for that moment (only with `--present`).

**Latency**: each line is the end of a stage, in ms since the frame was due; the highest is the whole latency.
**Age**: how old a result is when the vehicle has it.
**Frames**: how many frames had which outcome so far. **In flight**: frames without an answer yet.
**Clock error**: the bound within which uplink and downlink are known.
"""


class RerunScene:
    """The scene in Rerun, see `edge.sinks.scene.Scene`. Images lie below `<camera>/result` and `<camera>/presented`."""

    def __init__(self, recording: rr.RecordingStream, card: ModelCard) -> None:
        self._recording = recording
        self._card = card
        self._places: list[tuple[str, str]] = []  # Cameras and kinds of results, in the order of their first frames.
        recording.set_log_tick_enabled(False)
        recording.set_log_time_enabled(False)
        names = [f"{part} ({WHERE[part]})" for part in STACKED_PARTS]
        self._log_static("/", rr.AnnotationContext(_classes(card)))
        self._log_static("about", rr.TextDocument(_ABOUT, media_type=rr.MediaType.MARKDOWN))
        self._log_static("latency", rr.SeriesLines(names=names, colors=_stage_colours()))
        self._log_static("frames", rr.SeriesLines(names=[outcome.value for outcome in SHOWN_OUTCOMES]))
        for name in ("age/result", "age/presented", "in_flight", "clock_error"):
            self._log_static(name, rr.SeriesLines(names=name.rpartition("/")[2].replace("_", " ")))
        recording.send_blueprint(_blueprint([]))

    def show(self, frame: FrameResult, time_ns: int, reduction: Reduction) -> int:
        """See Scene."""
        place = frame.camera_name, _KINDS[is_presented(frame)]
        self._add_place(place)
        path, drawing = "/".join(place), draw(frame, self._card, reduction)
        self._set_time(time_ns, frame.sequence)
        self._recording.log(path, rr.EncodedImage(contents=drawing.jpeg, media_type="image/jpeg"))
        size = len(drawing.jpeg) + _ROW_BYTES + self._log_result(path, drawing)
        if frame.age_ns is not None:
            self._recording.log("age/presented", rr.Scalars(frame.age_ns / 1e6))
            size += _ROW_BYTES
        return size

    def measure(self, row: Mapping[str, str], time_ns: int) -> int:
        """See Scene."""
        self._set_time(time_ns, int(row["sequence"]))
        numbers = {"age/result": number(row, "total_ms"), "clock_error": number(row, "clock_error_ms")}
        scalars = {name: value for name, value in numbers.items() if value is not None}
        for name, value in scalars.items():
            self._recording.log(name, rr.Scalars(value))
        if (ends := stacked_ms(row)) is not None:
            self._recording.log("latency", rr.Scalars(ends))
        return _ROW_BYTES * (len(scalars) + 1)

    def count(self, outcomes: Mapping[str, int], in_flight: int | None, time_ns: int) -> int:
        """See Scene."""
        self._set_time(time_ns)
        self._recording.log("frames", rr.Scalars([outcomes.get(outcome, 0) for outcome in SHOWN_OUTCOMES]))
        if in_flight is not None:
            self._recording.log("in_flight", rr.Scalars(in_flight))
        return 2 * _ROW_BYTES

    def draw_file(self, path: Path) -> None:
        """Adds the content of a file that the sink has written.

        Raises:
            SinkError: the file cannot be read.
        """
        try:
            for chunk in RrdReader(path).stream():
                _, *place = str(chunk.entity_path).split("/")
                if len(place) == len(_KINDS) and place[1] in _KINDS and place[0] != "age":
                    self._add_place((place[0], place[1]))
                self._recording.send_chunks(chunk)
        except (RuntimeError, ValueError, OSError) as error:
            raise SinkError(f"{path} cannot be read: {error}") from error

    def play(self) -> None:
        """Makes the viewer play the drawn frames from the start, at their recorded speed."""
        self._recording.send_blueprint(
            _blueprint(self._places, rrb.TimePanel(state="collapsed", timeline=_TIME, play_state="playing"))
        )

    def _add_place(self, place: tuple[str, str]) -> None:
        if place not in self._places:
            self._places.append(place)
            self._recording.send_blueprint(_blueprint(self._places))

    def _log_result(self, path: str, drawing: Drawing) -> int:
        """Draws a result over its image; returns the size of what was logged."""
        if drawing.is_empty:  # Clears the result of an earlier frame.
            for name in ("mask", "objects", "classes"):
                self._recording.log(f"{path}/{name}", rr.Clear(recursive=False))
            return 3 * _ROW_BYTES
        if drawing.mask is not None:
            self._recording.log(f"{path}/mask", rr.SegmentationImage(drawing.mask, opacity=_OPACITY))
            return len(lz4.block.compress(drawing.mask)) + _ROW_BYTES  # Rerun compresses its messages in this way.
        if drawing.detections is not None:
            detections = drawing.detections
            labels = [
                f"{self._card.labels.name_of(class_id)} {score:.0%}"
                for class_id, score in zip(detections.class_ids.tolist(), detections.scores.tolist(), strict=True)
            ]
            boxes = rr.Boxes2D(
                array=detections.boxes, array_format=rr.Box2DFormat.XYXY, class_ids=detections.class_ids, labels=labels
            )
            self._recording.log(f"{path}/objects", boxes)
            return 40 * len(labels) + _ROW_BYTES
        if drawing.classes:
            self._recording.log(f"{path}/classes", rr.TextDocument(drawing.classes, media_type=rr.MediaType.TEXT))
            return len(drawing.classes) + _ROW_BYTES
        return 0

    def _log_static(self, path: str, entity: rr.AsComponents) -> None:
        self._recording.log(path, entity, static=True)

    def _set_time(self, time_ns: int, sequence: int | None = None) -> None:
        self._recording.set_time(_TIME, timestamp=np.datetime64(time_ns, "ns"))
        if sequence is None:
            self._recording.disable_timeline(_FRAME)
        else:
            self._recording.set_time(_FRAME, sequence=sequence)


class RerunSink:
    """Writes `run.rrd`: frames at the times of their recording, and at the end the latency of each frame."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Opens the file.

        Raises:
            SinkError: the file cannot be written, as for the other methods.
        """
        self._folder = folder
        self._path = folder / RRD_NAME
        check_new(self._path)
        try:
            self._file = _PipedFile(self._path)
        except OSError as error:
            raise write_error(self._path, error) from error
        self._recording = rr.RecordingStream(APPLICATION)
        self._recording.save(self._file.writer)
        self._file.start()
        self._scene = RerunScene(self._recording, card)

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        self._scene.show(frame, frame.source_ns, Reduction())
        self._recording.flush()
        self._check()

    def close(self) -> None:
        """See Sink."""
        draw_log(self._scene, self._folder)
        self._recording.disconnect()
        self._file.join(_END_S)
        self._check()
        if self._file.is_alive():
            raise SinkError(
                f"{self._path} is incomplete, as the disk took no more for {_END_S:g} s: choose another --out"
            )

    def _check(self) -> None:
        if self._file.fault is not None:
            raise write_error(self._path, self._file.fault) from self._file.fault


class _PipedFile(threading.Thread):
    """Writes a file that Rerun writes into a pipe: after an error, such as a full disk, Rerun's own writer may hang."""

    def __init__(self, path: Path) -> None:
        super().__init__(name="rerun file", daemon=True)
        self.fault: OSError | None = None
        self._file = path.open("xb", buffering=0)
        self._pipe, self._own_end = os.pipe()
        self.writer = f"/dev/fd/{self._own_end}"  # Rerun opens it before the start.

    def run(self) -> None:
        """Copies until Rerun closes the pipe; after an error, it reads the rest and writes nothing."""
        os.close(self._own_end)
        with os.fdopen(self._pipe, "rb", buffering=0) as pipe, self._file:
            while data := pipe.read(_COPY_BYTES):
                try:
                    while data and self.fault is None:
                        data = data[self._file.write(data) :]
                except OSError as error:
                    self.fault = error


def _classes(card: ModelCard) -> list[rr.AnnotationInfo]:
    known = [
        rr.AnnotationInfo(id=class_id, label=name, color=colour)
        for class_id, (name, colour) in enumerate(zip(card.labels.names, card.labels.colours, strict=True))
    ]
    return known if len(known) > UNSEEN else [*known, rr.AnnotationInfo(UNSEEN, "not seen", (0, 0, 0, 0))]


def _stage_colours() -> list[tuple[int, int, int]]:
    """Returns a colour for each stacked part: darker the later it is in its node."""
    colours = []
    for index, part in enumerate(STACKED_PARTS):
        where = WHERE[part]
        saturation = 0.0 if where == "link" else 0.85
        value = 1.0 - 0.5 * index / len(STACKED_PARTS)
        red, green, blue = colorsys.hsv_to_rgb(_HUES[where], saturation, value)
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return colours


def _blueprint(places: Sequence[tuple[str, str]], time_panel: rrb.TimePanel = _FOLLOWS) -> rrb.Blueprint:
    """Returns the layout: a row per camera, then the latency and the counts, with an explanation beside them."""
    cameras = list(dict.fromkeys(camera for camera, _ in places))
    rows = [
        rrb.Horizontal(
            *(
                rrb.Spatial2DView(origin=f"{camera}/{kind}", name=f"{kind.capitalize()}: {camera}")
                for kind in _KINDS
                if (camera, kind) in places
            )
        )
        for camera in cameras[:_MAX_CAMERAS]
    ]
    plots = rrb.Horizontal(
        rrb.TimeSeriesView(origin="latency", name="Latency by stage, stacked (ms)"),
        rrb.Vertical(
            rrb.TimeSeriesView(origin="age", name="Age (ms)"),
            rrb.TimeSeriesView(contents=["/in_flight", "/clock_error"], name="In flight; clock error (ms)"),
        ),
        rrb.Vertical(
            rrb.TimeSeriesView(origin="frames", name="Frames by outcome"),
            rrb.TextDocumentView(origin="about", name="What you see"),
        ),
    )
    return rrb.Blueprint(
        rrb.Vertical(*rows, plots, row_shares=[3] * len(rows) + [2]),
        time_panel,
        rrb.BlueprintPanel(state="collapsed"),
        rrb.SelectionPanel(state="collapsed"),
    )
