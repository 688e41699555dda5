"""TensorFlow Serving's gRPC services."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from cloud.gateway.common.inference import InferenceCall, start_inference
from cloud.gateway.common.tensors import SizeBudget, Tensor
from cloud.gateway.common.tf_serving import (
    find_signature,
    find_version,
    model_spec,
    model_status,
    signature_defs,
    tensorflow_type,
)
from cloud.gateway.grpc.call import GrpcCall, Method, Services, parse_message
from cloud.serving.errors import ApiError, ErrorCode, InvalidError, converting_errors
from shared.compression import Buffer
from shared.messages.protobuf import message_class
from shared.messages.tensorflow_tensors import STRING, dtype_name, extend_values, from_tensor_proto
from shared.messages.tensors import MAX_BYTES, MAX_DIMENSIONS, MAX_TENSORS, little_endian

ENCODING_KEY = "skylane-tensors"  # Metadata with the one of `ENCODINGS` that the caller requests.
# Where a TensorProto has its numbers: in the list of their type, as in TensorFlow Serving's responses, or in
# `tensor_content`, which needs no conversion.
ENCODINGS = (TYPED, CONTENT) = ("typed", "content")

_UINT8 = 4
_SHOWN = 200  # Characters of a name in an error message.


class PredictRequest(NamedTuple):
    """A parsed PredictRequest."""

    spec: Any  # The ModelSpec.
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]  # Empty: all.


def read_predict(data: Buffer) -> PredictRequest:
    """Parses a PredictRequest, whose tensors are uint8 or strings."""
    request = parse_message("tensorflow.serving.PredictRequest", data)
    if len(request.inputs) > MAX_TENSORS:
        raise InvalidError(f"{len(request.inputs)} inputs: send at most {MAX_TENSORS}")
    inputs = {name: _tensor(name, proto) for name, proto in request.inputs.items()}
    return PredictRequest(request.model_spec, inputs, tuple(request.output_filter))


def write_predict(outputs: Mapping[str, Tensor], spec: Any, encoding: str, max_bytes: int) -> bytes:
    """Serializes a PredictResponse; `spec` is its ModelSpec, `max_bytes` limits the size of the tensors."""
    if encoding not in ENCODINGS:
        raise InvalidError(f"{ENCODING_KEY} is {encoding[:40]!r}: send {' or '.join(ENCODINGS)}, or omit it")
    alternative = f", or send the metadata {ENCODING_KEY}: {CONTENT}"
    budget = SizeBudget(max_bytes, f", {encoding}", "" if encoding == CONTENT else alternative)
    response = message_class("tensorflow.serving.PredictResponse")(model_spec=spec)
    for name, tensor in outputs.items():
        proto = response.outputs[name]
        charged = _fill(proto, name, tensor, encoding, budget)
        budget.charge(max(0, proto.ByteSize() - charged))
    return bytes(response.SerializeToString())


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


def _fill(proto: Any, name: str, tensor: Tensor, encoding: str, budget: SizeBudget) -> int:
    """Writes a tensor into its TensorProto; returns the bytes charged for it, the minimum size of its values."""
    proto.dtype = tensorflow_type(name, tensor)
    shape = tensor.shape if isinstance(tensor, np.ndarray) else (len(tensor),)
    for size in shape:
        proto.tensor_shape.dim.add(size=size)
    if not isinstance(tensor, np.ndarray) or proto.dtype == STRING:
        texts = tensor.ravel() if isinstance(tensor, np.ndarray) else tensor
        values = [text.encode() if isinstance(text, str) else bytes(text) for text in texts]
        charged = sum(map(len, values))
        budget.charge(charged)
        proto.string_val.extend(values)
        return charged
    if encoding == CONTENT:
        budget.charge(tensor.nbytes)
        proto.tensor_content = bytes(little_endian(tensor))
        return tensor.nbytes
    extend_values(proto, tensor, budget.charge)
    return tensor.size


CODEC_KEY = "skylane-codec"  # Codec of `image_bytes` that are neither JPEG nor PNG: raw, lz4 or zstd.
MASK_CODEC_KEY = "skylane-mask-codec"  # Codec of the masks in `result_bytes`.

_FRONTEND = "tfs-grpc"
_METADATA_FIELD = "signature_def"


def _predict(call: GrpcCall) -> bytes:
    caller = call.authenticate()
    request = read_predict(call.data)
    signature = find_signature(request.spec.signature_name, is_vehicle=call.frame is not None)
    signature.check_inputs(request.inputs)
    inference = InferenceCall(
        terms=call.terms(_FRONTEND, caller),
        model=request.spec.name,
        inputs=request.inputs,
        version=_version(call, request.spec),
        outputs=signature.requested_outputs(request.outputs),
        codec=call.text(CODEC_KEY),
        mask_codec=call.text(MASK_CODEC_KEY) or "png",
    )
    reply = call.wait_for(start_inference(call.worker.submission, inference))
    spec = model_spec(reply.card, signature.name)
    encoding = call.text(ENCODING_KEY) or TYPED
    return write_predict(reply.outputs, spec, encoding, call.worker.config.max_message_bytes)


def _metadata(call: GrpcCall) -> bytes:
    call.authenticate()
    request = parse_message("tensorflow.serving.GetModelMetadataRequest", call.data)
    if list(request.metadata_field) != [_METADATA_FIELD]:
        given = ", ".join(name[:40] for name in request.metadata_field[:8]) or "none"
        raise InvalidError(f"metadata_field {given}: request {_METADATA_FIELD} only")
    served = call.worker.submission.find(request.model_spec.name, _version(call, request.model_spec))
    response = message_class("tensorflow.serving.GetModelMetadataResponse")(model_spec=model_spec(served.card))
    response.metadata[_METADATA_FIELD].Pack(signature_defs(served))
    return bytes(response.SerializeToString())


def _status(call: GrpcCall) -> bytes:
    call.authenticate()
    spec = parse_message("tensorflow.serving.GetModelStatusRequest", call.data).model_spec
    return bytes(model_status(call.worker.submission, spec.name, _version(call, spec)).SerializeToString())


def _unsupported(_: GrpcCall) -> NoReturn:
    raise ApiError(
        ErrorCode.UNIMPLEMENTED,
        "this worker supports only Predict, GetModelMetadata and GetModelStatus: call Predict; load models with "
        "`skylane cloud control`",
    )


def _version(call: GrpcCall, spec: Any) -> str | None:
    """Returns the name of the version that a ModelSpec selects by number or label; None if it has neither."""
    number = spec.version.value if spec.HasField("version") else None
    label = spec.version_label if spec.HasField("version_label") else None
    return find_version(call.worker.submission, spec.name, number, label)


SERVICES: Services = {
    "tensorflow.serving.PredictionService": {
        "Predict": Method(_predict),
        "GetModelMetadata": Method(_metadata),
        **dict.fromkeys(("Classify", "Regress", "MultiInference"), Method(_unsupported)),
    },
    "tensorflow.serving.ModelService": {
        "GetModelStatus": Method(_status),
        "HandleReloadConfigRequest": Method(_unsupported),
    },
}
