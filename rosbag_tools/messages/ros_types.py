"""Message definitions: those a bag carries, those we write, and what converts bytes between the two wires."""

from collections.abc import Iterable
from functools import cache

from rosbags.typesys import Stores, get_types_from_idl, get_types_from_msg, get_typestore
from rosbags.typesys.store import Typestore

from rosbag_tools.messages.images import CDR_BIG_ENDIAN, MalformedMessageError, Wire
from rosbag_tools.reading.records import Channel
from shared.errors import SkylaneError

HEADER = "std_msgs/msg/Header"
DETECTIONS = "vision_msgs/msg/Detection2DArray"

_STORES = {Wire.ROS1: Stores.ROS1_NOETIC, Wire.CDR: Stores.ROS2_HUMBLE}

# vision_msgs is no part of either store. ROS 1 (0.0.1, Noetic) numbers what was seen, ROS 2 (4.x, Humble) names it.
_VISION: dict[Wire, dict[str, str]] = {
    Wire.ROS1: {
        "BoundingBox2D": "geometry_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
        "ObjectHypothesisWithPose": "int64 id\nfloat64 score\ngeometry_msgs/PoseWithCovariance pose\n",
        "Detection2D": "std_msgs/Header header\nvision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\nsensor_msgs/Image source_img\n",
        "Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    },
    Wire.CDR: {
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


class UnknownTypeError(SkylaneError):
    """A message's type is defined neither in its bag nor here."""


@cache
def own_types(wire: Wire) -> Typestore:
    """The types we write: those of ROS 1 Noetic or ROS 2 Humble, and the detections of `vision_msgs`. Only to be read."""
    store = get_typestore(_STORES[wire])
    for name, definition in _VISION[wire].items():
        store.register(get_types_from_msg(definition, f"vision_msgs/msg/{name}"))
    return store


def types_of(channels: Iterable[Channel], wire: Wire) -> Typestore:
    """The types of a bag's channels, by its own definitions and by ours where it has none, for bytes of `wire`.

    A definition that cannot be read leaves its type out. The header is that of `wire`: the one type in which ROS 1 and
    ROS 2 differ everywhere.
    """
    store = get_typestore(Stores.EMPTY)
    ours = own_types(wire).fielddefs
    store.register({HEADER: ours[HEADER]})
    without = []
    for channel in channels:
        try:
            if channel.is_idl:
                found = get_types_from_idl(channel.definition)
            else:
                found = get_types_from_msg(channel.definition, channel.message_type)
            found.pop(HEADER, None)
            if not channel.definition.strip() and channel.message_type in ours:
                found = {}
            store.register(found)
        except Exception:  # noqa: BLE001  A parser of foreign text, which raises whatever the text provokes.
            found = {}
        if not found:
            without.append(channel.message_type)
    if without:
        known = store.fielddefs
        store.register({name: fields for name, fields in ours.items() if name not in known})
    return store


class Converter:
    """Rewrites messages of one bag from its wire to another. `types` are their definitions for the target."""

    def __init__(self, channels: Iterable[Channel], target: Wire) -> None:
        channels = tuple(channels)
        self.types = types_of(channels, target)
        self._target = target
        # Both directions skip or add the sequence number on their own, and want the header without it.
        self._plain = types_of(channels, Wire.CDR)
        self._known: set[str] = set()

    def convert(self, data: bytes, channel: Channel) -> bytes | memoryview:
        """The message's bytes on the target wire.

        Raises:
            UnknownTypeError: its type is defined neither in the bag nor here.
            MalformedMessageError: its bytes are not what its type says.
        """
        self._require(channel)
        if channel.wire is self._target:
            return data
        name = channel.message_type
        try:
            if channel.wire is Wire.ROS1:
                return self._plain.ros1_to_cdr(data, name)
            if data[:2] == CDR_BIG_ENDIAN:  # rosbags turns only little-endian bytes directly.
                message = self._plain.deserialize_cdr(data, name)
                data = bytes(self._plain.serialize_cdr(message, name, little_endian=True))
            return self._plain.cdr_to_ros1(data, name)
        except Exception as error:  # rosbags raises whatever the bytes provoke.
            raise MalformedMessageError(f"a message of {channel.topic} is no {channel.type}: {error}") from error

    def _require(self, channel: Channel) -> None:
        """A bag may name types, or parts of them, that it does not define."""
        name = channel.message_type
        if name in self._known:
            return
        try:
            self.types.generate_msgdef(name, ros_version=1 if self._target is Wire.ROS1 else 2)
            self.types.hash_rihs01(name)
        except Exception as error:  # As above.
            raise UnknownTypeError(f"type {channel.type} is not wholly defined in the bag: {error}") from error
        self._known.add(name)
