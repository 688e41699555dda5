import numpy as np
import pytest
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


def smooth_image(layout: Layout, height: int = 48, width: int = 64) -> Pixels:
    """Returns an image without sharp edges; red decreases from left to right, blue increases."""
    rows, columns = np.mgrid[0:height, 0:width]
    red, green, blue = 250 - 2 * columns, 60 + rows, 10 + columns
    if layout is Layout.MONO8:
        return np.asarray(red, np.uint8)
    planes = (red, green, blue) if layout is Layout.RGB8 else (blue, green, red)
    return np.asarray(np.stack(planes, axis=-1), np.uint8)


def random_image(layout: Layout, height: int = 8, width: int = 10, seed: int = 0) -> Pixels:
    """Returns random values over the whole range of a layout."""
    maximum = np.iinfo(layout.dtype).max
    values = np.random.default_rng(seed).integers(0, maximum, layout.shape(height, width), endpoint=True)
    return np.asarray(values, layout.dtype)


@pytest.mark.parametrize("codec", LOSSLESS)
@given(data=st.data(), layout=st.sampled_from(list(Layout)), height=st.integers(1, 24), width=st.integers(1, 24))
@settings(max_examples=60)
def test_lossless_codecs_round_trip_exactly(
    codec: str, data: st.DataObject, layout: Layout, height: int, width: int
) -> None:
    """Every layout and size is preserved."""
    pixels = data.draw(hnp.arrays(layout.dtype, layout.shape(height, width)))
    decoded = decode(encode(pixels, layout, codec, 85), codec, layout, pixels.shape, LIMITS, layout)
    assert decoded.dtype == layout.dtype
    assert np.array_equal(decoded, pixels)


@pytest.mark.parametrize("codec", IMAGE_CODECS)
@pytest.mark.parametrize("target", [Layout.RGB8, Layout.BGR8])
@pytest.mark.parametrize("layout", JPEG_LAYOUTS)
def test_colour_order_follows_the_target_layout(codec: str, layout: Layout, target: Layout) -> None:
    """Swapped red and blue cost 16 to 20 points of accuracy."""
    pixels = smooth_image(layout)
    decoded = decode(encode(pixels, layout, codec, 95), codec, layout, pixels.shape, LIMITS, target)
    expected = to_colour(pixels, layout, target, "bilinear")
    assert decoded.shape == expected.shape
    assert np.abs(decoded.astype(int) - expected).max() <= (6 if codec == "jpeg" else 0)


@pytest.mark.parametrize("codec", LOSSLESS)
@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.is_bayer])
def test_bayer_image_is_demosaiced_when_decoded(codec: str, layout: Layout) -> None:
    """A vehicle without the power to demosaic sends raw sensor values."""
    pixels = random_image(layout)
    decoded = decode(encode(pixels, layout, codec, 85), codec, layout, pixels.shape, LIMITS, Layout.BGR8)
    assert np.array_equal(decoded, to_colour(pixels, layout, Layout.BGR8, "bilinear"))


def test_raw_is_not_copied() -> None:
    """Copying 5 MB per frame would be the largest cost of the codec."""
    pixels = random_image(Layout.BGR8)
    data = encode(pixels, Layout.BGR8, "raw", 85)
    decoded = decode(data, "raw", Layout.BGR8, pixels.shape, LIMITS, Layout.BGR8)
    assert np.shares_memory(decoded, pixels)
    assert not decoded.flags.writeable


def test_raw_of_a_view_is_contiguous() -> None:
    """A cropped image is a view with gaps."""
    pixels = random_image(Layout.MONO16)[1:7, 2:9]
    decoded = decode(encode(pixels, Layout.MONO16, "raw", 85), "raw", Layout.MONO16, (6, 7), LIMITS, Layout.MONO16)
    assert np.array_equal(decoded, pixels)


def test_16_bit_values_are_little_endian() -> None:
    """The byte order does not depend on the machine."""
    assert bytes(encode(np.array([[0x1234]], np.uint16), Layout.MONO16, "raw", 85)) == b"\x34\x12"


