"""TensorFlow Serving's PredictResponse; what is large in it is written by hand."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import numpy as np

from cloud.gateway.calls import Tensor
from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.room import Room
from cloud.gateway.tfs_signatures import type_of
from shared.compression import Buffer
from shared.large_fields import head
from shared.protocol_buffers import message_class
from shared.tensorflow_tensors import STRING, content, typed_list

FORM_KEY = "skylane-tensors"  # The metadata in which a caller says which form it reads.

_OUTPUTS, _MODEL_SPEC = 1, 2  # Fields of the response: a map, of which an entry is
_KEY, _VALUE = 1, 2  # a key and a value, and what answered.
_CONTENT, _STRING_VAL = 4, 8  # Fields of TensorProto.


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


def write_predict(outputs: Mapping[str, Tensor], spec: Any, form: Form, largest: int) -> Sequence[Buffer]:
    """A PredictResponse in parts, of at most `largest` bytes beside names and shapes; `spec`: the ModelSpec of what answered.

    Raises:
        RefusedError: it would take more, or an output is of a type that is not spoken here.
    """
    instead = "" if form is Form.CONTENT else f", or send the metadata {FORM_KEY}: {Form.CONTENT}"
    room = Room(largest, form, instead)
    parts: list[Buffer] = []
    for name, tensor in outputs.items():
        key = name.encode()
        value = _tensor_parts(name, tensor, form, room)
        size = sum(map(len, value))
        before = b"".join((head(_KEY, len(key)), key, head(_VALUE, size)))
        parts += (head(_OUTPUTS, len(before) + size), before, *value)
    told = spec.SerializeToString()
    parts += (head(_MODEL_SPEC, len(told)), told)
    return parts


def _tensor_parts(name: str, tensor: Tensor, form: Form, room: Room) -> list[Buffer]:
    """A TensorProto in parts."""
    dtype = type_of(name, tensor)
    if not isinstance(tensor, np.ndarray):
        return [_announced(dtype, (len(tensor),)), *_within(room, _strings(tensor))]
    told = _announced(dtype, tensor.shape)
    if dtype == STRING:
        return [told, *_within(room, _strings(tensor.ravel()))]
    number, parts = (_CONTENT, iter([content(tensor)])) if form is Form.CONTENT else typed_list(tensor)
    numbers = _within(room, parts)
    return [told, head(number, sum(map(len, numbers))), *numbers]


def _within(room: Room, parts: Iterable[Buffer]) -> list[Buffer]:
    """All of the parts; where there is no room for them, no more are written."""
    taken: list[Buffer] = []
    for part in parts:
        room.take(len(part))
        taken.append(part)
    return taken


def _announced(dtype: int, shape: tuple[int, ...]) -> bytes:
    """A TensorProto without its values."""
    proto = message_class("tensorflow.TensorProto")
    told: bytes = proto(dtype=dtype, tensor_shape={"dim": [{"size": side} for side in shape]}).SerializeToString()
    return told


def _strings(texts: Iterable[Any]) -> Iterator[Buffer]:
    """The values of a list of strings: bytes, or text where a library has them so."""
    for text in texts:
        value = text.encode() if isinstance(text, str) else text
        yield head(_STRING_VAL, len(value))
        yield value
