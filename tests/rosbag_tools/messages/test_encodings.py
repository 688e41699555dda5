from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rosbags.typesys.stores.ros2_humble import builtin_interfaces__msg__Time as Time
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__CompressedImage as CompressedImageMessage
from rosbags.typesys.stores.ros2_humble import sensor_msgs__msg__Image as ImageMessage
from rosbags.typesys.stores.ros2_humble import std_msgs__msg__Header as Header

from rosbag_tools.messages.encodings import ENCODINGS, recorded_compressed_image, recorded_image
from shared.errors import SkylaneError
from shared.imaging.bit_depth import full_range
from shared.imaging.frames import Layout, Pixels
from shared.imaging.opencv import MAX_PIXELS, cv2

Array = npt.NDArray[Any]

UNHURRIED = settings(suppress_health_check=[HealthCheck.too_slow])  # Generating examples is slow on a busy machine.

HEIGHT, WIDTH = 4, 6
HEADER = Header(Time(0, 1), "cam")


def noise(*shape: int, dtype: Any = np.uint8) -> Array:
    """Returns random values of the whole range of the dtype."""
    return np.random.default_rng(7).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def decode_image(image_message: ImageMessage) -> tuple[Pixels, Layout]:
    """Decodes a raw image whose 16-bit values use all bits."""
    image = recorded_image(image_message)
    return full_range(image.pixels, image.layout), image.layout


def decode_compressed_image(image_message: CompressedImageMessage) -> tuple[Pixels, Layout]:
    """Decodes a compressed image whose 16-bit values use all bits."""
    image = recorded_compressed_image(image_message)
    return full_range(image.pixels, image.layout), image.layout


def message(
    encoding: str, rows: Array, *, width: int = WIDTH, height: int = HEIGHT, big_endian: bool = False, padding: int = 0
) -> ImageMessage:
    """Makes an image message of these rows, each followed by `padding` bytes."""
    ordered = rows.astype(rows.dtype.newbyteorder(">" if big_endian else "<"))
    data = np.ascontiguousarray(ordered).view(np.uint8).reshape(rows.shape[0], -1)
    data = np.pad(data, ((0, 0), (0, padding)), constant_values=99)
    return ImageMessage(HEADER, height, width, encoding, int(big_endian), data.shape[1], data.reshape(-1))


def raw_message(height: int, width: int, encoding: str, step: int, data: bytes | memoryview) -> ImageMessage:
    """Makes an image message of these bytes, which may contradict the other fields."""
    return ImageMessage(HEADER, height, width, encoding, 0, step, np.frombuffer(data, np.uint8))


@pytest.mark.parametrize("layout", [layout for layout in Layout if layout.channels == 1])
@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("padding", [0, 2, 3])
def test_values_of_bayer_and_mono_images_are_unchanged(layout: Layout, big_endian: bool, padding: int) -> None:  # noqa: FBT001
    """Neither the byte order nor the padding of rows may change the values of the sensor."""
    pixels = noise(HEIGHT, WIDTH, dtype=layout.dtype)
    decoded, found = decode_image(message(layout.value, pixels, big_endian=big_endian, padding=padding))
    np.testing.assert_array_equal(decoded, pixels)
    assert found is layout
    assert decoded.dtype == layout.dtype
    assert decoded.flags.c_contiguous


@pytest.mark.parametrize(("encoding", "layout"), [("rgb8", Layout.RGB8), ("bgr8", Layout.BGR8), ("8UC3", Layout.BGR8)])
def test_colour_images_keep_their_channel_order_without_a_copy(encoding: str, layout: Layout) -> None:
    """The layout states the order of red and blue; swapping them reduces the mean IoU by 16 points."""
    pixels = noise(HEIGHT, WIDTH, 3)
    decoded, found = decode_image(message(encoding, pixels))
    np.testing.assert_array_equal(decoded, pixels)
    assert found is layout
    assert not decoded.flags.owndata


@pytest.mark.parametrize(
    ("encoding", "layout"), [("rgba8", Layout.RGB8), ("bgra8", Layout.BGR8), ("8UC4", Layout.BGR8)]
)
def test_alpha_is_dropped(encoding: str, layout: Layout) -> None:
    """Models have no input for an alpha channel."""
    pixels = noise(HEIGHT, WIDTH, 4)
    decoded, found = decode_image(message(encoding, pixels))
    np.testing.assert_array_equal(decoded, pixels[..., :3])
    assert found is layout


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize(
    ("encoding", "layout", "channels"),
    [("rgb16", Layout.RGB8, 3), ("bgr16", Layout.BGR8, 3), ("16UC3", Layout.BGR8, 3), ("rgba16", Layout.RGB8, 4)],
)
def test_16_bit_colour_is_reduced_to_its_high_byte(
    encoding: str,
    layout: Layout,
    channels: int,
    big_endian: bool,  # noqa: FBT001
) -> None:
    """Models accept 8 bits per channel, and the position of the high byte depends on the byte order."""
    pixels = noise(HEIGHT, WIDTH, channels, dtype=np.uint16)
    rows = pixels.reshape(HEIGHT, -1)
    decoded, found = decode_image(message(encoding, rows, big_endian=big_endian, padding=2))
    np.testing.assert_array_equal(decoded, (pixels >> 8)[..., :3])
    assert found is layout


