import tracemalloc

import lz4.block
import numpy as np
import pytest
from backports import zstd
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shared.errors import UnknownNameError
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout, Pixels
from shared.imaging.image_codecs import IMAGE_CODECS, ImageCodecError, ImageLimits, decode, encode, image_size
from shared.imaging.opencv import cv2

LIMITS = ImageLimits()
LOSSLESS = [codec for codec in IMAGE_CODECS if codec != "jpeg"]
JPEG_LAYOUTS = [Layout.RGB8, Layout.BGR8, Layout.MONO8]


def smooth(layout: Layout, height: int = 48, width: int = 64) -> Pixels:
    """A picture without sharp edges whose red is high on the left and whose blue is low."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green, blue = 250 - 2 * columns, 60 + rows, 10 + columns
    if layout is Layout.MONO8:
        return np.asarray(red, np.uint8)
    planes = (red, green, blue) if layout is Layout.RGB8 else (blue, green, red)
    return np.asarray(np.stack(planes, axis=-1), np.uint8)


def loud(layout: Layout, height: int = 8, width: int = 10, seed: int = 0) -> Pixels:
    """Random numbers over the layout's whole range."""
    top = np.iinfo(layout.dtype).max
    numbers = np.random.default_rng(seed).integers(0, top, layout.shape(height, width), endpoint=True)
    return np.asarray(numbers, layout.dtype)


@pytest.mark.parametrize("codec", LOSSLESS)
@given(data=st.data(), layout=st.sampled_from(list(Layout)), height=st.integers(1, 24), width=st.integers(1, 24))
@settings(max_examples=60)
def test_lossless_codecs_are_bit_exact(
    codec: str, data: st.DataObject, layout: Layout, height: int, width: int
) -> None:
    """Masks are promised equal to the direct call's in every pixel; that starts here."""
    pixels = data.draw(hnp.arrays(layout.dtype, layout.shape(height, width)))
    decoded = decode(encode(pixels, layout, codec, 85), codec, layout, pixels.shape, LIMITS, layout)
    assert decoded.dtype == layout.dtype
    assert np.array_equal(decoded, pixels)


@pytest.mark.parametrize("codec", IMAGE_CODECS)
@pytest.mark.parametrize("target", [Layout.RGB8, Layout.BGR8])
@pytest.mark.parametrize("layout", JPEG_LAYOUTS)
def test_colours_arrive_in_the_order_asked_for(codec: str, layout: Layout, target: Layout) -> None:
    """Red and blue swapped cost 16 to 20 points of accuracy; every path from layout to target must keep them."""
    pixels = smooth(layout)
    decoded = decode(encode(pixels, layout, codec, 95), codec, layout, pixels.shape, LIMITS, target)
    expected = to_colour(pixels, layout, target, "bilinear")
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected).max() <= (6 if codec == "jpeg" else 0)


@pytest.mark.parametrize("codec", LOSSLESS)
@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.is_bayer])
def test_bayer_is_demosaiced_on_the_way_to_colour(codec: str, layout: Layout) -> None:
    """A vehicle too weak to demosaic sends the sensor's numbers as they are."""
    pixels = loud(layout)
    decoded = decode(encode(pixels, layout, codec, 85), codec, layout, pixels.shape, LIMITS, Layout.BGR8)
    assert np.array_equal(decoded, to_colour(pixels, layout, Layout.BGR8, "bilinear"))


def test_raw_is_never_copied() -> None:
    """5 MB a frame, 20 times a second: a copy at each end would be the largest cost of the codec."""
    pixels = loud(Layout.BGR8)
    data = encode(pixels, Layout.BGR8, "raw", 85)
    decoded = decode(data, "raw", Layout.BGR8, pixels.shape, LIMITS, Layout.BGR8)
    assert np.shares_memory(decoded, pixels)
    assert not decoded.flags.writeable


def test_raw_of_a_view_is_row_by_row() -> None:
    """A cropped picture is a view with gaps; what travels has none."""
    pixels = loud(Layout.MONO16)[1:7, 2:9]
    decoded = decode(encode(pixels, Layout.MONO16, "raw", 85), "raw", Layout.MONO16, (6, 7), LIMITS, Layout.MONO16)
    assert np.array_equal(decoded, pixels)


def test_sixteen_bits_travel_little_endian() -> None:
    """The wire has one byte order, whatever machine wrote it."""
    assert bytes(encode(np.array([[0x1234]], np.uint16), Layout.MONO16, "raw", 85)) == b"\x34\x12"


