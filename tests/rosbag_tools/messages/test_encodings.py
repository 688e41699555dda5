from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rosbag_tools.messages.encodings import (
    ENCODINGS,
    UndecodableImageError,
    decode_compressed_image,
    decode_image,
)
from rosbag_tools.messages.images import CompressedImageMessage, ImageMessage
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.opencv import MAX_PIXELS, cv2

Array = npt.NDArray[Any]

UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])  # A busy machine is no fault.

HEIGHT, WIDTH = 4, 6


def noise(*shape: int, dtype: Any = np.uint8) -> Array:
    """Numbers of the whole range."""
    return np.random.default_rng(7).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def message(
    encoding: str, rows: Array, *, width: int = WIDTH, height: int = HEIGHT, big_endian: bool = False, padding: int = 0
) -> ImageMessage:
    """An image message of rows of numbers, each followed by `padding` bytes."""
    ordered = rows.astype(rows.dtype.newbyteorder(">" if big_endian else "<"))
    data = np.ascontiguousarray(ordered).view(np.uint8).reshape(rows.shape[0], -1)
    data = np.pad(data, ((0, 0), (0, padding)), constant_values=99)
    return ImageMessage(1, "cam", height, width, encoding, big_endian, data.shape[1], memoryview(data.tobytes()))


def raw_message(height: int, width: int, encoding: str, step: int, data: bytes | memoryview) -> ImageMessage:
    """An image message of any bytes."""
    return ImageMessage(1, "", height, width, encoding, is_bigendian=False, step=step, data=memoryview(data))


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.channels == 1])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 3])
def test_bayer_and_mono_keep_their_numbers(layout: Layout, big_endian: bool, padding: int) -> None:  # noqa: FBT001
    """A sensor's numbers are what they are, whatever the byte order and however a row is padded."""
    pixels = noise(HEIGHT, WIDTH, dtype=layout.dtype)
    decoded, found = decode_image(message(layout.value, pixels, big_endian=big_endian, padding=padding))
    np.testing.assert_array_equal(decoded, pixels)
    assert found is layout
    assert decoded.dtype == layout.dtype
    assert decoded.flags.c_contiguous


@pytest.mark.parametrize(("encoding", "layout"), [("rgb8", Layout.RGB8), ("bgr8", Layout.BGR8), ("8UC3", Layout.BGR8)])
def test_colour_is_taken_as_it_lies(encoding: str, layout: Layout) -> None:
    """Swapping red and blue costs 16 points of mIoU: the layout says which is which, nothing is moved."""
    pixels = noise(HEIGHT, WIDTH, 3)
    decoded, found = decode_image(message(encoding, pixels))
    np.testing.assert_array_equal(decoded, pixels)
    assert found is layout
    assert not decoded.flags.owndata


@pytest.mark.parametrize(
    ("encoding", "layout"), [("rgba8", Layout.RGB8), ("bgra8", Layout.BGR8), ("8UC4", Layout.BGR8)]
)
def test_alpha_is_dropped(encoding: str, layout: Layout) -> None:
    """A camera has none."""
    pixels = noise(HEIGHT, WIDTH, 4)
    decoded, found = decode_image(message(encoding, pixels))
    np.testing.assert_array_equal(decoded, pixels[..., :3])
    assert found is layout


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(
    ("encoding", "layout", "channels"),
    [("rgb16", Layout.RGB8, 3), ("bgr16", Layout.BGR8, 3), ("16UC3", Layout.BGR8, 3), ("rgba16", Layout.RGB8, 4)],
)
def test_wide_colour_keeps_its_high_byte(encoding: str, layout: Layout, channels: int, big_endian: bool) -> None:  # noqa: FBT001
    """Models take eight bits; the low byte of a big-endian number is not the high one."""
    pixels = noise(HEIGHT, WIDTH, channels, dtype=np.uint16)
    rows = pixels.reshape(HEIGHT, -1)
    decoded, found = decode_image(message(encoding, rows, big_endian=big_endian, padding=2))
    np.testing.assert_array_equal(decoded, (pixels >> 8)[..., :3])
    assert found is layout


