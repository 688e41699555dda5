"""Data sets as drives. All but CamVid are made up here, after the public documentation of the sets."""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

from rosbag_tools.bag_format import BagFormat
from rosbag_tools.cli import bag
from rosbag_tools.data_sets import LAYOUTS
from rosbag_tools.messages.ros_types import read_label_info
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.records import Message
from shared.imaging.frames import Frame
from shared.imaging.labels import labels_from
from shared.imaging.opencv import cv2
from tests.rosbag_tools.conftest import read_frames

Mask = npt.NDArray[np.uint8]
_REAL = Path(__file__).parents[3] / "shared" / "data" / "real"
_HEIGHT, _WIDTH = 6, 8
_GREY, _RGB, _PALETTE, _GREY_ALPHA, _RGBA = 0, 2, 3, 4, 6  # Colour types of PNG.


def png(rows: Any, colour_type: int = _GREY, bits: int = 8, palette: Sequence[int] = (), opacity: bytes = b"") -> bytes:
    """Encodes H×W or H×W×C values as a PNG of any colour type; OpenCV writes no palettes and few depths."""
    values = np.asarray(rows)
    height, width = values.shape[:2]

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    def packed(row: Any) -> bytes:
        if bits == 16:
            return bytes(row.astype(">u2").tobytes())
        if bits == 8:
            return bytes(row.astype(np.uint8).tobytes())
        digits = "".join(format(int(value), f"0{bits}b") for value in row)
        return bytes(int(digits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(digits), 8))

    content = zlib.compress(b"".join(b"\0" + packed(row) for row in values))
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0))]
    parts += [chunk(b"PLTE", bytes(palette))] if palette else []
    parts += [chunk(b"tRNS", opacity)] if opacity else []
    return b"\x89PNG\r\n\x1a\n" + b"".join([*parts, chunk(b"IDAT", content), chunk(b"IEND", b"")])


def picture(seed: int = 0, suffix: str = ".png", shape: tuple[int, ...] = (_HEIGHT, _WIDTH, 3)) -> bytes:
    """Encodes a random image."""
    pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return bytes(cv2.imencode(suffix, pixels)[1])


def ids(*values: int) -> Mask:
    """Returns a mask with these values, one after the other."""
    return np.resize(np.array(values, np.uint8), (_HEIGHT, _WIDTH))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    """Writes files into a folder."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def run(folder: Path, out: Path, layout: str, *options: object) -> Result:
    """Runs `skylane bag import`."""
    arguments = ["import", folder, out, "--layout", layout, *options]
    return CliRunner().invoke(bag, [str(each) for each in arguments])


def succeed(folder: Path, out: Path, layout: str, *options: object) -> str:
    """Runs `skylane bag import` and returns what it printed."""
    result = run(folder, out, layout, *options)
    assert result.exception is None, result.output + repr(result.exception)
    return result.output


def refuse(folder: Path, out: Path, layout: str, *options: object) -> str:
    """Runs an import that must fail in one sentence and leave nothing behind; returns the sentence."""
    before = sorted(out.parent.rglob("*")) if out.parent.exists() else []
    result = run(folder, out, layout, *options)
    assert result.exit_code != 0, result.output
    message = (
        str(result.exception) if result.exception and not isinstance(result.exception, SystemExit) else result.output
    )
    assert "Traceback" not in message
    assert "\n" not in message.strip() or "Usage:" in message
    assert (sorted(out.parent.rglob("*")) if out.parent.exists() else []) == before
    return message


def frames(path: Path, topic: str = "/camera/image_raw") -> list[Frame]:
    """Returns the readable frames of a topic."""
    return [frame for frame in read_frames(path, topics=[topic]) if isinstance(frame, Frame)]


def masks(path: Path) -> list[Mask]:
    """Returns the labels of a bag."""
    return [np.asarray(frame.pixels, np.uint8) for frame in frames(path, "/camera/labels")]


def seconds(path: Path, topic: str = "/camera/image_raw") -> list[float]:
    """Returns the times of a topic's images after the first image of the bag."""
    first = frames(path)[0].stamp_ns
    return [(frame.stamp_ns - first) / 1e9 for frame in frames(path, topic)]


def names(path: Path) -> tuple[str, ...]:
    """Returns the names of the labels in a bag."""
    with Bag(path) as opened:
        items = opened.messages({"/camera/label_info"})
        (found,) = {read_label_info(item) for item in items if isinstance(item, Message)}
    return found


