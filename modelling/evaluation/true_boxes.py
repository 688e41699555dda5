"""The true boxes of a bag: matched with the images of their camera, and the answer that they give to a question."""

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import numpy as np

from modelling.evaluation.average_precision import Floats
from modelling.recipes import HEIGHT_SHARE, OBJECTS
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import read_boxes, read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Damage, Message

Image = TypeVar("Image")
Truth = TypeVar("Truth")


class TimestampMatcher(Generic[Image, Truth]):
    """Keeps the first part of each pair until the other arrives, and counts the images without a truth."""

    def __init__(self) -> None:
        self.unmatched = 0
        self._images: dict[int, Image] = {}
        self._truths: dict[int, Truth] = {}

    def add_image(self, stamp_ns: int, image: Image) -> tuple[Image, Truth] | None:
        """Returns the pair that the image completes, or keeps the image and returns None."""
        if stamp_ns in self._truths:
            return image, self._truths.pop(stamp_ns)
        self._images[stamp_ns] = image
        if len(self._images) > _MAX_WAITING:
            del self._images[next(iter(self._images))]
            self.unmatched += 1
        return None

    def add_truth(self, stamp_ns: int, truth: Truth) -> tuple[Image, Truth] | None:
        """Returns the pair that the truth completes, or keeps the truth and returns None."""
        if stamp_ns in self._images:
            return self._images.pop(stamp_ns), truth
        self._truths[stamp_ns] = truth
        if len(self._truths) > _MAX_WAITING:
            del self._truths[next(iter(self._truths))]
        return None

    def end(self) -> None:
        """Counts the remaining images as unmatched."""
        self.unmatched += len(self._images)


BOXES = "/boxes"  # The suffix of a topic with true boxes.
SMALLEST = 6.0  # Root of a box's area in pixels; smaller boxes are neither trained nor counted.

_MIN_VISIBLE = 0.4  # The share of a box that a crop must show to train on it.


def truth_of(boxes: Sequence[Box], height: float) -> int:
    """Returns the true answer to "is there a vehicle?" for a frame: the class id in `modelling.recipes.PRESENCE`.

    Args:
        boxes: The true boxes of the frame, of all classes.
        height: The height of the frame, in pixels of the boxes.
    """
    return int(any(box.name in OBJECTS["vehicle"] and box.height >= HEIGHT_SHARE * height for box in boxes))


def images_with_boxes(
    bag: Bag, camera: str, truth: str, matcher: TimestampMatcher[Message, list[Box]]
) -> Iterator[tuple[Message, list[Box]]]:
    """Yields the images on the topic `camera` with the true boxes of the same timestamp on the topic `truth`.

    The matcher counts the images without boxes, and those that cannot be read.
    """
    for item in with_pictures(bag.messages({camera, truth})):
        if isinstance(item, Damage) or item.loss:
            matcher.unmatched += item.channel is not None and item.channel.topic == camera
            continue
        stamp_ns = read_stamp(item)
        if item.channel.topic == camera:
            pair = matcher.add_image(stamp_ns, item)
        else:
            pair = matcher.add_truth(stamp_ns, read_boxes(item))
        if pair is not None:
            yield pair
    matcher.end()


def split_boxes(rows: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """Clips boxes N×5 (class, x1, y1, x2, y2) to an image.

    Returns the boxes to train on or to count, and those that are too small or mostly outside.
    """
    low, high = np.maximum(rows[:, 1:3], 0), np.minimum(rows[:, 3:], (width, height))
    visible = np.prod(np.maximum(high - low, 0), axis=1)
    whole = np.prod(rows[:, 3:] - rows[:, 1:3], axis=1)
    clipped = np.concatenate([rows[:, :1], low, high], axis=1).astype(np.float32)
    is_trained = (visible >= SMALLEST**2) & (visible >= _MIN_VISIBLE * whole)
    return clipped[is_trained], clipped[~is_trained & (visible > 0)]


_MAX_WAITING = 64  # Unmatched images or truths to keep; recorders write a pair close together.