def uniform_yuv(encoding: str, y: int, u: int, v: int) -> ImageMessage:
    """Returns an image of one colour in a YUV encoding."""
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
def test_yuv_is_converted_as_defined_by_bt601(
    encoding: str, yuv: tuple[int, int, int], bgr: tuple[int, int, int]
) -> None:
    """If U and V or the bytes of a pair were swapped, red would become blue or green."""
    decoded, layout = decode_image(uniform_yuv(encoding, *yuv))
    assert layout is Layout.BGR8
    assert decoded.shape == (HEIGHT, WIDTH, 3)
    np.testing.assert_allclose(decoded.astype(int), np.broadcast_to(bgr, decoded.shape), atol=3)


def test_nv24_keeps_colour_at_full_resolution() -> None:
    """The other planar encodings have half the resolution in colour."""
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
def test_inconsistent_messages_are_refused_with_the_reason(broken: ImageMessage, reason: str) -> None:
    """The latency log contains this reason in the row of the frame."""
    with pytest.raises(SkylaneError, match=reason):
        decode_image(broken)


def test_a_step_of_zero_means_no_padding() -> None:
    """Some drivers do not set the step."""
    pixels = noise(HEIGHT, WIDTH)
    decoded, _ = decode_image(raw_message(HEIGHT, WIDTH, "mono8", 0, memoryview(pixels.tobytes())))
    np.testing.assert_array_equal(decoded, pixels)


def test_unaligned_16_bit_pixels_are_copied_to_an_aligned_address() -> None:
    """ROS 1 does not align data, and some processor instructions require aligned 16-bit values."""
    pixels = noise(HEIGHT, WIDTH, dtype=np.uint16)
    data = memoryview(b"x" + pixels.astype("<u2").tobytes())[1:]
    decoded, _ = decode_image(raw_message(HEIGHT, WIDTH, "mono16", 2 * WIDTH, data))
    assert decoded.flags.aligned
    np.testing.assert_array_equal(decoded, pixels)


def compressed(kind: str, pixels: Array, image_format: str) -> CompressedImageMessage:
    """Makes a compressed image message with OpenCV, whose colours are in BGR order."""
    done, data = cv2.imencode(kind, pixels)
    assert done
    return CompressedImageMessage(HEADER, image_format, np.asarray(data))


@pytest.mark.parametrize("image_format", ["png", "bgr8; png compressed bgr8", "rgb8; png compressed ", "", "jpg"])
def test_a_png_image_is_decoded_under_every_format_name(image_format: str) -> None:
    """The data identifies the format; recorders use different names for it."""
    pixels = noise(HEIGHT, WIDTH, 3)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, image_format))
    np.testing.assert_array_equal(decoded, pixels)
    assert layout is Layout.BGR8


@pytest.mark.parametrize("image_format", ["jpg", "jpeg", "rgb8; jpeg compressed bgr8"])
def test_a_jpeg_image_has_the_right_colours_under_every_format_name(image_format: str) -> None:
    """Red and blue must not be swapped."""
    pixels = np.full((16, 16, 3), (250, 20, 5), np.uint8)
    decoded, layout = decode_compressed_image(compressed(".jpg", pixels, image_format))
    assert layout is Layout.BGR8
    np.testing.assert_allclose(decoded.astype(int), pixels, atol=6)


def test_images_compressed_in_rgb_order_are_recognised_by_their_format() -> None:
    """Old recorders swapped red and blue in the file, which only the format states."""
    decoded, layout = decode_compressed_image(compressed(".png", noise(4, 4, 3), "rgb8; png compressed rgb8"))
    np.testing.assert_array_equal(decoded, noise(4, 4, 3))
    assert layout is Layout.RGB8


@pytest.mark.parametrize(("encoding", "dtype"), [("bayer_gbrg8", np.uint8), ("bayer_gbrg16", np.uint16)])
def test_a_compressed_bayer_image_keeps_its_bayer_layout(encoding: str, dtype: Any) -> None:
    """Using it as a grey image instead of demosaicing it reduces the mean IoU by 7 points."""
    pixels = noise(HEIGHT, WIDTH, dtype=dtype)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, f"{encoding}; png compressed "))
    np.testing.assert_array_equal(decoded, pixels)
    assert layout == encoding


@pytest.mark.parametrize(("dtype", "layout"), [(np.uint8, Layout.MONO8), (np.uint16, Layout.MONO16)])
def test_compressed_grey_stays_grey(dtype: Any, layout: Layout) -> None:
    """Images of 8 and of 16 bits keep their depth."""
    decoded, found = decode_compressed_image(compressed(".png", noise(4, 4, dtype=dtype), "png"))
    assert found is layout
    assert decoded.dtype == dtype


