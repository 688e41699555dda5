"""A protocol-buffer parser for untrusted input, with limits on the number of fields and on packed lists.

A parsed message can take far more memory than its bytes: 50 times as much for repeated empty messages, 8 times for packed
integers. One pass over the fields therefore checks the limits before the protobuf library parses the message.
"""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from shared.encoding.compression import Buffer
from shared.encoding.protobuf_fields import MAX_FIELDS, ProtobufError, check_count, fields

__all__ = ["MAX_FIELDS", "MAX_LIST_BYTES", "ProtobufError", "parse"]

MAX_LIST_BYTES = 16 << 20  # Bytes of all packed integer lists; parsing them takes 8 times as much and holds the GIL.

_SAME_SIZE_IN_MEMORY = {
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_STRING,
}


def parse(message_class: Any, data: Buffer) -> Any:
    """Parses a message of the given class.

    Raises:
        ProtobufError: The data is not such a message or exceeds a limit.
    """
    _LimitCheck().check(memoryview(data), message_class.DESCRIPTOR)
    try:
        return message_class.FromString(bytes(data))
    except DecodeError as error:
        raise ProtobufError("they cannot be read: send the message as its .proto says") from error


class _LimitCheck:
    """Counts the fields and list bytes of one message."""

    def __init__(self) -> None:
        self._fields = 0
        self._list_bytes = 0

    def check(self, data: memoryview, descriptor: Descriptor) -> None:
        """Checks a message and its nested messages; the recursion ends because none of our types contains itself."""
        for number, value in fields(data):
            self._fields += 1
            check_count(self._fields)
            field = descriptor.fields_by_number.get(number)
            if field is None or isinstance(value, int):
                continue
            if field.message_type is not None:
                self.check(value, field.message_type)
            elif field.cpp_type not in _SAME_SIZE_IN_MEMORY:
                self._list_bytes += len(value)
                if self._list_bytes > MAX_LIST_BYTES:
                    raise ProtobufError(f"its lists of integers take more than {MAX_LIST_BYTES} bytes: send them raw")