CAMVID = {
    "images/0016E5_07959.png": picture(1),
    "images/0016E5_07961.png": picture(2),
    "labels/0016E5_07959.png": png(ids(0, 3, 11)),
    "labels/0016E5_07961.png": png(ids(4, 10, 8)),
}


def test_the_real_camvid_drive_keeps_every_label(tmp_path: Path) -> None:
    """The figures of real roads are computed on this import: every pixel of 101 label images is as in the data set."""
    folder = _REAL / "camvid-val"
    if not folder.exists():
        pytest.skip(f"no CamVid in {_REAL}")
    printed = succeed(folder, tmp_path / "drive", "camvid")
    assert "101 frames, 6.7 s; 101 with labels, 0 without" in printed
    files = sorted((folder / "labels").glob("*.png"))
    for path, mask in zip(files, masks(tmp_path / "drive"), strict=True):
        given = np.asarray(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
        np.testing.assert_array_equal(mask, np.where(given == 11, 255, given))
    images = sorted((folder / "images").glob("*.png"))
    np.testing.assert_array_equal(
        frames(tmp_path / "drive")[100].pixels, np.asarray(cv2.imread(str(images[100])))[..., ::-1]
    )
    assert seconds(tmp_path / "drive") == pytest.approx([index / 15 for index in range(101)])


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_images_labels_and_names_share_their_stamps_in_every_format(tmp_path: Path, bag_format: str) -> None:
    """Truth is found by its stamp, and classes are compared by the names beside it."""
    out = tmp_path / ("drive.bag" if bag_format == "ros1" else "drive")
    succeed(write(tmp_path / "set", CAMVID), out, "camvid", "--format", bag_format)
    assert seconds(out) == seconds(out, "/camera/labels") == pytest.approx([0, 2 / 30])
    np.testing.assert_array_equal(masks(out)[0], ids(0, 3, 255))
    np.testing.assert_array_equal(masks(out)[1], ids(4, 10, 8))
    assert names(out) == labels_from("camvid").names
    assert CliRunner().invoke(bag, ["verify", str(out)]).exit_code == 0


TREES: dict[str, tuple[dict[str, bytes], list[float], int, tuple[str, ...]]] = {
    "camvid": (
        {
            "val/0016E5_00030.png": picture(),
            "val/0016E5_00060.png": picture(),
            "valannot/0016E5_00030.png": png(ids(1)),
            "valannot/0016E5_00060.png": png(ids(1)),
            "test/Seq05VD_f00000.png": picture(),
            "testannot/Seq05VD_f00000.png": png(ids(2)),
        },
        [0, 10, 11],
        2,
        ("0,1", "building"),
    ),
    "cityscapes": (
        {
            **{
                f"leftImg8bit_sequence/val/ulm/ulm_000001_0000{n:02}_leftImg8bit.png": picture(n)
                for n in (0, 19, 20, 29)
            },
            "leftImg8bit_sequence/val/ulm/ulm_000002_000019_leftImg8bit.png": picture(5),
            "gtFine/val/ulm/ulm_000001_000019_gtFine_labelIds.png": png(ids(7, 4, 26)),
            "gtFine/val/ulm/ulm_000002_000019_gtFine_labelIds.png": png(ids(33, 0, 15)),
            "gtFine/val/ulm/ulm_000001_000019_gtFine_instanceIds.png": png(ids(7), bits=16),
            "gtFine/val/ulm/ulm_000001_000019_gtFine_color.png": picture(8),
        },
        [0, 19 / 17, 20 / 17, 29 / 17, 29 / 17 + 10],
        2,
        ("7,255,26", "road"),
    ),
    "kitti": (
        {
            **{f"training/image_2/000000_{n:02}.png": picture(n) for n in range(9, 12)},
            "training/image_2/000001_10.png": picture(3),
            "training/semantic/000000_10.png": png(ids(7, 255, 26)),
            "training/semantic/000001_10.png": png(ids(8)),
        },
        [0, 0.1, 0.2, 10.2],
        2,
        ("7,255,26", "road"),
    ),
    "bdd100k": (
        {
            "images/10k/train/00abc-1.jpg": picture(0, ".jpg"),
            "images/10k/train/00abc-2.jpg": picture(0, ".jpg"),
            "images/10k/val/00abc-3.jpg": picture(0, ".jpg"),
            "labels/sem_seg/masks/train/00abc-1.png": png(ids(0, 255, 13)),
        },
        [0, 0.5, 10.5],
        1,
        ("0,255,13", "road"),
    ),
    "comma10k": (
        {
            "imgs/0000_0085e9e41513078a_2018-08-19--13-26-08_11_864.png": picture(),
            "imgs/0001_a23b0de0bc12dcba_2018-06-24--00-29-19_17_79.png": picture(),
            "masks/0000_0085e9e41513078a_2018-08-19--13-26-08_11_864.png": png(
                np.resize(np.array([[64, 32, 32], [204, 0, 255], [255, 255, 255]]), (_HEIGHT, _WIDTH, 3)), _RGB
            ),
        },
        [0, 0.5],
        1,
        ("0,4,255", "road"),
    ),
    "davis": (
        {
            **{f"JPEGImages/480p/{name}/0000{n}.jpg": picture(n, ".jpg") for name in ("bear", "cat") for n in (0, 1)},
            "Annotations/480p/bear/00000.png": png(ids(0, 1, 2), _PALETTE, palette=[0, 0, 0, 128, 0, 0, 0, 128, 0]),
            "Annotations/480p/cat/00001.png": png(ids(0, 255)),
        },
        [0, 1 / 24, 10 + 1 / 24, 10 + 2 / 24],
        2,
        ("0,1,2", "background"),
    ),
}


@pytest.mark.parametrize("layout", TREES)
def test_each_layout_is_read_as_its_documentation_says(tmp_path: Path, layout: str) -> None:
    """Only CamVid is at hand: the other trees are made up from the public documentation of the data sets."""
    files, times, labelled, (values, name) = TREES[layout]
    options = () if LAYOUTS[layout].rate_hz else ("--rate", 2)
    printed = succeed(write(tmp_path / "set", files), tmp_path / "drive", layout, *options)
    assert seconds(tmp_path / "drive") == pytest.approx(times)
    found = masks(tmp_path / "drive")
    if layout != "camvid":
        assert len(found) == labelled
        np.testing.assert_array_equal(found[0], ids(*map(int, values.split(","))))
        assert f"{labelled} with labels, {len(times) - labelled} without" in printed
    assert name in names(tmp_path / "drive")
    assert "" not in names(tmp_path / "drive")[-1:]


def test_the_white_of_davis_2016_is_its_foreground(tmp_path: Path) -> None:
    """255 means unlabelled elsewhere: the whole object would be left out of the accuracy."""
    succeed(write(tmp_path / "set", TREES["davis"][0]), tmp_path / "drive", "davis")
    foreground = names(tmp_path / "drive").index("foreground")
    np.testing.assert_array_equal(masks(tmp_path / "drive")[1], ids(0, foreground))


def test_sequences_and_long_pauses_are_named(tmp_path: Path) -> None:
    """Nobody may take images of several sequences for one continuous drive."""
    files = {name: data for name, data in CAMVID.items() if "07959" in name}
    files |= {"images/0016E5_09000.png": picture(), "images/0001TP_1.png": picture()}
    printed = succeed(write(tmp_path / "set", files), tmp_path / "drive", "camvid")
    assert "3 frames in 3 sequences, 10 s apart, 20.0 s; 1 with labels, 2 without" in printed
    assert seconds(tmp_path / "drive") == pytest.approx([0, 10, 20])


@pytest.mark.parametrize(("rate", "times"), [(4, [0, 0.25]), (0.01, [0, 100])])
def test_a_given_rate_replaces_the_numbers(tmp_path: Path, rate: float, times: list[float]) -> None:
    """Also a slow one, whose pauses are no gaps between sequences."""
    printed = succeed(write(tmp_path / "set", CAMVID), tmp_path / "drive", "camvid", "--rate", rate)
    assert seconds(tmp_path / "drive") == pytest.approx(times)
    assert "sequences" not in printed


LABEL_FILE = (
    b"- {name: road, colour: [1, 2, 3]}\n- {name: void, colour: [0, 0, 0]}\n- {name: car, colour: [255, 0, 9]}\n"
)
COLOURS = [[1, 2, 3], [0, 0, 0], [255, 0, 9]]
ENCODINGS = {
    "grey8": png(ids(0, 1, 2)),
    "grey4": png(ids(0, 1, 2), bits=4),
    "grey2": png(ids(0, 1, 2), bits=2),
    "grey16": png(ids(0, 1, 2), bits=16),
    "palette8": png(ids(0, 1, 2), _PALETTE, palette=[9] * 9),
    "palette4": png(ids(0, 1, 2), _PALETTE, 4, [9] * 9),
    "palette2": png(ids(0, 1, 2), _PALETTE, 2, [9] * 9),
    "palette with an opaque entry": png(ids(0, 1, 2), _PALETTE, palette=[9] * 9, opacity=b"\xff\xff"),
    "grey with opacity": png(np.stack([ids(0, 1, 2), ids(255)], -1), _GREY_ALPHA),
    "colour": png(np.resize(COLOURS, (_HEIGHT, _WIDTH, 3)), _RGB),
    "colour with opacity": png(np.resize([[*each, 255] for each in COLOURS], (_HEIGHT, _WIDTH, 4)), _RGBA),
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_label_image_may_have_any_kind_of_png(tmp_path: Path, encoding: str) -> None:
    """Ids as grey or as indices of a palette, colours as in the label file; small depths are not spread over 0 to 255."""
    folder = write(tmp_path / "set", {"a/1.png": picture(), "b/1.png": ENCODINGS[encoding], "labels.yaml": LABEL_FILE})
    succeed(folder, tmp_path / "drive", "pairs", *pairs(str(folder / "labels.yaml")))
    np.testing.assert_array_equal(masks(tmp_path / "drive")[0], ids(0, 255, 2))
    assert names(tmp_path / "drive") == ("road", "", "car")


def test_one_bit_is_not_taken_for_unlabelled(tmp_path: Path) -> None:
    """OpenCV reads the 1 of one bit as 255."""
    folder = write(tmp_path / "set", {"a/1.png": picture(), "b/1.png": png(ids(0, 1), bits=1)})
    succeed(folder, tmp_path / "drive", "pairs", *pairs("camvid"))
    np.testing.assert_array_equal(masks(tmp_path / "drive")[0], ids(0, 1))


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tif"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_become_rgb(tmp_path: Path, suffix: str, channels: int) -> None:
    """Also grey images and those with opacity, which a JPEG cannot have."""
    if suffix in (".jpg", ".bmp") and channels == 4:
        pytest.skip("no such file")
    data = picture(3, suffix, (_HEIGHT, _WIDTH, channels))
    folder = write(tmp_path / "set", {f"a/1{suffix}": data, "b/1.png": png(ids(0))})
    options = ("--images", f"a/*{suffix}", "--truth", "b/*.png", "--labels", "camvid", "--rate", 10)
    succeed(folder, tmp_path / "drive", "pairs", *options)
    (frame,) = frames(tmp_path / "drive")
    expected = np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR))[..., ::-1]
    assert frame.layout == "rgb8"
    np.testing.assert_array_equal(frame.pixels, expected)


