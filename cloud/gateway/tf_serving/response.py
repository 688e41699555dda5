"""Writes TensorFlow Serving's PredictResponse."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from cloud.gateway.common.errors import InvalidError
from cloud.gateway.common.inference import Tensor
from cloud.gateway.common.size_budget import SizeBudget
from cloud.gateway.tf_serving.signatures import tensorflow_type
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import STRING, content, extend_values

ENCODING_KEY = "skylane-tensors"  # Metadata with the `TensorEncoding` that the caller requests.


class TensorEncoding(StrEnum):
    """The field of a TensorProto that holds the numbers."""

    TYPED = "typed"  # The list of the tensor's type, as in TensorFlow Serving's responses.
    CONTENT = "content"  # `tensor_content`, which needs no conversion.


def parse_encoding(value: str | None) -> TensorEncoding:
    """Returns the encoding that a caller requests; by default that of TensorFlow Serving.

    Raises:
        ApiError: there is no such encoding.
    """
    if value is None:
        return TensorEncoding.TYPED
    try:
        return TensorEncoding(value)
    except ValueError:
        known = " or ".join(TensorEncoding)
        raise InvalidError(f"{ENCODING_KEY} is {value[:40]!r}: send {known}, or omit it") from None


def write_predict(outputs: Mapping[str, Tensor], spec: Any, encoding: TensorEncoding, max_bytes: int) -> bytes:
    """Serializes a PredictResponse; `spec` is its ModelSpec, `max_bytes` limits the size of the tensors.

    Raises:
        ApiError: the tensors are too large, or an output has an unsupported type.
    """
    is_content = encoding is TensorEncoding.CONTENT
    alternative = "" if is_content else f", or send the metadata {ENCODING_KEY}: {TensorEncoding.CONTENT}"
    budget = SizeBudget(max_bytes, encoding, alternative)
    response = message_class("tensorflow.serving.PredictResponse")(model_spec=spec)
    for name, tensor in outputs.items():
        proto = response.outputs[name]
        charged = _fill(proto, name, tensor, encoding, budget)
        budget.charge(max(0, proto.ByteSize() - charged))
    serialized: bytes = response.SerializeToString()
    return serialized


def _fill(proto: Any, name: str, tensor: Tensor, encoding: TensorEncoding, budget: SizeBudget) -> int:
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
    if encoding is TensorEncoding.CONTENT:
        budget.charge(tensor.nbytes)
        proto.tensor_content = bytes(content(tensor))
        return tensor.nbytes
    extend_values(proto, tensor, budget.charge)
    return tensor.size
