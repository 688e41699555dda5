"""PredictRequests and PredictResponses, as any client may write and read them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.common.errors import RefusedError
from cloud.gateway.tf_serving.grpc_messages import read_predict
from cloud.gateway.tf_serving.response import Form, write_predict
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import STRING, from_tensor_proto, to_tensor_proto
from shared.messages.tensors import DTYPES

REQUEST = message_class("tensorflow.serving.PredictRequest")
RESPONSE = message_class("tensorflow.serving.PredictResponse")
LARGEST = 1 << 27
SPEC = message_class("tensorflow.serving.ModelSpec")(name="net", version={"value": 3})

shapes = st.lists(st.integers(0, 4), max_size=5)


def bytes_array(strings: list[bytes]) -> Any:
    """Strings as an array of objects."""
    found = np.empty(len(strings), object)
    found[:] = strings
    return found


@given(shapes, st.booleans(), st.data())
def test_pixels_are_read_as_the_library_reads_them(shape: list[int], listed: bool, data: st.DataObject) -> None:  # noqa: FBT001  Hypothesis gives it.
    """In either form."""
    size = int(np.prod(shape))
    pixels = np.array(data.draw(st.lists(st.integers(0, 255), min_size=size, max_size=size)), np.uint8).reshape(shape)
    request = REQUEST(model_spec={"name": "net", "signature_name": "s"}, output_filter=["mask"])
    tensor = to_tensor_proto(pixels, request.inputs["input"])
    if listed:
        tensor.ClearField("tensor_content")
        tensor.int_val.extend(pixels.ravel().tolist())
    read = read_predict(request.SerializeToString())
    np.testing.assert_array_equal(np.asarray(read.inputs["input"]), pixels)
    assert (read.model, read.signature, read.outputs, read.version) == ("net", "s", ("mask",), None)


def test_a_few_numbers_do_not_stand_for_many() -> None:
    """As TensorFlow has it, they would: forty bytes would become sixteen gigabytes of pixels."""
    request = REQUEST()
    for place in range(64):
        request.inputs[f"input {place}"].dtype = 4
        request.inputs[f"input {place}"].tensor_shape.dim.add(size=1 << 28)
        request.inputs[f"input {place}"].int_val.append(7)
    with pytest.raises(RefusedError, match=r"holds 1 numbers, its shape .268435456. takes 268435456: send all"):
        read_predict(request.SerializeToString())


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_strings_are_read_as_they_were_sent(strings: list[bytes]) -> None:
    """Encoded pictures, of any size and none."""
    request = REQUEST()
    to_tensor_proto(bytes_array(strings), request.inputs["image_bytes"])
    assert [bytes(each) for each in read_predict(request.SerializeToString()).inputs["image_bytes"]] == strings


@given(
    st.binary(max_size=80) | st.lists(st.sampled_from([0x0A, 0x12, 0x22, 0x42, 0x3A, 0x08, 4, 7, 2, 1, 0])).map(bytes)
)
def test_anything_is_read_or_refused(data: bytes) -> None:
    """Anybody may send it. What is read, the library reads too."""
    try:
        read = read_predict(data)
    except RefusedError:
        return
    assert set(REQUEST.FromString(data).inputs) == set(read.inputs)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", Form)
def test_every_type_is_written_bit_by_bit(dtype: str, form: Form) -> None:
    """In either form, in as many parts as it takes: the library reads the same numbers."""
    values = np.random.default_rng(4).integers(0, 100, (5, 20_000)).astype(dtype)
    outputs = {"values": values, "others": values[0, :3]}
    answer = RESPONSE.FromString(write_predict(outputs, SPEC, form, LARGEST))
    assert answer.outputs.keys() == outputs.keys()
    for name, sent in outputs.items():
        read = from_tensor_proto(answer.outputs[name])
        assert read.dtype == dtype
        np.testing.assert_array_equal(read, sent)
        assert bool(answer.outputs[name].tensor_content) is (form is Form.CONTENT)
    assert answer.model_spec == SPEC


@pytest.mark.parametrize("form", Form)
def test_an_answer_that_is_too_large_is_not_written_to_its_end(form: Form) -> None:
    """A negative number takes ten bytes in a list: an answer that may be sent as bytes may be too large so."""
    most, spent = 4096, np.full(2000, -1, np.int8)
    outputs = {"first": spent, "second": spent}
    if form is Form.CONTENT:
        assert from_tensor_proto(RESPONSE.FromString(write_predict(outputs, SPEC, form, most)).outputs["second"]).size
        outputs["third"] = spent
    with pytest.raises(RefusedError, match=f"more than {most} bytes, {form}: ask for fewer") as raised:
        write_predict(outputs, SPEC, form, most)
    assert ("skylane-tensors: content" in str(raised.value)) is (form is Form.TYPED)


def test_numbers_without_a_name_are_refused() -> None:
    """A model may answer anything; the worker must not end of it."""
    with pytest.raises(RefusedError, match="output values is complex64, which is not spoken here"):
        write_predict({"values": np.zeros(2, np.complex64)}, SPEC, Form.TYPED, LARGEST)


def test_results_are_written_as_strings() -> None:
    """Each picture's result by itself."""
    answer = RESPONSE.FromString(
        write_predict({"result_bytes": [b"one", memoryview(b"two")]}, SPEC, Form.TYPED, LARGEST)
    )
    assert answer.outputs["result_bytes"].dtype == STRING
    assert from_tensor_proto(answer.outputs["result_bytes"]).tolist() == [b"one", b"two"]


def test_a_shape_with_nothing_in_it_takes_no_memory() -> None:
    """A side of none beside others that no array can have."""
    request = REQUEST()
    request.inputs["input"].dtype = 4
    for size in (0, 1 << 62, 1 << 62):
        request.inputs["input"].tensor_shape.dim.add(size=size)
    with pytest.raises(RefusedError, match="more than 268435456"):
        read_predict(request.SerializeToString())


def test_strings_of_more_inputs_than_any_model_has_are_not_read() -> None:
    """Two bytes are a string and take two hundred: four thousand inputs of as many took gigabytes and minutes."""
    request = REQUEST()
    for place in range(65):
        request.inputs[f"input {place}"].CopyFrom(to_tensor_proto(bytes_array([b""] * 3)))
    with pytest.raises(RefusedError, match="65 inputs: send at most 64"):
        read_predict(request.SerializeToString())
