from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rosbag_tools.messages.ros_types import MalformedMessageError, own_types, read, read_stamp
from rosbag_tools.records import IMAGE, Message, Serialization, TopicChannel

UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])  # Generating examples is slow on a busy machine.

WIRE_FORMATS = ("ros1", "cdr", "cdr big-endian")
PIXELS = np.arange(4, dtype=np.uint8)


def image(wire_format: str) -> Message:
    """Returns an image message of 2×2 pixels that `rosbags` serialized, with the stamp 1.000000002."""
    wire = Serialization.ROS1 if wire_format == "ros1" else Serialization.CDR
    store: Any = own_types(wire)
    sequence = (3,) if wire is Serialization.ROS1 else ()
    header = store.types["std_msgs/msg/Header"](*sequence, store.types["builtin_interfaces/msg/Time"](1, 2), "cam")
    fields = store.types[IMAGE](header, 2, 2, "mono8", 0, 2, PIXELS)
    if wire is Serialization.ROS1:
        data = store.serialize_ros1(fields, IMAGE)
    else:
        data = store.serialize_cdr(fields, IMAGE, little_endian=wire_format == "cdr")
    return Message(TopicChannel("/cam", IMAGE, wire), 0, bytes(data))


@pytest.mark.parametrize("wire_format", WIRE_FORMATS)
def test_a_message_is_read_in_every_serialization(wire_format: str) -> None:
    """The byte order of CDR is in the message; ROS 1 has a sequence number before the stamp."""
    message = image(wire_format)
    found = read(message)
    assert (found.header.frame_id, found.height, found.width, found.encoding) == ("cam", 2, 2, "mono8")
    assert found.header.stamp.sec * 10**9 + found.header.stamp.nanosec == read_stamp(message) == 1_000_000_002
    np.testing.assert_array_equal(found.data, PIXELS)


def test_pixels_are_not_copied() -> None:
    """Copying large frames would take time."""
    message = image("cdr")
    assert np.shares_memory(read(message).data, np.frombuffer(message.data, np.uint8))


@UNHURRIED
@given(st.sampled_from(WIRE_FORMATS), st.data())
def test_every_truncation_is_refused(wire_format: str, data: st.DataObject) -> None:
    """A part of a message must not be read as a smaller image."""
    message = image(wire_format)
    end = data.draw(st.integers(0, len(message.data) - 1))
    with pytest.raises(MalformedMessageError):
        read(Message(message.channel, 0, message.data[:end]))
