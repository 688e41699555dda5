"""Data sets as drives. All but CamVid are made up here, after the public documentation of the sets."""

import shutil
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner, Result

from rosbag_tools.cli import bag
from rosbag_tools.messages.ros_types import read_label_info
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.records import Message
from shared.imaging.frames import Frame
from shared.imaging.labels import labels_from

HEIGHT, WIDTH = 4, 6
CAMVID = Path(__file__).parents[3] / "shared" / "data" / "real" / "camvid-val"


def picture(path: Path, value: int = 90, **size: int) -> Path:
    """Writes an image of one colour, as PNG or JPEG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size.get("height", HEIGHT), size.get("width", WIDTH), 3)
    assert cv2.imwrite(str(path), np.full(shape, value, np.uint8))
    return path


def label_image(path: Path, values: Any, dtype: Any = np.uint8) -> Path:
    """Writes a PNG whose rows have one value each: an id, or blue, green and red."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = np.array(values, dtype)
    pixels = np.repeat(rows[:, np.newaxis], WIDTH, axis=1)
    assert cv2.imwrite(str(path), pixels)
    return path


def camvid_tree(folder: Path, names: Sequence[str] = ("0001_00000", "0001_00002")) -> Path:
    """Makes a folder like CamVid's, with images and labels of the same names."""
    for name in names:
        picture(folder / "images" / f"{name}.png")
        label_image(folder / "labels" / f"{name}.png", [0, 3, 8, 11])
    return folder


def png_chunk(name: bytes, data: bytes) -> bytes:
    """Returns a part of a PNG file."""
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def palette_image(path: Path, indices: Sequence[int], palette: bytes) -> None:
    """Writes a PNG whose rows have one index each of a palette, which has red, green and blue of each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = b"".join(bytes([0, *[index] * WIDTH]) for index in indices)  # Each row begins with its filter.
    header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*each) for each in chunks))


def imported(folder: Path, out: Path, *options: str) -> Result:
    """Runs the command."""
    return CliRunner().invoke(bag, ["import", str(folder), str(out), *options])


def problem(folder: Path, out: Path, *options: str) -> str:
    """Runs a command that must fail without leaving anything, and returns its message."""
    found = imported(folder, out, *options)
    assert found.exit_code, found.output
    assert not list(out.parent.glob(f"*{out.name}*")), "nothing is left half-written"
    return str(found.exception) + found.output


def contents(path: Path) -> tuple[list[Frame], list[Frame], tuple[str, ...]]:
    """Returns the images, the labels, and the names of the labels in a bag."""
    found = []
    for topic in ("/camera/image_raw", "/camera/labels"):
        source = BagSource(path, topics=[topic])
        found.append([each for each in source.frames() if isinstance(each, Frame)])
        source.close()
    with Bag(path) as opened:
        messages = [each for each in opened.messages({"/camera/label_info"}) if isinstance(each, Message)]
    return found[0], found[1], read_label_info(messages[0])


def test_labels_have_the_ids_and_names_of_the_set(tmp_path: Path) -> None:
    """Unlabelled pixels are 255, and are no class."""
    said = imported(camvid_tree(tmp_path / "set"), tmp_path / "drive", "--layout", "camvid")
    assert "2 frames, 0.1 s; 2 with labels, 0 without" in said.output
    images, labels, names = contents(tmp_path / "drive")
    assert [each.stamp_ns - images[0].stamp_ns for each in images] == [0, 66_666_667]
    assert [each.stamp_ns for each in images] == [each.stamp_ns for each in labels]
    assert labels[0].pixels[:, 0].tolist() == [0, 3, 8, 255]
    assert names[3] == "road"
    assert len(names) == 11


@pytest.mark.skipif(not CAMVID.exists(), reason="the frames of CamVid are not here")
def test_the_real_frames_are_imported_bit_for_bit(tmp_path: Path) -> None:
    """101 consecutive labelled frames of one drive at 15 Hz."""
    said = imported(CAMVID, tmp_path / "drive", "--layout", "camvid")
    assert "101 frames, 6.7 s; 101 with labels, 0 without" in said.output
    images, labels, _ = contents(tmp_path / "drive")
    for name, image, label in zip(sorted((CAMVID / "images").glob("*.png")), images, labels, strict=True):
        assert np.array_equal(np.asarray(cv2.imread(str(name)))[..., ::-1], image.pixels)
        expected = np.asarray(cv2.imread(str(CAMVID / "labels" / name.name), cv2.IMREAD_UNCHANGED))
        assert np.array_equal(np.where(expected == 11, 255, expected), label.pixels)


def test_one_frame_in_thirty_of_cityscapes_has_labels(tmp_path: Path) -> None:
    """The sequence has 17 Hz; ids that are not evaluated have no class."""
    for city, frames in (("aachen", range(3)), ("bonn", range(17, 20))):
        for frame in frames:
            name = f"{city}_000000_{frame:06d}"
            picture(tmp_path / "set" / "leftImg8bit_sequence" / "train" / city / f"{name}_leftImg8bit.png")
        label_image(tmp_path / "set" / "gtFine" / "train" / city / f"{name}_gtFine_labelIds.png", [7, 26, 0, 4])
    said = imported(tmp_path / "set", tmp_path / "drive", "--layout", "cityscapes")
    assert "6 frames in 2 sequences, 10 s apart" in said.output
    assert "2 with labels, 4 without" in said.output
    images, labels, names = contents(tmp_path / "drive")
    steps = np.diff([each.stamp_ns for each in images]).tolist()
    assert steps == [58_823_529, 58_823_529, 10**10, 58_823_529, 58_823_529]
    assert (names[7], names[26]) == ("road", "car")
    assert labels[0].pixels[2:, 0].tolist() == [255, 255]


def test_the_middle_frame_of_kitti_has_labels(tmp_path: Path) -> None:
    """Each number is a sequence of its own, at 10 Hz."""
    for frame in (9, 10, 11):
        picture(tmp_path / "set" / "training" / "image_2" / f"000003_{frame:02d}.png")
    label_image(tmp_path / "set" / "training" / "semantic" / "000003_10.png", [7, 8, 11, 26])
    said = imported(tmp_path / "set", tmp_path / "drive", "--layout", "kitti")
    assert "3 frames, 0.2 s; 1 with labels, 2 without" in said.output


def test_images_without_times_need_a_rate(tmp_path: Path) -> None:
    """BDD100K's 10k images are from different drives."""
    picture(tmp_path / "set" / "images" / "10k" / "train" / "0a1b.jpg")
    label_image(tmp_path / "set" / "labels" / "sem_seg" / "masks" / "train" / "0a1b.png", [0, 13, 255, 18])
    assert "give --rate" in problem(tmp_path / "set", tmp_path / "drive", "--layout", "bdd100k")
    assert imported(tmp_path / "set", tmp_path / "drive", "--layout", "bdd100k", "--rate", "1").exit_code == 0
    _, labels, names = contents(tmp_path / "drive")
    assert labels[0].pixels[:, 0].tolist() == [0, 13, 255, 18]
    assert names[13] == "car"


