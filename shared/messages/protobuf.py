"""Protocol-buffer message classes by full name, and parsing of messages with limits.

The classes are built from `shared/protos/compiled.binpb` (`make protos`) in a separate descriptor pool: TensorFlow registers
messages of the same names in the default pool, which would conflict.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from shared.compression import Buffer
from shared.messages.protobuf_fields import MAX_FIELDS, ProtobufError, check_count, fields

COMPILED = "compiled.binpb"


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    pool = descriptor_pool.DescriptorPool()
    compiled = descriptor_pb2.FileDescriptorSet.FromString((files("shared") / "protos" / COMPILED).read_bytes())
    for file in compiled.file:  # Sorted by dependency.
        pool.Add(file)
    return pool


@cache
def message_class(name: str) -> Any:
    """Returns the class of a message by its full name, such as `tensorflow.serving.PredictRequest`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


@cache
def method_types(service: str) -> dict[str, tuple[Any, Any]]:
    """Returns the request and response classes by method of a service, given by its full name."""
    methods = _pool().FindServiceByName(service).methods
    return {
        method.name: (message_class(method.input_type.full_name), message_class(method.output_type.full_name))
        for method in methods
    }


__all__ = ["MAX_FIELDS", "MAX_LIST_BYTES", "ProtobufError", "parse"]

MAX_LIST_BYTES = 16 << 20  # Bytes of all packed integer lists; parsing them takes 8 times as much and holds the GIL.

_SAME_SIZE_IN_MEMORY = {
    FieldDescriptor.CPPTYPE_FLOAT,
    FieldDescriptor.CPPTYPE_DOUBLE,
    FieldDescriptor.CPPTYPE_STRING,
}


def parse(message_class: Any, data: Buffer) -> Any:
    """Parses a message of the given class, of at most MAX_FIELDS fields and MAX_LIST_BYTES in lists of integers.

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
