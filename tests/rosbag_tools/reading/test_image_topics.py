"""Cameras of a bag: what is one, and how the values and encodings of its images are read."""

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner
from rosbags.rosbag2 import Writer
from rosbags.typesys import Stores, get_typestore

from rosbag_tools.cli import bag
from rosbag_tools.inspection import inspect
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame

TYPES = get_typestore(Stores.ROS2_HUMBLE)
START_NS = 1_700_000_000 * 10**9
RAMP = np.tile(np.linspace(0, 4095, 64).astype("<u2"), (64, 1))


def image(encoding: str, pixels: Any, *, big_endian: bool = False) -> Any:
    """Returns an Image message."""
    data = np.ascontiguousarray(pixels, pixels.dtype.newbyteorder(">" if big_endian else "<"))
    height, width = data.shape[:2]
    flat = data.reshape(-1).view(np.uint8)
    make = TYPES.types["sensor_msgs/msg/Image"]
    return make(_header(), height, width, encoding, int(big_endian), flat.size // height, flat)


def compressed(image_format: str, pixels: Any, suffix: str = ".png") -> Any:
    """Returns a CompressedImage message."""
    return TYPES.types["sensor_msgs/msg/CompressedImage"](
        _header(), image_format, cv2.imencode(suffix, pixels)[1].reshape(-1)
    )


def _header() -> Any:
    types = TYPES.types
    return types["std_msgs/msg/Header"](types["builtin_interfaces/msg/Time"](1_700_000_000, 1), "cam")


def write(path: Path, *items: tuple[str, Any]) -> Path:
    """Writes messages, 0.1 s apart."""
    with Writer(path, version=9) as writer:
        connections: dict[str, Any] = {}
        for index, (topic, message) in enumerate(items):
            name = message.__msgtype__
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, name, typestore=TYPES)
            writer.write(connections[topic], START_NS + index * 10**8, TYPES.serialize_cdr(message, name))
    return path


def read(path: Path, **options: Any) -> tuple[list[Frame | UnreadableFrame], list[str]]:
    """Returns the frames and the notes."""
    source = BagSource(path, **options)
    frames = list(source.frames())
    source.close()
    return frames, source.notes


COLOUR = np.dstack([RAMP] * 3)
ALPHA = np.dstack([COLOUR, np.full_like(RAMP, 65535)])


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (image("mono16", RAMP), RAMP << 4),
        (image("mono16", RAMP, big_endian=True), RAMP << 4),
        (image("bayer_rggb16", RAMP), RAMP << 4),
        (image("rgb16", COLOUR), COLOUR >> 4),
        (image("bgra16", ALPHA), COLOUR >> 4),
        (compressed("mono16; png compressed ", RAMP), RAMP << 4),
        (compressed("bayer_grbg16; png compressed ", RAMP), RAMP << 4),
        (compressed("rgb16; png compressed bgr16", COLOUR), COLOUR >> 4),
    ],
    ids=["mono16", "big-endian", "Bayer", "rgb16", "bgra16", "PNG", "Bayer PNG", "colour PNG"],
)
def test_twelve_bit_values_use_the_full_range(tmp_path: Path, message: Any, expected: Any) -> None:
    """A ramp over all 12 bits would otherwise have 16 grey levels; the note is part of the run record."""
    frames, found = read(write(tmp_path / "bag", ("/cam/image_raw", message)))
    assert isinstance(frames[0], Frame)
    np.testing.assert_array_equal(frames[0].pixels, expected)
    assert frames[0].pixels.dtype == frames[0].layout.dtype
    (note,) = found
    assert note.startswith("/cam/image_raw: the values have 12 of 16 bits, as they are clipped at 4095")
    assert inspect(tmp_path / "bag").topics[0].bits == "12 bits"


