import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rosbag_tools.cli import bag
from rosbag_tools.reading.bag import Bag
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError

WriteDrive = Callable[..., Any]


def run(*arguments: object) -> Result:
    """`skylane bag` with these arguments."""
    return CliRunner().invoke(bag, [str(argument) for argument in arguments])


def error_of(result: Result) -> str:
    """The one line that a mistake of the user's becomes."""
    assert isinstance(result.exception, SkylaneError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)


@pytest.mark.parametrize(
    ("name", "options", "bag_format"),
    [
        ("drive.bag", [], "ros1"),
        ("drive", [], "mcap"),
        ("drive", ["--format", "sqlite3"], "sqlite3"),
        ("drive.bag", ["--compression", "lz4"], "ros1"),
        ("drive", ["--format", "sqlite3", "--compression", "zstd"], "sqlite3"),
    ],
)
def test_make_writes_every_format(tmp_path: Path, name: str, options: list[str], bag_format: str) -> None:
    """The first command a new user types."""
    path = tmp_path / name
    result = run("make", path, "--frames", 1, "--width", 48, "--height", 32, *options)
    assert result.exit_code == 0, result.output
    assert "1 frames" in result.output
    with Bag(path) as opened:
        assert opened.format == bag_format
        assert {topic.count for topic in opened.topics} == {1}


def test_make_by_duration_weather_and_layout(tmp_path: Path) -> None:
    """Every knob of the drive."""
    options = ["--width", 48, "--height", 32, "--seed", 5, "--static-camera", "--layout", "bayer_gbrg16"]
    result = run("make", tmp_path / "drive", "--duration", 0.5, "--rate", 4, "--weather", "rain", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(run("info", tmp_path / "drive", "--json").stdout)
    image = next(topic for topic in report["topics"] if topic["name"].endswith("image_raw"))
    assert (image["count"], image["encodings"], image["resolutions"]) == (2, {"bayer_gbrg16": 2}, {"48×32": 2})


def test_make_refuses_frames_and_duration_together(tmp_path: Path) -> None:
    """One of them would be ignored."""
    assert run("make", tmp_path / "drive", "--frames", 2, "--duration", 1).exit_code == 2


def test_make_replaces_a_bag_only_by_force(tmp_path: Path, write_drive: WriteDrive) -> None:
    """A recording may be the only one."""
    drive = write_drive(tmp_path / "drive")
    arguments = ("make", drive.path, "--frames", 1, "--width", 48, "--height", 32)
    assert "--force" in error_of(run(*arguments))
    assert run(*arguments, "--force").exit_code == 0


def test_info_shows_a_table(tmp_path: Path, write_drive: WriteDrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics, encodings, resolution, rate and gaps at a glance."""
    monkeypatch.setenv("COLUMNS", "160")
    result = run("info", write_drive(tmp_path / "drive", stamps=False).path)
    for word in ("/cam/image_raw", "sensor_msgs/msg/Image", "bayer_rggb8", "12×8", "10.00 Hz", "none", "0.400 s"):
        assert word in result.stdout
    assert "stamps of zero on /cam/image_raw are replaced by the bag's time" in result.stdout


def test_info_of_names_that_look_like_markup(tmp_path: Path) -> None:
    """A table must show a topic, not obey it."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/[red]cam[/]", np.zeros((2, 2), np.uint8), "[/bold]", 1, 1, "cam")
    assert "/[red]cam[/]" in run("info", tmp_path / "drive").stdout


def test_crop_convert_extract_and_verify_work_together(tmp_path: Path, write_drive: WriteDrive) -> None:
    """A bag goes through all of them as it does in a day's work."""
    drive = write_drive(tmp_path / "drive")
    part, converted, pictures = tmp_path / "part", tmp_path / "part.bag", tmp_path / "png"
    assert run("crop", drive.path, part, "--start", 0.1, "--end", 0.35, "-t", "cam/image_raw").exit_code == 0
    assert "3 messages" in run("convert", part, converted, "--compression", "bz2").stdout
    assert "3 messages, all intact" in run("verify", converted).stdout
    assert "3 frames, 0 left out" in run("extract", converted, pictures).stdout
    assert len(list(pictures.rglob("*.png"))) == 3


@pytest.mark.parametrize(("out", "kind"), [("out.mcap", "mcap"), ("out", "mcap"), ("out2.bag", "ros1")])
def test_a_ros_1_bag_becomes_what_the_name_says(tmp_path: Path, write_drive: WriteDrive, out: str, kind: str) -> None:
    """`--help` promises that OUT decides."""
    drive = write_drive(tmp_path / "drive.bag", "ros1")
    assert run("convert", drive.path, tmp_path / out).exit_code == 0
    with Bag(drive.path) as source, Bag(tmp_path / out) as bag:
        assert (bag.format, len(bag.topics)) == (kind, len(source.topics))


def test_a_place_that_takes_no_bag_is_not_a_full_disk() -> None:
    """/proc has no room, whatever is deleted."""
    assert "nothing can be written in /proc" in error_of(run("make", "/proc/drive", "--frames", 1))


@pytest.mark.parametrize("options", [["--duration", 1, "--end", 2], ["--start", 2, "--end", 1]])
def test_crop_refuses_parts_that_cannot_be(tmp_path: Path, write_drive: WriteDrive, options: list[object]) -> None:
    """Bad usage, exit code 2."""
    drive = write_drive(tmp_path / "drive")
    assert run("crop", drive.path, tmp_path / "part", *options).exit_code == 2


def test_verify_names_every_fault_and_fails(tmp_path: Path) -> None:
    """A script must be able to trust the exit code."""
    with BagWriter(tmp_path / "drive", "sqlite3") as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono9", 2_500_000_000, 2, "cam")
    result = run("verify", tmp_path / "drive")
    assert "row 2, /cam message 1, stamp 2.500000000: encoding 'mono9' is not an image encoding" in result.output
    assert "faults among its 2 messages: 1, named above" in error_of(result)


@pytest.mark.parametrize("command", ["info", "verify", "crop", "convert", "extract"])
@pytest.mark.parametrize(("content", "message"), [(None, "there is no bag at"), (b"no bag at all", "is not a bag")])
def test_missing_and_foreign_bags_are_one_line(
    tmp_path: Path, command: str, content: bytes | None, message: str
) -> None:
    """Whatever the command, the same words."""
    path = tmp_path / "drive.bag"
    if content is not None:
        path.write_bytes(content)
    out = [tmp_path / "out"] if command not in {"info", "verify"} else []
    assert message in error_of(run(command, path, *out))


@pytest.mark.parametrize("command", ["crop", "extract"])
def test_unknown_topic_offers_the_nearest(tmp_path: Path, write_drive: WriteDrive, command: str) -> None:
    """A typing mistake should cost one glance."""
    drive = write_drive(tmp_path / "drive")
    result = run(command, drive.path, tmp_path / "out", "--topics", "/cam/image_rw")
    assert "did you mean /cam/image_raw" in error_of(result)
