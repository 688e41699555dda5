"""ModelInfer's messages of gRPC: what is large in them is read and written by hand, the rest by the library."""

from collections.abc import Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from cloud.gateway.oip_answer import OutputTensor
from cloud.gateway.oip_request import (
    InferRequest,
    InputTensor,
    Parameters,
    WantedOutput,
    check_here,
    read_input,
    told,
)
from cloud.gateway.refusal import Kind, RefusedError
from shared.compression import Buffer
from shared.large_fields import FieldsError, head, split
from shared.open_inference_tensors import BYTES, from_contents
from shared.protocol_buffers import message_class

_RAW_INPUT_CONTENTS = 7  # The fields' numbers.
_RAW_OUTPUT_CONTENTS = 6
_MAX_LISTED_BYTES = 32 << 20  # Of numbers in lists: each byte there may take four here.


def read_request(data: Buffer) -> InferRequest:
    """Read a ModelInferRequest.

    Raises:
        RefusedError: it is none, or a tensor is not of its shape and datatype.
    """
    message, raws = _divided(data)
    for each in message.inputs:
        check_here("input", each.name, each.parameters)
    listed = [each for each in message.inputs if each.HasField("contents")]
    if raws and (listed or len(raws) != len(message.inputs)):
        raise RefusedError(
            Kind.INVALID,
            f"{len(message.inputs)} inputs come with {len(raws)} raw_input_contents and {len(listed)} contents: "
            "send one raw content for each input, or none",
        )
    tensors = (
        _listed(each)
        if not raws
        else read_input(each.name, each.datatype, list(each.shape), raws[place], _parameters(each.parameters))
        for place, each in enumerate(message.inputs)
    )
    return InferRequest(
        model=message.model_name,
        version=message.model_version or None,
        id=message.id,
        parameters=_parameters(message.parameters),
        inputs=tuple(tensors),
        outputs=tuple(WantedOutput(each.name, _parameters(each.parameters)) for each in message.outputs),
    )


def write_response(request: InferRequest, version: str, outputs: tuple[OutputTensor, ...]) -> bytes:
    """The wire form of a ModelInferResponse."""
    message = message_class("inference.ModelInferResponse")(
        model_name=request.model, model_version=version, id=request.id
    )
    for each in outputs:
        message.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
    return b"".join([message.SerializeToString(), *_raw(outputs)])  # The only copy of the numbers.


def _raw(outputs: tuple[OutputTensor, ...]) -> Iterator[Buffer]:
    for each in outputs:
        parts = each.raw()
        yield head(_RAW_OUTPUT_CONTENTS, sum(len(part) for part in parts))
        yield from parts


def _divided(data: Buffer) -> tuple[Any, list[memoryview]]:
    """The message without its raw contents, and those."""
    try:
        small, raws = split(data, _RAW_INPUT_CONTENTS)
        if len(small) > _MAX_LISTED_BYTES:
            raise RefusedError(
                Kind.TOO_LARGE,
                f"{len(small)} bytes beside raw_input_contents: at most {_MAX_LISTED_BYTES} are read; send tensors raw",
            )
        return message_class("inference.ModelInferRequest").FromString(small), raws
    except (FieldsError, DecodeError) as error:
        raise RefusedError(Kind.INVALID, f"not an inference.ModelInferRequest: {error}") from error


def _listed(given: Any) -> InputTensor:
    """An input whose values lie in the list of their type."""
    parameters, shape = _parameters(given.parameters), list(given.shape)
    if given.datatype == BYTES:  # Written raw by turns with their lengths they would be copied once more.
        array = told(given.name, lambda: from_contents(given.contents, BYTES, shape))
        return InputTensor(given.name, array.reshape(-1).tolist(), parameters)
    return InputTensor(
        given.name, told(given.name, lambda: from_contents(given.contents, given.datatype, shape)), parameters
    )


def _parameters(given: Mapping[str, Any]) -> Parameters:
    named: dict[str, Any] = {}
    for name, value in given.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is not None:
            named[name] = getattr(value, kind)
    return named