def test_the_measurement_does_not_depend_on_the_part_that_is_played(tmp_path: Path) -> None:
    """Two runs with different offsets see the same pixels."""
    dark = RAMP // 8
    path = write(
        tmp_path / "bag", ("/cam", image("mono16", RAMP)), *(("/cam", image("mono16", dark)) for _ in range(9))
    )
    whole, _ = read(path)
    part, _ = read(path, start_offset_s=0.85)
    assert isinstance(whole[-1], Frame)
    assert isinstance(part[-1], Frame)
    np.testing.assert_array_equal(part[-1].pixels, whole[-1].pixels)
    np.testing.assert_array_equal(part[-1].pixels, dark << 4)


def test_a_frame_above_the_given_bits_is_a_row(tmp_path: Path) -> None:
    """It is never wrapped, and the others are played."""
    path = write(tmp_path / "bag", ("/cam", image("mono16", RAMP)), ("/cam", image("mono16", RAMP * 2)))
    (fitting, refused), found = read(path, bits="12")
    assert isinstance(fitting, Frame)
    assert isinstance(refused, UnreadableFrame)
    assert "largest value 8190 does not fit into 12 bits: give --bits 14" in refused.reason
    assert not found


@pytest.mark.parametrize("topic", ["/cam/labels", "/cam/masks"])
def test_labels_are_never_scaled(tmp_path: Path, topic: str) -> None:
    """Their values are ids, whichever bits are given for the cameras."""
    for bits in ("auto", "12"):
        path = write(tmp_path / str(bits), (topic, image("mono16", RAMP)))
        frames, found = read(path, topics=[topic], bits=bits)
        assert isinstance(frames[0], Frame)
        np.testing.assert_array_equal(frames[0].pixels, RAMP)
        assert not found


@pytest.mark.parametrize(
    ("options", "expected"),
    [((), RAMP << 4), (("--raw",), RAMP), (("--bits", "14"), RAMP << 2)],
    ids=["auto", "raw", "14"],
)
def test_extract_scales_values_unless_they_are_raw(tmp_path: Path, options: tuple[str, ...], expected: Any) -> None:
    """Pictures show the full range; raw files hold what was recorded."""
    path = write(tmp_path / "bag", ("/cam", image("mono16", RAMP)))
    result = CliRunner().invoke(bag, ["extract", str(path), str(tmp_path / "out"), *options])
    assert result.exit_code == 0, result.output
    (file,) = (tmp_path / "out").rglob("*.png")
    np.testing.assert_array_equal(cv2.imread(str(file), cv2.IMREAD_UNCHANGED), expected)


BYTES = np.arange(8 * 12, dtype=np.uint8).reshape(8, 12)
WORDS = BYTES.astype("<u2")


@pytest.mark.parametrize(
    ("encoding", "pixels", "layout", "shift"),
    [
        ("BayerRG8", BYTES, "bayer_rggb8", 0),
        ("BayerGR8", BYTES, "bayer_grbg8", 0),
        ("BayerGB8", BYTES, "bayer_gbrg8", 0),
        ("BayerBG8", BYTES, "bayer_bggr8", 0),
        ("BAYER_RGGB8", BYTES, "bayer_rggb8", 0),
        ("BayerRG10", WORDS, "bayer_rggb16", 6),
        ("BayerGB12", WORDS, "bayer_gbrg16", 4),
        ("bayer_bggr14", WORDS, "bayer_bggr16", 2),
        ("SGRBG12", WORDS, "bayer_grbg16", 4),
        ("Mono8", BYTES, "mono8", 0),
        ("GREY", BYTES, "mono8", 0),
        ("Mono12", WORDS, "mono16", 4),
        ("mono10", WORDS, "mono16", 6),
        ("Y14", WORDS, "mono16", 2),
        ("RGB8", BYTES.reshape(8, 4, 3), "rgb8", 0),
        ("BGR8Packed", BYTES.reshape(8, 4, 3), "bgr8", 0),
    ],
)
def test_names_of_other_systems_are_known(tmp_path: Path, encoding: str, pixels: Any, layout: str, shift: int) -> None:
    """PFNC names a Bayer pattern by its first row, and some names state the bits."""
    (frame,), found = read(write(tmp_path / "bag", ("/cam", image(encoding, pixels))))
    assert isinstance(frame, Frame)
    assert frame.layout == layout
    np.testing.assert_array_equal(frame.pixels, pixels << shift)
    assert not found


