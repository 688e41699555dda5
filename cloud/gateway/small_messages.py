"""Protocol buffers read by the library: all but what carries pictures."""

from typing import Any

from google.protobuf.message import DecodeError

from cloud.gateway.refusal import Kind, RefusedError
from shared.compression import Buffer
from shared.protocol_buffers import message_class

MAX_SMALL_BYTES = 1 << 20  # Two bytes can be an entry of a map or a list, and each takes a hundred here.


def parse(name: str, data: Buffer) -> Any:
    """A message by its full name; what is large in it has been taken out.

    Raises:
        RefusedError: the bytes are none, or too many.
    """
    if len(data) > MAX_SMALL_BYTES:
        raise RefusedError(
            Kind.TOO_LARGE,
            f"{len(data)} bytes of {name} beside its tensors' data: at most {MAX_SMALL_BYTES} are read; send no more than "
            "its .proto has",
        )
    try:
        return message_class(name).FromString(bytes(data))
    except DecodeError as error:
        article = "an" if name[0] in "aeiou" else "a"
        raise RefusedError(Kind.INVALID, f"not {article} {name}: send the message as its .proto says") from error
