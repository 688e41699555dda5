"""Folders of images: their order, times, orientation and bits."""

import os
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from edge.config import EdgeConfig
from edge.sources.source import SourceError, kind_of, open_source
from rosbag_tools.extraction import extract
from rosbag_tools.writer import BagWriter
from shared.config import ConfigError, read_yaml
from shared.imaging.frames import Frame, Layout, UnreadableFrame

NS = 1_403_636_579_763_555_584
STEP = 50_000_000
INVENTED = "the stamps and the rate of 10 images per second are invented: "


def fill(folder: Path, *names: str) -> Path:
    """Writes grey images, each with its number as its value."""
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), np.full((8, 8), number, np.uint8))
    return folder


def played(folder: Path, **part: Any) -> list[tuple[str, int, int]]:
    """Returns camera, index and stamp of each frame."""
    frames = list(open_source(str(folder), **part).frames())
    assert [frame.source_ns for frame in frames] == sorted(frame.source_ns for frame in frames)
    assert all(frame.stamp_ns == frame.source_ns for frame in frames)
    return [(frame.camera, frame.index, frame.stamp_ns) for frame in frames]


def notes(folder: Path) -> Any:
    """Returns the notes of the run record."""
    return open_source(str(folder)).provenance["notes"]


def test_images_are_played_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """The tenth image follows the ninth; the stamps are invented, which the run record says once."""
    fill(tmp_path, *(f"frame_{number}.png" for number in range(1, 13)))
    (tmp_path / "notes.txt").write_text("x")
    source = open_source(str(tmp_path))
    for _ in range(2):  # The source can be read twice.
        frames = [frame for frame in source.frames() if isinstance(frame, Frame)]
        assert [int(frame.pixels[0, 0]) for frame in frames] == list(range(12))
    assert source.frame_count == 12
    assert (
        [frame.stamp_ns for frame in frames] == [frame.source_ns for frame in frames] == [10**8 * i for i in range(12)]
    )
    assert [(frame.camera, frame.index) for frame in frames] == [(tmp_path.name, index) for index in range(12)]
    assert all(frame.read_ns > 0 for frame in frames)
    assert source.provenance["notes"] == [
        f"{INVENTED}{tmp_path.name}: the names hold no times, and there is no list of times"
    ]
    assert source.provenance["rate_hz"] == 10.0


@pytest.mark.parametrize(
    ("shape", "dtype", "layout"),
    [
        ((8, 12), np.uint8, Layout.MONO8),
        ((8, 12), np.uint16, Layout.MONO16),
        ((8, 12, 4), np.uint8, Layout.BGR8),
        ((8, 12, 3), np.uint16, Layout.BGR8),
    ],
    ids=["grey", "16-bit grey", "with alpha", "16-bit colour"],
)
def test_images_of_every_pixel_format_are_read(tmp_path: Path, shape: Any, dtype: Any, layout: Layout) -> None:
    """Each becomes the layout that is closest to the file."""
    pixels = np.random.default_rng(0).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    cv2.imwrite(str(tmp_path / "0.png"), pixels)
    (frame,) = open_source(str(tmp_path)).frames()
    assert isinstance(frame, Frame)
    assert (frame.layout, frame.pixels.dtype, frame.pixels.shape) == (layout, layout.dtype, layout.shape(8, 12))
    if layout is not Layout.BGR8:
        np.testing.assert_array_equal(frame.pixels, pixels)


def test_the_hash_of_a_folder_depends_on_its_contents(tmp_path: Path) -> None:
    """A result must be traceable to its input."""
    before = open_source(str(fill(tmp_path, "0.png", "1.png"))).provenance
    assert before == open_source(str(tmp_path)).provenance
    fill(tmp_path, "1.png")
    assert before["sha256"] != open_source(str(tmp_path)).provenance["sha256"]


