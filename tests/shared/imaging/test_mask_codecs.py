import tracemalloc
from typing import Any

import numpy as np
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import SkylaneError, UnknownNameError
from shared.imaging.codec import MASK_CODECS
from shared.imaging.image_codecs import decode_mask, encode_mask
from shared.imaging.opencv import cv2

SHAPE = (24, 30)


def street_mask() -> Any:
    """Returns a mask with long and short runs."""
    mask = np.zeros(SHAPE, np.uint8)
    mask[:8] = 5
    mask[6:20, 4:9] = 3
    mask[10:14, 15:28] = 8
    mask[-1, -1] = 255
    return mask


@pytest.mark.parametrize("codec", MASK_CODECS)
@given(data=st.data(), shape=st.tuples(st.integers(1, 30), st.integers(1, 30)))
@settings(max_examples=60)
def test_every_codec_is_lossless(codec: str, data: st.DataObject, shape: tuple[int, int]) -> None:
    """A changed class id would be another kind of object."""
    mask = data.draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 2, 11, 255])))
    assert np.array_equal(decode_mask(encode_mask(mask, codec), codec, shape), mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
@pytest.mark.parametrize("shape", [(608, 968), (1, 65535), (65535, 1)])
def test_common_and_extreme_sizes_are_lossless(codec: str, shape: tuple[int, int]) -> None:
    """The longest run fits its two bytes."""
    mask = np.zeros(shape, np.uint8)
    mask[shape[0] // 2, shape[1] // 3 :] = 7
    assert np.array_equal(decode_mask(encode_mask(mask, codec), codec, shape), mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
def test_view_is_encoded_row_by_row(codec: str) -> None:
    """A cropped mask is a view with gaps."""
    mask = street_mask()[2:20, 3:25]
    assert np.array_equal(decode_mask(encode_mask(mask, codec), codec, mask.shape), mask)


@pytest.mark.parametrize("codec", ["png", "rle", "zstd"])
def test_masks_are_compressed(codec: str) -> None:
    """A mask shrinks to a tenth at least."""
    mask = np.repeat(np.repeat(street_mask(), 20, axis=0), 20, axis=1)
    assert len(encode_mask(mask, codec)) < mask.size / 10


def test_rle_matches_the_documentation() -> None:
    """Clients in other languages rely on it: ids, then lengths; each run ends with its row."""
    mask = np.array([[4, 4, 9], [9, 9, 9]], np.uint8)
    assert encode_mask(mask, "rle") == bytes([4, 9, 9, 2, 0, 1, 0, 3, 0])


def test_png_is_an_ordinary_grey_image() -> None:
    """Any program can open a saved mask."""
    mask = street_mask()
    opened = cv2.imdecode(np.frombuffer(encode_mask(mask, "png"), np.uint8), cv2.IMREAD_UNCHANGED)
    assert opened is not None
    assert np.array_equal(opened, mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
@pytest.mark.parametrize("shape", [(24, 31), (25, 30), (23, 30)])
def test_data_of_another_shape_is_rejected(codec: str, shape: tuple[int, int]) -> None:
    """Memory is allocated for the expected shape."""
    with pytest.raises(SkylaneError, match=f"{shape[0]}×{shape[1]}"):
        decode_mask(encode_mask(street_mask(), codec), codec, shape)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (-5, -5), (65536, 1), (60000, 60000)])
@pytest.mark.parametrize("codec", MASK_CODECS)
def test_invalid_shape_is_rejected(codec: str, shape: tuple[int, int]) -> None:
    """The shape is checked before it is used."""
    with pytest.raises(SkylaneError, match="send sides from 1"):
        decode_mask(b"", codec, shape)


@pytest.mark.parametrize(
    "mask",
    [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.int64), np.zeros((0, 4), np.uint8)],
    ids=["colour", "int64", "empty"],
)
def test_array_that_is_not_a_mask_is_rejected(mask: Any) -> None:
    """Only uint8 class ids are transmitted."""
    with pytest.raises(SkylaneError, match="mask is"):
        encode_mask(mask, "raw")


@pytest.mark.parametrize(
    ("codec", "data", "reason"),
    [
        ("rle", b"\x00" * 4, "not a multiple of 3"),
        ("rle", b"", "have 0 pixels"),
        ("rle", b"\x01" * 1000 + b"\xff" * 2000, "have 65535000 pixels"),
        ("zstd", zstd.compress(bytes(100_000_000)), "declares 100000000 bytes"),
        (
            "zstd",
            zstd.compress(bytes(100_000_000), options={zstd.CompressionParameter.content_size_flag: 0}),
            "does not decompress to 720",
        ),
        ("zstd", bytes(encode_mask(np.zeros(SHAPE, np.uint8), "zstd")) + b"more", "does not decompress to 720"),
        ("png", cv2.imencode(".png", np.zeros((9000, 9000), np.uint8))[1].tobytes(), "9000×9000"),
        ("png", cv2.imencode(".png", np.zeros((*SHAPE, 3), np.uint8))[1].tobytes(), "3 × 8 bits"),
        ("png", cv2.imencode(".jpg", np.zeros(SHAPE, np.uint8))[1].tobytes(), "jpeg"),
        ("png", encode_mask(np.zeros(SHAPE, np.uint8), "png")[:40], "damaged"),
    ],
)
def test_bombs_and_damaged_data_take_no_memory(codec: str, data: bytes, reason: str) -> None:
    """The decompressed size is checked before decompression."""
    tracemalloc.start()
    try:
        with pytest.raises(SkylaneError, match=reason):
            decode_mask(data, codec, SHAPE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


@given(
    codec=st.sampled_from(sorted(MASK_CODECS)),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4),
    keep=st.floats(0.5, 1.0),
)
@settings(max_examples=200)
def test_damaged_data_is_rejected_or_has_the_expected_shape(
    codec: str, flips: list[tuple[int, int]], keep: float
) -> None:
    """A vehicle must survive the messages of a faulty worker."""
    data = bytearray(encode_mask(street_mask(), codec))
    for position, flip in flips:
        data[position % len(data)] ^= flip
    try:
        decoded = decode_mask(bytes(data[: int(len(data) * keep)]), codec, SHAPE)
    except SkylaneError:
        return
    assert decoded.shape == SHAPE
    assert decoded.dtype == np.uint8


def test_unknown_codec_is_rejected_with_a_suggestion() -> None:
    """A misspelt codec gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="zstd"):
        encode_mask(street_mask(), "zst")
    with pytest.raises(UnknownNameError, match="rle"):
        decode_mask(b"", "rl", SHAPE)
