"""The JSON messages of the Open Inference Protocol, with and without binary data."""

import base64
import json
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.common.inference import CallTerms
from cloud.gateway.common.open_inference import InferRequest, OutputTensor, Parameters, RequestedOutput
from cloud.gateway.http.open_inference import read_request, write_response
from cloud.serving.errors import ApiError, ErrorCode


def body(*inputs: Any, **keys: Any) -> bytes:
    """The JSON of a request."""
    return json.dumps({"inputs": list(inputs), **keys}).encode()


def tensor(data: Any = None, datatype: str = "UINT8", shape: Any = (2, 3), **keys: Any) -> dict[str, Any]:
    """The JSON of an input."""
    entry = {"name": "input", "datatype": datatype, "shape": shape, **keys}
    return entry if data is None else {**entry, "data": data}


def read(data: bytes, header_length: str | None = None) -> InferRequest:
    """Parses a request for the model `m`."""
    return read_request(data, header_length, "m", None)


def test_pixels_may_be_flat_or_nested() -> None:
    """The protocol allows both, and clients send both."""
    pixels = np.random.default_rng(1).integers(0, 256, (1, 40, 50, 3), np.uint8)
    for data in (pixels.tolist(), pixels.ravel().tolist()):
        (found,) = read(body(tensor(data, shape=pixels.shape))).inputs
        np.testing.assert_array_equal(np.asarray(found.tensor), pixels)


def test_strings_are_text_and_images_are_base64() -> None:
    """Images are bytes, which JSON does not have."""
    image = b"\xff\xd8\0"
    coded = base64.b64encode(image).decode()
    for data, shape in (([coded], [1]), ([[coded]], [1, 1])):
        (found,) = read(body(tensor(data, "BYTES", shape, name="image_bytes"))).inputs
        assert found.tensor == [image]
    (found,) = read(body(tensor(["ä"], "BYTES", [1], name="other"))).inputs
    assert found.tensor == ["ä".encode()]


def test_binary_data_follows_in_the_order_of_the_inputs() -> None:
    """Only inputs with a binary size have data after the JSON."""
    text = body(
        tensor(shape=[2], parameters={"binary_data_size": 2}),
        tensor([7], shape=[1], name="listed"),
        tensor(datatype="BYTES", shape=[1], name="image_bytes", parameters={"binary_data_size": 5}),
    )
    first, listed, strings = read(text + b"\1\2" + b"\1\0\0\0x", str(len(text))).inputs
    assert np.asarray(first.tensor).tolist() == [1, 2]
    assert np.asarray(listed.tensor).tolist() == [7]
    assert [bytes(each) for each in strings.tensor] == [b"x"]


NOT_NUMBERS = "data has values that are not whole numbers"
MALFORMED: dict[str, tuple[bytes, str | None, str]] = {
    "a list": (b"[]", None, "JSON of type list: send an object"),
    "inputs": (b'{"inputs": {}}', None, r"Expected `array`, got `object` - at `\$.inputs`"),
    "an input": (b'{"inputs": ["a"]}', None, r"Expected `object`, got `str` - at `\$.inputs\[0\]`"),
    "many inputs": (body(*[tensor([1], shape=[1])] * 65), None, "of length <= 64"),
    "a number for a name": (body(tensor([1], shape=[1], name=3)), None, r"got `int` - at `\$.inputs\[0\].name`"),
    "parameters": (body(parameters=[]), None, r"at `\$.parameters`"),
    "numbers as parameters": (body(parameters=[0]), None, "a list of numbers in place of an object"),
    "numbers as an input": (body({"name": "a"}, [0]), None, "a list of numbers in place of an object|missing required"),
    "shape": (body(tensor([1], shape=[1.5])), None, "shape must be a list of whole numbers"),
    "true as a dimension": (body(tensor([1], shape=[True])), None, "shape must be a list of whole numbers"),
    "negative": (body(tensor([1], shape=[-1])), None, "a dimension below 0"),
    "huge": (body(tensor([1], shape=[1 << 62])), None, "more than 268435456"),
    "datatype": (body(tensor([1], "FP32", [1])), None, "is FP32: send UINT8, or BYTES with images"),
    "count": (body(tensor([1, 2])), None, r"data has 2 numbers, shape \[2, 3\] needs 6"),
    "ragged": (body(tensor([[1, 2], [3]])), None, "nested lists of equal lengths"),
    "range": (body(tensor([256], shape=[1])), None, "outside the range of uint8: send 0 to 255"),
    "fraction": (body(tensor([0.5], shape=[1])), None, NOT_NUMBERS),
    "one text": (body(tensor("a" * 100)), None, NOT_NUMBERS),
    "null": (body(tensor([None], shape=[1])), None, NOT_NUMBERS),
    "numbers for strings": (body(tensor([1], "BYTES", [1])), None, "a list of 1 strings"),
    "base64": (body(tensor(["%"], "BYTES", [1], name="image_bytes")), None, "a string is not base64"),
    "strings": (body(tensor(None, "BYTES", [1 << 20], parameters={"binary_data_size": 0})), None, "than 4096 strings"),
    "no data": (body(tensor()), None, "has neither data nor binary_data_size"),
    "both": (body(tensor([1], parameters={"binary_data_size": 0})), None, "has both data and binary_data_size"),
    "cut off": (body(tensor(parameters={"binary_data_size": 6})), None, "is '6', but 0 bytes of the body remain"),
    "minus": (body(tensor(parameters={"binary_data_size": -1})), None, "binary_data_size is '-1'"),
    "left over": (body() + b"xy", str(len(body())), "2 bytes of the body belong to no input"),
    "beyond the body": (body(), "999", "Inference-Header-Content-Length is '999'"),
    "no number": (body(), "-1", "Inference-Header-Content-Length is '-1'"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_request_is_rejected(case: str) -> None:
    """The message says what was sent and what is expected."""
    data, header_length, text = MALFORMED[case]
    with pytest.raises(ApiError, match=text) as raised:
        read(data, header_length)
    assert raised.value.code is ErrorCode.INVALID


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.sampled_from(["input", "image_bytes"]), JSON),
        "datatype": st.one_of(st.sampled_from(["UINT8", "FP32", "BYTES"]), JSON),
        "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), JSON),
        "data": JSON,
        "parameters": st.one_of(st.fixed_dictionaries({"binary_data_size": st.integers(-1, 9)}), JSON),
    },
)