@pytest.mark.parametrize(
    ("names", "stamps"),
    [
        ([f"{NS + STEP * i}.png" for i in range(3)], [NS + STEP * i for i in range(3)]),
        ([f"{1305031102 + i}.175304.png" for i in range(2)], [(1305031102 + i) * 10**9 + 175304000 for i in range(2)]),
        (["1305031102.9.png", "1305031102.11.png"], [1305031102_110000000, 1305031102_900000000]),
        ([f"left_{1403636579000 + 33 * i}.png" for i in range(2)], [1403636579_000000000, 1403636579_033000000]),
        ([f"n015-2018-07-24__CAM__{1532402927612460 + 10**5 * i}.jpg" for i in range(2)],
         [1532402927_612460000, 1532402927_712460000]),
        ([f"ring_front_center_{315966253572962000 + STEP * i}.jpg" for i in range(2)],
         [315966253_572962000, 315966253_622962000]),
        (["1700000000_000000000.png", "1700000000_100000000.png"], [1700000000_000000000, 1700000000_100000000]),
        ([f"{1403636579 + 2 * i}.png" for i in range(2)], [1403636579_000000000, 1403636581_000000000]),
        (["1700000000_900000000.png", "1700000001_50000000.png", "1700000001_150000000.png", "1700000002_0.png"],
         [1700000000_900000000, 1700000001_050000000, 1700000001_150000000, 1700000002_000000000]),
        ([f"{i:06d}_{NS + STEP * i}.png" for i in range(2)], [NS, NS + STEP]),
        ([f"{i:06d}_{10**9 + STEP * i}.png" for i in range(2)], [10**9, 10**9 + STEP]),
    ],
    ids=["EuRoC", "TUM", "short fractions", "ms", "us", "Argoverse", "s and ns", "s", "s and unpadded ns", "extracted", "extracted from a simulation"],
)  # fmt: skip
def test_times_in_names_are_stamps_and_pace(tmp_path: Path, names: list[str], stamps: list[int]) -> None:
    """The unit follows from the year: 1980 to 2037."""
    fill(tmp_path, *names)
    assert [stamp_ns for _, _, stamp_ns in played(tmp_path)] == stamps
    provenance = open_source(str(tmp_path)).provenance
    assert provenance["notes"] == []
    assert "rate_hz" not in provenance


NO_TIMES: dict[str, tuple[list[str], str]] = {
    "counter": ([f"{i:010d}.png" for i in range(3)], "the names hold no times"),
    "large counter of ns": ([f"{NS + i}.png" for i in range(3)], "the names hold no times"),
    "large counter of s": ([f"{1000000000 + i}.png" for i in range(3)], "the names hold no times"),
    "large counter of ms": ([f"{1700000000123 + i}.png" for i in range(3)], "the names hold no times"),
    "too close": ([f"{NS + 2 * i}.png" for i in range(3)], "too close or too far apart"),
    "numbered in a second": (["1700000000.9.png", "1700000001.10.png"], "the names hold no times"),
    "unpadded ns after a point": (["1700000000.900000000.png", "1700000001.50000000.png"], "the names hold no times"),
    "numbered after the seconds": (["1700000000_5.png", "1700000001_10.png"], "the names hold no times"),
    "stamps that do not increase": (["123045_200000000.png", "123046_100000000.png"], "the names hold no times"),
    "longer index": (["0123045_100000000.png", "0123046_200000000.png"], "the names hold no times"),
    "hours": ([f"{hour}.png" for hour in (2024011508, 2024011509, 2024011510)], "the names hold no times"),
    "hours and ns": (["2024011508_000000000.png", "2024011509_000000000.png"], "the names hold no times"),
    "hundredths of a second": (["2024011512304500.png", "2024011512304600.png"], "the names hold no times"),
    "one does not fit": (
        [*(f"{NS + STEP * i}.png" for i in range(3)), "odd.png"],
        "3 of 4 images have a time, odd.png has none",
    ),
    "twice": ([f"{NS}.png", f"{NS}.jpg", f"{NS + STEP}.png"], f"{NS}.jpg and {NS}.png have the same time"),
    "counter in a second": ([f"1700000000_{i:06d}.png" for i in range(3)], "too close or too far apart"),
    "two units": ([f"{i:06d}_{1403636579763555 + 10**6 * i}.png" for i in range(3)], "can be a time in two units"),
    "date": (["20230101120000.png", "20230101120001.png"], "the names hold no times"),
    "minutes": (["2301011200.png", "2301011201.png"], "the names hold no times"),
    "short date": (["230101120000.png", "230101120001.png"], "the names hold no times"),
}