def test_wildcards_pair_what_they_stand_for(tmp_path: Path) -> None:
    """Images of two folders may have equal names, and hidden files of macOS are no images."""
    files = {f"{camera}/rgb/{n}.png": picture(n) for camera in "ab" for n in (2, 10)}
    files |= {"a/ids/2.png": png(ids(1)), "b/ids/10.png": png(ids(2)), "a/rgb/._2.png": b"\0", "a/ids/._2.png": b"\0"}
    options = ("--images", "*/rgb/*.png", "--truth", "*/ids/*.png", "--labels", "camvid", "--rate", 1)
    printed = succeed(write(tmp_path / "set", files), tmp_path / "drive", "pairs", *options)
    assert "4 frames in 2 sequences" in printed
    assert seconds(tmp_path / "drive", "/camera/labels") == pytest.approx([0, 12])
    assert [int(mask[0, 0]) for mask in masks(tmp_path / "drive")] == [1, 2]


def camvid_with(**changes: bytes | None) -> dict[str, bytes]:
    """Returns the small CamVid with other files; `i` and `l` stand for the folders, None removes a file."""
    files = dict(CAMVID)
    for key, data in changes.items():
        folder = {"i": "images", "l": "labels"}[key[0]]
        name = f"{folder}/{key[2:]}.png"
        files.pop(name, None)
        if data is not None:
            files[name] = data
    return files


