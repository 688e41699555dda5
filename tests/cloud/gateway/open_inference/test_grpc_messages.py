"""ModelInfer's messages, as any gRPC client may write them."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cloud.gateway.common.errors import RefusedError
from cloud.gateway.open_inference.grpc_messages import read_request, write_response
from cloud.gateway.open_inference.response import OutputTensor
from cloud.gateway.settings import GatewaySettings
from shared.encoding.protobuf import message_class
from shared.imaging import mask_codecs
from shared.messages.frame import Status, pack_frame, unpack_result
from tests.support.gateway import Doors, open_gateway
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

service: Any = import_module("tritonclient.grpc.service_pb2")
Request: Any = service.ModelInferRequest
WAIT_S = 60.0
PIXELS = [1, HEIGHT, WIDTH, 3]


@pytest.fixture(name="doors", scope="module")
def _doors() -> Iterator[Doors]:
    with open_gateway(model(), gateway=GatewaySettings(grpc="127.0.0.1:0")) as doors:
        yield doors


def request(datatype: str = "UINT8", shape: Any = PIXELS, name: str = "input", **fields: Any) -> Any:
    """A request of one input; `fields` are the request's."""
    asked = Request(model_name="tiny", **fields)
    asked.inputs.add(name=name, datatype=datatype, shape=shape)
    return asked


def infer(doors: Doors, data: bytes, **keywords: Any) -> tuple[Any, dict[str, Any]]:
    """The answer to a request's bytes, and the metadata behind it."""
    with grpc.insecure_channel(doors.grpc) as channel:
        call: Any = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        answer, about = call.with_call(data, timeout=WAIT_S, **keywords)
    return service.ModelInferResponse.FromString(answer), dict(about.trailing_metadata())


def test_numbers_in_lists_are_answered_as_raw_ones_are(doors: Doors) -> None:
    """Clients that are made from the .proto alone fill the typed lists."""
    pixels = np.arange(HEIGHT * WIDTH * 3, dtype=np.uint8).reshape(PIXELS)
    asked = request()
    asked.inputs[0].contents.uint_contents.extend(pixels.ravel().tolist())
    answer, _ = infer(doors, asked.SerializeToString())
    assert answer.raw_output_contents[0] == pixels[..., 0].tobytes()
    assert [(each.name, each.datatype, list(each.shape)) for each in answer.outputs] == [
        ("mask", "UINT8", [1, HEIGHT, WIDTH])
    ]


def test_pictures_in_lists_are_read_as_raw_ones_are() -> None:
    """Two ways to write the same strings."""
    pictures = [b"one", b"", b"\xff\0"]
    listed = request("BYTES", [3], "image_bytes")
    listed.inputs[0].contents.bytes_contents.extend(pictures)
    framed = b"".join(len(each).to_bytes(4, "little") + each for each in pictures)
    raw = request("BYTES", [3, 1], "image_bytes", raw_input_contents=[framed])
    for asked in (listed, raw):
        (tensor,) = read_request(asked.SerializeToString()).inputs
        assert [bytes(each) for each in tensor.tensor] == pictures


def test_a_vehicles_call_is_answered_with_its_own_mask_message(doors: Doors) -> None:
    """All that the broker's frame message holds travels beside the tensor, and all that its answer does comes back."""
    own = frame(7)
    data = len(own.data).to_bytes(4, "little") + own.data
    asked = request("BYTES", [1], "image_bytes", raw_input_contents=[data])
    metadata = (("skylane-frame-bin", pack_frame(replace(own, data=b""))),)
    answer, behind = infer(doors, asked.SerializeToString(), metadata=metadata)
    told = unpack_result(behind["skylane-mask-bin"])
    assert (told.id, told.status, told.data) == (own.id, Status.ANSWERED, b"")
    mask = mask_codecs.decode(answer.raw_output_contents[0][4:], told.codec, (HEIGHT, WIDTH))
    np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), 7, np.uint8))
    assert "inferred;dur=" in behind["server-timing"]


def test_a_vehicle_is_told_why_its_frame_was_refused(doors: Doors) -> None:
    """The call went well; what became of the frame is in its mask message, as over the broker."""
    own = replace(frame(8), data=b"short")
    asked = request("BYTES", [1], "image_bytes", raw_input_contents=[b"\5\0\0\0short"])
    metadata = (("skylane-frame-bin", pack_frame(replace(own, data=b""))),)
    answer, behind = infer(doors, asked.SerializeToString(), metadata=metadata)
    told = unpack_result(behind["skylane-mask-bin"])
    assert (told.id, told.status) == (own.id, Status.REJECTED)
    assert not answer.outputs


def test_the_workers_stages_stand_behind_every_answer(doors: Doors) -> None:
    """Whoever measures reads there what the worker took."""
    _, behind = infer(doors, request(raw_input_contents=[bytes(HEIGHT * WIDTH * 3)]).SerializeToString())
    assert "inferred;dur=" in behind["server-timing"]
    assert "skylane-mask-bin" not in behind