@pytest.mark.parametrize(("names", "problem"), NO_TIMES.values(), ids=NO_TIMES)
def test_numbers_that_are_no_times_are_not_used(tmp_path: Path, names: list[str], problem: str) -> None:
    """A counter must not become a stamp; the warning names the reason."""
    fill(tmp_path, *names)
    assert [stamp_ns for _, _, stamp_ns in played(tmp_path)] == [10**8 * index for index in range(len(names))]
    (note,) = notes(tmp_path)
    assert note.startswith(INVENTED)
    assert problem in note


DATES = "2011-09-26 13:02:25.964389445\n2011-09-26 13:02:26.067\n"
FIRST = 1317042145_964389445


@pytest.mark.parametrize(
    ("camera", "listed", "text", "stamps"),
    [
        ("image_02/data", "image_02/timestamps.txt", DATES, [FIRST, 1317042146_067000000]),
        ("image_0", "times.txt", "0.000000e+00\n1.036224e-01\n", [0, 103622400]),
        ("left", "left/timestamps.txt", "# seconds\n5.5\n\n6\n", [5_500_000_000, 6_000_000_000]),
        (
            "a",
            "times.txt",
            "2011-09-26 15:02:25.9+02:00\n2011-09-26 15:02:26+0200\n",
            [FIRST // 10**9 * 10**9 + 9 * 10**8, 1317042146 * 10**9],
        ),
        ("a", "times.txt", "2011-09-26T13:02:25.964389445Z\n2011-09-26T13:02:26,067Z\n", [FIRST, 1317042146_067000000]),
        ("a", "times.txt", f"{FIRST}\n{FIRST + 7 * 10**7}\n", [FIRST, FIRST + 7 * 10**7]),
        ("a", "times.txt", "1317042145900\n1317042146000.5\n", [1317042145_900000000, 1317042146_000500000]),
        ("a", "times.txt", f"{FIRST / 10**9:.3f}\n1317042146.5\n", [1317042145_964000000, 1317042146_500000000]),
    ],
    ids=["KITTI", "KITTI odometry", "beside the images", "zone", "UTC", "ns", "ms", "seconds since 1970"],
)
def test_a_list_of_times_is_used(tmp_path: Path, camera: str, listed: str, text: str, stamps: list[int]) -> None:
    """KITTI's images are only numbered."""
    fill(tmp_path, f"{camera}/0000000000.png", f"{camera}/0000000001.png")
    (tmp_path / listed).write_text(text)
    assert [stamp_ns for _, _, stamp_ns in played(tmp_path)] == stamps


@pytest.mark.parametrize(
    ("camera", "listed", "text"),
    [
        ("images", "times.txt", "00000 1400000000.000000 5.0\n00001 1400000000.040000 6.1\n"),
        ("images", "times.txt", "1 1400000000.000000 5.0\n2 1400000000.040000 6.1\n"),
        ("rgb", "rgb.txt", "# colour images\n1400000000.000000 rgb/00000.png\n1400000000.040000 rgb/00001.png\n"),
        (
            "rgb",
            "both.txt",
            "9.5 depth/00000.png 1400000000 rgb/00000.png\n9.6 depth/00001.png 1400000000.04 rgb/00001.png\n",
        ),
        (
            "cam0/data",
            "cam0/data.csv",
            "#timestamp [ns],filename\n1400000000000000000,00000.png\n1400000000040000000,00001.png\n",
        ),
        ("a", "a/frames.csv", "name;stamp\n00001.png;1400000000040000000\n00000.png;1400000000000000000\n"),
        ("a", "list.txt", "00000.png 0.1 2014-05-13 16:53:20.000\n00001.png 0.1 2014-05-13 16:53:20.040\n"),
        ("a", "image_times.csv", "time,exposure\n1400000000.00,5\n1400000000.04,6\n"),
        ("a", "all.txt", "1400000000.00 00000.png\n1400000000.04 00001.png\n1400000000.08 00002.png\n"),
    ],
)
def test_a_list_with_several_columns_is_used(tmp_path: Path, camera: str, listed: str, text: str) -> None:
    """Data sets list numbers or names of images beside their times; the names decide which line is whose."""
    fill(tmp_path, f"{camera}/00000.png", f"{camera}/00001.png")
    (tmp_path / listed).write_text(text)
    assert [stamp_ns for _, _, stamp_ns in played(tmp_path)] == [1400000000 * 10**9, 1400000000 * 10**9 + 4 * 10**7]


@pytest.mark.parametrize(
    ("listed", "text", "problem"),
    [
        ("rgb.txt", "1400000000 rgb/00000.png\n", "rgb.txt has no line for 00001.png"),
        ("data.csv", "1,2\n", "data.csv has 1 times for 2 images"),
        ("poses.txt", "1400000000 0.5\n1400000001 0.5\n", "there is no list of times"),
        ("poses.csv", "frame,x,y\n0,0.5,1\n1,0.1,2\n", "there is no list of times"),
        ("labels.csv", "name,class\n00000.png,7\n00001.png,9\n", "there is no list of times"),
        ("times.csv", "frame,time_ms\n0,0\n1,33\n", "times.csv: 'time_ms' is not in seconds"),
        ("x.txt", "9" * 5000, "there is no list of times"),
        ("x.csv", "x,y\n" + "1400000000,00000.png\n1400000001,00001.png\n" * 999, "there is no list of times"),
        ("data.csv", "index,class\n0,car\n1,van\n", "there is no list of times"),
        ("data.csv", "x,y\n1,5\n2,4\n", "there is no list of times"),
        ("inference_times.csv", "ms\n12\n13\n", "there is no list of times"),
        (
            "rgb.txt",
            "# timestamp [ms] name\n0 00000.png\n33 00001.png\n",
            "rgb.txt: 'timestamp [ms] name' is not in seconds",
        ),
    ],
)
def test_a_list_that_is_not_used_is_named(tmp_path: Path, listed: str, text: str, problem: str) -> None:
    """A trajectory or a note beside the images is no list."""
    fill(tmp_path, "rgb/00000.png", "rgb/00001.png")
    (tmp_path / listed).write_text(text)
    (note,) = notes(tmp_path)
    assert problem in note


LABEL_FOLDERS = ("labels", "SegmentationClass", "gtFine/train", "masks", "Annotations", "trainannot", "label_images")


@pytest.mark.parametrize("folder", [*LABEL_FOLDERS, "ground_truth", "camera_mask", "CameraSeg", "lbl"])
def test_label_images_are_no_camera_unless_named(tmp_path: Path, folder: str) -> None:
    """A data set is unpacked with its label images beside its images."""
    fill(tmp_path, "images/0.png", f"{folder}/0.png")
    assert [camera for camera, *_ in played(tmp_path)] == ["images"]
    assert any(f"{folder} is not taken for a camera" in note and "label images" in note for note in notes(tmp_path))
    assert [camera for camera, *_ in played(tmp_path, topics=[folder])] == [folder]
    assert [camera for camera, *_ in played(tmp_path / folder.partition("/")[0])]


@pytest.mark.parametrize("folder", ["left", "cam0", "testing", "classroom"])
def test_other_folders_are_cameras(tmp_path: Path, folder: str) -> None:
    """Most names say nothing of labels."""
    fill(tmp_path, "images/0.png", f"{folder}/0.png")
    assert {camera for camera, *_ in played(tmp_path)} == {"images", folder}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("1\n", "times.txt has 1 times for 2 images"),
        ("1\n2\n3\n", "times.txt has 3 times for 2 images"),
        ("2\n1\n", "the times in times.txt do not increase"),
        ("1\nx\n", "times.txt: 'x' is neither a date and time nor seconds"),
        (
            "09/26/2011 13:02\n09/26/2011 13:03\n",
            "times.txt: '09/26/2011' is neither a date and time nor seconds",
        ),
        ("0\n100000000\n", "too far apart"),
        ("1\n1e999999\n", "is neither"),
        ("1\nnan\n", "is neither"),
        ("1\n1e99\n", "is neither"),
        ("1\n1\n", "have the same time"),
        ("\x00\x1b[31m\n2\n", "is neither"),
    ],
)
def test_a_wrong_list_of_times_is_named(tmp_path: Path, text: str, problem: str) -> None:
    """It is not applied to some of the images."""
    fill(tmp_path, "0.png", "1.png")
    (tmp_path / "times.txt").write_text(text)
    assert [stamp_ns for _, _, stamp_ns in played(tmp_path)] == [0, 10**8]
    (note,) = notes(tmp_path)
    assert problem in note
    assert note.isprintable()