def test_colours_become_ids(tmp_path: Path) -> None:
    """comma10k's masks are coloured; an unknown colour is named with its pixels."""
    picture(tmp_path / "set" / "imgs" / "0000.png")
    masks = tmp_path / "set" / "masks" / "0000.png"
    label_image(masks, [[32, 32, 64], [0, 0, 255], [96, 128, 128], [255, 0, 204]])  # Blue, green, red.
    assert imported(tmp_path / "set", tmp_path / "drive", "--layout", "comma10k", "--rate", "1").exit_code == 0
    _, labels, names = contents(tmp_path / "drive")
    assert names[labels[0].pixels[0, 0]] == "road"
    assert len(set(labels[0].pixels[:, 0].tolist())) == 4
    label_image(masks, [[32, 32, 64], [1, 2, 3], [1, 2, 3], [32, 32, 64]])
    text = problem(tmp_path / "set", tmp_path / "other", "--layout", "comma10k", "--rate", "1")
    assert f"[3, 2, 1] ({2 * WIDTH} pixels)" in text


def test_a_palette_has_its_indices_as_ids(tmp_path: Path) -> None:
    """DAVIS saves objects as a palette image, which a decoder would turn into colours."""
    picture(tmp_path / "set" / "JPEGImages" / "480p" / "bear" / "00000.jpg")
    path = tmp_path / "set" / "Annotations" / "480p" / "bear" / "00000.png"
    path.parent.mkdir(parents=True)
    palette_image(path, (0, 1, 1, 0), bytes([0, 0, 0, 128, 0, 0, *[7] * 762]))
    assert imported(tmp_path / "set", tmp_path / "drive", "--layout", "davis").exit_code == 0
    _, labels, _ = contents(tmp_path / "drive")
    assert labels[0].pixels[:, 0].tolist() == [0, 1, 1, 0]
    path.write_bytes(path.read_bytes() + b"\0\0")  # Some programs leave bytes behind the end.
    assert imported(tmp_path / "set", tmp_path / "drive", "--layout", "davis", "--force").exit_code == 0
    path.write_bytes(path.read_bytes()[:-8])
    assert "00000.png" in problem(tmp_path / "set", tmp_path / "other", "--layout", "davis")