@pytest.mark.parametrize(("encoding", "same_as"), [("YUV422_8", "yuyv"), ("YUYV", "yuyv"), ("YUY2", "yuyv"),
                                                   ("YUV422_8_UYVY", "uyvy"), ("YUV422Packed", "uyvy"), ("UYVY", "uyvy")])  # fmt: skip
def test_pairs_of_yuv_are_in_the_order_that_the_name_says(tmp_path: Path, encoding: str, same_as: str) -> None:
    """In ROS, yuv422 is UYVY; YUV422_8 of GenICam is YUYV."""
    pixels = np.random.default_rng(0).integers(0, 255, (8, 6, 2), np.uint8)
    (frame, expected), _ = read(
        write(tmp_path / "bag", ("/a", image(encoding, pixels)), ("/b", image(same_as, pixels)))
    )
    assert isinstance(frame, Frame)
    assert isinstance(expected, Frame)
    np.testing.assert_array_equal(frame.pixels, expected.pixels)


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [
        ("BayerRG12Packed", "packs values without padding"),
        ("Mono12p", "packs values without padding"),
        ("SRGGB10_CSI2P", "packs values without padding"),
        ("rgb9", "give the right one by --encoding: did you mean rgb8"),
        ("Mono12", r"takes 192 bytes, but there are|takes 24 bytes, but the step is 12"),
        ("\x1b[31m", r"\\x1b"),
    ],
)
def test_an_encoding_that_cannot_be_read_is_named_with_what_to_do(tmp_path: Path, encoding: str, reason: str) -> None:
    """The frame is a row, not a dead end."""
    (frame,), _ = read(write(tmp_path / "bag", ("/cam", image(encoding, BYTES))))
    assert isinstance(frame, UnreadableFrame)
    with pytest.raises(SkylaneError, match=reason):
        raise SkylaneError(frame.reason)


def test_the_recorded_encoding_can_be_replaced(tmp_path: Path) -> None:
    """For all topics of raw images, or for one."""
    path = write(
        tmp_path / "bag", ("/a", image("raw", BYTES)), ("/b", image("mono8", BYTES)), ("/c", compressed("png", BYTES))
    )
    layouts = [frame.layout for frame in read(path, encodings=["BayerRG8"])[0] if isinstance(frame, Frame)]
    assert layouts == ["bayer_rggb8", "bayer_rggb8", "mono8"]
    layouts = [
        frame.layout for frame in read(path, encodings=["mono8", "a=bayer_bggr8"])[0] if isinstance(frame, Frame)
    ]
    assert layouts == ["bayer_bggr8", "mono8", "mono8"]
    for encoding, problem in (
        ("/z=rgb8", "'/z'"),
        ("rgb9", "give the right one by --encoding: did you mean rgb8"),
        ("/c=mono8", "only topics of raw images that are used can have one: /a, /b"),
        ("/a=", "'' is not an image encoding"),
    ):
        with pytest.raises(SkylaneError, match=problem):
            BagSource(path, encodings=[encoding])


