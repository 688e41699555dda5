"""The messages of ModelInfer (gRPC)."""

from importlib import import_module
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.common.open_inference import OutputTensor
from cloud.gateway.grpc.open_inference import read_request, write_response
from cloud.serving.errors import ApiError
from shared.messages.protobuf import message_class
from tests.support.gateway import WAIT_S, GatewayWorker
from tests.support.tiny_model import HEIGHT, WIDTH

service: Any = import_module("tritonclient.grpc.service_pb2")
Request: Any = service.ModelInferRequest
SHAPE = [1, HEIGHT, WIDTH, 3]


def request(datatype: str = "UINT8", shape: Any = SHAPE, name: str = "input", **fields: Any) -> Any:
    """A request with one input; `fields` are those of the request."""
    message = Request(model_name="tiny", **fields)
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    return message


def infer(worker: GatewayWorker, data: bytes, **keywords: Any) -> tuple[Any, dict[str, Any]]:
    """The response to a serialized request, and its trailing metadata."""
    with grpc.insecure_channel(worker.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        response, ended = call.with_call(data, timeout=WAIT_S, **keywords)
    return service.ModelInferResponse.FromString(response), dict(ended.trailing_metadata())


def test_numbers_may_be_in_typed_lists(worker: GatewayWorker) -> None:
    """Clients generated from the .proto file fill the typed lists."""
    pixels = np.arange(HEIGHT * WIDTH * 3, dtype=np.uint8).reshape(SHAPE)
    message = request()
    message.inputs[0].contents.uint_contents.extend(pixels.ravel().tolist())
    response, _ = infer(worker, message.SerializeToString())
    assert response.raw_output_contents[0] == pixels[..., 0].tobytes()
    assert [(each.name, each.datatype, list(each.shape)) for each in response.outputs] == [
        ("mask", "UINT8", [1, HEIGHT, WIDTH])
    ]


def test_images_may_be_in_typed_lists() -> None:
    """Typed lists and raw contents are two encodings of the same strings."""
    images = [b"one", b"", b"\xff\0"]
    listed = request("BYTES", [3], "image_bytes")
    listed.inputs[0].contents.bytes_contents.extend(images)
    framed = b"".join(len(each).to_bytes(4, "little") + each for each in images)
    raw = request("BYTES", [3, 1], "image_bytes", raw_input_contents=[framed])
    for message in (listed, raw):
        (tensor,) = read_request(message.SerializeToString()).inputs
        assert [bytes(each) for each in tensor.tensor] == images


def test_every_response_has_the_stage_durations(worker: GatewayWorker) -> None:
    """Measurements subtract the worker's time from the round trip."""
    _, trailing = infer(worker, request(raw_input_contents=[bytes(HEIGHT * WIDTH * 3)]).SerializeToString())
    assert "inferred;dur=" in trailing["server-timing"]
    assert "skylane-mask-bin" not in trailing


RAW = bytes(HEIGHT * WIDTH * 3)
MALFORMED = {
    "garbage": (b"\xff\xff", "not an inference.ModelInferRequest"),
    "garbage within": (b"\x0a\x02\xff\xff", "not an inference.ModelInferRequest"),
    "many parameters": (Request(model_name="m").SerializeToString() + b"\x22\0" * (1 << 20), "more than 16384 fields"),
    "many inputs": (b"\x2a\x03\x0a\x01x" * 65, "65 inputs: send at most 64"),
    "many sides": (request(shape=[1] * (17 << 20)), "lists of integers take more than 16777216 bytes"),
    "short": (request(raw_input_contents=[RAW[1:]]), "takes 72 bytes, not 71"),
    "long": (request(raw_input_contents=[RAW + b"\0"]), "takes 72 bytes, not 73"),
    "two for one": (request(raw_input_contents=[RAW, RAW]), "1 inputs with 2 raw_input_contents"),
    "none": (request(), "contents hold 0 in uint_contents"),
    "negative": (request(shape=[-1, HEIGHT, WIDTH, 3], raw_input_contents=[RAW]), "a dimension below 0"),
    "too much": (request(shape=[1 << 40, 1 << 40], raw_input_contents=[RAW]), "more than 268435456"),
    "nothing of much": (request(shape=[0, 1 << 62], raw_input_contents=[b""]), "more than 268435456"),
    "sides": (request(shape=[1] * 5000, raw_input_contents=[RAW]), "5000 dimensions: send at most 8"),
    "datatype": (request("COMPLEX64", raw_input_contents=[RAW]), "input 'input' is COMPLEX64: send UINT8, or BYTES"),
    "strings": (
        request("BYTES", [1 << 62], "image_bytes", raw_input_contents=[b"\1\0\0\0a"]),
        "more than 4096 strings",
    ),
    "string shape": (
        request("BYTES", [2, 2], "image_bytes", raw_input_contents=[b""]),
        r"BYTES of shape \[2, 2\]: send \[n\]",
    ),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_rejected(case: str) -> None:
    """No memory is allocated for false shapes."""
    message, text = MALFORMED[case]
    with pytest.raises(ApiError, match=text):
        read_request(message if isinstance(message, bytes) else message.SerializeToString())


@given(
    message=st.builds(
        request,
        datatype=st.sampled_from(["UINT8", "FP16", "INT64", "BOOL", "BYTES", "", "x" * 99]),
        shape=st.lists(st.one_of(st.integers(-1, 9), st.integers(-(2**63), 2**63 - 1)), max_size=10),
        name=st.sampled_from(["input", "image_bytes", ""]),
        raw_input_contents=st.lists(st.binary(max_size=80), max_size=2),
    ).map(lambda built: bytes(built.SerializeToString())),
    corruption=st.tuples(st.integers(0, 100), st.binary(max_size=3)),
)
def test_arbitrary_requests_raise_only_api_errors(message: bytes, corruption: tuple[int, bytes]) -> None:
    """Messages are untrusted; a tensor must not be larger than its message."""
    at, bad = corruption
    for data in (message, message[:at] + bad + message[at + len(bad) :]):
        try:
            read = read_request(data)
        except ApiError:
            continue
        for each in read.inputs:
            size = each.tensor.size if isinstance(each.tensor, np.ndarray) else len(each.tensor)
            assert size <= len(data)


@given(
    identity=st.text(max_size=9),
    arrays=st.lists(
        st.tuples(
            st.sampled_from(["uint8", "float32", "int64", "bool", ">i2"]), st.lists(st.integers(0, 3), max_size=3)
        ),
        max_size=3,
    ),
)
def test_a_response_has_all_outputs_in_little_endian_order(identity: str, arrays: list[tuple[str, list[int]]]) -> None:
    """Arrays may have every shape and byte order."""
    infer_request = read_request(Request(model_name="m", id=identity).SerializeToString())
    values = [(np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape) for dtype, shape in arrays]
    outputs = tuple(OutputTensor(f"o{i}", "X", each.shape, each) for i, each in enumerate(values))
    response = message_class("inference.ModelInferResponse").FromString(
        write_response(infer_request, "3", outputs, 1 << 20).SerializeToString()
    )
    assert (response.model_name, response.model_version, response.id) == ("m", "3", identity)
    assert [tuple(each.shape) for each in response.outputs] == [each.shape for each in values]
    assert list(response.raw_output_contents) == [
        each.astype(each.dtype.newbyteorder("<")).tobytes() for each in values
    ]