def rotated_jpeg() -> bytes:
    """Returns a JPEG whose EXIF data rotates it by 180°."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0\0\0\0\0"
    data = picture(4, ".jpg")
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


WRONG: dict[str, tuple[dict[str, bytes], str]] = {
    "label image of another size": (
        camvid_with(l_0016E5_07959=png(np.zeros((3, 4)))),
        "0016E5_07959.png is 4×3, its image 0016E5_07959.png 8×6",
    ),
    "label image turned by 90°": (camvid_with(l_0016E5_07961=png(ids(1).T)), "is 6×8, its image"),
    "unknown ids": (camvid_with(l_0016E5_07961=png(ids(0, 12, 12, 13))), "ids that the label file does not have: 12 ("),
    "unknown colours": (
        camvid_with(l_0016E5_07961=png(np.full((_HEIGHT, _WIDTH, 3), 7), _RGB)),
        "colours that the label file does not have: [7, 7, 7] (48 pixels)",
    ),
    "ids of instances": (
        camvid_with(l_0016E5_07961=png(np.full((_HEIGHT, _WIDTH), 26001), bits=16)),
        "16-bit values up to 26001, such as ids of instances",
    ),
    "colours of 16 bits": (
        camvid_with(l_0016E5_07961=png(np.full((_HEIGHT, _WIDTH, 3), 128), _RGB, 16)),
        "16-bit values",
    ),
    "JPEG with the name of a PNG": (camvid_with(l_0016E5_07961=picture(1, ".jpg")), "is a JPEG, which changes labels"),
    "transparent colours": (
        camvid_with(l_0016E5_07961=png(np.resize([128, 128, 128, 0], (_HEIGHT, _WIDTH, 4)), _RGBA)),
        "has transparent pixels",
    ),
    "text": (camvid_with(l_0016E5_07961=b"<html>"), "label images must be PNG"),
    "empty label image": (camvid_with(l_0016E5_07961=b""), "label images must be PNG"),
    "label image that is cut": (camvid_with(l_0016E5_07961=png(ids(1))[:-20]), "label images must be PNG"),
    "image that is cut": (camvid_with(i_0016E5_07961=picture(1)[:60]), "0016E5_07961.png: "),
    "image that is text": (camvid_with(i_0016E5_07961=b"<html>"), "0016E5_07961.png: "),
    "image of 16 bits": (camvid_with(i_0016E5_07961=png(ids(1), bits=16)), "has 16 bits"),
    "image that EXIF rotates": (camvid_with(i_0016E5_07961=rotated_jpeg()), "EXIF data rotates it"),
    "label image without image": (
        camvid_with(i_0016E5_07961=None),
        "1 of 2 label images have no image in images/*.png, the first is ",
    ),
    "name without a number": (camvid_with(i_street=picture()), "street.png: the name has no number of a frame"),
    "two images of one number": (camvid_with(i_0016E5_7961=picture()), "have the same time"),
    "no label images": (
        {"images/0016E5_1.png": picture()},
        "images/*.png (1 images) with labels/*.png (0 label images)",
    ),
    "no images": ({"labels/0016E5_1.png": png(ids(1))}, "is not of this layout"),
    "another layout": (TREES["davis"][0], "it holds Annotations, JPEGImages"),
    "empty folder": ({}, "it holds nothing"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named_and_nothing_is_written(tmp_path: Path, wrong: str) -> None:
    """A wrong label would be a wrong figure, and half a drive would be taken for a whole one."""
    files, expected = WRONG[wrong]
    (tmp_path / "set").mkdir()
    assert expected in refuse(write(tmp_path / "set", files), tmp_path / "out" / "drive", "camvid")
    assert not list((tmp_path / "out").rglob("*"))


def pairs(labels: str) -> tuple[object, ...]:
    """Returns the options of an import of images in `a` with label images in `b`."""
    return "--images", "a/*.png", "--truth", "b/*.png", "--labels", labels, "--rate", 10


def test_a_palette_in_another_order_is_refused(tmp_path: Path) -> None:
    """A drawing program sorts the colours as it likes, so its indices are no class ids."""
    colours = [bytes(each) for each in labels_from("camvid").colours]
    folder = write(tmp_path / "set", {"a/1.png": picture()})

    def palette(*entries: bytes) -> None:
        write(folder, {"b/1.png": png(ids(0, 1, 2), _PALETTE, palette=b"".join(entries))})

    palette(*colours)
    succeed(folder, tmp_path / "drive", "pairs", *pairs("camvid"))
    palette(*reversed(colours))
    refused = refuse(folder, tmp_path / "other", "pairs", *pairs("camvid"))
    assert "palette with the colours of the classes in another order: index 0" in refused
    palette(colours[5], b"\1\2\3", colours[4])  # One colour is of no class.
    refused = refuse(folder, tmp_path / "other", "pairs", *pairs("camvid"))
    assert "another order: index 0 has that of tree" in refused


def test_suffixes_in_capitals_are_the_same_format(tmp_path: Path) -> None:
    """Cameras write them; two files of one name are refused."""
    folder = write(tmp_path / "set", {name.replace("61.png", "61.PNG"): data for name, data in CAMVID.items()})
    assert "2 with labels, 0 without" in succeed(folder, tmp_path / "drive", "camvid")
    write(folder, {"images/0016E5_07961.Png": picture()})
    assert "have the same name" in refuse(folder, tmp_path / "other", "camvid")


def test_bytes_behind_a_label_image_are_ignored(tmp_path: Path) -> None:
    """Some programs leave them there; an image whose end is missing is refused."""
    succeed(write(tmp_path / "set", camvid_with(l_0016E5_07961=png(ids(1)) + b"\0\0")), tmp_path / "drive", "camvid")
    write(tmp_path / "set", camvid_with(l_0016E5_07961=png(ids(1))[:-6]))
    assert "07961.png" in refuse(tmp_path / "set", tmp_path / "other", "camvid")


def test_a_damaged_label_image_is_refused(tmp_path: Path) -> None:
    """One changed byte of the compressed pixels: OpenCV would return the part before it."""
    data = bytearray(png(np.random.default_rng(0).integers(0, 11, (200, 200))))
    data[len(data) // 2] ^= 0xFF
    files = {"images/0016E5_1.png": picture(0, ".png", (200, 200, 3)), "labels/0016E5_1.png": bytes(data)}
    assert "damaged" in refuse(write(tmp_path / "set", files), tmp_path / "out" / "drive", "camvid")


OPTIONS: dict[str, tuple[str, tuple[object, ...], str]] = {
    "pairs without patterns": ("pairs", (), "needs --images, --truth and --labels"),
    "pairs without labels": ("pairs", ("--images", "a/*", "--truth", "b/*"), "needs --images, --truth and --labels"),
    "images alone": ("camvid", ("--images", "images/*.png"), "both --images and --truth"),
    "no wildcard": ("camvid", ("--images", "images/a.png", "--truth", "labels/*.png"), "with * for what differs"),
    "outside": ("camvid", ("--images", "../*.png", "--truth", "labels/*.png"), "inside the folder"),
    "absolute": ("camvid", ("--images", "/etc/*.png", "--truth", "labels/*.png"), "inside the folder"),
    "any depth": ("camvid", ("--images", "**/*.png", "--truth", "labels/*.png"), "inside the folder"),
    "brackets": ("camvid", ("--images", "images/[0-9]*.png", "--truth", "labels/*.png"), "inside the folder"),
    "other wildcards": ("camvid", ("--images", "*/*.png", "--truth", "labels/*.png"), "different numbers of *"),
    "nothing matches": ("camvid", ("--images", "x/*.png", "--truth", "labels/*.png"), "x/*.png (0 images)"),
    "unknown labels": ("camvid", ("--labels", "camvidd"), "no label set 'camvidd'"),
    "no label file": ("camvid", ("--labels", "/nowhere.yaml"), "cannot read label file"),
    "other labels": ("camvid", ("--labels", "comma10k"), "ids that the label file does not have"),
    "rate of zero": ("camvid", ("--rate", 0), "--rate"),
    "rate without end": ("camvid", ("--rate", "inf"), "--rate"),
    "unknown layout": ("waymo", (), "'waymo' is not one of"),
    "ROS 1 folder": ("camvid", ("--format", "ros1"), "a ROS 1 bag is a file named .bag"),
    "unknown compression": ("camvid", ("--compression", "lz4"), "lz4"),
}


@pytest.mark.parametrize("wrong", OPTIONS)
def test_wrong_options_are_refused(tmp_path: Path, wrong: str) -> None:
    """Each in a sentence with the remedy."""
    layout, options, expected = OPTIONS[wrong]
    assert expected in refuse(write(tmp_path / "set", CAMVID), tmp_path / "out" / "drive", layout, *options)


def test_single_images_need_a_rate(tmp_path: Path) -> None:
    """Their names have no times, and an invented rate would be taken for the camera's."""
    folder = write(tmp_path / "set", TREES["comma10k"][0])
    assert "give --rate" in refuse(folder, tmp_path / "out" / "drive", "comma10k")


