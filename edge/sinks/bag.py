"""Masks written back into a bag, on the frames' own size and stamps, so that a viewer shows both together."""

from pathlib import Path

from edge.sinks.sink import Segmented
from shared.geometry import lay_back
from shared.model_card import ModelCard
from shared.registry import Entry, load

_UNSEEN = 255  # What the model never saw, where the frame was cropped.
_WRITERS = {"mcap": Entry("rosbag_tools.writer:BagWriter", "edge")}


class BagSink:
    """Writes the bag `masks_bag/` with `<camera>/masks` as mono8 images."""

    in_order = True

    def __init__(self, folder: Path, card: ModelCard) -> None:
        del card
        self._bag = load("bag writer", _WRITERS, "mcap")(folder / "masks_bag", "mcap", "none")

    def write(self, segmented: Segmented) -> None:
        """See Sink."""
        mask, geometry = segmented.mask, segmented.geometry
        if mask.shape != (geometry.source_height, geometry.source_width):
            mask = lay_back(mask, geometry, _UNSEEN)
        topic = "/" + segmented.camera.strip("/").removesuffix("/image_raw") + "/masks"
        self._bag.write_image(topic, mask, "mono8", segmented.stamp_ns, segmented.source_ns, "camera")

    def close(self) -> None:
        """See Sink."""
        self._bag.close()
