"""The bag sink: results at the size and with the stamps of their frames, so that a viewer shows both together."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge.sinks.sink import FrameResult
from shared.imaging.codec import Mask
from shared.imaging.geometry import UNSEEN, to_source
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections
from shared.messages.topics import CameraNames, result_topic
from shared.registry import Entry, load
from shared.task import task_named

_WRITERS = {"mcap": Entry("rosbag_tools.writer:BagWriter", "edge")}


class BagSink:
    """Writes `masks_bag/` with mono8 images on `<camera>/masks`, or `detections_bag/` with `<camera>/detections`.

    Detections are `vision_msgs/Detection2DArray` messages.
    """

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._card = card
        self._topics = CameraNames(name_of=result_topic, fold=str)
        self._bag = load("bag writer", _WRITERS, "mcap")(
            folder / f"{task_named(card.task).result_name}s_bag", "mcap", "zstd"
        )

    def write(self, frame: FrameResult) -> None:
        """See Sink."""
        topic = self._topics[frame.camera]
        match frame.result:
            case np.ndarray() as mask:
                self._write_mask(f"{topic}/masks", mask, frame)
            case Detections() as detections:
                self._write_boxes(f"{topic}/detections", detections, frame)

    def close(self) -> None:
        """See Sink."""
        self._bag.close()

    def _write_mask(self, topic: str, mask: Mask, frame: FrameResult) -> None:
        geometry = frame.geometry
        if mask.shape != (geometry.source_height, geometry.source_width):
            mask = to_source(mask, geometry, UNSEEN)
        self._bag.write_image(topic, mask, "mono8", frame.stamp_ns, frame.source_ns, "camera")

    def _write_boxes(self, topic: str, detections: Detections, frame: FrameResult) -> None:
        names = [self._card.labels.name_of(class_id) for class_id in detections.class_ids.tolist()]
        boxes = [_box(name, corners) for name, corners in zip(names, detections.boxes.tolist(), strict=True)]
        times: dict[str, Any] = {"stamp_ns": frame.stamp_ns, "received_ns": frame.source_ns}
        self._bag.write_boxes(topic, boxes, **times, frame_id="camera", scores=detections.scores.tolist())


class _Box(NamedTuple):
    """A labelled box in the form of the bag writer: upper left corner and size in pixels of the frame."""

    name: str
    x: float
    y: float
    width: float
    height: float


def _box(name: str, corners: list[float]) -> _Box:
    left, top, right, bottom = corners
    return _Box(name, left, top, right - left, bottom - top)
