"""Answers: what a server that says it is a worker, or has a model, may answer a vehicle and a worker with.

An input is one byte that picks the reader, then the answer.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cloud.engines.remote.channel import RemoteError, parsed
from edge.transports.channel import Returned
from edge.transports.frame_metadata import MASK_HEADER, MASK_KEY, RESULT
from edge.transports.protocols import open_inference, tensorflow_serving
from edge.transports.protocols.skylane import SkylaneAdapter
from shared.encoding.open_inference_tensors import from_contents, from_raw
from shared.encoding.protobuf import message_class
from shared.encoding.protobuf_wire import pack
from shared.encoding.tensorflow_tensors import from_tensor_proto, to_tensor_proto
from shared.errors import SkylaneError
from shared.messages.frame import ResultMessage, Status, pack_result
from shared.messages.model_card import Task
from shared.messages.tensors import TensorsError
from shared.messages.topics import FrameId

MAX_BYTES = 1 << 13

_NUMBERS = np.arange(6, dtype=np.float32).reshape(1, 6)
_MASK = pack_result(
    ResultMessage(FrameId("car", "left", "s1", 7), 1, Status.ANSWERED, "worker", task=Task.SEGMENTATION, shape=(1, 2))
)
_METADATA: Mapping[str, str | bytes] = {MASK_KEY: _MASK}
_HEADER = base64.urlsafe_b64encode(_MASK).decode().rstrip("=")
_STRING = b"\2\0\0\0ab"


class _Reader(NamedTuple):
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def _rest_infer(data: bytes) -> object:
    """The first byte tells how long the JSON is."""
    beside = {MASK_HEADER: _HEADER, open_inference.LENGTH_HEADER: str(data[0] if data else 0)}
    return open_inference.OipRestAdapter("net").read(Returned(data[1:], beside, 0))


def _rest_infer_seeds() -> Iterator[bytes]:
    head = json.dumps({"outputs": [{"name": RESULT, "parameters": {"binary_data_size": len(_STRING)}}]}).encode()
    yield bytes([len(head)]) + head + _STRING


def _infer_answer_seeds() -> Iterator[bytes]:
    answer = message_class("inference.ModelInferResponse")
    yield answer(raw_output_contents=[_STRING]).SerializeToString()


def _predict_answer_seeds() -> Iterator[bytes]:
    answer = message_class("tensorflow.serving.PredictResponse")()
    to_tensor_proto(np.array([b"ab"], object), answer.outputs[RESULT])
    yield answer.SerializeToString()


def _triton(data: bytes) -> None:
    """A batch's answer, as the engine `triton` reads it."""
    answer = parsed(message_class("inference.ModelInferResponse"), data)
    for place, each in enumerate(answer.outputs):
        if answer.raw_output_contents:
            raw = answer.raw_output_contents[place] if place < len(answer.raw_output_contents) else b""
            from_raw(memoryview(raw), each.datatype, list(each.shape))
        else:
            from_contents(each.contents, each.datatype, list(each.shape))


def _triton_seeds() -> Iterator[bytes]:
    answer = message_class("inference.ModelInferResponse")()
    answer.outputs.add(name="scores", datatype="FP32", shape=_NUMBERS.shape)
    answer.raw_output_contents.append(_NUMBERS.tobytes())
    yield answer.SerializeToString()
    answer.ClearField("raw_output_contents")
    answer.outputs[0].contents.fp32_contents.extend(_NUMBERS.ravel().tolist())
    yield answer.SerializeToString()


def _tensorflow_serving(data: bytes) -> None:
    answer = parsed(message_class("tensorflow.serving.PredictResponse"), data)
    for proto in answer.outputs.values():
        if sum(dim.size for dim in proto.tensor_shape.dim) < 1 << 16:  # What is larger takes memory, and is no finding.
            from_tensor_proto(proto)


def _tensorflow_serving_seeds() -> Iterator[bytes]:
    answer = message_class("tensorflow.serving.PredictResponse")()
    to_tensor_proto(_NUMBERS, answer.outputs["scores"])
    yield answer.SerializeToString()


def _rest_predict_seeds() -> Iterator[bytes]:
    yield json.dumps({"predictions": [{"b64": "YWI="}]}).encode()


_READERS = (
    _Reader(lambda data: SkylaneAdapter().read(Returned(data, {}, 0)), lambda: iter([pack(_MASK)])),
    _Reader(lambda data: open_inference.OipGrpcAdapter().read(Returned(data, _METADATA, 0)), _infer_answer_seeds),
    _Reader(
        lambda data: tensorflow_serving.TfServingGrpcAdapter().read(Returned(data, _METADATA, 0)), _predict_answer_seeds
    ),
    _Reader(_rest_infer, _rest_infer_seeds),
    _Reader(
        lambda data: tensorflow_serving.TfServingRestAdapter("net").read(Returned(data, {MASK_HEADER: _HEADER}, 0)),
        _rest_predict_seeds,
    ),
    _Reader(_triton, _triton_seeds),
    _Reader(_tensorflow_serving, _tensorflow_serving_seeds),
)


def seeds() -> Iterator[bytes]:
    """Valid answers, as the servers write them."""
    for place, reader in enumerate(_READERS):
        yield from (bytes([place]) + body for body in reader.seeds())


def run(data: bytes) -> None:
    """Read one answer; anything but our own errors is a finding."""
    if data:
        with suppress(SkylaneError, RemoteError, TensorsError):
            _READERS[data[0] % len(_READERS)].read(data[1:])