@given(
    document=st.fixed_dictionaries(
        {"inputs": st.one_of(st.lists(INPUTS, max_size=2), JSON)},
        optional={"outputs": JSON, "parameters": JSON, "id": JSON},
    ),
    binary=st.binary(max_size=9),
    offset=st.integers(-1, 1),
)
def test_arbitrary_bodies_raise_only_api_errors(document: Any, binary: bytes, offset: int) -> None:
    """Bodies are untrusted."""
    text = json.dumps(document).encode()
    for header_length in (None, str(len(text) + offset)):
        with suppress(ApiError):
            read(text + binary, header_length).to_call(CallTerms("f", "c", 0, 1))


MASK = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)


def respond(requested: tuple[RequestedOutput, ...], **parameters: Any) -> tuple[Any, bytes]:
    """The JSON of a response, and the binary data after it."""
    request = InferRequest("m", None, "i", parameters, (), requested)
    outputs = (
        OutputTensor("mask", "UINT8", MASK.shape, MASK),
        OutputTensor("result_bytes", "BYTES", (2,), [b"\xff", b"ab"]),
    )
    body, length = write_response(request, "1", outputs, 1000)
    return json.loads(body[:length]), b"" if length is None else body[length:]


def test_outputs_are_json_unless_binary_is_requested() -> None:
    """The binary tensor extension allows to request it for one output or for all."""
    document, binary = respond(())
    mask, results = document["outputs"]
    assert (document["id"], mask["shape"], mask["data"], binary) == ("i", [1, 2, 3], [0, 1, 2, 3, 4, 5], b"")
    assert [base64.b64decode(each) for each in results["data"]] == [b"\xff", b"ab"]
    assert results["parameters"] == {"content_type": "base64"}
    framed = b"\1\0\0\0\xff\2\0\0\0ab"
    document, binary = respond((), binary_data_output=True)
    assert [each["parameters"]["binary_data_size"] for each in document["outputs"]] == [6, len(framed)]
    assert binary == MASK.tobytes() + framed
    _, binary = respond((RequestedOutput("mask", {"binary_data": False}),), binary_data_output=True)
    assert binary == framed
    _, binary = respond((RequestedOutput("mask", {"binary_data": True}),))
    assert binary == MASK.tobytes()


@pytest.mark.parametrize(("limit", "parameters"), [(12, {}), (16, {"binary_data_output": True})])
def test_a_response_that_is_too_large_is_an_error(limit: int, parameters: Parameters) -> None:
    """The limit applies to the JSON text, not only to the numbers."""
    request = InferRequest("m", None, "", parameters, (), ())
    outputs = tuple(OutputTensor(name, "UINT8", MASK.shape, MASK) for name in ("mask", "other", "third"))
    write_response(request, "1", outputs[:1], limit)
    with pytest.raises(ApiError, match=f"more than {limit} bytes, as JSON and binary: request fewer") as raised:
        write_response(request, "1", outputs, limit)
    assert ("or set binary_data_output" in str(raised.value)) is not bool(parameters)