def uniform_yuv(encoding: str, y: int, u: int, v: int) -> ImageMessage:
    """A picture of one colour in a YUV encoding."""
    pairs = {"uyvy": (u, y, v, y), "yuv422": (u, y, v, y), "yuyv": (y, u, y, v), "yuv422_yuy2": (y, u, y, v)}
    if encoding in pairs:
        return message(encoding, np.tile(np.array(pairs[encoding], np.uint8), (HEIGHT, WIDTH // 2)))
    colour = (v, u) if encoding == "nv21" else (u, v)
    rows = HEIGHT // 2 if encoding != "nv24" else 2 * HEIGHT
    planes = np.vstack((np.full((HEIGHT, WIDTH), y), np.tile(colour, (rows, WIDTH // 2)))).astype(np.uint8)
    return message(encoding, planes)


@pytest.mark.parametrize("encoding", ["uyvy", "yuv422", "yuyv", "yuv422_yuy2", "nv12", "nv21", "nv24"])
@pytest.mark.parametrize(
    ("yuv", "bgr"), [((81, 90, 240), (0, 0, 255)), ((145, 54, 34), (0, 255, 0)), ((41, 240, 110), (255, 0, 0))]
)
def test_yuv_shows_the_primaries_of_bt601(encoding: str, yuv: tuple[int, int, int], bgr: tuple[int, int, int]) -> None:
    """U and V, or the order of a pair, mistaken for each other turn red into blue or green."""
    decoded, layout = decode_image(uniform_yuv(encoding, *yuv))
    assert layout is Layout.BGR8
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(decoded.astype(int), np.broadcast_to(bgr, decoded.shape), atol=3)


def test_nv24_keeps_colour_at_full_resolution() -> None:
    """It is the one planar encoding that does not halve colour."""
    y = np.full((HEIGHT, WIDTH), 120, np.uint8)
    colour = noise(HEIGHT, WIDTH, 2)
    decoded, _ = decode_image(message("nv24", np.vstack((y, colour.reshape(2 * HEIGHT, WIDTH)))))
    single, _ = decode_image(uniform_yuv("nv24", 120, int(colour[2, 3, 0]), int(colour[2, 3, 1])))
    np.testing.assert_array_equal(decoded[2, 3], single[0, 0])


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (raw_message(0, 6, "mono8", 6, b""), "it is empty"),
        (raw_message(MAX_PIXELS, 2, "mono8", 2, b""), "more than"),
        (raw_message(4, 6, "mono8", 6, bytes(23)), "takes 24 bytes, but there are 23"),
        (raw_message(4, 6, "mono8", 6, bytes(25)), "takes 24 bytes, but there are 25"),
        (raw_message(4, 6, "rgb8", 6, bytes(24)), "takes 18 bytes, but the step is 6"),
        (raw_message(4, 6, "bayer_rgbg8", 6, bytes(24)), "did you mean"),
        (raw_message(4, 6, "32FC1", 24, bytes(96)), "'32FC1' is not an image encoding"),
        (raw_message(4, 5, "uyvy", 10, bytes(40)), "pixels in pairs"),
        (raw_message(3, 6, "nv12", 6, bytes(24)), "2×2 blocks"),
    ],
)
def test_absurd_messages_are_refused_with_the_reason(broken: ImageMessage, reason: str) -> None:
    """A row in the log must say what was wrong with the frame."""
    with pytest.raises(UndecodableImageError, match=reason):
        decode_image(broken)


def test_empty_step_means_no_padding() -> None:
    """Some drivers leave it at zero."""
    pixels = noise(HEIGHT, WIDTH)
    decoded, _ = decode_image(raw_message(HEIGHT, WIDTH, "mono8", 0, memoryview(pixels.tobytes())))
    np.testing.assert_array_equal(decoded, pixels)


def test_odd_addresses_of_wide_pixels_are_copied_to_even_ones() -> None:
    """ROS 1 aligns nothing, and 16-bit instructions may."""
    pixels = noise(HEIGHT, WIDTH, dtype=np.uint16)
    data = memoryview(b"x" + pixels.astype("<u2").tobytes())[1:]
    decoded, _ = decode_image(raw_message(HEIGHT, WIDTH, "mono16", 2 * WIDTH, data))
    assert decoded.flags.aligned
    np.testing.assert_array_equal(decoded, pixels)


def compressed(kind: str, pixels: Array, image_format: str) -> CompressedImageMessage:
    """A compressed image message as OpenCV writes it (colour in BGR order)."""
    done, data = cv2.imencode(kind, pixels)
    assert done
    return CompressedImageMessage(1, "cam", image_format, memoryview(data.tobytes()))


@pytest.mark.parametrize("image_format", ["png", "bgr8; png compressed bgr8", "rgb8; png compressed ", "", "jpg"])
def test_png_gives_its_pixels_whatever_the_format_is_called(image_format: str) -> None:
    """The bytes say what they are; recorders disagree on the name."""
    pixels = noise(HEIGHT, WIDTH, 3)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, image_format))
    np.testing.assert_array_equal(decoded, pixels)
    assert layout is Layout.BGR8


@pytest.mark.parametrize("image_format", ["jpg", "jpeg", "rgb8; jpeg compressed bgr8"])
def test_jpeg_gives_its_colours(image_format: str) -> None:
    """Blue stays blue under every name."""
    pixels = np.full((16, 16, 3), (250, 20, 5), np.uint8)
    decoded, layout = decode_compressed_image(compressed(".jpg", pixels, image_format))
    assert layout is Layout.BGR8
    np.testing.assert_allclose(decoded.astype(int), pixels, atol=6)


def test_old_recorders_that_compressed_rgb_are_told_apart() -> None:
    """Their files hold red where blue belongs, and only the format says so."""
    decoded, layout = decode_compressed_image(compressed(".png", noise(4, 4, 3), "rgb8; png compressed rgb8"))
    np.testing.assert_array_equal(decoded, noise(4, 4, 3))
    assert layout is Layout.RGB8


@pytest.mark.parametrize(("encoding", "dtype"), [("bayer_gbrg8", np.uint8), ("bayer_gbrg16", np.uint16)])
def test_compressed_bayer_is_not_taken_for_grey(encoding: str, dtype: Any) -> None:
    """Grey instead of demosaicing costs 7 points of mIoU."""
    pixels = noise(HEIGHT, WIDTH, dtype=dtype)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, f"{encoding}; png compressed "))
    np.testing.assert_array_equal(decoded, pixels)
    assert layout == encoding


@pytest.mark.parametrize(("dtype", "layout"), [(np.uint8, Layout.MONO8), (np.uint16, Layout.MONO16)])
def test_compressed_grey_stays_grey(dtype: Any, layout: Layout) -> None:
    """Depth of 16 bits included."""
    decoded, found = decode_compressed_image(compressed(".png", noise(4, 4, dtype=dtype), "png"))
    assert found is layout
    assert decoded.dtype == dtype


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 4), (np.uint16, 3), (np.uint16, 4)])
def test_compressed_colour_becomes_bgr8(dtype: Any, channels: int) -> None:
    """Alpha goes, and the low byte with it."""
    pixels = noise(4, 4, channels, dtype=dtype)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, "png"))
    np.testing.assert_array_equal(decoded, (pixels >> (8 * (pixels.itemsize - 1)))[..., :3])
    assert layout is Layout.BGR8
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_truncated_picture_is_refused(kind: str) -> None:
    """OpenCV fills a cut-off JPEG with grey and calls it decoded."""
    whole = compressed(kind, noise(64, 64, 3), "")
    cut = CompressedImageMessage(1, "", "", whole.data[: len(whole.data) // 2])
    with pytest.raises(UndecodableImageError, match="truncated"):
        decode_compressed_image(cut)


@pytest.mark.parametrize("data", [b"", b"II*\0" + bytes(60), b"RIFF\0\0\0\0WEBPVP8 " + bytes(60)])
def test_other_picture_formats_are_refused(data: bytes) -> None:
    """Every decoder of OpenCV's is a door; two are enough."""
    with pytest.raises(UndecodableImageError, match="send a JPEG or a PNG"):
        decode_compressed_image(CompressedImageMessage(1, "", "tiff", memoryview(data)))


@UNHURRIED
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.one_of(st.sampled_from(ENCODINGS), st.text(max_size=12)),
    st.booleans(),
    st.one_of(st.integers(0, 64), st.integers(0, 2**32 - 1)),
    st.binary(max_size=256),
)
def test_no_message_does_more_than_be_refused(  # noqa: PLR0917  Hypothesis's drawn fields.
    height: int,
    width: int,
    encoding: str,
    big_endian: bool,  # noqa: FBT001
    step: int,
    data: bytes,
) -> None:
    """Fields of a message come from a file: none may crash the vehicle."""
    for size in ((height, width), (height % 8, width % 8)):
        try:
            pixels, layout = decode_image(ImageMessage(1, "", *size, encoding, big_endian, step, memoryview(data)))
        except UndecodableImageError:
            continue
        assert pixels.shape == layout.shape(*size)
        assert pixels.dtype == layout.dtype


@UNHURRIED
@given(st.data())
def test_flipped_pictures_are_decoded_or_refused(data: st.DataObject) -> None:
    """A flipped bit in a picture is a frame with a fault or an error of ours, never another's."""
    kind = data.draw(st.sampled_from([".png", ".jpg"]))
    picture = bytearray(compressed(kind, noise(8, 8, 3), "").data)
    for _ in range(data.draw(st.integers(1, 4))):
        picture[data.draw(st.integers(0, len(picture) - 1))] = data.draw(st.integers(0, 255))
    image_format = data.draw(st.sampled_from(["png", "bayer_rggb8; png compressed", "bayer_; x", "mono16; jpeg"]))
    try:
        pixels, layout = decode_compressed_image(CompressedImageMessage(1, "", image_format, memoryview(picture)))
    except SkylaneError:
        return
    assert pixels.dtype == layout.dtype
