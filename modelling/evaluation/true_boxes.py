"""The true boxes of a bag: matched with the images of their camera, and the answer that they give to a question."""

from collections.abc import Iterator, Sequence

from modelling.evaluation.time_sync import TimestampMatcher
from modelling.recipes import HEIGHT_SHARE, OBJECTS
from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.boxes import read_boxes
from rosbag_tools.messages.ros_types import read_stamp
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.records import Damage, Message
from rosbag_tools.reading.video_topics import with_pictures

BOXES = "/boxes"  # The suffix of a topic with true boxes.


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
