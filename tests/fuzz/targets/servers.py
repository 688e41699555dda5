"""Fuzz target of server replies: of workers to vehicles, and of model servers to workers.

The first byte of an input selects the parser.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cloud.engines.remote.channel import RemoteError, parsed
from edge.transports import open_inference, tensorflow_serving
from edge.transports.channel import MASK_HEADER, MASK_KEY, RESULT, RpcReply
from edge.transports.grpc_channel import SkylaneAdapter
from shared.errors import SkylaneError
from shared.messages.frame import ResultMessage, Status, pack_result
from shared.messages.open_inference_tensors import from_contents, from_raw
from shared.messages.protobuf import message_class
from shared.messages.protobuf_fields import pack
from shared.messages.tensorflow_tensors import from_tensor_proto, to_tensor_proto
from shared.messages.tensors import TensorsError
from shared.messages.topics import FrameId

MAX_BYTES = 1 << 13

_NUMBERS = np.arange(6, dtype=np.float32).reshape(1, 6)
_MASK = pack_result(
    ResultMessage(FrameId("car", "left", "s1", 7), 1, Status.ANSWERED, "worker", task="segmentation", shape=(1, 2))
)
_METADATA: Mapping[str, str | bytes] = {MASK_KEY: _MASK}
_HEADER = base64.urlsafe_b64encode(_MASK).decode().rstrip("=")
_STRING = b"\2\0\0\0ab"


class _Parser(NamedTuple):
    parse: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def _rest_infer(data: bytes) -> object:
    """The first byte is the length of the JSON part."""
    headers = {MASK_HEADER: _HEADER, open_inference.LENGTH_HEADER: str(data[0] if data else 0)}
    return open_inference.OipRestAdapter("net").read(RpcReply(data[1:], headers, 0))


def _rest_infer_seeds() -> Iterator[bytes]:
    head = json.dumps({"outputs": [{"name": RESULT, "parameters": {"binary_data_size": len(_STRING)}}]}).encode()
    yield bytes([len(head)]) + head + _STRING


def _infer_reply_seeds() -> Iterator[bytes]:
    reply = message_class("inference.ModelInferResponse")
    yield reply(raw_output_contents=[_STRING]).SerializeToString()


def _predict_reply_seeds() -> Iterator[bytes]:
    reply = message_class("tensorflow.serving.PredictResponse")()
    to_tensor_proto(np.array([b"ab"], object), reply.outputs[RESULT])
    yield reply.SerializeToString()


def _triton(data: bytes) -> None:
    """Reads a reply as the engine `triton` does."""
    reply = parsed(message_class("inference.ModelInferResponse"), data)
    for index, each in enumerate(reply.outputs):
        if reply.raw_output_contents:
            raw = reply.raw_output_contents[index] if index < len(reply.raw_output_contents) else b""
            from_raw(memoryview(raw), each.datatype, list(each.shape))
        else:
            from_contents(each.contents, each.datatype, list(each.shape))


def _triton_seeds() -> Iterator[bytes]:
    reply = message_class("inference.ModelInferResponse")()
    reply.outputs.add(name="scores", datatype="FP32", shape=_NUMBERS.shape)
    reply.raw_output_contents.append(_NUMBERS.tobytes())
    yield reply.SerializeToString()
    reply.ClearField("raw_output_contents")
    reply.outputs[0].contents.fp32_contents.extend(_NUMBERS.ravel().tolist())
    yield reply.SerializeToString()


def _tensorflow_serving(data: bytes) -> None:
    reply = parsed(message_class("tensorflow.serving.PredictResponse"), data)
    for proto in reply.outputs.values():
        if sum(dim.size for dim in proto.tensor_shape.dim) < 1 << 16:  # Larger tensors legitimately need memory.
            from_tensor_proto(proto)


def _tensorflow_serving_seeds() -> Iterator[bytes]:
    reply = message_class("tensorflow.serving.PredictResponse")()
    to_tensor_proto(_NUMBERS, reply.outputs["scores"])
    yield reply.SerializeToString()


def _rest_predict_seeds() -> Iterator[bytes]:
    yield json.dumps({"predictions": [{"b64": "YWI="}]}).encode()


_PARSERS = (
    _Parser(lambda data: SkylaneAdapter().read(RpcReply(data, {}, 0)), lambda: iter([pack(_MASK)])),
    _Parser(lambda data: open_inference.OipGrpcAdapter().read(RpcReply(data, _METADATA, 0)), _infer_reply_seeds),
    _Parser(
        lambda data: tensorflow_serving.TfServingGrpcAdapter().read(RpcReply(data, _METADATA, 0)), _predict_reply_seeds
    ),
    _Parser(_rest_infer, _rest_infer_seeds),
    _Parser(
        lambda data: tensorflow_serving.TfServingRestAdapter("net").read(RpcReply(data, {MASK_HEADER: _HEADER}, 0)),
        _rest_predict_seeds,
    ),
    _Parser(_triton, _triton_seeds),
    _Parser(_tensorflow_serving, _tensorflow_serving_seeds),
)


def seeds() -> Iterator[bytes]:
    """Yields valid replies, as the servers send them."""
    for index, parser in enumerate(_PARSERS):
        yield from (bytes([index]) + body for body in parser.seeds())


def run(data: bytes) -> None:
    """Parses one reply; raises only on a bug."""
    if data:
        with suppress(SkylaneError, RemoteError, TensorsError):
            _PARSERS[data[0] % len(_PARSERS)].parse(data[1:])
