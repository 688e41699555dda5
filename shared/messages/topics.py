"""Every topic of the wire in one table: how its name is built and with which quality of service it travels."""

import re
from functools import lru_cache
from typing import NamedTuple

from msgspec import Struct

from shared.errors import SkylaneError

PREFIX = "skylane/v1"
GROUP = "skylane"  # The shared subscription all workers of one deployment belong to.

_REMEMBERED = 1024  # Topics that were made lately: a camera keeps to its own.

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FRAME_ID = re.compile(rf"({NAME.pattern})/({NAME.pattern})/({NAME.pattern})/([0-9]{{1,18}})")


class TopicNameError(SkylaneError):
    """A name cannot stand in a topic."""


class TopicKind(NamedTuple):
    """A kind of topic: its pattern under the prefix and its quality of service."""

    pattern: str
    qos: int
    retained: bool = False

    def of(self, **names: str) -> str:
        """The full topic, every name checked."""
        return _topic(self.pattern, *names.items())

    def filter(self, **names: str) -> str:
        """A subscription filter; a name that is not given matches any."""
        keys = re.findall(r"{(\w+)}", self.pattern)
        values = {key: checked(key, names[key]) if key in names else "+" for key in keys}
        return f"{PREFIX}/{self.pattern.format(**values)}"

    def names_in(self, topic: str) -> dict[str, str] | None:
        """The names that `topic` carries, or None where it is not of this kind."""
        match = _expression(self.pattern).fullmatch(topic)
        return match.groupdict() if match else None


@lru_cache(maxsize=_REMEMBERED)
def _topic(pattern: str, *names: tuple[str, str]) -> str:
    return f"{PREFIX}/{pattern.format(**{key: checked(key, name) for key, name in names})}"


@lru_cache
def _expression(pattern: str) -> re.Pattern[str]:
    named = re.sub(r"{(\w+)}", rf"(?P<\1>{NAME.pattern})", pattern)
    return re.compile(f"{PREFIX}/{named}")


FRAMES = TopicKind("frames/{model}/{vehicle}/{camera}", qos=1)
MASKS = TopicKind("masks/{vehicle}/{camera}", qos=1)
WORKER_STATUS = TopicKind("status/worker/{worker}", qos=1, retained=True)
VEHICLE_STATUS = TopicKind("status/vehicle/{vehicle}", qos=1, retained=True)
PROBES = TopicKind("probes/{worker}/{vehicle}", qos=0)  # One that comes late would tell nothing of the clocks.
ECHOES = TopicKind("echoes/{vehicle}/{worker}", qos=0)
RETRIES = TopicKind("retries/{worker}/{model}/{vehicle}/{camera}", qos=1)
CONTROL = TopicKind("control/{worker}/{verb}", qos=1)
REPLIES = TopicKind("replies/{operator}/{nonce}", qos=1)


class FrameId(Struct, frozen=True):
    """Who sent which frame. On the wire: `vehicle/camera/session/sequence` in ASCII."""

    vehicle: str
    camera: str
    session: str
    sequence: int

    def __str__(self) -> str:
        return f"{self.vehicle}/{self.camera}/{self.session}/{self.sequence}"

    @classmethod
    def parse(cls, text: str) -> "FrameId":
        """Read an id from the wire.

        Raises:
            SkylaneError: it has not four parts, or one of them is not allowed.
        """
        if (parts := _FRAME_ID.fullmatch(text)) is None:
            raise TopicNameError(f"frame id {text[:100]!r} is not vehicle/camera/session/sequence")
        vehicle, camera, session, sequence = parts.groups()
        return cls(vehicle, camera, session, int(sequence))


def checked(kind: str, name: str) -> str:
    """Return `name` if it may stand in a topic.

    Raises:
        SkylaneError: it is empty, too long, or holds a character that a topic or an ACL reads as its own.
    """
    if not NAME.fullmatch(name):
        raise TopicNameError(f"{kind} {name[:100]!r} is not allowed: use 1 to 64 of A-Z a-z 0-9 _ -")
    return name


def camera_name(ros_topic: str) -> str:
    """A ROS topic as one part of an MQTT topic: `/sensors/camera/left` becomes `sensors_camera_left`."""
    return sanitize_name(ros_topic.strip("/")) or "camera"


def sanitize_name(text: str) -> str:
    """Any text as a name that may stand in a topic: what may not is `_`, what is too much is cut off."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:64]


def shared(group: str, topic_filter: str) -> str:
    """A subscription in which each message goes to one member of `group` (MQTT 5)."""
    return f"$share/{group}/{topic_filter}"
