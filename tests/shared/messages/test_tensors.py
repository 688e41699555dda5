import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import SkylaneError, UnknownNameError
from shared.messages.tensors import DTYPES, MAX_BYTES, MAX_TENSORS, TENSOR_CODECS, TensorsError, decode, encode

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
ARRAYS = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in DTYPES]),
    hnp.array_shapes(min_dims=0, max_dims=8, min_side=0, max_side=3),
)


@pytest.mark.parametrize("codec", TENSOR_CODECS)
@settings(max_examples=80)
@given(arrays=st.dictionaries(NAMES, ARRAYS, max_size=5))
def test_arrays_round_trip_exactly(codec: str, arrays: dict[str, Any]) -> None:
    """Every bit is preserved, including those of NaN."""
    back = decode(encode(arrays, codec), codec)
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


@pytest.mark.parametrize("codec", TENSOR_CODECS)
def test_strided_and_big_endian_arrays_are_encoded_by_value(codec: str) -> None:
    """Engines may return views with strides."""
    whole = np.arange(60, dtype=">f4").reshape(5, 12)
    back = decode(encode({"part": whole[::2, 1::3]}, codec), codec)["part"]
    assert back.dtype == np.dtype("=f4")
    np.testing.assert_array_equal(back, whole[::2, 1::3])


def test_encoding_matches_the_documentation() -> None:
    """Clients in other languages rely on it."""
    packed = encode({"a": np.array([[1, 2]], np.uint16)}, "raw")
    assert msgpack.unpackb(packed) == {"v": 1, "tensors": [["a", "uint16", [1, 2], b"\x01\x00\x02\x00"]]}


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"a": np.array(["text"])}, "'a' is str"),
        ({"a": np.zeros(2, np.complex64)}, "have the model cast it"),
        ({"a": np.zeros(2, bool)}, "'a' is bool"),
        ({"a": np.zeros([1] * 9, np.uint8)}, "with 9 dimensions"),
        ({"a/b": np.zeros(1, np.uint8)}, "not allowed"),
        ({str(i): np.zeros(1, np.uint8) for i in range(MAX_TENSORS + 1)}, "65 arrays are more than 64"),
        ({"a": np.broadcast_to(np.uint8(0), (MAX_BYTES + 1,))}, "ask for fewer outputs"),
    ],
    ids=["text", "complex", "bool", "dimensions", "name", "many", "large"],
)
def test_unsupported_arrays_are_rejected(arrays: dict[str, Any], reason: str) -> None:
    """The vehicle receives the reason."""
    with pytest.raises(SkylaneError, match=reason):
        encode(arrays, "raw")


def _item(**changes: Any) -> list[Any]:
    return list(({"name": "a", "dtype": "uint8", "shape": [2, 2], "data": bytes(4)} | changes).values())


@pytest.mark.parametrize(
    "items",
    [
        [_item(name="a/b")],
        [_item(name=7)],
        [_item(dtype="object")],
        [_item(dtype="float128")],
        [_item(dtype=[["a", "u1"]])],
        [_item(shape=[2, -2])],
        [_item(shape=[True, 4])],
        [_item(shape=[1] * 9)],
        [_item(shape=[3, 2])],
        [_item(shape=[1 << 20, 1 << 20], data=b"")],
        [_item(shape=[0, 1 << 28, 1 << 28, 1 << 28], data=b"")],
        [_item(data="text")],
        [_item()[:3]],
        [_item(), _item()],
        [_item(name=str(i)) for i in range(MAX_TENSORS + 1)],
        ["a"],
        None,
    ],
)
def test_invalid_encoded_array_is_rejected(items: Any) -> None:
    """Anyone may publish anything, and no dtype name may make NumPy create objects."""
    with pytest.raises(SkylaneError) as caught:
        decode(msgpack.packb({"v": 1, "tensors": items}), "raw")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_decompression_bomb_takes_no_memory(codec: str) -> None:
    """Zeros compress a thousandfold; sizes are compared with the shape and the total limit before decompression."""
    bomb = bytes(TENSOR_CODECS[codec].compress(bytes(64 << 20)))
    tracemalloc.start()
    for shape in ([10], [1 << 28, 1 << 28]):
        with pytest.raises(SkylaneError):
            decode(msgpack.packb({"v": 1, "tensors": [_item(shape=shape, data=bomb)]}), codec)
    many = [_item(name=str(i), shape=[64 << 20], data=bomb) for i in range(5)]
    with pytest.raises(TensorsError, match="ask for fewer outputs"):
        decode(msgpack.packb({"v": 1, "tensors": many}), codec)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10_000_000


@settings(max_examples=200)
@given(st.data())
def test_damaged_data_raises_only_skylane_error(data: st.DataObject) -> None:
    """Any other exception would end the receiving thread."""
    codec = data.draw(st.sampled_from(sorted(TENSOR_CODECS)))
    damaged = bytearray(encode({"a": np.arange(9, dtype=np.float32), "b": np.zeros((2, 0), np.int8)}, codec))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode(bytes(damaged), codec)
    except SkylaneError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_image_codecs_are_unknown() -> None:
    """Arrays have no lossy codecs."""
    for call in (lambda: encode({}, "jpeg"), lambda: decode(b"", "png")):
        with pytest.raises(UnknownNameError, match="raw"):
            call()
