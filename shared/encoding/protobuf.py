"""Protocol-buffer message classes, by full name.

They are built from `shared/protos/compiled.binpb` (`make protos`) in a separate descriptor pool: TensorFlow registers
messages of the same names in the default pool, which would conflict.
"""

from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

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
    """Returns the request and response classes of each method of a service."""
    methods = _pool().FindServiceByName(service).methods
    return {
        method.name: (message_class(method.input_type.full_name), message_class(method.output_type.full_name))
        for method in methods
    }