def test_several_cameras_are_merged_by_time(tmp_path: Path) -> None:
    """EuRoC's recordings can be played from each of their folders; offset and duration are those of the recording."""
    mav = tmp_path / "mav0"
    fill(
        mav,
        *(f"cam0/data/{NS + STEP * i}.png" for i in range(3)),
        *(f"cam1/data/{NS + STEP * i + 7}.png" for i in range(2)),
    )
    both = [
        ("cam0", 0, NS),
        ("cam1", 0, NS + 7),
        ("cam0", 1, NS + STEP),
        ("cam1", 1, NS + STEP + 7),
        ("cam0", 2, NS + 2 * STEP),
    ]
    assert played(mav) == both
    assert played(tmp_path) == [(f"mav0/{camera}", index, stamp_ns) for camera, index, stamp_ns in both]
    assert played(mav / "cam0") == [("data", index, NS + STEP * index) for index in range(3)]
    assert played(mav, topics=["cam1"]) == [both[1], both[3]]
    part = played(mav, start_offset_s=0.05, duration_s=0.05)
    assert part == [("cam0", 0, NS + STEP), ("cam1", 0, NS + STEP + 7)]
    with pytest.raises(SourceError, match="has 5 images, none of them in the selected time"):
        open_source(str(mav), start_offset_s=1.0)
    with pytest.raises(SourceError, match=r"no camera 'front': it has cam0, cam1"):
        open_source(str(mav), topics=["front"])


