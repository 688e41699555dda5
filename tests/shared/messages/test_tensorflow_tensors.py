from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from shared.messages.protobuf import message_class
from shared.messages.tensorflow_tensors import STRING, dtype_name, extend_values, from_tensor_proto, to_tensor_proto
from shared.messages.tensors import DTYPES, TensorsError

SUPPORTED = (*DTYPES, "bool")


def array(dtype: Any, shape: tuple[int, ...] = (2, 3)) -> Any:
    """Returns numbers that every dtype can represent, all different except for booleans."""
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def typed(given: Any) -> Any:
    """Returns TensorFlow's own message, decoded from one that `extend_values` filled."""
    written = message_class("tensorflow.TensorProto")(dtype=tf.dtypes.as_dtype(given.dtype).as_datatype_enum)
    for side in given.shape:
        written.tensor_shape.dim.add(size=side)
    counts: list[int] = []
    extend_values(written, given, counts.append)
    assert sum(counts) == given.size
    return type(tf.make_tensor_proto(0)).FromString(written.SerializeToString())


def ours(theirs: Any) -> Any:
    """Converts TensorFlow's own message to our message class."""
    return message_class("tensorflow.TensorProto").FromString(theirs.SerializeToString())


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_tensors_are_compatible_with_tensorflow(dtype: str) -> None:
    """In both forms: bytes, as in TensorFlow's C++ tools, and value fields, as in clients of other languages."""
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


@pytest.mark.parametrize("dtype", [*SUPPORTED, "bfloat16"])
@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()])
def test_value_fields_are_compatible_with_tensorflow(dtype: str, shape: tuple[int, ...]) -> None:
    """Half floats are stored as their bits, negative numbers as 64 bits."""
    given = array(tf.dtypes.as_dtype(dtype).as_numpy_dtype, shape)
    if given.dtype.kind in "if" and given.size:
        given = given - 3
    back = tf.make_ndarray(typed(given))
    assert back.dtype == given.dtype
    assert np.array_equal(back, given)
    if dtype != "bfloat16":  # bfloat16 is encoded only.
        assert np.array_equal(from_tensor_proto(ours(typed(given))), given)


@pytest.mark.parametrize("fill", [0, 7])
def test_last_value_is_repeated_to_fill_the_shape(fill: int) -> None:
    """TensorFlow shortens constants in this way, and servers may reply so."""
    proto = tf.make_tensor_proto(fill, shape=(4, 5), dtype=tf.int64)
    assert len(proto.int64_val) == 1
    assert np.array_equal(from_tensor_proto(ours(proto)), np.full((4, 5), fill))
    del proto.int64_val[:]
    assert np.array_equal(from_tensor_proto(ours(proto)), np.zeros((4, 5)))


def test_strings_become_bytes_objects() -> None:
    """Encoded images are transmitted as strings."""
    given = np.array([b"one", b"\0two\xff"], object)
    assert tf.make_ndarray(tf.make_tensor_proto(given)).tolist() == given.tolist()
    assert from_tensor_proto(ours(tf.make_tensor_proto(given))).tolist() == given.tolist()
    assert to_tensor_proto(given).SerializeToString() == tf.make_tensor_proto(given).SerializeToString()
    assert dtype_name(STRING) == "bytes"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"dtype": 8}, "type 8 is not supported"),
        ({"tensor_content": b"123"}, "takes 24 bytes, not 3"),
        ({"tensor_content": b"", "int_val": [1] * 7}, "has 7 values, its shape 6"),
        ({"tensor_content": b"", "dtype": 4, "int_val": [256]}, "outside the range of uint8: send 0 to 255"),
        ({"dtype": STRING, "tensor_content": b""}, "has 0 strings, its shape 6"),
        ({"tensor_shape": {"unknown_rank": True}}, "not known"),
        ({"tensor_shape": {"dim": [{"size": -1}]}}, "not known"),
        ({"tensor_shape": {"dim": [{"size": 1 << 20}, {"size": 1 << 20}]}}, "more than 268435456"),
    ],
)
def test_invalid_tensor_is_rejected(changes: dict[str, Any], error: str) -> None:
    """No memory is allocated for a false shape."""
    fields = {"dtype": 3, "tensor_shape": {"dim": [{"size": 2}, {"size": 3}]}, "tensor_content": bytes(24), **changes}
    with pytest.raises(TensorsError, match=error):
        from_tensor_proto(message_class("tensorflow.TensorProto")(**fields))
