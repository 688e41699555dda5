"""JPEG by libjpeg-turbo itself, against OpenCV."""

import resource

import numpy as np
import numpy.typing as npt
import pytest

from shared import images, jpeg
from shared.frames import Layout
from shared.images import ImageCodecError, PictureLimits
from shared.opencv import cv2

HEIGHT, WIDTH = 61, 97  # No whole blocks.
Picture = npt.NDArray[np.uint8]


def street(channels: int = 3) -> Picture:
    """Soft shapes with an edge."""
    noise = np.random.default_rng(7).integers(0, 256, (HEIGHT, WIDTH, channels), np.uint8)
    picture = np.asarray(cv2.GaussianBlur(noise, (0, 0), 3), np.uint8).reshape(HEIGHT, WIDTH, channels)
    picture[:20] //= 3
    return picture if channels > 1 else picture[..., 0]


def encoded(picture: Picture, *parameters: int) -> bytes:
    """A JPEG by OpenCV."""
    done, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90, *parameters])
    assert done
    return data.tobytes()


SAMPLINGS = [
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_411,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440,
    cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444,
]


@pytest.mark.parametrize(
    "parameters",
    [(cv2.IMWRITE_JPEG_SAMPLING_FACTOR, factor) for factor in SAMPLINGS]
    + [(cv2.IMWRITE_JPEG_PROGRESSIVE, 1), (cv2.IMWRITE_JPEG_RST_INTERVAL, 3), (cv2.IMWRITE_JPEG_OPTIMIZE, 1)],
)
def test_its_pixels_are_opencvs(parameters: tuple[int, int]) -> None:
    """A mask must not depend on which of the two read the picture."""
    data = encoded(street(), *parameters)
    for colours, flag in (("RGB", cv2.IMREAD_COLOR_RGB), ("BGR", cv2.IMREAD_COLOR_BGR)):
        read = jpeg.decode(memoryview(data), "RGB" if colours == "RGB" else "BGR", HEIGHT, WIDTH)
        assert read is not None
        np.testing.assert_array_equal(read, cv2.imdecode(np.frombuffer(data, np.uint8), flag))


def test_a_grey_picture_has_no_third_axis() -> None:
    """As OpenCV gives it."""
    data = encoded(street(1))
    read = jpeg.decode(data, "GRAY", HEIGHT, WIDTH)
    assert read is not None
    np.testing.assert_array_equal(read, cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED))


def test_what_is_odd_is_left_to_opencv() -> None:
    """Cameras write bytes that belong to nothing: the picture behind them is whole all the same."""
    data = encoded(street())
    scan = data.rindex(b"\xff\xda")
    odd = data[:scan] + b"\x00\x01\x02" + data[scan:]
    assert jpeg.decode(odd, "RGB", HEIGHT, WIDTH) is None
    whole, read = (
        images.decode(each, "jpeg", Layout.RGB8, (HEIGHT, WIDTH, 3), PictureLimits(), Layout.RGB8)
        for each in (data, odd)
    )
    np.testing.assert_array_equal(read, whole)


@pytest.mark.parametrize("data", [b"", b"\xff\xd8\xff", encoded(street())[:700]])
def test_what_is_no_whole_picture_is_none(data: bytes) -> None:
    """And OpenCV takes it for none, too."""
    assert jpeg.decode(data, "BGR", HEIGHT, WIDTH) is None
    with pytest.raises(ImageCodecError):
        images.decode(data, "jpeg", Layout.BGR8, (HEIGHT, WIDTH, 3), PictureLimits(), Layout.BGR8)


@pytest.mark.parametrize("side", [8, 64, 100])
def test_another_size_than_was_announced_is_left_alone(side: int) -> None:
    """Whoever looked before may have been shown another header."""
    assert jpeg.decode(encoded(np.zeros((side, side, 3), np.uint8)), "RGB", HEIGHT, WIDTH) is None


def test_a_larger_size_than_was_announced_takes_no_memory() -> None:
    """Half a gigabyte would be gone before anybody compared the sizes."""
    large = encoded(np.zeros((4000, 4000, 3), np.uint8))
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert jpeg.decode(large, "RGB", HEIGHT, WIDTH) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < 10_000
