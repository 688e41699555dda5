"""Annotated field types with limits, shared by all messages. A `description` appears in the error of an invalid field."""

from typing import Annotated

from msgspec import Meta

from shared.messages.topics import NAME

MAX_NS = 1 << 62
MAX_TEXT = 4096  # Characters.

Text = Annotated[str, Meta(max_length=MAX_TEXT)]
Name = Annotated[  # A valid topic level.
    str, Meta(pattern=rf"\A{NAME.pattern}\Z", description="a name of 1 to 64 of A-Z a-z 0-9 _ -")
]
Nanoseconds = Annotated[int, Meta(ge=0, le=MAX_NS)]
