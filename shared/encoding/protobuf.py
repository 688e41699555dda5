"""Protocol buffers: the messages of gRPC, by their public names.

They are made from one compiled file, `shared/protos/compiled.binpb` (`make protos`), in a pool of descriptors of their
own: TensorFlow brings messages of the same names, and two of a name cannot live in one pool.
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
    for file in compiled.file:  # In the order in which they need each other.
        pool.Add(file)
    return pool


@cache
def message_class(name: str) -> Any:
    """The class of a message by its full name, such as `tensorflow.serving.PredictRequest`."""
    return message_factory.GetMessageClass(_pool().FindMessageTypeByName(name))


@cache
def method_types(service: str) -> dict[str, tuple[Any, Any]]:
    """Of each method of a service, by its name, the classes of what it takes and of what it gives."""
    methods = _pool().FindServiceByName(service).methods
    return {
        method.name: (message_class(method.input_type.full_name), message_class(method.output_type.full_name))
        for method in methods
    }
