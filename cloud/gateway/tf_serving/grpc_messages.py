"""Parses TensorFlow Serving's PredictRequest."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from cloud.gateway.common.errors import ErrorCode, InvalidError, converting_errors
from cloud.gateway.common.inference import Tensor
from cloud.gateway.grpc.call import parse_message
from shared.encoding.compression import Buffer
from shared.encoding.tensorflow_tensors import STRING, dtype_name, from_tensor_proto
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, MAX_TENSORS

_UINT8 = 4
_SHOWN = 200  # Characters of a name in an error message.


class PredictRequest(NamedTuple):
    """A parsed PredictRequest."""

    model: str
    version: int | None
    label: str | None
    signature: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]  # Empty: all.


def read_predict(data: Buffer) -> PredictRequest:
    """Parses a PredictRequest.

    Raises:
        ApiError: the message is malformed, has too many inputs, or a tensor has another type than uint8 or string.
    """
    request = parse_message("tensorflow.serving.PredictRequest", data)
    if len(request.inputs) > MAX_TENSORS:
        raise InvalidError(f"{len(request.inputs)} inputs: send at most {MAX_TENSORS}")
    spec = request.model_spec
    return PredictRequest(
        spec.name,
        *version_choice(spec),
        spec.signature_name,
        {name: _tensor(name, proto) for name, proto in request.inputs.items()},
        tuple(request.output_filter),
    )


def version_choice(spec: Any) -> tuple[int | None, str | None]:
    """Returns the version number and the version label of a ModelSpec, of which at most one is set."""
    number = spec.version.value if spec.HasField("version") else None
    return number, spec.version_label if spec.HasField("version_label") else None


def _tensor(name: str, proto: Any) -> Tensor:
    shown = name[:_SHOWN]
    if proto.dtype not in (_UINT8, STRING):
        given = dtype_name(proto.dtype) or f"type {proto.dtype}"
        raise InvalidError(f"{shown} is {given}: send uint8 pixels, or strings")
    shape = [dim.size for dim in proto.tensor_shape.dim]
    if proto.dtype == _UINT8 and not proto.tensor_content and len(proto.int_val) != prod(shape):
        # TensorFlow repeats the last number to fill the shape: a few bytes would become any number of pixels.
        raise InvalidError(
            f"{shown} has {len(proto.int_val)} numbers, its shape {shape[: MAX_DIMENSIONS + 1]} needs "
            f"{prod(shape) if prod(shape) <= MAX_BYTES else 'more'}: send all"
        )
    with converting_errors(ErrorCode.INVALID, f"{shown}: "):
        array = from_tensor_proto(proto)
    if proto.dtype == _UINT8:
        return array
    if array.ndim != 1:
        raise InvalidError(f"{shown} has strings of shape {list(array.shape)}: send [n]")
    return list(array)