@pytest.mark.parametrize(("dtype", "channels"), [(np.uint8, 4), (np.uint16, 3), (np.uint16, 4)])
def test_compressed_colour_becomes_bgr8(dtype: Any, channels: int) -> None:
    """The alpha channel and the low byte of 16-bit values are dropped."""
    pixels = noise(4, 4, channels, dtype=dtype)
    decoded, layout = decode_compressed_image(compressed(".png", pixels, "png"))
    np.testing.assert_array_equal(decoded, (pixels >> (8 * (pixels.itemsize - 1)))[..., :3])
    assert layout is Layout.BGR8
    assert decoded.dtype == np.uint8


@pytest.mark.parametrize("kind", [".png", ".jpg"])
def test_a_truncated_image_is_refused(kind: str) -> None:
    """OpenCV fills the missing part of a truncated JPEG with grey and reports no error."""
    intact = compressed(kind, noise(64, 64, 3), "")
    cut = CompressedImageMessage(HEADER, "", intact.data[: len(intact.data) // 2])
    with pytest.raises(SkylaneError, match="truncated"):
        decode_compressed_image(cut)


@pytest.mark.parametrize("data", [b"II*\0" + bytes(60), b"RIFF\0\0\0\0WEBPVP8 " + bytes(60)])
def test_damaged_images_of_other_formats_are_refused(data: bytes) -> None:
    """OpenCV returns nothing for them."""
    with pytest.raises(SkylaneError, match="no image that OpenCV can read"):
        decode_compressed_image(CompressedImageMessage(HEADER, "tiff", np.frombuffer(data, np.uint8)))


@UNHURRIED
@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
    st.one_of(st.sampled_from(ENCODINGS), st.text(max_size=12)),
    st.booleans(),
    st.one_of(st.integers(0, 64), st.integers(0, 2**32 - 1)),
    st.binary(max_size=256),
)
def test_any_message_is_decoded_or_refused(  # noqa: PLR0917  (Hypothesis draws each field)
    height: int,
    width: int,
    encoding: str,
    big_endian: bool,  # noqa: FBT001
    step: int,
    data: bytes,
) -> None:
    """The fields of a message are untrusted input and must not crash the vehicle."""
    for size in ((height, width), (height % 8, width % 8)):
        try:
            values = np.frombuffer(data, np.uint8)
            pixels, layout = decode_image(ImageMessage(HEADER, *size, encoding, int(big_endian), step, values))
        except SkylaneError:
            continue
        assert pixels.shape == layout.shape(*size)
        assert pixels.dtype == layout.dtype


@UNHURRIED
@given(st.data())
def test_corrupt_images_are_decoded_or_refused(data: st.DataObject) -> None:
    """Changed bytes give wrong pixels or an error for the user, and no other exception."""
    kind = data.draw(st.sampled_from([".png", ".jpg"]))
    image_bytes = compressed(kind, noise(8, 8, 3), "").data
    for _ in range(data.draw(st.integers(1, 4))):
        image_bytes[data.draw(st.integers(0, len(image_bytes) - 1))] = data.draw(st.integers(0, 255))
    image_format = data.draw(st.sampled_from(["png", "bayer_rggb8; png compressed", "bayer_; x", "mono16; jpeg"]))
    try:
        pixels, layout = decode_compressed_image(CompressedImageMessage(HEADER, image_format, image_bytes))
    except SkylaneError:
        return
    assert pixels.dtype == layout.dtype


@pytest.mark.parametrize(
    "tail", [bytes(20_000), b"\xff" * 8192, bytes(range(1, 251)) * 36, b"JPEG", b"\xff\xd9" * 9], ids=len
)
@pytest.mark.parametrize("kind", ["jpg", "png"])
def test_bytes_behind_a_picture_are_ignored(kind: str, tail: bytes) -> None:
    """Drivers publish buffers of a fixed size, and phones append previews."""
    image = compressed(f".{kind}", noise(30, 40, 3), kind)
    expected, _ = decode_compressed_image(image)
    image.data = np.frombuffer(bytes(image.data) + (bytes(image.data) if tail == b"JPEG" else tail), np.uint8)
    assert np.array_equal(decode_compressed_image(image)[0], expected)


@pytest.mark.parametrize("kind", ["webp", "avif", "tiff", "bmp"])
def test_other_formats_of_pictures_are_decoded(kind: str) -> None:
    """A recording cannot be sent again as JPEG."""
    pixels, layout = decode_compressed_image(
        compressed(f".{kind}", np.full((30, 40, 3), (10, 200, 90), np.uint8), kind)
    )
    assert layout is Layout.BGR8
    assert np.abs(pixels.astype(int) - (10, 200, 90)).max() < 8


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
        (b"hello", "record JPEG or PNG"),
    ],
)
def test_the_remedy_for_other_data_fits_a_recording(data: bytes, reason: str) -> None:
    """Nobody can send a recorded picture in another format."""
    with pytest.raises(SkylaneError, match=reason):
        decode_compressed_image(CompressedImageMessage(HEADER, "x", np.frombuffer(data, np.uint8)))
