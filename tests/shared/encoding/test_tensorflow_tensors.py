"""TensorProtos as arrays, held against TensorFlow's own tools."""

from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.library import tf
from shared.encoding.protobuf import message_class
from shared.encoding.tensorflow_tensors import STRING, dtype_name, extend_values, from_tensor_proto, to_tensor_proto
from shared.messages.tensors import DTYPES, TensorsError

SPOKEN = (*DTYPES, "bool")


def array(dtype: Any, shape: tuple[int, ...] = (2, 3)) -> Any:
    """Numbers that every type holds, no two of them equal but in booleans. `dtype`: its name, or the type itself."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def typed(given: Any) -> Any:
    """A message of TensorFlow's own with the numbers in the list of their type, as we write it."""
    written = message_class("tensorflow.TensorProto")(dtype=tf.dtypes.as_dtype(given.dtype).as_datatype_enum)
    for side in given.shape:
        written.tensor_shape.dim.add(size=side)
    counts: list[int] = []
    extend_values(written, given, counts.append)
    assert sum(counts) == given.size
    return type(tf.make_tensor_proto(0)).FromString(written.SerializeToString())


def ours(theirs: Any) -> Any:
    """A message of TensorFlow's own as the same of our pool."""
    return message_class("tensorflow.TensorProto").FromString(theirs.SerializeToString())


@pytest.mark.parametrize("dtype", SPOKEN)
def test_tensorflow_reads_what_we_write_and_we_read_what_it_writes(dtype: str) -> None:
    """Both of its forms: bytes as its C++ tools write them, lists as a client in another language does."""
    given = array(dtype)
    written = tf.make_tensor_proto(given)
    back = tf.make_ndarray(type(written).FromString(to_tensor_proto(given).SerializeToString()))
    assert back.dtype == dtype
    assert np.array_equal(back, given)
    assert np.array_equal(from_tensor_proto(ours(written)), given)
    listed = message_class("tensorflow.TensorProto")(dtype=written.dtype, tensor_shape=ours(written).tensor_shape)
    for value in given.ravel():
        single = tf.make_tensor_proto(value)
        for field, values in ours(single).ListFields():
            if field.name.endswith("_val"):
                getattr(listed, field.name).extend(values)
    read = from_tensor_proto(listed)
    assert read.dtype == dtype
    assert np.array_equal(read, given)
    assert dtype_name(written.dtype) == dtype


@pytest.mark.parametrize("dtype", [*SPOKEN, "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_tensorflow_reads_the_lists_that_we_write(dtype: str, shape: tuple[int, ...]) -> None:
    """Its clients look for numbers there; halves lie as their bits, negative numbers as 64 of them."""
    given = array(tf.dtypes.as_dtype(dtype).as_numpy_dtype, shape)
    if given.dtype.kind in "if" and given.size:
        given = given - 3
    back = tf.make_ndarray(typed(given))
    assert back.dtype == given.dtype
    assert np.array_equal(back, given)
    if dtype != "bfloat16":  # Which is written alone.
        assert np.array_equal(from_tensor_proto(ours(typed(given))), given)


@pytest.mark.parametrize("fill", [0, 7])
def test_a_number_stands_for_those_that_follow(fill: int) -> None:
    """TensorFlow shortens constants so; a server's answer may come in that form."""
    proto = tf.make_tensor_proto(fill, shape=(4, 5), dtype=tf.int64)
    assert len(proto.int64_val) == 1
    assert np.array_equal(from_tensor_proto(ours(proto)), np.full((4, 5), fill))
    del proto.int64_val[:]
    assert np.array_equal(from_tensor_proto(ours(proto)), np.zeros((4, 5)))


def test_strings_are_bytes() -> None:
    """Encoded pictures travel as strings."""
    given = np.array([b"one", b"\0two\xff"], object)
    assert tf.make_ndarray(tf.make_tensor_proto(given)).tolist() == given.tolist()
    assert from_tensor_proto(ours(tf.make_tensor_proto(given))).tolist() == given.tolist()
    assert to_tensor_proto(given).SerializeToString() == tf.make_tensor_proto(given).SerializeToString()
    assert dtype_name(STRING) == "bytes"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"dtype": 8}, "type 8 is not spoken"),
        ({"tensor_content": b"123"}, "takes 24 bytes, not 3"),
        ({"tensor_content": b"", "int_val": [1] * 7}, "holds 7 numbers, its shape 6"),
        ({"tensor_content": b"", "dtype": 4, "int_val": [256]}, "none of uint8: send 0 to 255"),
        ({"dtype": STRING, "tensor_content": b""}, "holds 0 strings, its shape 6"),
        ({"tensor_shape": {"unknown_rank": True}}, "not known"),
        ({"tensor_shape": {"dim": [{"size": -1}]}}, "not known"),
        ({"tensor_shape": {"dim": [{"size": 1 << 20}, {"size": 1 << 20}]}}, "more than 268435456"),
    ],
)
def test_what_is_no_tensor_is_told(changes: dict[str, Any], told: str) -> None:
    """Anybody may send one; no memory is taken for a shape that is a lie."""
    fields = {"dtype": 3, "tensor_shape": {"dim": [{"size": 2}, {"size": 3}]}, "tensor_content": bytes(24), **changes}
    with pytest.raises(TensorsError, match=told):
        from_tensor_proto(message_class("tensorflow.TensorProto")(**fields))
