"""The drawing of frames and measurements in a viewer, shared by the sinks of Rerun and Foxglove and the live view."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from edge.sinks.rendering import input_image, input_mask, resized
from edge.sinks.sink import FrameResult
from shared.imaging import boxes, image_codecs
from shared.imaging.codec import Mask
from shared.imaging.frames import Layout
from shared.imaging.image_files import ImageArray, stamp
from shared.imaging.opencv import cv2
from shared.messages.model_card import ModelCard
from shared.messages.results import Classification, Detections
from shared.runlog.latency_log import CSV_NAME, Outcome, read_rows
from shared.runlog.latency_table import parts_of
from shared.runlog.presented_log import OutputOrigin
from shared.stages import OPTIONAL_STAGES
from shared.tasks.drawing import mark_untrained

SHOWN_OUTCOMES = tuple(outcome for outcome in Outcome if outcome is not Outcome.ABORTED)
STACKED_PARTS = parts_of(())  # Gate and local model are drawn as a part of `encoded`.
_SHOWN_CLASSES = 5  # Most probable classes of a classification that are shown.


class Reduction(NamedTuple):
    """The scale and quality to which a picture is reduced before it is sent to a viewer."""

    scale: float = 1.0
    quality: int = 80  # JPEG quality, 1 to 100.


class Scene(Protocol):
    """Draws frames and measurements with the library of a viewer. Times are in ns since the Unix epoch."""

    def show(self, frame: FrameResult, time_ns: int, reduction: Reduction) -> int:
        """Draws a frame with its result; returns the approximate number of bytes that a viewer receives for it."""

    def measure(self, row: Mapping[str, str], time_ns: int) -> int:
        """Draws a row of the latency log; returns the approximate number of bytes that a viewer receives for it."""

    def count(self, outcomes: Mapping[str, int], in_flight: int | None, time_ns: int) -> int:
        """Draws the frames so far by outcome, and those in flight (None: unknown); returns the approximate bytes."""


def is_presented(frame: FrameResult) -> bool:
    """Returns whether a frame is the output of a presenter, not a result as it was received."""
    return frame.age_ns is not None or isinstance(frame.origin, OutputOrigin)


class Drawing(NamedTuple):
    """A frame as a viewer draws it. All coordinates are pixels of the JPEG."""

    image: ImageArray  # RGB.
    quality: int
    jpeg: bytes  # The image with this quality.
    height: int
    width: int
    mask: Mask | None  # Class ids, of the size of the JPEG.
    detections: Detections | None
    classes: str  # The most probable classes with their scores, a line each.
    is_empty: bool  # True if the frame has no result: a presenter had no output for it.


def draw(frame: FrameResult, card: ModelCard, reduction: Reduction) -> Drawing:
    """Returns the drawing of a frame: its reduced image and its result at that size."""
    is_mask = isinstance(frame.result, np.ndarray)
    image = input_image(frame) if is_mask else frame.image
    height, width = (max(1, round(side * reduction.scale)) for side in image.shape[:2])
    mask = None
    if is_mask:
        mask = np.asarray(cv2.resize(input_mask(frame), (width, height), interpolation=cv2.INTER_NEAREST), np.uint8)
    detections = _scaled(frame.result, frame, height, width) if isinstance(frame.result, Detections) else None
    classes = _class_lines(frame.result, card) if isinstance(frame.result, Classification) else ""
    image = mark_untrained(resized(image, width, height), card)
    is_empty = frame.result is None and is_presented(frame)
    if is_empty:
        image = stamp(image, "no output")
    jpeg = as_jpeg(image, reduction.quality)
    return Drawing(image, reduction.quality, jpeg, height, width, mask, detections, classes, is_empty)


def draw_log(scene: Scene, folder: Path) -> None:
    """Draws the latency of the frames of a run, each at the time of its recording, if there is a log."""
    if not (folder / CSV_NAME).exists():  # The outputs of a presenter have a folder of their own.
        return
    outcomes: Counter[str] = Counter()
    for row in sorted(read_rows(folder), key=lambda each: int(each["source_ns"])):
        outcomes[row["outcome"]] += 1
        scene.measure(row, int(row["source_ns"]))
        scene.count(outcomes, None, int(row["source_ns"]))


def as_jpeg(image: ImageArray, quality: int) -> bytes:
    """Encodes an RGB image."""
    return bytes(image_codecs.encode(image, Layout.RGB8, "jpeg", quality))


def stacked_ms(row: Mapping[str, str]) -> list[float] | None:
    """Returns the time from due to the end of each of `STACKED_PARTS`, in ms; None if a worker did not answer the frame."""
    if not row.get("total_ms") or not all(row.get(f"{part}_ms") for part in STACKED_PARTS):
        return None
    ends, total = [], 0.0
    for part in parts_of(OPTIONAL_STAGES):
        total += float(row.get(f"{part}_ms") or 0)
        if part in STACKED_PARTS:
            ends.append(total)
    return ends


def number(row: Mapping[str, str], column: str) -> float | None:
    """Returns a column of a row of the latency log; None if it is empty."""
    return float(row[column]) if row.get(column) else None


def _scaled(detections: Detections, frame: FrameResult, height: int, width: int) -> Detections:
    geometry = frame.geometry
    scale = np.array([width / geometry.target_width, height / geometry.target_height] * 2, np.float32)
    return Detections(boxes.to_target(detections.boxes, geometry) * scale, detections.class_ids, detections.scores)


def _class_lines(classification: Classification, card: ModelCard) -> str:
    scored = list(zip(classification.class_ids, classification.scores, strict=True))[:_SHOWN_CLASSES]
    return "\n".join(f"{card.labels.name_of(class_id)} {score:.0%}" for class_id, score in scored)
