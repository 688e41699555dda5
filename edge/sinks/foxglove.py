"""Foxglove: the scene that its viewers show, and the sink that writes the scene as an MCAP file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import foxglove
from foxglove import channels
from foxglove.messages import (
    Color,
    CompressedImage,
    ImageAnnotations,
    Point2,
    PointsAnnotation,
    PointsAnnotationType,
    RawImage,
    TextAnnotation,
    Timestamp,
)

from edge.sinks.rendering import check_new, write_error
from edge.sinks.scene import (
    SHOWN_OUTCOMES,
    STACKED_PARTS,
    Drawing,
    Reduction,
    as_jpeg,
    draw,
    draw_log,
    is_presented,
    number,
    stacked_ms,
)
from edge.sinks.sink import FrameResult
from shared.imaging.labels import Colour, overlay
from shared.messages.model_card import ModelCard

MCAP_NAME = "run.mcap"
_FRAME_ID = "camera"
_OPACITY = 0.55  # Opacity of a mask over its image.
_MESSAGE_BYTES = 100  # Overhead of a message.
_FONT_PX, _LINE_PX = 12.0, 2.0
_NUMBER = {"type": "number"}
_NS_PER_S = 1_000_000_000
_LARGEST_LEVEL = 255


class FoxgloveScene:
    """See Scene. Topics: `/<camera>/result/image`, `…/mask`, `…/annotations`, the same below `presented`, `/latency` …"""

    def __init__(self, context: foxglove.Context, card: ModelCard, *, has_overlays: bool) -> None:
        """`has_overlays`: also sends images with coloured masks, because Foxglove itself does not colour masks."""
        self._context = context
        self._card = card
        self._has_overlays = has_overlays
        self._channels: dict[str, Any] = {}
        self._classes = {str(class_id): name for class_id, name in enumerate(card.labels.names)}
        self._latency = self._numbers("/latency", (*STACKED_PARTS, "total", "clock_error"))
        self._frames = self._numbers("/frames", (*SHOWN_OUTCOMES, "in_flight"))
        self._age = self._numbers("/age", ("result", "presented"))

    def show(self, frame: FrameResult, time_ns: int, reduction: Reduction) -> int:
        """See Scene."""
        kind = "presented" if is_presented(frame) else "result"
        topic, drawing = f"/{frame.camera_name}/{kind}", draw(frame, self._card, reduction)
        stamp = _timestamp(frame.stamp_ns)
        size = self._log_jpeg(f"{topic}/image", drawing.jpeg, stamp, time_ns)
        if drawing.mask is not None:
            size += self._log_mask(topic, drawing, stamp, time_ns)
        elif drawing.is_empty and self._has_overlays:
            size += self._log_jpeg(f"{topic}/overlay", drawing.jpeg, stamp, time_ns)
        annotations = self._annotations(drawing, stamp)
        if annotations is not None:
            self._channel(channels.ImageAnnotationsChannel, f"{topic}/annotations").log(annotations, log_time=time_ns)
            size += len(annotations.encode())
        if frame.age_ns is not None:
            self._age.log({"presented": frame.age_ns / 1e6}, log_time=time_ns)
        return size + _MESSAGE_BYTES

    def measure(self, row: Mapping[str, str], time_ns: int) -> int:
        """See Scene."""
        values = dict(zip(STACKED_PARTS, _differences(stacked_ms(row)), strict=False))
        for name in ("total", "clock_error"):
            if (value := number(row, f"{name}_ms")) is not None:
                values[name] = value
        if values:
            self._latency.log(values, log_time=time_ns)
        if "total" in values:
            self._age.log({"result": values["total"]}, log_time=time_ns)
        return 6 * _MESSAGE_BYTES

    def count(self, outcomes: Mapping[str, int], in_flight: int | None, time_ns: int) -> int:
        """See Scene."""
        counts = {outcome.value: outcomes.get(outcome, 0) for outcome in SHOWN_OUTCOMES}
        self._frames.log(counts if in_flight is None else {**counts, "in_flight": in_flight}, log_time=time_ns)
        return 2 * _MESSAGE_BYTES

    def _log_mask(self, topic: str, drawing: Drawing, stamp: Timestamp, time_ns: int) -> int:
        mask = drawing.mask
        assert mask is not None
        raw = RawImage(
            timestamp=stamp,
            frame_id=_FRAME_ID,
            width=drawing.width,
            height=drawing.height,
            encoding="mono8",
            step=drawing.width,
            data=mask.tobytes(),
        )
        self._channel(channels.RawImageChannel, f"{topic}/mask", self._classes).log(raw, log_time=time_ns)
        size = mask.size + _MESSAGE_BYTES
        if self._has_overlays:
            coloured = overlay(drawing.image, mask, self._card.labels, _OPACITY)
            size += self._log_jpeg(f"{topic}/overlay", as_jpeg(coloured, drawing.quality), stamp, time_ns)
        return size

    def _log_jpeg(self, topic: str, jpeg: bytes, stamp: Timestamp, time_ns: int) -> int:
        image = CompressedImage(timestamp=stamp, frame_id=_FRAME_ID, data=jpeg, format="jpeg")
        self._channel(channels.CompressedImageChannel, topic).log(image, log_time=time_ns)
        return len(jpeg) + _MESSAGE_BYTES

    def _annotations(self, drawing: Drawing, stamp: Timestamp) -> ImageAnnotations | None:
        if drawing.detections is None:
            return ImageAnnotations() if drawing.is_empty else None
        detections = drawing.detections
        points, texts = [], []
        for box, class_id, score in zip(
            detections.boxes.tolist(), detections.class_ids.tolist(), detections.scores.tolist(), strict=True
        ):
            left, top, right, bottom = box
            colour = _colour(self._card.labels.colour_of(class_id))
            corners = [Point2(x=x, y=y) for x, y in ((left, top), (right, top), (right, bottom), (left, bottom))]
            points.append(
                PointsAnnotation(
                    timestamp=stamp,
                    type=PointsAnnotationType.LineLoop,
                    points=corners,
                    outline_color=colour,
                    thickness=_LINE_PX,
                )
            )
            text = f"{self._card.labels.name_of(class_id)} {score:.0%}"
            texts.append(
                TextAnnotation(timestamp=stamp, position=corners[0], text=text, font_size=_FONT_PX, text_color=colour)
            )
        return ImageAnnotations(points=points, texts=texts)

    def _numbers(self, topic: str, names: tuple[str, ...]) -> foxglove.Channel:
        """Returns a channel of JSON objects with these numbers; times are in ms."""
        schema = {"type": "object", "properties": {str(name): _NUMBER for name in names}}
        return foxglove.Channel(topic, schema=schema, message_encoding="json", context=self._context)

    def _channel(self, kind: Any, topic: str, metadata: dict[str, str] | None = None) -> Any:
        if topic not in self._channels:
            self._channels[topic] = kind(topic, metadata=metadata, context=self._context)
        return self._channels[topic]


class FoxgloveSink:
    """Writes `run.mcap`: frames at the times of their recording, and at the end the latency of each frame.

    Its topics are `<camera>/result/image` (CompressedImage), `…/mask` (RawImage of class ids, whose names are in the metadata
    of its channel), `…/annotations` (ImageAnnotations of boxes), and JSON: `latency`, `frames` and `age`.
    """

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        """Opens the file.

        Raises:
            SinkError: the file cannot be written, as for the other methods.
        """
        self._folder = folder
        self._path = folder / MCAP_NAME
        check_new(self._path)
        try:
            self._file = _File(self._path)
        except OSError as error:
            raise write_error(self._path, error) from error
        context = foxglove.Context()
        self._writer = foxglove.open_mcap(self._file, context=context)  # type: ignore[arg-type]  # It is like a file.
        self._scene = FoxgloveScene(context, card, has_overlays=False)

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        self._scene.show(frame, frame.source_ns, Reduction())
        self._check()

    def close(self) -> None:
        """See Sink."""
        try:
            draw_log(self._scene, self._folder)
            self._writer.close()
        except RuntimeError as error:
            self._check()
            raise write_error(self._path, error) from error
        finally:
            self._file.close()
        self._check()

    def _check(self) -> None:
        if self._file.fault is not None:
            raise write_error(self._path, self._file.fault) from self._file.fault


class _File:
    """A file that keeps its first error: Foxglove's writer only logs it."""

    def __init__(self, path: Path) -> None:
        self.fault: OSError | None = None
        self._file = path.open("xb", buffering=0)
        self.seek, self.flush, self.close = self._file.seek, self._file.flush, self._file.close

    def write(self, data: bytes) -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.fault = self.fault or error
            raise


def _timestamp(at_ns: int) -> Timestamp:
    return Timestamp(*divmod(at_ns, _NS_PER_S))


def _colour(colour: Colour) -> Color:
    red, green, blue = (level / _LARGEST_LEVEL for level in colour)
    return Color(r=red, g=green, b=blue, a=1.0)


def _differences(ends: list[float] | None) -> list[float]:
    return [end - start for start, end in zip([0.0, *ends], ends, strict=False)] if ends else []
