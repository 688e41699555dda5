"""The Open Inference Protocol's JSON, with and without binary data."""

import base64
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.open_inference.json_messages import listed_bytes, read_request, write_answer
from cloud.gateway.open_inference.request import InferRequest, Parameters, WantedOutput
from cloud.gateway.open_inference.response import OutputTensor


def body(*inputs: Any, **keys: Any) -> bytes:
    """A request's JSON."""
    return json.dumps({"inputs": list(inputs), **keys}).encode()


def tensor(data: Any = None, datatype: str = "UINT8", shape: Any = (2, 3), **keys: Any) -> dict[str, Any]:
    """An input's entry."""
    entry = {"name": "input", "datatype": datatype, "shape": shape, **keys}
    return entry if data is None else {**entry, "data": data}


def read(given: bytes, header_length: str | None = None) -> InferRequest:
    """A request for a model `m`."""
    return read_request(given, header_length, "m", None)


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        ("UINT8", [0, 255]),
        ("INT64", [-1, 1 << 62]),
        ("FP32", [0.5, -2]),
        ("BOOL", [True, False]),
        ("FP64", [0.1, 1e300]),
    ],
)
@pytest.mark.parametrize("shape", [[2], [2, 1], [1, 2, 1]])
def test_numbers_may_lie_flat_or_as_deep_as_their_shape(datatype: str, values: list[Any], shape: list[int]) -> None:
    """The protocol allows both, and clients send both."""
    for data in (values, np.array(values, object).reshape(shape).tolist()):
        (read_tensor,) = read(body(tensor(data, datatype, shape))).inputs
        assert isinstance(read_tensor.tensor, np.ndarray)
        assert read_tensor.tensor.shape == tuple(shape)
        assert read_tensor.tensor.ravel().tolist() == np.array(values, read_tensor.tensor.dtype).tolist()


def test_large_pictures_are_read_as_small_ones_are() -> None:
    """They take another way through, which must not show."""
    pixels = np.random.default_rng(1).integers(0, 256, (1, 40, 50, 3), np.uint8)
    for data in (pixels.tolist(), pixels.ravel().tolist()):
        (found,) = read(body(tensor(data, shape=pixels.shape))).inputs
        np.testing.assert_array_equal(np.asarray(found.tensor), pixels)


def test_strings_are_text_and_pictures_base64() -> None:
    """A picture is no text, and JSON holds no bytes."""
    picture = b"\xff\xd8\0"
    coded = base64.b64encode(picture).decode()
    for data, shape in (([coded], [1]), ([[coded]], [1, 1])):
        (found,) = read(body(tensor(data, "BYTES", shape, name="image_bytes"))).inputs
        assert found.tensor == [picture]
    (found,) = read(body(tensor(["ä"], "BYTES", [1], name="other"))).inputs
    assert found.tensor == ["ä".encode()]


def test_binary_data_follows_the_json_in_the_order_of_the_inputs() -> None:
    """Inputs of both kinds may be mixed: only those that say a size have theirs behind."""
    told = body(
        tensor(shape=[2], parameters={"binary_data_size": 2}),
        tensor([7], shape=[1], name="listed"),
        tensor(datatype="BYTES", shape=[1], name="image_bytes", parameters={"binary_data_size": 5}),
    )
    first, listed, strings = read(told + b"\1\2" + b"\1\0\0\0x", str(len(told))).inputs
    assert np.asarray(first.tensor).tolist() == [1, 2]
    assert np.asarray(listed.tensor).tolist() == [7]
    assert [bytes(each) for each in strings.tensor] == [b"x"]


