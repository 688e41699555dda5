"""TensorFlow Serving's PredictResponse."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import numpy as np

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.inference import Tensor
from cloud.gateway.common.size_budget import Room
from cloud.gateway.tf_serving.signatures import type_of
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import STRING, content, extend_values

FORM_KEY = "skylane-tensors"  # The metadata in which a caller says which form it reads.


class Form(StrEnum):
    """How the numbers of an answer lie in it."""

    TYPED = "typed"  # In the list of their type, where TensorFlow Serving has them and its clients look for them.
    CONTENT = "content"  # As the bytes that they are.


def form_of(told: str | None) -> Form:
    """The form that a caller asks for; TensorFlow Serving's own where it asks for none.

    Raises:
        RefusedError: there is no such form.
    """
    if told is None:
        return Form.TYPED
    try:
        return Form(told)
    except ValueError:
        known = " or ".join(Form)
        raise RefusedError(Kind.INVALID, f"{FORM_KEY} is {told[:40]!r}: send {known}, or leave it out") from None


def write_predict(outputs: Mapping[str, Tensor], spec: Any, form: Form, largest: int) -> bytes:
    """The wire form of a PredictResponse of at most `largest` bytes beside its spec; `spec`: the ModelSpec of what answered.

    Raises:
        RefusedError: it would take more, or an output is of a type that is not spoken here.
    """
    instead = "" if form is Form.CONTENT else f", or send the metadata {FORM_KEY}: {Form.CONTENT}"
    room = Room(largest, form, instead)
    response = message_class("tensorflow.serving.PredictResponse")(model_spec=spec)
    for name, tensor in outputs.items():
        proto = response.outputs[name]
        taken = _fill(proto, name, tensor, form, room)
        room.take(max(0, proto.ByteSize() - taken))
    told: bytes = response.SerializeToString()
    return told


def _fill(proto: Any, name: str, tensor: Tensor, form: Form, room: Room) -> int:
    """Write a tensor into its TensorProto; how much of the room was taken for it: what its values take at least."""
    proto.dtype = type_of(name, tensor)
    shape = tensor.shape if isinstance(tensor, np.ndarray) else (len(tensor),)
    for side in shape:
        proto.tensor_shape.dim.add(size=side)
    if not isinstance(tensor, np.ndarray) or proto.dtype == STRING:
        texts = tensor.ravel() if isinstance(tensor, np.ndarray) else tensor
        values = [text.encode() if isinstance(text, str) else bytes(text) for text in texts]
        size = sum(map(len, values))
        room.take(size)
        proto.string_val.extend(values)
        return size
    if form is Form.CONTENT:
        room.take(tensor.nbytes)
        proto.tensor_content = bytes(content(tensor))
        return tensor.nbytes
    extend_values(proto, tensor, room.take)
    return tensor.size
