"""The true boxes of a bag: matched with the images of their camera, and the answer that they give to a question."""

from collections.abc import Iterator, Sequence

import numpy as np

from modelling.evaluation.average_precision import Floats
from modelling.evaluation.time_sync import TimestampMatcher
from modelling.recipes import HEIGHT_SHARE, OBJECTS
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.boxes import read_boxes
from rosbag_tools.messages.ros_types import read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.video_topics import with_pictures
from rosbag_tools.records import Damage, Message

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
