"""Annotated field types with limits, shared by all messages. A `description` appears in the error of an invalid field."""

from typing import Annotated

from msgspec import Meta

from shared.messages.topics import NAME

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