def test_quality_trades_size() -> None:
    """The user's one control of JPEG has to reach it."""
    pixels = loud(Layout.BGR8, 64, 64)
    sizes = [len(encode(pixels, Layout.BGR8, "jpeg", quality)) for quality in (10, 50, 95)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 2


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_quality_that_is_none_is_refused(quality: int) -> None:
    """OpenCV would clamp it and say nothing."""
    with pytest.raises(ImageCodecError, match="1 to 100"):
        encode(smooth(Layout.BGR8), Layout.BGR8, "jpeg", quality)


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout not in JPEG_LAYOUTS])
def test_jpeg_refuses_bayer_and_16_bit(layout: Layout) -> None:
    """It would blur the pattern, or drop the bits, without a word; both ends say so."""
    with pytest.raises(ImageCodecError, match="choose png, lz4, zstd or raw"):
        encode(loud(layout), layout, "jpeg", 85)
    with pytest.raises(ImageCodecError, match="choose png, lz4, zstd or raw"):
        decode(b"\xff\xd8\xff", "jpeg", layout, (8, 10), LIMITS, layout)


def test_jpeg_refuses_a_side_that_it_cannot_hold() -> None:
    """OpenCV would write its refusal to standard error only."""
    with pytest.raises(ImageCodecError, match="65501"):
        encode(np.zeros((1, 65_501, 3), np.uint8), Layout.BGR8, "jpeg", 85)


def test_bytes_between_the_segments_of_a_jpeg_are_skipped() -> None:
    """Some cameras write them; the picture behind them is whole."""
    data = bytes(encode(smooth(Layout.BGR8), Layout.BGR8, "jpeg", 90))
    scan = data.rindex(b"\xff\xda")
    odd = data[:scan] + b"\x00\x01\x02" + data[scan:]
    whole, read = (decode(each, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8) for each in (data, odd))
    assert np.array_equal(read, whole)


def test_a_picture_is_never_turned_by_its_metadata() -> None:
    """A phone's JPEG says "turn me"; the mask would then lie across the frame it was made for."""
    jpeg = bytes(encode(smooth(Layout.BGR8), Layout.BGR8, "jpeg", 90))
    tiff = b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
    exif = b"Exif\x00\x00" + tiff
    turned = jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]
    naive = cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR)
    assert naive is not None
    assert naive.shape == (64, 48, 3)
    decoded = decode(turned, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8)
    assert np.array_equal(decoded, decode(jpeg, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8))


def test_the_size_of_a_picture_is_read_from_its_header() -> None:
    """The reader of bags announces what a compressed image holds before it is decoded."""
    assert image_size(encode(smooth(Layout.BGR8), Layout.BGR8, "jpeg", 85)) == (48, 64, 3)
    assert image_size(encode(smooth(Layout.MONO8), Layout.MONO8, "png", 85)) == (48, 64, 1)
    with pytest.raises(ImageCodecError, match="send a JPEG or a PNG"):
        image_size(b"BM....")


@pytest.mark.parametrize("codec", ["jpeg", "png"])
@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout.BGR8, (48, 65, 3)),
        (Layout.BGR8, (64, 48, 3)),
        (Layout.MONO8, (48, 64)),
    ],
)
def test_a_header_that_disagrees_is_refused(codec: str, layout: Layout, shape: tuple[int, ...]) -> None:
    """Memory is taken for what was announced, so what is inside must be that."""
    data = encode(smooth(Layout.BGR8), Layout.BGR8, codec, 85)
    with pytest.raises(ImageCodecError, match="must agree"):
        decode(data, codec, layout, shape, LIMITS, layout)


def test_a_picture_of_another_kind_is_refused() -> None:
    """What is announced as JPEG is decoded as JPEG only."""
    data = encode(smooth(Layout.BGR8), Layout.BGR8, "png", 85)
    with pytest.raises(ImageCodecError, match="must agree"):
        decode(data, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.BGR8)


def test_16_bit_png_is_not_taken_for_8() -> None:
    """OpenCV would drop half of each number in silence."""
    data = encode(loud(Layout.MONO16), Layout.MONO16, "png", 85)
    with pytest.raises(ImageCodecError, match="16 bits"):
        decode(data, "png", Layout.MONO8, (8, 10), LIMITS, Layout.MONO8)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