def test_a_colour_of_two_classes_is_refused(tmp_path: Path) -> None:
    """It cannot be decided which class is meant; ids are unambiguous."""
    twice = b"- {name: road, colour: [1, 2, 3]}\n- {name: car, colour: [1, 2, 3]}\n"
    files = {"a/1.png": picture(), "b/1.png": ENCODINGS["colour"], "c/1.png": png(ids(0, 1)), "labels.yaml": twice}
    folder = write(tmp_path / "set", files)
    options = ("--images", "a/*.png", "--labels", folder / "labels.yaml", "--rate", 1, "--truth")
    assert "[1, 2, 3] twice" in refuse(folder, tmp_path / "out" / "drive", "pairs", *options, "b/*.png")
    succeed(folder, tmp_path / "drive", "pairs", *options, "c/*.png")


def test_labels_without_a_class_are_refused(tmp_path: Path) -> None:
    """Every pixel would be unlabelled."""
    folder = write(tmp_path / "set", {**CAMVID, "labels.yaml": b"- {name: void, colour: [0, 0, 0]}\n"})
    assert "no class" in refuse(folder, tmp_path / "out" / "drive", "camvid", "--labels", folder / "labels.yaml")


@pytest.mark.parametrize("name", ["drive", "drive.bag", "drive.mcap"])
def test_a_failed_import_keeps_the_bag_that_it_would_replace(tmp_path: Path, name: str) -> None:
    """Also with --force: the old bag goes only when the new one is complete."""
    out = tmp_path / "out" / name
    good = write(tmp_path / "good", CAMVID)
    bad = write(tmp_path / "bad", camvid_with(l_0016E5_07961=png(ids(99))))
    succeed(good, out, "camvid")
    assert "exists: choose another name, or --force" in refuse(good, out, "camvid")
    before = [path.read_bytes() for path in sorted(out.parent.rglob("*")) if path.is_file()]
    refuse(bad, out, "camvid", "--force")
    assert [path.read_bytes() for path in sorted(out.parent.rglob("*")) if path.is_file()] == before
    succeed(good, out, "camvid", "--force", "--rate", 5)
    assert seconds(out) == pytest.approx([0, 0.2])
    assert [path.name for path in out.parent.iterdir()] == [name]


