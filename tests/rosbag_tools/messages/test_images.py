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

UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])  # A busy machine is no fault.

ROS1 = get_typestore(Stores.ROS1_NOETIC)
ROS2 = get_typestore(Stores.ROS2_HUMBLE)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
SECONDS = st.integers(0, 2**31 - 1)
NANOSECONDS = st.integers(0, 999_999_999)
SPELLINGS = st.sampled_from(["ros1", "cdr", "cdr big-endian"])


def spell(
    spelling: str, message_type: str, stamp: tuple[int, int], frame_id: str, *fields: Any
) -> tuple[bytes, Serialization]:
    """A message as `rosbags` writes it, and its wire."""
    store: Any = ROS1 if spelling == "ros1" else ROS2
    time = store.types["builtin_interfaces/msg/Time"](*stamp)
    sequence = (3,) if spelling == "ros1" else ()
    header = store.types["std_msgs/msg/Header"](*sequence, time, frame_id)
    message = store.types[message_type](header, *fields)
    if spelling == "ros1":
        return bytes(store.serialize_ros1(message, message_type)), Serialization.ROS1
    return bytes(store.serialize_cdr(message, message_type, little_endian=spelling == "cdr")), Serialization.CDR


@UNHURRIED
@given(SPELLINGS, SECONDS, NANOSECONDS, NAMES, NAMES, st.binary(max_size=40))
def test_image_fields_are_those_rosbags_wrote(  # noqa: PLR0917  Hypothesis's drawn fields.
    spelling: str, seconds: int, nanoseconds: int, frame_id: str, encoding: str, data: bytes
) -> None:
    """Padding depends on the length of every string before a number: the library is the judge."""
    fields = (5, 7, encoding, 1, 21, np.frombuffer(data, np.uint8))
    raw, wire = spell(spelling, "sensor_msgs/msg/Image", (seconds, nanoseconds), frame_id, *fields)
    image = read_image(raw, wire)
    assert image.stamp_ns == read_stamp(raw, wire) == seconds * 10**9 + nanoseconds
    assert (image.frame_id, image.height, image.width, image.encoding) == (frame_id, 5, 7, encoding)
    assert (image.is_bigendian, image.step, bytes(image.data)) == (True, 21, data)


@UNHURRIED
@given(SPELLINGS, SECONDS, NANOSECONDS, NAMES, NAMES, st.binary(max_size=40))
def test_compressed_image_fields_are_those_rosbags_wrote(  # noqa: PLR0917  The same.
    spelling: str, seconds: int, nanoseconds: int, frame_id: str, image_format: str, data: bytes
) -> None:
    """The same for pictures that were compressed."""
    fields = (image_format, np.frombuffer(data, np.uint8))
    raw, wire = spell(spelling, "sensor_msgs/msg/CompressedImage", (seconds, nanoseconds), frame_id, *fields)
    image = read_compressed_image(raw, wire)
    assert (image.stamp_ns, image.frame_id) == (seconds * 10**9 + nanoseconds, frame_id)
    assert (image.format, bytes(image.data)) == (image_format, data)


def test_pixels_are_not_copied() -> None:
    """A view costs nothing, whatever the size of the frame."""
    raw, wire = spell("cdr", "sensor_msgs/msg/Image", (1, 2), "c", 2, 2, "mono8", 0, 2, np.zeros(4, np.uint8))
    assert read_image(raw, wire).data.obj is raw


@UNHURRIED
@given(SPELLINGS, st.data())
def test_every_truncation_is_refused(spelling: str, data: st.DataObject) -> None:
    """Half a message must not pass for a smaller picture."""
    raw, wire = spell(spelling, "sensor_msgs/msg/Image", (1, 2), "cam", 2, 2, "mono8", 0, 2, np.zeros(4, np.uint8))
    with pytest.raises(MalformedMessageError):
        read_image(raw[: data.draw(st.integers(0, len(raw) - 1))], wire)


@UNHURRIED
@given(st.binary(max_size=80), st.sampled_from(Serialization))
def test_any_bytes_are_read_or_refused(raw: bytes, wire: Serialization) -> None:
    """Damage may be anything; only our own error may come of it."""
    for read in (read_image, read_compressed_image, read_stamp):
        try:
            read(raw, wire)
        except MalformedMessageError:
            continue