@pytest.mark.parametrize("shape", [(8, 9, 3), (8, 11, 3), (9, 10, 3)])
def test_data_that_is_not_the_announced_shape_is_refused(codec: str, shape: tuple[int, ...]) -> None:
    """The array's size must equal shape × dtype."""
    with pytest.raises(ImageCodecError, match=f"{shape[0]}×{shape[1]}×3"):
        decode(encode(loud(Layout.BGR8), Layout.BGR8, codec, 85), codec, Layout.BGR8, shape, LIMITS, Layout.BGR8)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout.BGR8, (8, 10)),
        (Layout.BGR8, (8, 10, 4)),
        (Layout.MONO8, (8, 10, 3)),
        (Layout.MONO8, (80,)),
        (Layout.MONO8, ()),
        (Layout.MONO8, (0, 10)),
        (Layout.MONO8, (-8, -10)),
        (Layout.MONO8, (8, 65536)),
        (Layout.MONO8, (60000, 60000)),
    ],
)
@pytest.mark.parametrize("codec", LOSSLESS)
def test_an_impossible_shape_is_refused(codec: str, layout: Layout, shape: tuple[int, ...]) -> None:
    """It is the first thing read of a message, and everything after believes it."""
    with pytest.raises(ImageCodecError, match="send"):
        decode(b"", codec, layout, shape, LIMITS, layout)


def test_limits_hold() -> None:
    """A worker sets its own."""
    data = encode(loud(Layout.BGR8), Layout.BGR8, "raw", 85)
    with pytest.raises(ImageCodecError, match="at most 79 pixels"):
        decode(data, "raw", Layout.BGR8, (8, 10, 3), ImageLimits(max_pixels=79), Layout.BGR8)
    with pytest.raises(ImageCodecError, match="more than 239"):
        decode(data, "raw", Layout.BGR8, (8, 10, 3), ImageLimits(max_bytes=239), Layout.BGR8)


def zstd_without_size(data: bytes) -> bytes:
    """A Zstandard frame that does not tell how much it unfolds to."""
    return zstd.compress(data, options={zstd.CompressionParameter.content_size_flag: 0})


@pytest.mark.parametrize(
    ("codec", "bomb"),
    [
        ("lz4", lz4.block.compress(bytes(100_000_000), store_size=False)),
        ("zstd", zstd.compress(bytes(100_000_000))),
        ("zstd", zstd_without_size(bytes(100_000_000))),
    ],
)
def test_a_bomb_takes_no_memory(codec: str, bomb: bytes) -> None:
    """Kilobytes that unfold to 100 MB must be refused before they do."""
    tracemalloc.start()
    try:
        with pytest.raises(ImageCodecError, match="unfold"):
            decode(bomb, codec, Layout.MONO8, (8, 10), LIMITS, Layout.MONO8)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1_000_000


def test_a_zstd_frame_that_hides_its_size_is_read() -> None:
    """Other encoders stream, and then do not know it."""
    pixels = loud(Layout.MONO8)
    data = zstd_without_size(pixels.tobytes())
    assert np.array_equal(decode(data, "zstd", Layout.MONO8, (8, 10), LIMITS, Layout.MONO8), pixels)


@given(
    codec=st.sampled_from(sorted(IMAGE_CODECS)),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4),
    keep=st.floats(0.5, 1.0),
)
@settings(max_examples=300)
def test_damaged_data_is_refused_or_has_the_announced_shape(
    codec: str, flips: list[tuple[int, int]], keep: float
) -> None:
    """Truncated and bit-flipped messages are answered, and never crash a decoder thread."""
    pixels = smooth(Layout.BGR8)
    data = bytearray(encode(pixels, Layout.BGR8, codec, 85))
    for place, flip in flips:
        data[place % len(data)] ^= flip
    try:
        decoded = decode(bytes(data[: int(len(data) * keep)]), codec, Layout.BGR8, pixels.shape, LIMITS, Layout.RGB8)
    except ImageCodecError:
        return
    assert decoded.shape == pixels.shape
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("codec", IMAGE_CODECS)
def test_bytes_that_were_never_a_picture_are_refused(codec: str) -> None:
    """Whatever the codec."""
    with pytest.raises(ImageCodecError):
        decode(b"\x00never a picture", codec, Layout.BGR8, (48, 64, 3), LIMITS, Layout.BGR8)


def test_a_bayer_picture_that_cannot_be_demosaiced_is_our_error() -> None:
    """An odd side arrives from the wire too."""
    with pytest.raises(ImageCodecError, match="even sides"):
        decode(bytes(35), "raw", Layout.BAYER_RGGB8, (5, 7), LIMITS, Layout.RGB8)


def test_a_target_that_cannot_be_reached_is_refused() -> None:
    """Colour is not made grey here, nor 16 bits of 8."""
    with pytest.raises(ImageCodecError, match="ask for rgb8, bgr8 or mono8"):
        decode(bytes(80), "raw", Layout.MONO8, (8, 10), LIMITS, Layout.MONO16)


def test_an_unknown_codec_is_named() -> None:
    """A misspelt codec gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="jpeg"):
        encode(smooth(Layout.BGR8), Layout.BGR8, "jpg", 85)
    with pytest.raises(UnknownNameError, match="zstd"):
        decode(b"", "zst", Layout.BGR8, (1, 1, 3), LIMITS, Layout.BGR8)
