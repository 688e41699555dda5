import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FieldDescriptor

from shared.messages.protobuf import COMPILED, message_class, method_types

PROTOS = Path(__file__).parents[3] / "shared" / "protos"
PUBLIC = {  # Services of other protocols, and the modules of their public stubs.
    "tensorflow.serving.PredictionService": "tensorflow_serving.apis.prediction_service_pb2",
    "tensorflow.serving.ModelService": "tensorflow_serving.apis.model_service_pb2",
    "inference.GRPCInferenceService": "tritonclient.grpc.service_pb2",
}
# Messages transmitted as bytes within others.
EMBEDDED = {"tensorflow.serving.SignatureDefMap": "tensorflow_serving.apis.get_model_metadata_pb2"}
_AS_ENUM = {FieldDescriptor.TYPE_ENUM: FieldDescriptor.TYPE_INT32}  # Encoded alike.


def compiled() -> Any:
    """Returns the file descriptors from which the code builds its messages."""
    return descriptor_pb2.FileDescriptorSet.FromString((PROTOS / COMPILED).read_bytes())


def test_compiled_file_matches_the_sources(tmp_path: Path) -> None:
    """`make protos` compiles the .proto files; a change without it must not go unnoticed."""
    fresh = tmp_path / COMPILED
    own = sorted(path.name for path in PROTOS.glob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    written = ["--include_imports", f"--descriptor_set_out={fresh}"]
    # In a subprocess: protoc crashes a process that has loaded TensorFlow's protocol buffers.
    protoc = [sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTOS}", f"-I{well_known}", *written, *own]
    subprocess.run(protoc, check=True)
    theirs = descriptor_pb2.FileDescriptorSet.FromString(fresh.read_bytes())
    assert {file.name: file for file in compiled().file} == {file.name: file for file in theirs.file}
    assert set(own) <= {file.name for file in theirs.file}


@pytest.mark.parametrize("service", PUBLIC)
def test_services_match_the_public_stubs(service: str) -> None:
    """A wrong field number would make the calls of ordinary clients be misread silently."""
    public = import_module(PUBLIC[service]).DESCRIPTOR.services_by_name[service.rpartition(".")[2]]
    methods = {method.name: method for method in public.methods}
    seen: set[str] = set()
    for name, (takes, gives) in method_types(service).items():
        for own, theirs in ((takes, methods[name].input_type), (gives, methods[name].output_type)):
            assert own.DESCRIPTOR.full_name == theirs.full_name
            seen |= dict(_compared(own.DESCRIPTOR, theirs, set())).keys()
    assert seen >= {each.DESCRIPTOR.full_name for pair in method_types(service).values() for each in pair}


@pytest.mark.parametrize("name", EMBEDDED)
def test_embedded_messages_match_the_public_stubs(name: str) -> None:
    """These messages are transmitted as bytes within others, so no service refers to them."""
    theirs = import_module(EMBEDDED[name]).DESCRIPTOR.message_types_by_name[name.rpartition(".")[2]]
    assert dict(_compared(message_class(name).DESCRIPTOR, theirs, set()))


def test_skylane_service_uses_packed_messages() -> None:
    """docs/reference/protocol.md describes the MessagePack content."""
    packed = message_class("skylane.v1.Packed")
    assert [(field.name, field.number) for field in packed.DESCRIPTOR.fields] == [("message", 1)]
    assert method_types("skylane.v1.Worker").keys() == {"Answer", "Status", "Probe"}
    assert packed(message=b"x").SerializeToString() == b"\n\1x"


def _compared(own: Any, theirs: Any, done: set[str]) -> Iterator[tuple[str, Any]]:
    """Compares every field with the public stub; yields the messages reached."""
    if own.full_name in done:
        return
    done.add(own.full_name)
    public = {field.name: field for field in theirs.fields}
    for field in own.fields:
        other = public[field.name]
        for fact in ("number", "is_repeated", "is_required"):
            assert getattr(field, fact) == getattr(other, fact), (own.full_name, field.name, fact)
        assert field.type in (other.type, _AS_ENUM.get(other.type)), (own.full_name, field.name)
        if field.containing_oneof:  # A field may lack its oneof, which does not change the encoding.
            assert field.containing_oneof.name == other.containing_oneof.name, (own.full_name, field.name)
        if field.message_type:
            yield from _compared(field.message_type, other.message_type, done)
        if field.enum_type:
            numbers = {value.name: value.number for value in other.enum_type.values}
            for value in field.enum_type.values:
                assert numbers[value.name] == value.number, (own.full_name, value.name)
    yield own.full_name, own
