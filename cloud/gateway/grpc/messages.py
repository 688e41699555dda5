"""The messages of gRPC calls, from anybody."""

from typing import Any

from cloud.gateway.common.errors import Kind, RefusedError
from shared.encoding.bounded_protobuf import ProtobufError
from shared.encoding.bounded_protobuf import parse as parse_bounded
from shared.encoding.compression import Buffer
from shared.encoding.protobuf import message_class


def parse(name: str, data: Buffer) -> Any:
    """A message by its full name.

    Raises:
        RefusedError: the bytes are none, or one that takes far more memory than they do.
    """
    try:
        return parse_bounded(message_class(name), data)
    except ProtobufError as error:
        raise RefusedError(Kind.INVALID, f"not {'an' if name[0] in 'aeiou' else 'a'} {name}: {error}") from error