def test_cameras_of_which_one_has_no_times_are_all_played_at_the_invented_rate(tmp_path: Path) -> None:
    """Dates and invented times cannot be merged."""
    fill(tmp_path, f"a/{NS}.png", f"a/{NS + STEP}.png", "b/0.png")
    assert played(tmp_path) == [("a", 0, 0), ("b", 0, 0), ("a", 1, 10**8)]
    assert "b: the names hold no times" in notes(tmp_path)[0]
    (tmp_path / "b" / "times.txt").write_text("0.5\n")
    assert "some cameras have dates, others times since a start" in notes(tmp_path)[0]


def test_a_folder_of_distances_is_not_a_camera(tmp_path: Path) -> None:
    """TUM's recordings have a folder of them; it is played if it is named."""
    fill(tmp_path, "rgb/1305031102.1.png", "depth/1305031102.2.png")
    assert [camera for camera, _, _ in played(tmp_path)] == ["rgb"]
    assert "depth is not taken for a camera" in notes(tmp_path)[0]
    assert [camera for camera, _, _ in played(tmp_path, topics=["depth"])] == ["depth"]


def test_extracted_frames_are_played_with_their_stamps(tmp_path: Path) -> None:
    """A run with the folder is a run with the bag."""
    with BagWriter(tmp_path / "bag") as writer:
        for index in range(3):
            writer.write_image("/cam", np.zeros((8, 8), np.uint8), "mono8", NS + STEP * index, NS, "cam")
    extract(tmp_path / "bag", tmp_path / "png")
    assert played(tmp_path / "png") == [("cam", index, NS + STEP * index) for index in range(3)]


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    """Images beside or below those of a camera are not played, nor those of unknown formats; lists of times are no loss."""
    fill(tmp_path, "cover.jpg", *(f"cam0/{number}.png" for number in range(2)), "cam0/more/1.png", "a/b/c/d/1.png")
    (tmp_path / "cam0" / "2.heic").touch()
    (tmp_path / "cam0" / "sensor.yaml").touch()
    assert notes(tmp_path / "cam0")[0] == "not played: 2.heic, more (total: 2)"
    assert notes(tmp_path)[0] == "not played: a/b/c/d, cam0, cam0/more (total: 3)"
    (tmp_path / "cover.jpg").unlink()
    assert [camera for camera, _, _ in played(tmp_path)] == ["cam0"] * 2
    assert notes(tmp_path)[0] == "not played: a/b/c/d, cam0/2.heic, cam0/more (total: 3)"
    assert "not played" not in notes(tmp_path / "a" / "b" / "c")[0]