def test_lower_quality_gives_smaller_jpegs() -> None:
    """The setting must reach the encoder."""
    pixels = random_image(Layout.BGR8, 64, 64)
    sizes = [len(encode(pixels, Layout.BGR8, "jpeg", quality)) for quality in (10, 50, 95)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2] / 2


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_invalid_quality_is_rejected(quality: int) -> None:
    """OpenCV would clamp it silently."""
    with pytest.raises(ImageCodecError, match="1 to 100"):
        encode(smooth_image(Layout.BGR8), Layout.BGR8, "jpeg", quality)


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout not in JPEG_LAYOUTS])
def test_jpeg_rejects_bayer_and_16_bit_layouts(layout: Layout) -> None:
    """JPEG would mix the pattern or drop bits silently."""
    with pytest.raises(ImageCodecError, match="choose png, lz4, zstd or raw"):
        encode(random_image(layout), layout, "jpeg", 85)
    with pytest.raises(ImageCodecError, match="choose png, lz4, zstd or raw"):
        decode(b"\xff\xd8\xff", "jpeg", layout, (8, 10), LIMITS, layout)


@pytest.mark.parametrize(("layout", "target"), [(Layout.RGB8, Layout.MONO8), (Layout.BAYER_RGGB8, Layout.BAYER_BGGR8)])
def test_an_image_becomes_no_layout_but_its_own_or_colour(layout: Layout, target: Layout) -> None:
    """The error names the layouts that can be asked for."""
    pixels = random_image(layout)
    with pytest.raises(ImageCodecError, match=f"{layout} cannot become {target}: ask for rgb8, bgr8 or {layout}"):
        decode(encode(pixels, layout, "raw", 85), "raw", layout, pixels.shape, LIMITS, target)


def test_jpeg_rejects_too_large_sides() -> None:
    """OpenCV would only write to standard error."""
    with pytest.raises(ImageCodecError, match="65501"):
        encode(np.zeros((1, 65_501, 3), np.uint8), Layout.BGR8, "jpeg", 85)


def test_bytes_between_jpeg_segments_are_skipped() -> None:
    """Some cameras write them."""
    data = bytes(encode(smooth_image(Layout.BGR8), Layout.BGR8, "jpeg", 90))
    scan = data.rindex(b"\xff\xda")
    odd = data[:scan] + b"\x00\x01\x02" + data[scan:]
    whole, read = (decode(each, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8) for each in (data, odd))
    assert np.array_equal(read, whole)


