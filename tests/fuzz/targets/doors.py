"""The gateway: what anybody may send to a worker's doors, and what of MQTT 5 stands beside a payload.

An input is one byte that picks the reader, then what it reads.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from cloud.gateway.common.errors import ApiError
from cloud.gateway.http.multipart import parse_form
from cloud.gateway.open_inference import grpc_messages as oip_messages
from cloud.gateway.open_inference import json_messages as oip_json
from cloud.gateway.tf_serving import grpc_messages as tfs_messages
from cloud.gateway.tf_serving import json_messages as tfs_json
from shared.encoding.protobuf import message_class
from shared.encoding.protobuf_wire import PackedError, pack, unpack
from shared.encoding.tensorflow_tensors import to_tensor_proto
from shared.mqtt import properties, publish_packet
from shared.mqtt.bus import Properties

MAX_BYTES = 1 << 13

_PIXELS = np.arange(24, dtype=np.uint8).reshape(1, 2, 4, 3)
_FORM = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.png"\r\n\r\nx\r\n--b--\r\n'


class _Reader(NamedTuple):
    read: Callable[[bytes], object]
    seeds: Callable[[], Iterator[bytes]]


def _rest_infer(data: bytes) -> object:
    """The first two bytes tell how much of the body is JSON, where they are not 0."""
    length = int.from_bytes(data[:2], "big")
    return oip_json.read_request(data[2:], str(length) if length else None, "net", None)


def _rest_infer_seeds() -> Iterator[bytes]:
    tensor = {"name": "input", "datatype": "UINT8", "shape": list(_PIXELS.shape)}
    yield b"\0\0" + json.dumps({"inputs": [{**tensor, "data": _PIXELS.tolist()}]}).encode()
    truths = {"name": "on", "datatype": "BOOL", "shape": [2], "data": [True, False]}
    yield b"\0\0" + json.dumps({"inputs": [truths], "outputs": [{"name": "mask"}], "id": "1"}).encode()
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


def _publication(data: bytes) -> object:
    """A packet's first byte, and then the packet."""
    return publish_packet.read(data[0], memoryview(data[1:]), has_properties=True) if data else None


def _publication_seeds() -> Iterator[bytes]:
    beside = properties.packed(Properties("text/plain", "back", b"7", 5, "00-ab-cd-01"))
    yield b"\x30\0\1t" + beside + b"payload"
    yield b"\x32\0\1t\0\7" + beside + b"payload"


_READERS = (
    _Reader(tfs_json.read_predict, _rest_predict_seeds),
    _Reader(_rest_infer, _rest_infer_seeds),
    _Reader(lambda data: parse_form(data, "multipart/form-data; boundary=b"), lambda: iter([_FORM])),
    _Reader(tfs_messages.read_predict, _predict_seeds),
    _Reader(oip_messages.read_request, _infer_seeds),
    _Reader(unpack, lambda: iter([pack(b"message")])),
    _Reader(_publication, _publication_seeds),
)
_OURS = (ApiError, PackedError, publish_packet.MalformedError, properties.MalformedError)


def seeds() -> Iterator[bytes]:
    """Valid inputs, as clients write them."""
    for place, reader in enumerate(_READERS):
        yield from (bytes([place]) + body for body in reader.seeds())


def run(data: bytes) -> None:
    """Read one input; anything but our own errors is a finding."""
    if data:
        with suppress(*_OURS):
            _READERS[data[0] % len(_READERS)].read(data[1:])