def test_the_pages_of_a_tiff_are_no_frame(tmp_path: Path) -> None:
    """Only the first page would be played; a preview is no second page."""
    page = np.full((32, 32), 7, np.uint8)
    cv2.imwritemulti(str(tmp_path / "0.tif"), [page, page])
    cv2.imwritemulti(str(tmp_path / "1.tif"), [page, page[::4, ::4]])
    several, preview = open_source(str(tmp_path)).frames()
    assert isinstance(several, UnreadableFrame)
    assert several.reason == "0.tif: it has several pages: save each as an image of its own"
    assert isinstance(preview, Frame)
    np.testing.assert_array_equal(preview.pixels, page)


def test_webp_images_are_played_unless_they_are_animated(tmp_path: Path) -> None:
    """OpenCV shows the first picture of an animation."""
    still = np.full((8, 8, 3), 128, np.uint8)
    cv2.imwrite(str(tmp_path / "1.webp"), still, [cv2.IMWRITE_WEBP_QUALITY, 101])
    animation = cv2.Animation()
    animation.frames = [np.full((8, 8, 4), value, np.uint8) for value in (0, 99)]
    animation.durations = [10, 10]
    cv2.imwriteanimation(str(tmp_path / "2.webp"), animation)
    first, second = open_source(str(tmp_path)).frames()
    assert isinstance(first, Frame)
    np.testing.assert_array_equal(first.pixels, still)
    assert isinstance(second, UnreadableFrame)
    assert "animated" in second.reason


def test_what_is_no_image_keeps_its_row(tmp_path: Path) -> None:
    """Nothing waits for a pipe or fails on a folder, and the others are played."""
    fill(tmp_path, "1.png")
    os.mkfifo(tmp_path / "2.png")
    (tmp_path / "3.png").mkdir()
    (tmp_path / "4.png").symlink_to(tmp_path / "nothing")
    (tmp_path / "5.jpg").write_bytes(cv2.imencode(".jpg", np.zeros((99, 99), np.uint8))[1].tobytes()[:400])
    cv2.imwrite(str(tmp_path / "6.tif"), np.ones((4, 4), np.float32))
    animation = cv2.Animation()
    animation.frames = [np.full((8, 8, 4), value, np.uint8) for value in (0, 99)]
    animation.durations = [10, 10]
    cv2.imwriteanimation(str(tmp_path / "7.png"), animation)
    cv2.imwrite(str(tmp_path / "8.png"), np.zeros((8, 8, 4), np.uint8))
    for number, content in enumerate((b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(50)), start=9):
        (tmp_path / f"{number}.png").write_bytes(content)
    source = open_source(str(tmp_path))
    assert source.provenance["sha256"]
    reasons = [frame.reason if isinstance(frame, UnreadableFrame) else "" for frame in source.frames()]
    expected = [
        "",
        "not a file",
        "not a file",
        "not a file",
        "incomplete",
        "float32: save it as 8 or 16",
        "animated",
        "",
        *(f"{number}.png" for number in (9, 10, 11)),
    ]
    assert [part in reason for part, reason in zip(expected, reasons, strict=True)] == [True] * 11
    assert [bool(reason) for reason in reasons] == [bool(part) for part in expected]


