from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rosbags.typesys import Stores, get_typestore

from rosbag_tools.messages.images import (
    MalformedMessageError,
    Serialization,
    read_compressed_image,
    read_image,
    read_stamp,
)

UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])  # Generating examples is slow on a busy machine.

ROS1 = get_typestore(Stores.ROS1_NOETIC)
ROS2 = get_typestore(Stores.ROS2_HUMBLE)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
SECONDS = st.integers(0, 2**31 - 1)
NANOSECONDS = st.integers(0, 999_999_999)
WIRE_FORMATS = st.sampled_from(["ros1", "cdr", "cdr big-endian"])


def serialized(
    wire_format: str, message_type: str, stamp: tuple[int, int], frame_id: str, *fields: Any
) -> tuple[bytes, Serialization]:
    """Returns a message that `rosbags` serialised, and its serialisation."""
    store: Any = ROS1 if wire_format == "ros1" else ROS2
    time = store.types["builtin_interfaces/msg/Time"](*stamp)
    sequence = (3,) if wire_format == "ros1" else ()
    header = store.types["std_msgs/msg/Header"](*sequence, time, frame_id)
    message = store.types[message_type](header, *fields)
    if wire_format == "ros1":
        return bytes(store.serialize_ros1(message, message_type)), Serialization.ROS1
    return bytes(store.serialize_cdr(message, message_type, little_endian=wire_format == "cdr")), Serialization.CDR


@UNHURRIED
@given(WIRE_FORMATS, SECONDS, NANOSECONDS, NAMES, NAMES, st.binary(max_size=40))
def test_the_fields_of_an_image_equal_those_that_rosbags_wrote(  # noqa: PLR0917  (Hypothesis draws each field)
    wire_format: str, seconds: int, nanoseconds: int, frame_id: str, encoding: str, data: bytes
) -> None:
    """In CDR, the padding before a number depends on the lengths of the strings before it."""
    fields = (5, 7, encoding, 1, 21, np.frombuffer(data, np.uint8))
    raw, wire = serialized(wire_format, "sensor_msgs/msg/Image", (seconds, nanoseconds), frame_id, *fields)
    image = read_image(raw, wire)
    assert image.stamp_ns == read_stamp(raw, wire) == seconds * 10**9 + nanoseconds
    assert (image.frame_id, image.height, image.width, image.encoding) == (frame_id, 5, 7, encoding)
    assert (image.is_bigendian, image.step, bytes(image.data)) == (True, 21, data)


@UNHURRIED
@given(WIRE_FORMATS, SECONDS, NANOSECONDS, NAMES, NAMES, st.binary(max_size=40))
def test_the_fields_of_a_compressed_image_equal_those_that_rosbags_wrote(  # noqa: PLR0917  (Hypothesis draws each field)
    wire_format: str, seconds: int, nanoseconds: int, frame_id: str, image_format: str, data: bytes
) -> None:
    """A compressed image has a format instead of size and encoding."""
    fields = (image_format, np.frombuffer(data, np.uint8))
    raw, wire = serialized(wire_format, "sensor_msgs/msg/CompressedImage", (seconds, nanoseconds), frame_id, *fields)
    image = read_compressed_image(raw, wire)
    assert (image.stamp_ns, image.frame_id) == (seconds * 10**9 + nanoseconds, frame_id)
    assert (image.format, bytes(image.data)) == (image_format, data)


def test_pixels_are_not_copied() -> None:
    """Copying large frames would take time."""
    raw, wire = serialized("cdr", "sensor_msgs/msg/Image", (1, 2), "c", 2, 2, "mono8", 0, 2, np.zeros(4, np.uint8))
    assert read_image(raw, wire).data.obj is raw


@UNHURRIED
@given(WIRE_FORMATS, st.data())
def test_every_truncation_is_refused(wire_format: str, data: st.DataObject) -> None:
    """A part of a message must not be read as a smaller image."""
    raw, wire = serialized(
        wire_format, "sensor_msgs/msg/Image", (1, 2), "cam", 2, 2, "mono8", 0, 2, np.zeros(4, np.uint8)
    )
    with pytest.raises(MalformedMessageError):
        read_image(raw[: data.draw(st.integers(0, len(raw) - 1))], wire)


@UNHURRIED
@given(st.binary(max_size=80), st.sampled_from(Serialization))
def test_any_bytes_are_read_or_refused(raw: bytes, wire: Serialization) -> None:
    """Damaged messages cause a MalformedMessageError and no other exception."""
    for read in (read_image, read_compressed_image, read_stamp):
        try:
            read(raw, wire)
        except MalformedMessageError:
            continue