FLOATS = np.ones((8, 12), "<f4")
DISTANCES = np.full((8, 12), 1500, "<u2")


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("/camera/aligned_depth_to_color/image_raw", image("mono16", DISTANCES)),
        ("/camera/depth/image_rect_raw", image("mono8", BYTES)),
        ("/stereo/disparity", image("mono8", BYTES)),
        ("/zed/confidence/confidence_map", image("mono8", BYTES)),
        ("/ouster/range_image", image("mono16", DISTANCES)),
        ("/depth_to_rgb/image_raw", image("mono16", DISTANCES)),
        ("/kinect2/hd/image_depth_rect", image("mono16", DISTANCES)),
        ("/camera/depthImage", image("mono16", DISTANCES)),
        ("/sensor/image", image("16UC1", DISTANCES)),
        ("/sensor/image", image("32FC1", FLOATS)),
        ("/sensor/image", compressed("16UC1; png compressed ", DISTANCES)),
        ("/camera/color/image/compressedDepth", compressed("16UC1; compressedDepth", DISTANCES)),
    ],
)
def test_a_topic_of_distances_is_not_a_camera(tmp_path: Path, topic: str, message: Any) -> None:
    """It is left out, which is said; alone, it is refused with what to do."""
    path = write(tmp_path / "both", ("/front/image_raw", image("rgb8", BYTES.reshape(8, 4, 3))), (topic, message))
    frames, found = read(path)
    assert [frame.camera for frame in frames] == ["/front/image_raw"]
    assert f"{topic} is not taken for a camera, because" in found[0]
    assert any(f"{topic} is not taken for a camera" in note for note in inspect(path).notes)
    with pytest.raises(SkylaneError, match="is not taken for a camera"):
        BagSource(write(tmp_path / "alone", (topic, message)))


@pytest.mark.parametrize(
    ("topic", "message"),
    [
        ("/depth_camera/image_raw", image("rgb8", BYTES.reshape(8, 4, 3))),
        ("/rgb_to_depth/image_raw", image("bgr8", BYTES.reshape(8, 4, 3))),
        ("/depthai/rgb/image", image("mono8", BYTES)),
        ("/front_long_range/image_raw", image("mono8", BYTES)),
        ("/thermal/image_raw", image("16UC1", DISTANCES)),
        ("/camera/ir/image", image("16UC1", DISTANCES)),
        ("/lwir_2/image", image("mono16", DISTANCES)),
    ],
)
def test_a_camera_is_not_taken_for_distances(tmp_path: Path, topic: str, message: Any) -> None:
    """Names that only resemble those of distances, and infrared cameras, which use the same encoding."""
    frames, _ = read(write(tmp_path / "bag", (topic, message)))
    assert [isinstance(frame, Frame) for frame in frames] == [True]


def test_distances_are_played_as_recorded_if_their_topic_is_named(tmp_path: Path) -> None:
    """Numbers that are not pictures stay rows with a reason."""
    path = write(tmp_path / "bag", ("/depth/image", image("16UC1", RAMP)), ("/depth/metres", image("32FC1", FLOATS)))
    (distances, metres), _ = read(path, topics=["/depth/image", "/depth/metres"])
    assert isinstance(distances, Frame)
    np.testing.assert_array_equal(distances.pixels, RAMP)
    assert isinstance(metres, UnreadableFrame)
    assert "it holds numbers such as depths, so leave the topic out" in metres.reason


def test_an_image_with_an_exif_orientation_is_upright(tmp_path: Path) -> None:
    """The size in `bag info` is that of the decoded image; a Bayer image is not turned, as its pattern would change."""
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + bytes.fromhex("120103000100000006000000") + bytes(4)
    segment = b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif
    turned, mosaic = compressed("jpeg", BYTES, ".jpg"), compressed("bayer_rggb8; jpeg compressed ", BYTES, ".jpg")
    for message in (turned, mosaic):
        message.data = np.frombuffer(bytes(message.data[:2]) + segment + bytes(message.data[2:]), np.uint8)
    path = write(tmp_path / "bag", ("/a", turned), ("/b", mosaic))
    shapes = [frame.pixels.shape for frame in read(path)[0] if isinstance(frame, Frame)]
    assert shapes == [(12, 8), (8, 12)]
    report = json.loads(CliRunner().invoke(bag, ["info", str(path), "--json"]).output)
    assert (report["topics"][0]["encodings"], report["topics"][0]["resolutions"]) == ({"jpeg": 1}, {"8×12": 1})