def test_a_palette_in_another_order_is_refused(tmp_path: Path) -> None:
    """A drawing program sorts the colours as it likes, so its indices are no class ids."""
    camvid = camvid_tree(tmp_path / "set", ["0001_00000"])
    path = camvid / "labels" / "0001_00000.png"
    colours = [bytes(each) for each in labels_from("camvid").colours]
    pairs = (
        "--layout",
        "pairs",
        "--images",
        "images/*.png",
        "--truth",
        "labels/*.png",
        "--labels",
        "camvid",
        "--rate",
        "5",
    )
    palette_image(path, (0, 1, 2, 0), b"".join(colours))
    assert imported(camvid, tmp_path / "drive", *pairs).exit_code == 0
    palette_image(path, (0, 1, 2, 0), b"".join(reversed(colours)))
    text = problem(camvid, tmp_path / "other", *pairs)
    assert "palette with the colours of the classes in another order: index 0" in text
    palette_image(path, (0, 1, 2, 2), colours[5] + b"\1\2\3" + colours[4])  # One colour is of no class.
    assert "another order: index 0 has that of tree" in problem(camvid, tmp_path / "other", *pairs)


def test_suffixes_in_capitals_are_the_same_format(tmp_path: Path) -> None:
    """Cameras write them; two files of one name are refused."""
    camvid = camvid_tree(tmp_path / "set")
    for folder in ("images", "labels"):
        (camvid / folder / "0001_00002.png").rename(camvid / folder / "0001_00002.PNG")
    said = imported(camvid, tmp_path / "drive", "--layout", "camvid")
    assert "2 frames" in said.output
    assert "2 with labels, 0 without" in said.output
    shutil.copy(camvid / "images" / "0001_00002.PNG", camvid / "images" / "0001_00002.Png")
    assert "have the same name" in problem(camvid, tmp_path / "other", "--layout", "camvid")


def test_pairs_belong_together_by_what_the_stars_stand_for(tmp_path: Path) -> None:
    """Order would pair the wrong ones as soon as one is missing."""
    for name in ("a1", "a2", "a10"):
        picture(tmp_path / "set" / f"rgb_{name}.png", 10 * int(name[1:]))
    for name, value in (("a2", 1), ("a10", 2)):
        label_image(tmp_path / "set" / f"{name}_gt.png", [value] * HEIGHT)
    pairs = ("--layout", "pairs", "--images", "rgb_*.png", "--truth", "*_gt.png", "--labels", "camvid", "--rate", "5")
    assert "2 with labels, 1 without" in imported(tmp_path / "set", tmp_path / "drive", *pairs).output
    images, labels, _ = contents(tmp_path / "drive")
    assert [int(each.pixels[0, 0, 0]) for each in images] == [10, 20, 100]
    assert [(each.stamp_ns - images[0].stamp_ns, int(each.pixels[0, 0])) for each in labels] == [
        (2 * 10**8, 1),
        (4 * 10**8, 2),
    ]


def bad_size(folder: Path) -> None:
    """The first image is larger than its labels."""
    picture(folder / "images" / "0001_00000.png", height=2 * HEIGHT, width=2 * WIDTH)


def bad_id(folder: Path) -> None:
    """An id that CamVid does not have."""
    label_image(folder / "labels" / "0001_00000.png", [0, 12, 12, 3])


def instances(folder: Path) -> None:
    """Ids of instances in 16 bits."""
    label_image(folder / "labels" / "0001_00000.png", [7, 26_001, 26_002, 0], np.uint16)


def lossy(folder: Path) -> None:
    """A JPEG with the name of a PNG."""
    path = folder / "labels" / "0001_00000.png"
    picture(path.with_suffix(".jpg")).rename(path)


