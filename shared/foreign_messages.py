"""Protocol buffers from elsewhere: parsed by the library once it is sure what memory that takes.

Two bytes can be a message in a list, and take a hundred when they are parsed; of a list of whole numbers each byte can be
one, and takes eight. All other fields take what they hold.
"""

from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from shared.compression import Buffer
from shared.large_fields import FieldsError, fields
from shared.varints import MAX_PACKED_BYTES

MAX_NESTED = 16  # Messages within one another.
MAX_ALL_FIELDS = 16_384  # Of a message and of all within it.

_FIXED = {  # In a list as in memory.
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_STRING,
}


def parse(message_class: Any, data: Buffer) -> Any:
    """A message of that class.

    Raises:
        FieldsError: the bytes are none, or one that takes far more memory than they do.
    """
    _Scales().weigh(memoryview(data), message_class.DESCRIPTOR, 0)
    try:
        return message_class.FromString(bytes(data))
    except DecodeError as error:
        raise FieldsError(f"it is no {message_class.DESCRIPTOR.full_name}") from error


class _Scales:
    """What has been found of one message so far."""

    def __init__(self) -> None:
        self._fields = 0
        self._list_bytes = 0

    def weigh(self, data: memoryview, kind: Descriptor, depth: int) -> None:
        if depth > MAX_NESTED:
            raise FieldsError(f"more than {MAX_NESTED} messages lie within one another")
        for number, value in fields(data):
            self._fields += 1
            if self._fields > MAX_ALL_FIELDS:
                raise FieldsError(f"it has more than {MAX_ALL_FIELDS} fields")
            told = kind.fields_by_number.get(number)
            if told is None or value is None:
                continue
            if told.message_type is not None:
                self.weigh(value, told.message_type, depth + 1)
            elif told.cpp_type not in _FIXED:
                self._list_bytes += len(value)
                if self._list_bytes > MAX_PACKED_BYTES:
                    raise FieldsError(f"its lists of whole numbers take more than {MAX_PACKED_BYTES} bytes")
