"""Bounded decoding of MessagePack maps from the network, and the types of their fields with their limits.

A `description` appears in the error of an invalid field.
"""

from typing import Annotated, Any, Final, TypeVar

import msgpack
from msgspec import Meta

from shared.compression import Buffer
from shared.errors import SkylaneError
from shared.messages.topics import NAME, FrameId, TopicNameError

MAX_NS = 1 << 62
MAX_MS = 86_400_000  # One day.
MAX_TEXT = 4096  # Characters.
MAX_SIDE = 16384  # Maximum height and width of a transmitted image, pixels.
# Pattern of a version, which is also a folder name. Dots are allowed: it is never part of a topic.
VERSION_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"
VERSION_RULE = "1 to 64 of A-Z a-z 0-9 _ - . without a leading dot"
Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[  # A valid topic level.
    str, Meta(pattern=rf"\A{NAME.pattern}\Z", description="a name of 1 to 64 of A-Z a-z 0-9 _ -")
]
Version = Annotated[str, Meta(pattern=rf"{VERSION_NAME}\Z", description="a version of 1 to 64 of A-Z a-z 0-9 _ - .")]
Nanoseconds = Annotated[int, Meta(ge=0, le=MAX_NS)]
Side = Annotated[int, Meta(ge=1, le=MAX_SIDE)]
Milliseconds = Annotated[float, Meta(ge=0, le=MAX_MS)]


VERSION: Final = 1
MAX_MESSAGE_BYTES = 64 << 20
MAX_ITEMS = 256  # Entries of a list or map; lists of class labels have a higher limit.
_MAX_CONTAINERS = 1 << 12  # Lists and maps in a message; 5 MB of empty maps would need 50 times as much memory.

ContainerT = TypeVar("ContainerT")


class MessageError(SkylaneError):
    """A message was rejected. `frame_id` is set when it could be read, so that the sender can be notified."""

    def __init__(self, message: str, frame_id: FrameId | None = None) -> None:
        self.frame_id = frame_id
        super().__init__(message)


def unpack_map(
    payload: Buffer,
    *,
    noun: str = "a message",
    max_bytes: int = MAX_MESSAGE_BYTES,
    max_containers: int = _MAX_CONTAINERS,
    max_items: int = MAX_ITEMS,
) -> dict[Any, Any]:
    """Decodes a message and checks its size and version.

    Args:
        payload: The encoded message.
        noun: The kind of message, for the error.
        max_bytes: Limit of the payload.
        max_containers: Limit of lists and maps in the whole message.
        max_items: Limit of entries in each list or map.

    Raises:
        MessageError: The payload exceeds a limit, is not a MessagePack map or has another version.
    """
    if len(payload) > max_bytes:
        raise MessageError(f"{noun} of {len(payload)} bytes is over the limit of {max_bytes}")
    # Each container takes at least one byte, so a short payload needs no (slow) counting.
    count = _ContainerLimit(max_containers) if len(payload) > max_containers else None
    try:
        fields = msgpack.unpackb(
            payload,
            max_array_len=max_items,
            max_map_len=max_items,
            max_str_len=MAX_TEXT,
            max_bin_len=MAX_MESSAGE_BYTES,
            max_ext_len=0,
            object_hook=count,
            list_hook=count,
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise MessageError(f"not a MessagePack map: {type(error).__name__} {error}"[:200]) from error
    if not isinstance(fields, dict):
        raise MessageError(f"a {type(fields).__name__} where a map belongs")
    if (version := fields.get("v")) != VERSION:
        raise field_error(fields, "v", f"version {brief(version)} is not supported: send version {VERSION}")
    return fields


def field_error(fields: dict[Any, Any], key: str, problem: str) -> MessageError:
    """Creates the error for a field; it carries the frame id if the message has a valid one."""
    text, frame_id = fields.get("id"), None
    if isinstance(text, str):
        try:
            frame_id = FrameId.parse(text)
        except TopicNameError:
            frame_id = None
    return MessageError(f"field {key!r}: {problem}" if key else problem, frame_id)


def brief(value: object) -> str:
    """Formats a value for an error message: truncates strings, and gives only type and length of containers."""
    if isinstance(value, str):
        return repr(value[:40])
    if isinstance(value, list | dict | bytes):
        return f"{type(value).__name__} of {len(value)}"
    return str(value) if value is None or isinstance(value, int | float) else type(value).__name__


class _ContainerLimit:
    """An unpacking hook that raises ValueError after `limit` lists and maps."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._count = 0

    def __call__(self, container: ContainerT) -> ContainerT:
        self._count += 1
        if self._count > self._limit:
            raise ValueError(f"more than {self._limit} lists and maps")
        return container
