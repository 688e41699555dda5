"""JPEG by libjpeg-turbo itself, against OpenCV."""

import resource
import threading

import numpy as np
import numpy.typing as npt
import pytest

from shared import images, jpeg
from shared.call_threads import CallThreads
from shared.frames import Layout
from shared.images import ImageCodecError, PictureLimits
from shared.opencv import cv2
from shared.picture_header import read_header

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


@pytest.mark.parametrize("colours", ["RGB", "BGR", "GRAY"])
@pytest.mark.parametrize("bands", [2, 3, 4, 100])
def test_bands_give_the_pixels_of_one_piece(colours: jpeg.Colours, bands: int) -> None:
    """To any decoder: what a vehicle's processor has many of must not change what a network sees."""
    picture = np.ascontiguousarray(np.tile(street(1 if colours == "GRAY" else 3).T, (3, 2)).T)
    height, width = picture.shape[:2]
    data = [bytes(jpeg.encode(picture, colours, 85, number)) for number in (1, bands)]
    assert data[0].count(b"\xff\xd0") == 0
    assert data[1].count(b"\xff\xd0") >= 1
    for flag in (cv2.IMREAD_UNCHANGED, cv2.IMREAD_COLOR_BGR):
        whole, joined = (cv2.imdecode(np.frombuffer(each, np.uint8), flag) for each in data)
        np.testing.assert_array_equal(joined, whole)
    whole, joined = (jpeg.decode(each, colours, height, width) for each in data)
    assert joined is not None
    np.testing.assert_array_equal(joined, whole)
    header = read_header(data[1])
    assert (header.height, header.width) == (height, width)


def test_more_restarts_than_there_are_names_for_go_round() -> None:
    """RST7 is followed by RST0."""
    picture = np.ascontiguousarray(np.tile(street(), (4, 1, 1)))
    data = bytes(jpeg.encode(picture, "RGB", 85, 16))
    assert [data.count(bytes((0xFF, 0xD0 + number))) for number in range(8)] == [2] * 7 + [1]
    whole = jpeg.decode(jpeg.encode(picture, "RGB", 85, 1), "RGB", *picture.shape[:2])
    np.testing.assert_array_equal(jpeg.decode(data, "RGB", *picture.shape[:2]), whole)


def test_a_camera_whose_helpers_are_busy_encodes_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several cameras of one vehicle would else wait for each other's pictures."""
    threads, over = CallThreads("busy", 1), threading.Event()
    monkeypatch.setattr(jpeg, "_helpers", threads)
    threads.run(lambda: assert_set(over))
    picture = np.ascontiguousarray(np.tile(street(), (4, 1, 1)))
    data = jpeg.encode(picture, "RGB", 85, 4)
    over.set()
    threads.close()
    whole = jpeg.decode(jpeg.encode(picture, "RGB", 85, 1), "RGB", *picture.shape[:2])
    np.testing.assert_array_equal(jpeg.decode(data, "RGB", *picture.shape[:2]), whole)


def test_where_no_thread_can_be_begun_a_picture_is_encoded_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vehicle that may have no more of them goes on."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(jpeg, "_helpers", CallThreads("none", 1))
    monkeypatch.setattr(threading.Thread, "start", start)
    picture = np.ascontiguousarray(np.tile(street(), (4, 1, 1)))
    assert jpeg.encode(picture, "RGB", 85, 4) == jpeg.encode(picture, "RGB", 85, 1)


def assert_set(event: threading.Event) -> None:
    """Wait until it is."""
    assert event.wait(20.0)


@pytest.mark.parametrize("shape", [(8, 65_501, 3), (65_501, 8, 3)])
def test_a_picture_too_long_for_jpeg_is_refused(shape: tuple[int, ...]) -> None:
    """In bands each would be short enough, and nobody could read the whole."""
    with pytest.raises(ImageCodecError, match="65500"):
        images.encode(np.zeros(shape, np.uint8), Layout.RGB8, "jpeg", 85)
