"""All MQTT topics of the protocol, with their quality of service, the names allowed in them, and what identifies a frame."""

import hashlib
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple, Self

from msgspec import Struct

from shared.errors import SkylaneError

PREFIX = "skylane/v1"
GROUP = "skylane"  # Shared-subscription group of all workers of a deployment.

ROLES = (
    "worker",
    "operator",
    "viewer",
)  # Common names of their certificates; at the broker, no vehicle can have such a name.

_NAME_LENGTH = 64
NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{_NAME_LENGTH}}}")
NAME_RULE = "1 to 64 of A-Z a-z 0-9 _ -"
_TRACEPARENT = re.compile("(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_SAMPLED = 1
_RANDOM_BITS = 56  # Bits of a trace id that decide whether a trace is sampled (W3C Trace Context, level 2).
_FRAME_ID = re.compile(rf"({NAME.pattern})/({NAME.pattern})/({NAME.pattern})/([0-9]{{1,18}})")


class TopicNameError(SkylaneError):
    """A name is not allowed in a topic."""


class TopicKind(NamedTuple):
    """A family of topics: its pattern below the prefix and its quality of service."""

    pattern: str
    qos: int
    retained: bool = False

    def of(self, **names: str) -> str:
        """Returns the full topic; validates every name."""
        return f"{PREFIX}/{self.pattern.format(**{key: validate_name(key, name) for key, name in names.items()})}"

    def filter(self, **names: str) -> str:
        """Returns a subscription filter; names not given become the wildcard `+`."""
        keys = re.findall(r"{(\w+)}", self.pattern)
        values = {key: validate_name(key, names[key]) if key in names else "+" for key in keys}
        return f"{PREFIX}/{self.pattern.format(**values)}"

    def names_in(self, topic: str) -> dict[str, str] | None:
        """Returns the names in a topic, or None if the topic does not match the pattern."""
        named = re.sub(r"{(\w+)}", rf"(?P<\1>{NAME.pattern})", self.pattern)
        match = re.fullmatch(f"{PREFIX}/{named}", topic)
        return match.groupdict() if match else None


FRAMES = TopicKind("frames/{model}/{vehicle}/{camera}", qos=1)
MASKS = TopicKind("masks/{vehicle}/{camera}", qos=1)
WORKER_STATUS = TopicKind("status/worker/{worker}", qos=1, retained=True)
VEHICLE_STATUS = TopicKind("status/vehicle/{vehicle}", qos=1, retained=True)
LOADS = TopicKind("load/{worker}", qos=0, retained=True)  # A newer report follows within seconds.
WORKER_METRICS = TopicKind("metrics/worker/{worker}", qos=0)
VEHICLE_METRICS = TopicKind("metrics/vehicle/{vehicle}", qos=0)
PROBES = TopicKind("probes/{worker}/{vehicle}", qos=0)  # A delayed probe says nothing about clocks.
ECHOES = TopicKind("echoes/{vehicle}/{worker}", qos=0)
RETRIES = TopicKind("retries/{worker}/{model}/{vehicle}/{camera}", qos=1)
CONTROL = TopicKind("control/{worker}/{verb}", qos=1)
REPLIES = TopicKind("replies/{operator}/{nonce}", qos=1)


class FrameId(Struct, frozen=True):
    """The identity of a frame. Encoded as `vehicle/camera/session/sequence` in ASCII."""

    vehicle: str
    camera: str
    session: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.vehicle}/{self.camera}/{self.session}/{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "FrameId":
        """Parses the encoded form.

        Raises:
            TopicNameError: The text does not have four parts, or one of them is not allowed.
        """
        if (parts := _FRAME_ID.fullmatch(text)) is None:
            raise TopicNameError(f"frame id {text[:100]!r} is not vehicle/camera/session/sequence")
        vehicle, camera, session, sequence = parts.groups()
        return cls(vehicle, camera, session, int(sequence))


class TraceContext(NamedTuple):
    """The trace of a frame and one of its spans (W3C Trace Context), which travel as the user property `traceparent`.

    The ids are hashes of the frame's id, so that both nodes know them without passing them on, whatever the transport.
    """

    trace_id: int
    span_id: int
    is_sampled: bool = True

    @classmethod
    def of_frame(cls, frame_id: FrameId, attempt: int, share: float = 1.0) -> Self:
        """Returns the span of an attempt to send a frame, 0: of the frame as a whole. `share`: of the traces to sample."""
        name = str(frame_id).encode()
        trace_id = int.from_bytes(hashlib.blake2b(name, digest_size=16).digest())
        span = hashlib.blake2b(name, digest_size=8, salt=attempt.to_bytes(8)).digest()
        return cls(trace_id, int.from_bytes(span)).sampled(share)

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Returns the context of a `traceparent`; None if it is not one, which means a new trace."""
        found = _TRACEPARENT.match(text or "")
        if found is None or (text or "")[found.end() :][:1] not in ("", "-"):
            return None
        trace_id, span_id, flags = (int(part, 16) for part in found.groups())
        return cls(trace_id, span_id, bool(flags & _SAMPLED)) if trace_id and span_id else None

    def sampled(self, share: float) -> Self:
        """Returns the context, sampled only if it is already and its trace belongs to a share of all traces."""
        chosen = self.trace_id & ((1 << _RANDOM_BITS) - 1) < share * (1 << _RANDOM_BITS)
        return self._replace(is_sampled=self.is_sampled and chosen)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{_SAMPLED * self.is_sampled:02x}"


def validate_name(kind: str, name: str) -> str:
    """Returns `name` if it is a valid topic level; `kind` names it in the error message.

    Raises:
        TopicNameError: The name is empty, too long, or has a character with a meaning in topics or ACLs, or is that of a
            vehicle and the broker's name of a role.
    """
    if kind == "vehicle" and name in ROLES:
        raise TopicNameError(f"vehicle {name!r} has the name of a role at the broker: choose another name")
    if not NAME.fullmatch(name):
        raise TopicNameError(f"{kind} {name[:100]!r} is not allowed: use {NAME_RULE}")
    return name


def camera_name(ros_topic: str) -> str:
    """Converts a ROS topic to an MQTT topic level: `/sensors/camera/left` becomes `sensors_camera_left`."""
    return sanitize_name(ros_topic.strip("/")) or "camera"


def result_topic(camera: str) -> str:
    """Returns the topic below which a bag has the results of a camera: `/cam` for `/cam/image_raw`."""
    return "/" + camera.strip("/").removesuffix("/image_raw")


class CameraNames(dict[str, str]):
    """The names of cameras in files and messages, by topic: no two are equal, also without regard to case.

    The first topic with a name keeps it. The others get a number: `/cam/image` and `/cam_image` become `cam_image` and
    `cam_image_2`.
    """

    def __init__(
        self,
        topics: Iterable[str] = (),
        name_of: Callable[[str], str] = camera_name,
        fold: Callable[[str], str] = str.casefold,
    ) -> None:
        """Names the topics in order; `name_of` gives the name of a topic that is alone, `fold` what must differ."""
        super().__init__()
        self._name_of = name_of
        self._fold = fold
        for topic in topics:
            self[topic]

    def __missing__(self, topic: str) -> str:
        name = plain = self._name_of(topic)
        taken = {self._fold(each) for each in self.values()}
        number = 1
        while self._fold(name) in taken:
            number += 1
            name = f"{plain[: _NAME_LENGTH - len(str(number)) - 1]}_{number}"
        self[topic] = name
        return name


def sanitize_name(text: str) -> str:
    """Converts any text to a valid topic level: replaces other characters by `_` and truncates it to 64."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:_NAME_LENGTH]


def shared(group: str, topic_filter: str) -> str:
    """Returns a shared subscription (MQTT 5): each message is delivered to one member of the group."""
    return f"$share/{group}/{topic_filter}"