def cut(folder: Path) -> None:
    """Half of an image."""
    path = folder / "images" / "0001_00002.png"
    path.write_bytes(path.read_bytes()[:60])


def without_image(folder: Path) -> None:
    """Labels of an image that is missing."""
    (folder / "images" / "0001_00002.png").unlink()


def without_number(folder: Path) -> None:
    """A name that says no time."""
    for kind in ("images", "labels"):
        (folder / kind / "0001_00002.png").rename(folder / kind / "last.png")


def same_time(folder: Path) -> None:
    """Two names with the same number."""
    for kind in ("images", "labels"):
        (folder / kind / "0001_00002.png").rename(folder / kind / "0001_0000.png")


def no_labels(folder: Path) -> None:
    """A folder of images only."""
    for each in (folder / "labels").iterdir():
        each.unlink()


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (bad_size, "is 6×4, its image 0001_00000.png 12×8"),
        (bad_id, f"12 ({2 * WIDTH} pixels)"),
        (instances, "has 16-bit values up to 26002, such as ids of instances"),
        (lossy, "is a JPEG, which changes labels where classes meet"),
        (cut, "0001_00002.png"),
        (without_image, "1 of 2 label images have no image"),
        (without_number, "the name has no number of a frame"),
        (same_time, "have the same time"),
        (no_labels, "is not of this layout: looked for images/*.png (2 images) with labels/*.png (0 label images)"),
    ],
)
def test_a_folder_that_is_wrong_is_refused(tmp_path: Path, spoil: Any, text: str) -> None:
    """Nothing is guessed, and nothing is left half-written."""
    folder = camvid_tree(tmp_path / "set")
    spoil(folder)
    assert text in problem(folder, tmp_path / "drive", "--layout", "camvid")


def test_a_failed_import_leaves_the_bag_that_was_there(tmp_path: Path) -> None:
    """--force replaces it only by a complete one."""
    assert imported(camvid_tree(tmp_path / "set"), tmp_path / "drive", "--layout", "camvid").exit_code == 0
    assert "exists" in str(imported(tmp_path / "set", tmp_path / "drive", "--layout", "camvid").exception)
    bad_id(tmp_path / "set")
    assert imported(tmp_path / "set", tmp_path / "drive", "--layout", "camvid", "--force").exit_code
    assert len(contents(tmp_path / "drive")[0]) == 2


@pytest.mark.parametrize(
    "options",
    [
        ("--layout", "pairs"),
        ("--layout", "camvid", "--images", "images/*.png"),
        ("--layout", "pairs", "--images", "../*.png", "--truth", "a/*.png", "--labels", "camvid", "--rate", "1"),
        ("--layout", "pairs", "--images", "images/*.png", "--truth", "*/*.png", "--labels", "camvid", "--rate", "1"),
        ("--layout", "pairs", "--images", "images/a.png", "--truth", "b.png", "--labels", "camvid", "--rate", "1"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: Sequence[str]) -> None:
    """The message says what to give."""
    text = problem(camvid_tree(tmp_path / "set"), tmp_path / "drive", *options)
    assert "give" in text.lower() or "needs" in text


@pytest.mark.parametrize("bag_format", ["ros1", "sqlite3", "mcap"])
def test_the_mark_of_a_synthetic_drive_survives_copies(tmp_path: Path, bag_format: str) -> None:
    """It is in every message, so a part of a drive in another format has it too."""
    path, copy = tmp_path / "drive", tmp_path / ("copy.bag" if bag_format == "ros1" else "copy")
    runner = CliRunner()
    made = ["make", str(path), "--frames", "2", "--width", "48", "--height", "32"]
    assert runner.invoke(bag, made, catch_exceptions=False).exit_code == 0
    crop = ["crop", str(path), str(copy), "--format", bag_format, "--topic", "/sensors/camera/left/image_raw"]
    assert runner.invoke(bag, crop, catch_exceptions=False).exit_code == 0
    assert "synthetic drive" in runner.invoke(bag, ["info", str(copy)], catch_exceptions=False).output
    source = BagSource(copy)
    assert source.provenance["synthetic"] is True
    source.close()


def test_a_real_drive_has_no_mark(tmp_path: Path) -> None:
    """An imported data set is no synthetic drive."""
    imported(camvid_tree(tmp_path / "set"), tmp_path / "drive", "--layout", "camvid")
    assert "synthetic" not in CliRunner().invoke(bag, ["info", str(tmp_path / "drive")]).output