SIZED: Any = {"parameters": {"binary_data_size": 6}}
REFUSED: dict[str, tuple[bytes, str | None, str]] = {
    "no JSON": (b"{", None, "the body is no JSON"),
    "a list": (b"[]", None, "JSON of type list: send an object"),
    "deep": (b"[" * 100_000, None, "no JSON: TAPE_ERROR"),
    "deep lists": (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", None, "nests deeper than 16"),
    "a key twice": (b'{"inputs": [], "inputs": []}', None, "has a key twice"),
    "inputs": (b'{"inputs": {}}', None, "inputs is '{}': send a list"),
    "an input": (b'{"inputs": [1]}', None, r"inputs is '\[1\]': send a list"),
    "shape": (body(tensor([1], shape=[1.5])), None, "shape is no list of whole numbers"),
    "true as a side": (body(tensor([1], shape=[True])), None, "shape is no list of whole numbers"),
    "negative": (body(tensor([1], shape=[-1])), None, "a side below 0"),
    "huge": (body(tensor([1], shape=[1 << 62])), None, "more than 268435456"),
    "digits": (body(tensor([1], shape=[10**4000, 10**4000])), None, "no JSON: BIGINT_ERROR"),
    "half a pair": (body(tensor(["\ud800"], "BYTES", [1], name="x")), None, "no JSON: STRING_ERROR"),
    "half a pair in bytes": (
        body(tensor([1], name="é")).replace(b"\\u00e9", b"\xed\xa0\x80"),
        None,
        "no JSON: .*utf-8",
    ),
    "long among short": (body(tensor(["a" * 10**6, *[""] * 10**5])), None, "data holds what is no UINT8"),
    "one text": (body(tensor("a" * 100)), None, "data holds what is no UINT8"),
    "strings": (
        body(tensor(None, "BYTES", [1 << 20], parameters={"binary_data_size": 0})),
        None,
        "more than 4096 strings",
    ),
    "count": (body(tensor([1, 2])), None, r"data holds 2 numbers, shape \[2, 3\] takes 6"),
    "uneven": (body(tensor([[1, 2], [3]])), None, "not all of one size"),
    "range": (body(tensor([256], shape=[1])), None, "none of uint8: send 0 to 255"),
    "fraction": (body(tensor([0.5], shape=[1])), None, "data holds what is no UINT8"),
    "beyond any": (body(tensor([10**30], shape=[1])), None, "no JSON: BIGINT_ERROR"),
    "texts": (body(tensor(["a"], shape=[1])), None, "data holds what is no UINT8"),
    "truth among numbers": (body(tensor([1, True], shape=[2])), None, "numbers and something else"),
    "null": (body(tensor([None], shape=[1])), None, "data holds what is no UINT8"),
    "numbers for strings": (body(tensor([1], "BYTES", [1])), None, "no list of 1 strings"),
    "base64": (body(tensor(["%"], "BYTES", [1], name="image_bytes")), None, "a string is no base64"),
    "no data": (body(tensor()), None, "has neither data nor binary_data_size"),
    "both": (body(tensor([1], **SIZED)), None, "has data and binary_data_size"),
    "cut off": (body(tensor(**SIZED)), None, "binary_data_size is 6, but 0 bytes are left"),
    "minus": (body(tensor(parameters={"binary_data_size": -1})), None, "binary_data_size is '-1'"),
    "left over": (body() + b"xy", str(len(body())), "2 bytes of the body belong to no input"),
    "beyond the body": (body(), "999", "Inference-Header-Content-Length is '999'"),
    "no number": (body(), "-1", "Inference-Header-Content-Length is '-1'"),
    "a number for a name": (body(tensor([1], shape=[1], name=3)), None, "name is '3': send a text"),
    "parameters": (body(parameters=[]), None, r"parameters is '\[\]': send an object"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_with_what_is_expected(case: str) -> None:
    """Anybody may send anything; whoever meant well reads what to mend."""
    given, header_length, text = REFUSED[case]
    with pytest.raises(RefusedError, match=text) as raised:
        read(given, header_length)
    assert raised.value.kind is Kind.INVALID


def test_json_that_would_take_all_memory_is_not_read() -> None:
    """Two bytes of it may take a hundred here."""
    with pytest.raises(RefusedError, match="more than 1048576 values that are no lists of numbers") as raised:
        read(b'{"inputs": [' + b"[]," * (1 << 22) + b"1]}")
    assert raised.value.kind is Kind.TOO_LARGE


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)),
    max_leaves=8,
)
INPUTS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.one_of(st.sampled_from(["input", "image_bytes"]), JSON),
        "datatype": st.one_of(st.sampled_from(["UINT8", "FP32", "BOOL", "BYTES"]), JSON),
        "shape": st.one_of(st.lists(st.integers(-1, 4), max_size=3), JSON),
        "data": JSON,
        "parameters": st.one_of(st.fixed_dictionaries({"binary_data_size": st.integers(-1, 9)}), JSON),
    },
)


