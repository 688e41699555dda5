"""The messages of gRPC calls, from anybody."""

from typing import Any

from cloud.gateway.refusal import Kind, RefusedError
from shared.bounded_messages import MessageBytesError
from shared.bounded_messages import parse as parse_bounded
from shared.compression import Buffer
from shared.protocol_buffers import message_class


def parse(name: str, data: Buffer) -> Any:
    """A message by its full name.

    Raises:
        RefusedError: the bytes are none, or one that takes far more memory than they do.
    """
    try:
        return parse_bounded(message_class(name), data)
    except MessageBytesError as error:
        raise RefusedError(Kind.INVALID, f"not {'an' if name[0] in 'aeiou' else 'a'} {name}: {error}") from error
