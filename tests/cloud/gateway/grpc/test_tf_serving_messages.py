"""Reading PredictRequests and writing PredictResponses."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.grpc.tf_serving import CONTENT, ENCODINGS, TYPED, read_predict, write_predict
from cloud.serving.errors import ApiError
from shared.messages.protobuf import message_class
from shared.messages.tensorflow_tensors import from_tensor_proto, to_tensor_proto
from shared.messages.tensors import DTYPES

REQUEST = message_class("tensorflow.serving.PredictRequest")
RESPONSE = message_class("tensorflow.serving.PredictResponse")
MAX_BYTES = 1 << 27
SPEC = message_class("tensorflow.serving.ModelSpec")(name="net", version={"value": 3})

shapes = st.lists(st.integers(0, 4), max_size=5)


def bytes_array(strings: list[bytes]) -> Any:
    """An array of byte strings."""
    array = np.empty(len(strings), object)
    array[:] = strings
    return array


@given(shapes, st.booleans(), st.data())
def test_pixels_are_read_exactly(shape: list[int], listed: bool, data: st.DataObject) -> None:  # noqa: FBT001
    """They may be in `tensor_content` or in `int_val`."""
    size = int(np.prod(shape))
    pixels = np.array(data.draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)), np.uint8).reshape(shape)
    request = REQUEST(model_spec={"name": "net", "signature_name": "s"}, output_filter=["mask"])
    tensor = to_tensor_proto(pixels, request.inputs["input"])
    if listed:
        tensor.ClearField("tensor_content")
        tensor.int_val.extend(pixels.ravel().tolist())
    read = read_predict(request.SerializeToString())
    np.testing.assert_array_equal(np.asarray(read.inputs["input"]), pixels)
    assert (read.spec.name, read.spec.signature_name, read.outputs) == ("net", "s", ("mask",))


def test_numbers_are_not_repeated_to_fill_a_shape() -> None:
    """TensorFlow repeats the last number: forty bytes would become sixteen gigabytes of pixels."""
    request = REQUEST()
    for number in range(64):
        request.inputs[f"input {number}"].dtype = 4
        request.inputs[f"input {number}"].tensor_shape.dim.add(size=1 << 28)
        request.inputs[f"input {number}"].int_val.append(7)
    with pytest.raises(ApiError, match=r"has 1 numbers, its shape .268435456. needs 268435456: send all"):
        read_predict(request.SerializeToString())


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_strings_are_read_exactly(strings: list[bytes]) -> None:
    """Encoded images of any size, empty ones included."""
    request = REQUEST()
    to_tensor_proto(bytes_array(strings), request.inputs["image_bytes"])
    assert [bytes(each) for each in read_predict(request.SerializeToString()).inputs["image_bytes"]] == strings


@given(
    st.binary(max_size=80) | st.lists(st.sampled_from([0x0A, 0x12, 0x22, 0x42, 0x3A, 0x08, 4, 7, 2, 1, 0])).map(bytes)
)
def test_arbitrary_bytes_raise_only_api_errors(data: bytes) -> None:
    """The message is untrusted. The protobuf library reads the same inputs."""
    try:
        read = read_predict(data)
    except ApiError:
        return
    assert set(REQUEST.FromString(data).inputs) == set(read.inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_type_is_written_exactly(dtype: str, encoding: str) -> None:
    """This holds for both encodings, also for tensors that are written in several parts."""
    values = np.random.default_rng(4).integers(0, 100, (5, 20_000)).astype(dtype)
    outputs = {"values": values, "others": values[0, :3]}
    response = RESPONSE.FromString(write_predict(outputs, SPEC, encoding, MAX_BYTES))
    assert response.outputs.keys() == outputs.keys()
    for name, values in outputs.items():
        read = from_tensor_proto(response.outputs[name])
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, values)
        assert bool(response.outputs[name].tensor_content) is (encoding == CONTENT)
    assert response.model_spec == SPEC


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_writing_stops_when_the_size_limit_is_exceeded(encoding: str) -> None:
    """A negative number takes ten bytes in a typed list, so only the other encoding may fit the limit."""
    limit, values = 4096, np.full(2000, -1, np.int8)
    outputs = {"first": values, "second": values}
    if encoding == CONTENT:
        assert from_tensor_proto(
            RESPONSE.FromString(write_predict(outputs, SPEC, encoding, limit)).outputs["second"]
        ).size
        outputs["third"] = values
    with pytest.raises(ApiError, match=f"more than {limit} bytes, {encoding}: request fewer") as raised:
        write_predict(outputs, SPEC, encoding, limit)
    assert ("skylane-tensors: content" in str(raised.value)) is (encoding == TYPED)


def test_an_unsupported_type_is_an_error() -> None:
    """A model may return any type; the worker must not fail unexpectedly."""
    with pytest.raises(ApiError, match="output values has the type complex64, which is not supported"):
        write_predict({"values": np.zeros(2, np.complex64)}, SPEC, TYPED, MAX_BYTES)


def test_the_number_of_inputs_is_limited() -> None:
    """A string of two bytes takes two hundred in memory: thousands of inputs took gigabytes and minutes."""
    request = REQUEST()
    for number in range(65):
        request.inputs[f"input {number}"].CopyFrom(to_tensor_proto(bytes_array([b""] * 3)))
    with pytest.raises(ApiError, match="65 inputs: send at most 64"):
        read_predict(request.SerializeToString())
