import tracemalloc
from typing import Any

import numpy as np
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import UnknownNameError
from shared.imaging.mask_codecs import MASK_CODECS, MaskCodecError, decode, encode
from shared.imaging.opencv import cv2

SHAPE = (24, 30)


def street_mask() -> Any:
    """A mask with long runs and short ones."""
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
    """A class id that changed on the way is another object in the street."""
    mask = data.draw(hnp.arrays(np.uint8, shape, elements=st.sampled_from([0, 1, 2, 11, 255])))
    assert np.array_equal(decode(encode(mask, codec), codec, shape), mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
@pytest.mark.parametrize("shape", [(608, 968), (1, 65535), (65535, 1)])
def test_real_and_extreme_sizes_are_lossless(codec: str, shape: tuple[int, int]) -> None:
    """A run as long as a row can be must fit its two bytes."""
    mask = np.zeros(shape, np.uint8)
    mask[shape[0] // 2, shape[1] // 3 :] = 7
    assert np.array_equal(decode(encode(mask, codec), codec, shape), mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
def test_a_view_is_encoded_row_by_row(codec: str) -> None:
    """What postprocessing hands over may be a crop with gaps in memory."""
    mask = street_mask()[2:20, 3:25]
    assert np.array_equal(decode(encode(mask, codec), codec, mask.shape), mask)


@pytest.mark.parametrize("codec", ["png", "rle", "zstd"])
def test_a_mask_gets_smaller(codec: str) -> None:
    """That is what the codec is for."""
    mask = np.repeat(np.repeat(street_mask(), 20, axis=0), 20, axis=1)
    assert len(encode(mask, codec)) < mask.size / 10


def test_rle_is_as_documented() -> None:
    """Another language's client reads it from the docstring: ids first, then lengths, runs ending with their row."""
    mask = np.array([[4, 4, 9], [9, 9, 9]], np.uint8)
    assert encode(mask, "rle") == bytes([4, 9, 9, 2, 0, 1, 0, 3, 0])


def test_png_opens_anywhere() -> None:
    """A saved mask is an ordinary 8-bit grey picture."""
    mask = street_mask()
    opened = cv2.imdecode(np.frombuffer(encode(mask, "png"), np.uint8), cv2.IMREAD_UNCHANGED)
    assert opened is not None
    assert np.array_equal(opened, mask)


@pytest.mark.parametrize("codec", MASK_CODECS)
@pytest.mark.parametrize("shape", [(24, 31), (25, 30), (23, 30)])
def test_data_that_is_not_the_announced_shape_is_refused(codec: str, shape: tuple[int, int]) -> None:
    """Memory is taken for what was announced, so what is inside must be that."""
    with pytest.raises(MaskCodecError, match=f"{shape[0]}×{shape[1]}"):
        decode(encode(street_mask(), codec), codec, shape)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (-5, -5), (65536, 1), (60000, 60000)])
@pytest.mark.parametrize("codec", MASK_CODECS)
def test_an_impossible_shape_is_refused(codec: str, shape: tuple[int, int]) -> None:
    """Before anything is computed from it."""
    with pytest.raises(MaskCodecError, match="sides go from 1"):
        decode(b"", codec, shape)


@pytest.mark.parametrize(
    "mask",
    [np.zeros((4, 4, 3), np.uint8), np.zeros((4, 4), np.int64), np.zeros((0, 4), np.uint8)],
    ids=["colour", "int64", "empty"],
)
def test_what_is_no_mask_is_not_encoded(mask: Any) -> None:
    """Class ids go on the wire, never colours, and a byte each."""
    with pytest.raises(MaskCodecError, match="mask is"):
        encode(mask, "raw")


@pytest.mark.parametrize(
    ("codec", "data", "reason"),
    [
        ("rle", b"\x00" * 4, "each run takes 3"),
        ("rle", b"", "hold 0 pixels"),
        ("rle", b"\x01" * 1000 + b"\xff" * 2000, "hold 65535000 pixels"),
        ("zstd", zstd.compress(bytes(100_000_000)), "unfolds to 100000000"),
        (
            "zstd",
            zstd.compress(bytes(100_000_000), options={zstd.CompressionParameter.content_size_flag: 0}),
            "does not unfold to 720",
        ),
        ("zstd", bytes(encode(np.zeros(SHAPE, np.uint8), "zstd")) + b"more", "does not unfold to 720"),
        ("png", cv2.imencode(".png", np.zeros((9000, 9000), np.uint8))[1].tobytes(), "9000×9000"),
        ("png", cv2.imencode(".png", np.zeros((*SHAPE, 3), np.uint8))[1].tobytes(), "3 × 8 bits"),
        ("png", cv2.imencode(".jpg", np.zeros(SHAPE, np.uint8))[1].tobytes(), "jpeg"),
        ("png", encode(np.zeros(SHAPE, np.uint8), "png")[:40], "damaged"),
    ],
)
def test_bombs_and_broken_data_are_refused_without_memory(codec: str, data: bytes, reason: str) -> None:
    """What it would unfold to is known before it does."""
    tracemalloc.start()
    try:
        with pytest.raises(MaskCodecError, match=reason):
            decode(data, codec, SHAPE)
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
def test_damaged_data_is_refused_or_has_the_announced_shape(
    codec: str, flips: list[tuple[int, int]], keep: float
) -> None:
    """A vehicle must survive what a broken worker sends."""
    data = bytearray(encode(street_mask(), codec))
    for place, flip in flips:
        data[place % len(data)] ^= flip
    try:
        decoded = decode(bytes(data[: int(len(data) * keep)]), codec, SHAPE)
    except MaskCodecError:
        return
    assert decoded.shape == SHAPE
    assert decoded.dtype == np.uint8


def test_an_unknown_codec_is_named() -> None:
    """A misspelt codec gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="zstd"):
        encode(street_mask(), "zst")
    with pytest.raises(UnknownNameError, match="rle"):
        decode(b"", "rl", SHAPE)