@given(
    told=st.fixed_dictionaries(
        {"inputs": st.one_of(st.lists(INPUTS, max_size=2), JSON)},
        optional={"outputs": JSON, "parameters": JSON, "id": JSON},
    ),
    behind=st.binary(max_size=9),
    off=st.integers(-1, 1),
)
def test_any_body_is_read_or_refused(told: Any, behind: bytes, off: int) -> None:
    """A stranger's body ends in no other error than a refusal."""
    written = json.dumps(told).encode()
    for header_length in (None, str(len(written) + off)):
        try:
            found = read(written + behind, header_length)
            found.call("d", "c", received_ns=0, max_reply_bytes=1, budget_ms=None, frame=None)
        except RefusedError:
            continue


MASK = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)


def answer(wanted: tuple[WantedOutput, ...], **parameters: Any) -> tuple[Any, bytes]:
    """The JSON of an answer, and what follows it."""
    request = InferRequest("m", None, "i", parameters, (), wanted)
    outputs = (
        OutputTensor("mask", "UINT8", MASK.shape, MASK),
        OutputTensor("result_bytes", "BYTES", (2,), [b"\xff", b"ab"]),
    )
    listed = listed_bytes(request, outputs)
    written = write_answer(request, "1", outputs, 1000)
    told = json.loads(written.body[: written.header_length])
    assert listed == sum({"mask": 6, "result_bytes": 3}[each["name"]] for each in told["outputs"] if "data" in each)
    return told, written.body[written.header_length :] if written.header_length else b""


def test_outputs_are_json_unless_binary_is_asked_for() -> None:
    """As the binary tensor extension has it, by output or for all."""
    told, behind = answer(())
    mask, results = told["outputs"]
    assert (told["id"], mask["shape"], mask["data"], behind) == ("i", [1, 2, 3], [0, 1, 2, 3, 4, 5], b"")
    assert [base64.b64decode(each) for each in results["data"]] == [b"\xff", b"ab"]
    assert results["parameters"] == {"content_type": "base64"}
    framed = b"\1\0\0\0\xff\2\0\0\0ab"
    told, behind = answer((), binary_data_output=True)
    assert [each["parameters"]["binary_data_size"] for each in told["outputs"]] == [6, len(framed)]
    assert behind == MASK.tobytes() + framed
    _, behind = answer((WantedOutput("mask", {"binary_data": False}),), binary_data_output=True)
    assert behind == framed
    _, behind = answer((WantedOutput("mask", {"binary_data": True}),))
    assert behind == MASK.tobytes()


def test_text_beyond_ascii_is_read_within_a_bound() -> None:
    """One such letter makes four bytes of each that stands in one string with it."""
    for letter in ("é".encode(), b"\\u00e9"):
        with pytest.raises(RefusedError, match="text beyond ASCII") as raised:
            read(b'{"id": "' + letter + b"x" * (16 << 20) + b'"}')
        assert raised.value.kind is Kind.TOO_LARGE


@pytest.mark.parametrize(("most", "parameters"), [(12, {}), (16, {"binary_data_output": True})])
def test_an_answer_that_is_too_large_is_refused(most: int, parameters: Parameters) -> None:
    """As it is over gRPC; its text counts, and not only the numbers that it tells."""
    request = InferRequest("m", None, "", parameters, (), ())
    outputs = tuple(OutputTensor(name, "UINT8", MASK.shape, MASK) for name in ("mask", "other", "third"))
    write_answer(request, "1", outputs[:1], most)
    with pytest.raises(
        RefusedError, match=f"more than {most} bytes, in its JSON and behind it: ask for fewer"
    ) as raised:
        write_answer(request, "1", outputs, most)
    assert ("or with binary_data_output" in str(raised.value)) is not bool(parameters), "it is said to whom it helps"
