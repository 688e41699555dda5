"""Masks written back into a bag, on the frames' own size and stamps, so that a viewer shows both together."""

from pathlib import Path

import numpy as np

from edge.sinks.sink import Answered
from shared.geometry import UNSEEN, lay_back
from shared.model_card import ModelCard
from shared.registry import Entry, load

_WRITERS = {"mcap": Entry("rosbag_tools.writer:BagWriter", "edge")}


class BagSink:
    """Writes the bag `masks_bag/` with `<camera>/masks` as mono8 images."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        del card
        self._bag = load("bag writer", _WRITERS, "mcap")(folder / "masks_bag", "mcap", "none")

    def write(self, answered: Answered) -> None:
        """See Sink."""
        mask, geometry = answered.result, answered.geometry
        assert isinstance(mask, np.ndarray)
        if mask.shape != (geometry.source_height, geometry.source_width):
            mask = lay_back(mask, geometry, UNSEEN)
        topic = "/" + answered.camera.strip("/").removesuffix("/image_raw") + "/masks"
        self._bag.write_image(topic, mask, "mono8", answered.stamp_ns, answered.source_ns, "camera")

    def close(self) -> None:
        """See Sink."""
        self._bag.close()
