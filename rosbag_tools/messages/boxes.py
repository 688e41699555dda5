"""Reads boxes from `vision_msgs/Detection2DArray` messages."""

from typing import Any

from rosbag_tools.drive.scene import Box
from rosbag_tools.messages.ros_types import DETECTIONS, read
from rosbag_tools.records import Message, Serialization
from rosbag_tools.writer import DETECTED_IDS
from shared.errors import SkylaneError

_NAMES = {number: name for name, number in DETECTED_IDS.items()}


def read_boxes(message: Message) -> list[Box]:
    """Returns the boxes of a message, each with the class name of its first hypothesis (empty if it has none).

    Raises:
        SkylaneError: the message has another type, or its bytes do not fit its type.
    """
    channel = message.channel
    if channel.message_type != DETECTIONS:
        raise SkylaneError(f"{channel.topic} has {channel.type} messages, not boxes: give a topic of type {DETECTIONS}")
    return [_box(each, channel.wire) for each in read(message).detections]


def read_scores(message: Message) -> list[float]:
    """Returns the score of each box of a message that `read_boxes` can read; 0 for a box without a hypothesis."""
    found = read(message).detections
    if message.channel.wire is Serialization.ROS1:
        return [float(each.results[0].score) if each.results else 0.0 for each in found]
    return [float(each.results[0].hypothesis.score) if each.results else 0.0 for each in found]


def _box(seen: Any, wire: Serialization) -> Box:
    centre = seen.bbox.center if wire is Serialization.ROS1 else seen.bbox.center.position
    name = ""
    if seen.results and wire is Serialization.ROS1:
        name = _NAMES.get(seen.results[0].id, "")
    elif seen.results:
        name = seen.results[0].hypothesis.class_id
    width, height = seen.bbox.size_x, seen.bbox.size_y
    return Box(name, centre.x - width / 2, centre.y - height / 2, width, height)