def jpeg_with_exif(pixels: Any, orientation: int) -> bytes:
    """Returns a JPEG with an EXIF orientation."""
    data = cv2.imencode(".jpg", pixels)[1].tobytes()
    exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHH", 0x112, 3, 1, orientation, 0) + bytes(4)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]


@pytest.mark.parametrize("channels", [(), (3,)], ids=["grey", "colour"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_exif_orientation_is_applied(tmp_path: Path, orientation: int, channels: tuple[int, ...]) -> None:
    """The same image is upright in `model run` and `/api/detect`."""
    pixels = np.zeros((16, 32, *channels), np.uint8)
    pixels[:8, :16] = 255
    path = tmp_path / "0.jpg"
    path.write_bytes(jpeg_with_exif(pixels, orientation))
    (frame,) = open_source(str(tmp_path)).frames()
    assert isinstance(frame, Frame)
    upright = cv2.imread(str(path), cv2.IMREAD_COLOR if channels else cv2.IMREAD_GRAYSCALE)
    assert upright is not None
    assert frame.pixels.shape[:2] == ((32, 16) if orientation > 4 else (16, 32))
    np.testing.assert_array_equal(frame.pixels, upright)


@pytest.mark.parametrize("suffix", [".png", ".tif", ".pgm"])
def test_twelve_bit_images_use_the_full_range(tmp_path: Path, suffix: str) -> None:
    """Each format holds 12-bit values in 16 bits."""
    ramp = np.tile(np.linspace(0, 4095, 64).astype(np.uint16), (64, 1))
    cv2.imwrite(str(tmp_path / f"0{suffix}"), ramp)
    source = open_source(str(tmp_path))
    (frame,) = source.frames()
    assert isinstance(frame, Frame)
    np.testing.assert_array_equal(frame.pixels, ramp << 4)
    assert "12 of 16 bits" in source.provenance["notes"][1]  # type: ignore[index]
    (kept,) = open_source(str(tmp_path), bits="16").frames()
    assert isinstance(kept, Frame)
    np.testing.assert_array_equal(kept.pixels, ramp)
    (refused,) = open_source(str(tmp_path), bits="10").frames()
    assert isinstance(refused, UnreadableFrame)
    assert "largest value 4095 does not fit into 10 bits: give --bits 12" in refused.reason


def test_options_without_effect_are_refused(tmp_path: Path) -> None:
    """An encoding is recorded in bags only, and a video has no bits to choose."""
    fill(tmp_path / "images", "0.png")
    with pytest.raises(SourceError, match="is a folder, whose images say how they are encoded: leave --encoding out"):
        open_source(str(tmp_path / "images"), encodings=["mono8"])
    (tmp_path / "a.mp4").touch()
    with pytest.raises(SourceError, match="leave --bits out"):
        open_source(str(tmp_path / "a.mp4"), bits="12")
    with pytest.raises(SourceError, match="leave --bits out"):
        open_source("camera:0", bits="12")
    assert kind_of(str(tmp_path)) == "folder"


def test_the_bits_can_be_given_as_a_number_in_the_configuration(tmp_path: Path) -> None:
    """YAML reads `bits: 12` as a number."""
    (tmp_path / "edge.yaml").write_text("bits: 12\n")
    assert read_yaml(tmp_path / "edge.yaml", EdgeConfig).bits == "12"
    (tmp_path / "edge.yaml").write_text("bits: 13\n")
    with pytest.raises(ConfigError, match="bits"):
        read_yaml(tmp_path / "edge.yaml", EdgeConfig)
