"""Message definitions of bags and of Skylane; reads messages and converts them between ROS 1 and ROS 2."""

import struct
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from rosbag_tools.messages.foxglove import CameraMessage, read_protobuf, read_protobuf_stamp
from rosbag_tools.records import FFMPEG_PACKET, Box, Message, Serialization, TopicChannel
from shared.errors import SkylaneError
from shared.imaging.labels import MAX_NAME_LENGTH
from shared.messages.protobuf_fields import ProtobufError

HEADER = "std_msgs/msg/Header"
DETECTIONS = "vision_msgs/msg/Detection2DArray"
LABEL_INFO = "vision_msgs/msg/LabelInfo"
_HIGHEST_LABEL = 254  # 255 stands for pixels without a class.

# Class ids of the street classes: ROS 1 detections have ids where ROS 2 detections have names.
DETECTED_IDS = {"person": 6, "rider": 7, "car": 8, "truck": 9, "bus": 10}

_CDR_BIG_ENDIAN = b"\x00\x00"  # First bytes of a big-endian CDR message (OMG DDS-XTypes).
_STORES = {Serialization.ROS1: Stores.ROS1_NOETIC, Serialization.CDR: Stores.ROS2_HUMBLE}

# rosbags does not include vision_msgs. Labels are those of ROS 2 (4.1) in both, as ROS 1 has none. Classes are numbers in ROS 1 (0.0.1, Noetic) and names in ROS 2 (4.x, Humble).
_LABELS = {
    "VisionClass": "uint16 class_id\nstring class_name\n",
    "LabelInfo": "std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold\n",
}
_VISION: dict[Serialization, dict[str, str]] = {
    Serialization.ROS1: {
        **_LABELS,
        "BoundingBox2D": "geometry_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
        "ObjectHypothesisWithPose": "int64 id\nfloat64 score\ngeometry_msgs/PoseWithCovariance pose\n",
        "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nsensor_msgs/Image source_img\n",
        "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    },
    Serialization.CDR: {
        **_LABELS,
        "Point2D": "float64 x\nfloat64 y\n",
        "Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
        "BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
        "ObjectHypothesis": "string class_id\nfloat64 score\n",
        "ObjectHypothesisWithPose": "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n",
        "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nstring id\n",
        "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    },
}


# Images of Foxglove, without the fields that newer versions append, and video of ffmpeg_image_transport.
_CAMERAS = {
    "foxglove_msgs/msg/RawImage": "TIME timestamp\nstring frame_id\nuint32 width\nuint32 height\nstring encoding\n"
    "uint32 step\nuint8[] data\n",
    "foxglove_msgs/msg/CompressedImage": "TIME timestamp\nstring frame_id\nuint8[] data\nstring format\n",
    "foxglove_msgs/msg/CompressedVideo": "TIME timestamp\nstring frame_id\nuint8[] data\nstring format\n",
    FFMPEG_PACKET: "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\nuint64 pts\nuint8 flags\n"
    "bool is_bigendian\nuint8[] data\n",
}


class MalformedMessageError(SkylaneError):
    """The bytes of a message do not fit its type."""

    def __init__(self, channel: TopicChannel, cause: Exception) -> None:
        reason = " ".join(str(cause).split()) or type(cause).__name__
        super().__init__(f"a message on {channel.topic} cannot be read as {channel.type}: {reason}")


@cache
def own_types(wire: Serialization) -> Typestore:
    """Returns the types that Skylane knows itself: ROS 1 Noetic or ROS 2 Humble, `vision_msgs`, and videos. Read-only."""
    store = get_typestore(_STORES[wire])
    for name, definition in _VISION[wire].items():
        store.register(get_types_from_msg(definition, f"vision_msgs/msg/{name}"))
    time = "time" if wire is Serialization.ROS1 else "builtin_interfaces/Time"
    for name, definition in _CAMERAS.items():
        store.register(get_types_from_msg(definition.replace("TIME", time), name))
    return store


def read(message: Message, types: Typestore | None = None) -> Any:
    """Deserializes a message; arrays in the result are views of the message's bytes. `types` is `own_types` by default.

    Raises:
        MalformedMessageError: the bytes do not fit the type.
    """
    channel, wire = message.channel, message.channel.wire
    if wire is Serialization.PROTOBUF:
        try:
            return read_protobuf(channel.type, message.data)
        except ProtobufError as error:
            raise MalformedMessageError(channel, error) from error
    try:
        return _deserialized(message, types or own_types(wire))
    except Exception as error:  # rosbags raises exceptions of any type for invalid bytes.
        if types is None and channel.message_type in _CAMERAS and channel.definition:
            return read(message, _types_of_channel(channel))  # Newer definitions have more fields.
        raise MalformedMessageError(channel, error) from error


def read_camera(message: Message) -> Any:
    """Reads an image or video message: an object with the fields of a ROS image, or those of a compressed image.

    Raises:
        MalformedMessageError: the bytes do not fit the type.
    """
    fields = read(message)
    name = message.channel.message_type
    if name not in _CAMERAS:
        return fields
    try:
        data = np.asarray(fields.data, np.uint8)
        if name == FFMPEG_PACKET:  # "h264;yuv420p;bgr8;bgr8": the codec comes first.
            return CameraMessage(data, str(fields.encoding).partition(";")[0], pts=int(fields.pts))
        if not message.channel.has_raw_images:
            return CameraMessage(data, str(fields.format))
        return CameraMessage(data, "", str(fields.encoding), int(fields.width), int(fields.height), int(fields.step))
    except (AttributeError, TypeError, ValueError) as error:  # The bag has another definition of the type.
        raise MalformedMessageError(message.channel, error) from error


def read_stamp(message: Message) -> int:
    """Reads the stamp in ns of a message whose first field is a `std_msgs/Header`, or of an image or video of Foxglove.

    Raises:
        MalformedMessageError: the message is too short to have a stamp.
    """
    wire = message.channel.wire
    if wire is Serialization.PROTOBUF:
        try:
            return read_protobuf_stamp(message.data)
        except ProtobufError as error:
            raise MalformedMessageError(message.channel, error) from error
    has_sequence = wire is Serialization.ROS1 and not message.channel.message_type.startswith("foxglove_msgs/")
    order = ">" if message.channel.wire is Serialization.CDR and message.data[:2] == _CDR_BIG_ENDIAN else "<"
    try:
        # The sequence number of ROS 1 and the header of CDR both take 4 bytes before the stamp.
        at = 4 if wire is Serialization.CDR or has_sequence else 0
        seconds, nanoseconds = struct.unpack_from(f"{order}iI", message.data, at)
    except struct.error as error:
        raise MalformedMessageError(message.channel, error) from error
    return int(seconds) * 1_000_000_000 + int(nanoseconds)


def read_frame_id(message: Message) -> str:
    """Reads the frame_id of an image; empty if its type has no header of ROS.

    Raises:
        MalformedMessageError: the bytes do not fit the type.
    """
    header = getattr(read_camera(message), "header", None)
    return "" if header is None else str(header.frame_id)


def types_of(channels: Iterable[TopicChannel], wire: Serialization) -> Typestore:
    """Returns the types of a bag's channels for messages serialized as `wire`, from the bag or from Skylane.

    A type whose definition cannot be parsed is Skylane's own, or left out. The header is that of `wire`: it is the only type that always
    differs between ROS 1 and ROS 2.
    """
    store = get_typestore(Stores.EMPTY)
    ours = own_types(wire).fielddefs
    store.register({HEADER: ours[HEADER]})
    without = []
    for channel in channels:
        try:
            if channel.is_idl:
                definitions = get_types_from_idl(channel.definition)
            else:
                definitions = get_types_from_msg(channel.definition, channel.message_type)
            definitions.pop(HEADER, None)
            if not channel.definition.strip() and channel.message_type in ours:
                definitions = {}
            store.register(definitions)
        except Exception:  # noqa: BLE001 - the parser raises exceptions of any type for invalid text.
            definitions = {}
        if not definitions:
            without.append(channel.message_type)
    if without:
        known = store.fielddefs
        store.register({name: fields for name, fields in ours.items() if name not in known})
    return store


@lru_cache(maxsize=64)
def _types_of_channel(channel: TopicChannel) -> Typestore:
    return types_of((channel,), channel.wire)


def _deserialized(message: Message, types: Typestore) -> Any:
    deserialize = types.deserialize_ros1 if message.channel.wire is Serialization.ROS1 else types.deserialize_cdr
    return deserialize(memoryview(message.data), message.channel.message_type)


class Converter:
    """Converts messages of one bag to another serialization of ROS. `types` has their definitions for the target."""

    def __init__(self, channels: Iterable[TopicChannel], target: Serialization) -> None:
        channels = tuple(channel for channel in channels if channel.wire.is_ros)
        self.types = types_of(channels, target)
        self._target = target
        # rosbags removes or adds the sequence number by itself, and needs the header type without it.
        self._plain = types_of(channels, Serialization.CDR)
        self._known: set[str] = set()

    def convert(self, data: bytes, channel: TopicChannel) -> bytes | memoryview:
        """Returns the message in the target serialization.

        Raises:
            SkylaneError: the type is defined neither in the bag nor in Skylane, or the messages are not those of ROS.
            MalformedMessageError: the bytes do not fit the type.
        """
        if not channel.wire.is_ros:
            raise SkylaneError(
                f"its messages are in {channel.encoding or 'an unnamed encoding'}: ROS has none for them"
            )
        self._require(channel)
        if channel.wire is self._target:
            return data
        name = channel.message_type
        try:
            if channel.wire is Serialization.ROS1:
                return self._plain.ros1_to_cdr(data, name)
            if data[:2] == _CDR_BIG_ENDIAN:  # rosbags converts only little-endian messages directly.
                message = self._plain.deserialize_cdr(data, name)
                data = bytes(self._plain.serialize_cdr(message, name, little_endian=True))
            return self._plain.cdr_to_ros1(data, name)
        except Exception as error:  # rosbags raises exceptions of any type for invalid bytes.
            raise MalformedMessageError(channel, error) from error

    def _require(self, channel: TopicChannel) -> None:
        """Raises a SkylaneError if the bag does not completely define the type of a channel."""
        name = channel.message_type
        if name in self._known:
            return
        try:
            self.types.generate_msgdef(name, ros_version=1 if self._target is Serialization.ROS1 else 2)
            self.types.hash_rihs01(name)
        except Exception as error:  # rosbags raises exceptions of any type for invalid definitions.
            raise SkylaneError(f"type {channel.type} is not completely defined in the bag: {error}") from error
        self._known.add(name)


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
    """Returns the score of the first hypothesis of each box in a message that `read_boxes` can read; 0 without one."""
    return [_best(each, message.channel.wire)[1] for each in read(message).detections]


def read_label_info(message: Message) -> tuple[str, ...]:
    """Returns the names of a message's classes by class id; "" for ids without a class.

    Raises:
        SkylaneError: the message has another type, its bytes do not fit it, or an id cannot be that of a mask's pixel.
    """
    channel = message.channel
    if channel.message_type != LABEL_INFO:
        raise SkylaneError(f"{channel.topic} has {channel.type} messages, not the names of labels ({LABEL_INFO})")
    listed = read(message).class_map
    classes = {int(each.class_id): str(each.class_name) for each in listed}
    if len(classes) < len(listed):
        raise SkylaneError(f"{channel.topic} has an id twice: give each class an id of its own")
    if not classes or max(classes) > _HIGHEST_LABEL:
        found = f"an id of {max(classes)}" if classes else "no class"
        raise SkylaneError(f"{channel.topic} has {found}: labels have ids from 0 to {_HIGHEST_LABEL}")
    if any(not name.isprintable() or len(name) > MAX_NAME_LENGTH for name in classes.values()):
        raise SkylaneError(
            f"{channel.topic} has a name that is not printable or longer than {MAX_NAME_LENGTH} characters"
        )
    return tuple(classes.get(class_id, "") for class_id in range(max(classes) + 1))


def _box(seen: Any, wire: Serialization) -> Box:
    centre = seen.bbox.center if wire is Serialization.ROS1 else seen.bbox.center.position
    width, height = seen.bbox.size_x, seen.bbox.size_y
    return Box(_best(seen, wire)[0], centre.x - width / 2, centre.y - height / 2, width, height)


def _best(seen: Any, wire: Serialization) -> tuple[str, float]:
    """Returns class name and score of the first hypothesis of a detection."""
    if not seen.results:
        return "", 0.0
    first = seen.results[0]
    if wire is Serialization.ROS1:
        return _NAMES.get(first.id, ""), float(first.score)
    return first.hypothesis.class_id, float(first.hypothesis.score)