RAW = bytes(HEIGHT * WIDTH * 3)
UNREADABLE = {
    "garbage": (b"\xff\xff", "not an inference.ModelInferRequest"),
    "garbage within": (b"\x0a\x02\xff\xff", "not an inference.ModelInferRequest"),
    "many parameters": (Request(model_name="m").SerializeToString() + b"\x22\0" * (1 << 20), "more than 16384 fields"),
    "many inputs": (b"\x2a\x03\x0a\x01x" * 65, "65 inputs: send at most 64"),
    "many sides": (request(shape=[1] * (17 << 20)), "lists of whole numbers take more than 16777216 bytes"),
    "short": (request(raw_input_contents=[RAW[1:]]), "takes 72 bytes, not 71"),
    "long": (request(raw_input_contents=[RAW + b"\0"]), "takes 72 bytes, not 73"),
    "two for one": (request(raw_input_contents=[RAW, RAW]), "1 inputs come with 2 raw_input_contents"),
    "none": (request(), "contents hold 0 in uint_contents"),
    "negative": (request(shape=[-1, HEIGHT, WIDTH, 3], raw_input_contents=[RAW]), "a side below 0"),
    "too much": (request(shape=[1 << 40, 1 << 40], raw_input_contents=[RAW]), "more than 268435456"),
    "nothing of much": (request(shape=[0, 1 << 62], raw_input_contents=[b""]), "more than 268435456"),
    "sides": (request(shape=[1] * 5000, raw_input_contents=[RAW]), "5000 sides: send at most 8"),
    "datatype": (request("COMPLEX64", raw_input_contents=[RAW]), "datatype 'COMPLEX64' is not spoken here"),
    "strings": (
        request("BYTES", [1 << 62], "image_bytes", raw_input_contents=[b"\1\0\0\0a"]),
        "more than 4096 strings",
    ),
    "string shape": (
        request("BYTES", [2, 2], "image_bytes", raw_input_contents=[b""]),
        r"BYTES of shape \[2, 2\]: send \[n\]",
    ),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_is_refused_before_memory_is_taken(case: str) -> None:
    """Each lie of a shape, and each broken message, by name; none costs more than its own bytes."""
    asked, text = UNREADABLE[case]
    with pytest.raises(RefusedError, match=text):
        read_request(asked if isinstance(asked, bytes) else asked.SerializeToString())


@given(
    asked=st.builds(
        request,
        datatype=st.sampled_from(["UINT8", "FP16", "INT64", "BOOL", "BYTES", "", "x" * 99]),
        shape=st.lists(st.one_of(st.integers(-1, 9), st.integers(-(2**63), 2**63 - 1)), max_size=10),
        name=st.sampled_from(["input", "image_bytes", ""]),
        raw_input_contents=st.lists(st.binary(max_size=80), max_size=2),
    ).map(lambda asked: bytes(asked.SerializeToString())),
    spoilt=st.tuples(st.integers(0, 100), st.binary(max_size=3)),
)
def test_any_request_is_read_or_refused(asked: bytes, spoilt: tuple[int, bytes]) -> None:
    """A stranger's message ends in no other error than a refusal."""
    at, spoil = spoilt
    for data in (asked, asked[:at] + spoil + asked[at + len(spoil) :]):
        try:
            read = read_request(data)
        except RefusedError:
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
def test_the_response_is_the_librarys_own(identity: str, arrays: list[tuple[str, list[int]]]) -> None:
    """Of any shape and byte order."""
    asked = read_request(Request(model_name="m", id=identity).SerializeToString())
    values = [(np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape) for dtype, shape in arrays]
    outputs = tuple(OutputTensor(f"o{at}", "X", each.shape, each) for at, each in enumerate(values))
    told = message_class("inference.ModelInferResponse").FromString(
        write_response(asked, "3", outputs, 1 << 20).SerializeToString()
    )
    assert (told.model_name, told.model_version, told.id) == ("m", "3", identity)
    assert [tuple(each.shape) for each in told.outputs] == [each.shape for each in values]
    assert list(told.raw_output_contents) == [each.astype(each.dtype.newbyteorder("<")).tobytes() for each in values]


def test_a_token_is_needed_for_all_but_health(tmp_path: Path) -> None:
    """Whoever only watches needs none; who is nobody learns nothing of the models."""
    tokens = tmp_path / "tokens"
    tokens.write_text("car a-token-of-the-car\n")
    settings = GatewaySettings(grpc="127.0.0.1:0", tokens=tokens)
    with open_gateway(model(), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:

        def call(method: str, **keywords: Any) -> Any:
            ask: Any = channel.unary_unary(f"/inference.GRPCInferenceService/{method}")
            return ask(b"", timeout=WAIT_S, **keywords)

        assert service.ServerLiveResponse.FromString(call("ServerLive")).live
        for method in ("ServerMetadata", "RepositoryIndex", "ModelStatistics", "ModelInfer"):
            with pytest.raises(grpc.RpcError) as raised:
                call(method)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        metadata = (("authorization", "Bearer a-token-of-the-car"),)
        told = service.RepositoryIndexResponse.FromString(call("RepositoryIndex", metadata=metadata))
    assert [each.name for each in told.models] == ["tiny"]