def test_exif_orientation_is_ignored() -> None:
    """A rotated image would no longer match its frame's mask."""
    jpeg = bytes(encode(smooth_image(Layout.BGR8), Layout.BGR8, "jpeg", 90))
    tiff = b"MM\x00*\x00\x00\x00\x08\x00\x01\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06\x00\x00\x00\x00\x00\x00"
    exif = b"Exif\x00\x00" + tiff
    rotated = jpeg[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + jpeg[2:]
    naive = cv2.imdecode(np.frombuffer(rotated, np.uint8), cv2.IMREAD_COLOR)
    assert naive is not None
    assert naive.shape == (64, 48, 3)
    decoded = decode(rotated, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8)
    assert np.array_equal(decoded, decode(jpeg, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.RGB8))


def test_image_size_is_read_from_the_header() -> None:
    """The bag reader reports it without decoding the image."""
    assert image_size(encode(smooth_image(Layout.BGR8), Layout.BGR8, "jpeg", 85)) == (48, 64, 3)
    assert image_size(encode(smooth_image(Layout.MONO8), Layout.MONO8, "png", 85)) == (48, 64, 1)
    with pytest.raises(ImageCodecError, match="send a JPEG or a PNG"):
        image_size(b"BM....")


@pytest.mark.parametrize("codec", ["jpeg", "png"])
@pytest.mark.parametrize(
    ("layout", "shape"), [(Layout.BGR8, (48, 65, 3)), (Layout.BGR8, (64, 48, 3)), (Layout.MONO8, (48, 64))]
)
def test_header_of_another_shape_is_rejected(codec: str, layout: Layout, shape: tuple[int, ...]) -> None:
    """Memory is allocated for the expected shape."""
    data = encode(smooth_image(Layout.BGR8), Layout.BGR8, codec, 85)
    with pytest.raises(ImageCodecError, match="must agree"):
        decode(data, codec, layout, shape, LIMITS, layout)


def test_header_of_another_format_or_bit_depth_is_rejected() -> None:
    """A PNG declared as JPEG is not decoded, and OpenCV would silently drop half of each 16-bit value."""
    data = encode(smooth_image(Layout.BGR8), Layout.BGR8, "png", 85)
    with pytest.raises(ImageCodecError, match="must agree"):
        decode(data, "jpeg", Layout.BGR8, (48, 64, 3), LIMITS, Layout.BGR8)
    data = encode(random_image(Layout.MONO16), Layout.MONO16, "png", 85)
    with pytest.raises(ImageCodecError, match="16 bits"):
        decode(data, "png", Layout.MONO8, (8, 10), LIMITS, Layout.MONO8)


@pytest.mark.parametrize("codec", ["raw", "lz4", "zstd"])
@pytest.mark.parametrize("shape", [(8, 9, 3), (8, 11, 3), (9, 10, 3)])
def test_data_of_another_shape_is_rejected(codec: str, shape: tuple[int, ...]) -> None:
    """The data must have the size of shape × dtype."""
    with pytest.raises(ImageCodecError, match=f"{shape[0]}×{shape[1]}×3"):
        decode(
            encode(random_image(Layout.BGR8), Layout.BGR8, codec, 85), codec, Layout.BGR8, shape, LIMITS, Layout.BGR8
        )


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
def test_invalid_shape_is_rejected(codec: str, layout: Layout, shape: tuple[int, ...]) -> None:
    """The shape is received from the network."""
    with pytest.raises(ImageCodecError, match="send"):
        decode(b"", codec, layout, shape, LIMITS, layout)


def test_limits_are_enforced() -> None:
    """Each worker can set its own."""
    data = encode(random_image(Layout.BGR8), Layout.BGR8, "raw", 85)
    with pytest.raises(ImageCodecError, match="at most 79 pixels"):
        decode(data, "raw", Layout.BGR8, (8, 10, 3), ImageLimits(max_pixels=79), Layout.BGR8)
    with pytest.raises(ImageCodecError, match="more than 239"):
        decode(data, "raw", Layout.BGR8, (8, 10, 3), ImageLimits(max_bytes=239), Layout.BGR8)


@given(
    codec=st.sampled_from(sorted(IMAGE_CODECS)),
    flips=st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), max_size=4),
    keep=st.floats(0.5, 1.0),
)
@settings(max_examples=300)
def test_damaged_data_is_rejected_or_has_the_expected_shape(
    codec: str, flips: list[tuple[int, int]], keep: float
) -> None:
    """Truncated and altered messages must not crash the decoder thread."""
    pixels = smooth_image(Layout.BGR8)
    data = bytearray(encode(pixels, Layout.BGR8, codec, 85))
    for position, flip in flips:
        data[position % len(data)] ^= flip
    try:
        decoded = decode(bytes(data[: int(len(data) * keep)]), codec, Layout.BGR8, pixels.shape, LIMITS, Layout.RGB8)
    except ImageCodecError:
        return
    assert decoded.shape == pixels.shape
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("codec", IMAGE_CODECS)
def test_arbitrary_bytes_are_rejected(codec: str) -> None:
    """Holds for every codec."""
    with pytest.raises(ImageCodecError):
        decode(b"\x00not an image", codec, Layout.BGR8, (48, 64, 3), LIMITS, Layout.BGR8)


def test_demosaicing_error_becomes_codec_error() -> None:
    """An image with an odd side may be received."""
    with pytest.raises(ImageCodecError, match="even sides"):
        decode(bytes(35), "raw", Layout.BAYER_RGGB8, (5, 7), LIMITS, Layout.RGB8)


def test_unsupported_target_layout_is_rejected() -> None:
    """Colour is not converted to grey, nor 8 bits to 16."""
    with pytest.raises(ImageCodecError, match="ask for rgb8, bgr8 or mono8"):
        decode(bytes(80), "raw", Layout.MONO8, (8, 10), LIMITS, Layout.MONO16)


def test_unknown_codec_is_rejected_with_a_suggestion() -> None:
    """A misspelt codec gets the nearest known one."""
    with pytest.raises(UnknownNameError, match="jpeg"):
        encode(smooth_image(Layout.BGR8), Layout.BGR8, "jpg", 85)
    with pytest.raises(UnknownNameError, match="zstd"):
        decode(b"", "zst", Layout.BGR8, (1, 1, 3), LIMITS, Layout.BGR8)