def test_a_folder_that_is_no_bag_is_never_replaced(tmp_path: Path) -> None:
    """--force is for bags; a typing error must not delete the data set itself."""
    folder = write(tmp_path / "set", CAMVID)
    assert "is not a bag" in refuse(folder, folder, "camvid", "--force")
    assert sorted(path.name for path in (folder / "images").iterdir()) == ["0016E5_07959.png", "0016E5_07961.png"]


def test_import_shows_the_remedy_of_an_unreadable_folder(tmp_path: Path) -> None:
    """A folder that does not exist, or a file."""
    assert "does not exist" in refuse(tmp_path / "nowhere", tmp_path / "drive", "camvid")
    (tmp_path / "file").write_bytes(b"")
    assert "is a file" in refuse(tmp_path / "file", tmp_path / "drive", "camvid")


@pytest.mark.parametrize("bag_format", list(BagFormat))
def test_the_mark_of_a_synthetic_drive_survives_copies(tmp_path: Path, bag_format: str) -> None:
    """It is in every message, so a part of a drive in another format has it too; an imported data set has none."""
    path, copy = tmp_path / "drive", tmp_path / ("copy.bag" if bag_format == "ros1" else "copy")
    made = ("make", str(path), "--frames", "2", "--width", "48", "--height", "32")
    crop = ("crop", str(path), str(copy), "--format", str(bag_format), "--topic", "/sensors/camera/left/image_raw")
    for arguments in (made, crop):
        assert CliRunner().invoke(bag, arguments, catch_exceptions=False).exit_code == 0
    assert "synthetic drive" in CliRunner().invoke(bag, ["info", str(copy)], catch_exceptions=False).output
    source = BagSource(copy)
    assert source.provenance["synthetic"] is True
    source.close()
    succeed(write(tmp_path / "set", CAMVID), tmp_path / "real", "camvid")
    assert "synthetic drive" not in CliRunner().invoke(bag, ["info", str(tmp_path / "real")]).output
