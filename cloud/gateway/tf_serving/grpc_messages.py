"""TensorFlow Serving's PredictRequest."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Tensor
from cloud.gateway.grpc.messages import parse
from shared.encoding.compression import Buffer
from shared.encoding.tensorflow_tensors import STRING, dtype_name, from_tensor_proto
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, MAX_TENSORS, TensorsError

UINT8 = 4

_SHOWN = 200  # Characters of a name.


class PredictRequest(NamedTuple):
    """A PredictRequest that has been read."""

    model: str
    version: int | None
    label: str | None
    signature: str
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]  # Empty: all.


def read_predict(data: Buffer) -> PredictRequest:
    """Read a PredictRequest.

    Raises:
        RefusedError: it is none, has too many inputs, or a tensor is no uint8 and no list of strings.
    """
    request = parse("tensorflow.serving.PredictRequest", data)
    if len(request.inputs) > MAX_TENSORS:
        raise RefusedError(Kind.INVALID, f"{len(request.inputs)} inputs: send at most {MAX_TENSORS}")
    spec = request.model_spec
    return PredictRequest(
        spec.name,
        spec.version.value if spec.HasField("version") else None,
        spec.version_label if spec.HasField("version_label") else None,
        spec.signature_name,
        {name: _tensor(name, proto) for name, proto in request.inputs.items()},
        tuple(request.output_filter),
    )


def _tensor(name: str, proto: Any) -> Tensor:
    shown = name[:_SHOWN]
    if proto.dtype not in (UINT8, STRING):
        given = dtype_name(proto.dtype) or f"type {proto.dtype}"
        raise RefusedError(Kind.INVALID, f"{shown} is {given}: send uint8 pixels, or strings")
    sides = [dim.size for dim in proto.tensor_shape.dim]
    if proto.dtype == UINT8 and not proto.tensor_content and len(proto.int_val) != prod(sides):
        # TensorFlow lets the last number stand for all that follow: a few bytes would become any number of pixels.
        raise RefusedError(
            Kind.INVALID,
            f"{shown} holds {len(proto.int_val)} numbers, its shape {sides[: MAX_DIMENSIONS + 1]} takes "
            f"{prod(sides) if prod(sides) <= MAX_BYTES else 'more'}: send all",
        )
    try:
        array = from_tensor_proto(proto)
    except TensorsError as error:
        raise RefusedError(Kind.INVALID, f"{shown}: {error}") from error
    if proto.dtype == UINT8:
        return array
    if array.ndim != 1:
        raise RefusedError(Kind.INVALID, f"{shown} holds strings, its shape is {list(array.shape)}: send [n]")
    return list(array)
