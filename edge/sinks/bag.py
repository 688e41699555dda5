"""Results written back into a bag, on the frames' own size and stamps, so that a viewer shows both together."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edge.sinks.sink import Answered
from shared.imaging.geometry import UNSEEN, to_source
from shared.imaging.mask_codecs import Mask
from shared.messages.model_card import ModelCard
from shared.messages.results import Detections, noun
from shared.registry import Entry, load

_WRITERS = {"mcap": Entry("rosbag_tools.writer:BagWriter", "edge")}


class BagSink:
    """Writes the bag `masks_bag/` with `<camera>/masks` as mono8 images.

    Or `detections_bag/` with `<camera>/detections` as `vision_msgs/Detection2DArray`.
    """

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        self._card = card
        self._bag = load("bag writer", _WRITERS, "mcap")(folder / f"{noun(card.task)}s_bag", "mcap", "none")

    def write(self, answered: Answered) -> None:
        """See Sink."""
        topic = "/" + answered.camera.strip("/").removesuffix("/image_raw")
        match answered.result:
            case np.ndarray() as mask:
                self._write_mask(f"{topic}/masks", mask, answered)
            case Detections() as found:
                self._write_boxes(f"{topic}/detections", found, answered)

    def close(self) -> None:
        """See Sink."""
        self._bag.close()

    def _write_mask(self, topic: str, mask: Mask, answered: Answered) -> None:
        geometry = answered.geometry
        if mask.shape != (geometry.source_height, geometry.source_width):
            mask = to_source(mask, geometry, UNSEEN)
        self._bag.write_image(topic, mask, "mono8", answered.stamp_ns, answered.source_ns, "camera")

    def _write_boxes(self, topic: str, found: Detections, answered: Answered) -> None:
        names = [self._card.labels.name_of(class_id) for class_id in found.class_ids.tolist()]
        boxes = [_box(name, corners) for name, corners in zip(names, found.boxes.tolist(), strict=True)]
        times: dict[str, Any] = {"stamp_ns": answered.stamp_ns, "received_ns": answered.source_ns}
        self._bag.write_boxes(topic, boxes, **times, frame_id="camera", scores=found.scores.tolist())


class _Box(NamedTuple):
    """A box as a bag's writer takes it: its upper left corner and its sides, in pixels of the frame."""

    name: str
    x: float
    y: float
    width: float
    height: float


def _box(name: str, corners: list[float]) -> _Box:
    left, top, right, bottom = corners
    return _Box(name, left, top, right - left, bottom - top)
