"""Fuzz target of the gateway's requests and of MQTT 5 packets. The first byte of an input selects the parser."""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cloud.gateway.grpc import open_inference as oip_messages
from cloud.gateway.grpc import tf_serving as tfs_messages
from cloud.gateway.http import open_inference as oip_json
from cloud.gateway.http import tf_serving as tfs_json
from cloud.gateway.http.detect import parse_form
from cloud.serving.errors import ApiError
from shared.messages.protobuf import message_class
from shared.messages.protobuf_fields import PackedError, pack, unpack
from shared.messages.tensorflow_tensors import to_tensor_proto
from shared.mqtt import packets
from shared.mqtt.bus import Properties

MAX_BYTES = 1 << 13

_PIXELS = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
_FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\nx\r\n--b--\r\n'


class _Parser(NamedTuple):
    parse: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def _rest_infer(data: bytes) -> object:
    """The first two bytes are the length of the JSON part, or 0 if the body has no binary part."""
    length = int.from_bytes(data[:2], "big")
    return oip_json.read_request(data[2:], str(length) if length else None, "net", None)


def _rest_infer_seeds() -> Iterator[bytes]:
    tensor = {"name": "input", "datatype": "UINT8", "shape": list(_PIXELS.shape)}
    yield b"\0\0" + json.dumps({"inputs": [{**tensor, "data": _PIXELS.tolist()}]}).encode()
    texts = {"name": "image_bytes", "datatype": "BYTES", "shape": [2], "data": ["YQ==", ""]}
    yield b"\0\0" + json.dumps({"inputs": [texts], "outputs": [{"name": "mask"}], "id": "1"}).encode()
    binary = {**tensor, "parameters": {"binary_data_size": _PIXELS.size}}
    head = json.dumps({"inputs": [binary], "parameters": {"binary_data_output": True}}).encode()
    yield len(head).to_bytes(2, "big") + head + _PIXELS.tobytes()


def _rest_predict_seeds() -> Iterator[bytes]:
    yield json.dumps({"instances": _PIXELS.tolist(), "signature_name": "serving_default"}).encode()
    yield json.dumps({"signature_name": "image", "instances": [{"b64": "eHg="}]}).encode()
    yield json.dumps({"inputs": {"input": _PIXELS.tolist()}}).encode()


def _predict_seeds() -> Iterator[bytes]:
    for array in (_PIXELS, np.array([b"one", b"two"], object)):
        request = message_class("tensorflow.serving.PredictRequest")(
            model_spec={"name": "net", "version": {"value": 1}}
        )
        to_tensor_proto(array, request.inputs["input"])
        yield request.SerializeToString()
        if array is _PIXELS:
            request.inputs["input"].ClearField("tensor_content")
            request.inputs["input"].int_val.extend(array.ravel().tolist())
            yield request.SerializeToString()


def _infer_seeds() -> Iterator[bytes]:
    request = message_class("inference.ModelInferRequest")(model_name="net", id="7")
    request.inputs.add(name="input", datatype="UINT8", shape=_PIXELS.shape)
    request.parameters["timeout"].int64_param = 5
    for fields in ({"raw_input_contents": [_PIXELS.tobytes()]}, {"contents": True}):
        if "contents" in fields:
            request.ClearField("raw_input_contents")
            request.inputs[0].contents.uint_contents.extend(_PIXELS.ravel().tolist())
        else:
            request.MergeFrom(type(request)(**fields))
        yield request.SerializeToString()
    strings = type(request)(inputs=[{"name": "image_bytes", "datatype": "BYTES", "shape": [1]}])
    strings.raw_input_contents.append(b"\2\0\0\0ab")
    yield strings.SerializeToString()


def _publish_packet(data: bytes) -> object:
    """The first byte is the fixed header of the packet."""
    return packets.read_publish(data[0], memoryview(data[1:]), has_properties=True) if data else None


def _publish_seeds() -> Iterator[bytes]:
    packed = packets.encode(Properties("text/plain", "back", b"7", 5, "00-ab-cd-01"))
    yield b"\x30\0\1t" + packed + b"payload"
    yield b"\x32\0\1t\0\7" + packed + b"payload"


_PARSERS = (
    _Parser(tfs_json.read_predict, _rest_predict_seeds),
    _Parser(_rest_infer, _rest_infer_seeds),
    _Parser(lambda data: parse_form(data, "multipart/form-data; boundary=b"), lambda: iter([_FORM])),
    _Parser(tfs_messages.read_predict, _predict_seeds),
    _Parser(oip_messages.read_request, _infer_seeds),
    _Parser(unpack, lambda: iter([pack(b"message")])),
    _Parser(_publish_packet, _publish_seeds),
)
_EXPECTED_ERRORS = (ApiError, PackedError, packets.MalformedPublishError, packets.MalformedPropertiesError)


def seeds() -> Iterator[bytes]:
    """Yields valid requests, as clients send them."""
    for index, parser in enumerate(_PARSERS):
        yield from (bytes([index]) + body for body in parser.seeds())


def run(data: bytes) -> None:
    """Parses one input; raises only on a bug."""
    if data:
        with suppress(*_EXPECTED_ERRORS):
            _PARSERS[data[0] % len(_PARSERS)].parse(data[1:])
