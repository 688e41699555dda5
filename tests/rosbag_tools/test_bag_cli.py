import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rosbag_tools.cli import bag
from rosbag_tools.reading.bag import Bag
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from tests.rosbag_tools.conftest import WriteDrive


def run(*arguments: object) -> Result:
    """Runs `skylane bag` with these arguments."""
    return CliRunner().invoke(bag, [str(argument) for argument in arguments])


def error_of(result: Result) -> str:
    """Returns the one-line message of an error for the user."""
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
    """This is the first bag command that a new user runs."""
    path = tmp_path / name
    result = run("make", path, "--frames", 1, "--width", 48, "--height", 32, *options)
    assert result.exit_code == 0, result.output
    assert "1 frames" in result.output
    with Bag(path) as opened:
        assert opened.format == bag_format
        assert {topic.count for topic in opened.topics} == {1}


def test_make_follows_its_options(tmp_path: Path) -> None:
    """The bag has the requested number of frames, encoding and resolution."""
    options = ["--width", 48, "--height", 32, "--seed", 5, "--static-camera", "--layout", "bayer_gbrg16"]
    result = run("make", tmp_path / "drive", "--duration", 0.5, "--rate", 4, "--weather", "rain", *options)
    assert result.exit_code == 0, result.output
    report = json.loads(run("info", tmp_path / "drive", "--json").stdout)
    image = next(topic for topic in report["topics"] if topic["name"].endswith("image_raw"))
    assert (image["count"], image["encodings"], image["resolutions"]) == (2, {"bayer_gbrg16": 2}, {"48×32": 2})


def test_make_refuses_frames_and_duration_together(tmp_path: Path) -> None:
    """One of the two options would have no effect."""
    assert run("make", tmp_path / "drive", "--frames", 2, "--duration", 1).exit_code == 2


def test_make_replaces_a_bag_only_with_force(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The existing bag may be the only copy of a recording."""
    drive = write_drive(tmp_path / "drive")
    arguments = ("make", drive.path, "--frames", 1, "--width", 48, "--height", 32)
    assert "--force" in error_of(run(*arguments))
    assert run(*arguments, "--force").exit_code == 0


def test_info_shows_a_table(tmp_path: Path, write_drive: WriteDrive, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table contains topics, encodings, resolutions, rates and gaps."""
    monkeypatch.setenv("COLUMNS", "160")
    result = run("info", write_drive(tmp_path / "drive", stamps=False).path)
    for word in ("/cam/image_raw", "sensor_msgs/msg/Image", "bayer_rggb8", "12×8", "10.00 Hz", "none", "0.400 s"):
        assert word in result.stdout
    assert "stamps of zero on /cam/image_raw are replaced by the bag's time" in result.stdout


def test_info_prints_topic_names_that_look_like_markup_unchanged(tmp_path: Path) -> None:
    """The library that prints the table would otherwise interpret the brackets as formatting."""
    with BagWriter(tmp_path / "drive") as writer:
        writer.write_image("/[red]cam[/]", np.zeros((2, 2), np.uint8), "[/bold]", 1, 1, "cam")
    assert "/[red]cam[/]" in run("info", tmp_path / "drive").stdout


def test_crop_convert_extract_and_verify_work_together(tmp_path: Path, write_drive: WriteDrive) -> None:
    """The output of each command is a valid input of the next."""
    drive = write_drive(tmp_path / "drive")
    part, converted, images = tmp_path / "part", tmp_path / "part.bag", tmp_path / "png"
    assert run("crop", drive.path, part, "--start", 0.1, "--end", 0.35, "-t", "cam/image_raw").exit_code == 0
    assert "3 messages" in run("convert", part, converted, "--compression", "bz2").stdout
    assert "3 messages, all intact" in run("verify", converted).stdout
    assert "3 frames, 0 left out" in run("extract", converted, images).stdout
    assert len(list(images.rglob("*.png"))) == 3


@pytest.mark.parametrize(("out", "kind"), [("out.mcap", "mcap"), ("out", "mcap"), ("out2.bag", "ros1")])
def test_the_output_path_decides_the_format_of_a_conversion(
    tmp_path: Path, write_drive: WriteDrive, out: str, kind: str
) -> None:
    """`--help` documents this behaviour."""
    drive = write_drive(tmp_path / "drive.bag", "ros1")
    assert run("convert", drive.path, tmp_path / out).exit_code == 0
    with Bag(drive.path) as source, Bag(tmp_path / out) as bag:
        assert (bag.format, len(bag.topics)) == (kind, len(source.topics))


def test_an_unwritable_folder_is_not_reported_as_a_full_disk() -> None:
    """No file can be created in /proc, and deleting files would not help."""
    assert "nothing can be written in /proc" in error_of(run("make", "/proc/drive", "--frames", 1))


@pytest.mark.parametrize("options", [["--duration", 1, "--end", 2], ["--start", 2, "--end", 1]])
def test_crop_refuses_contradicting_times(tmp_path: Path, write_drive: WriteDrive, options: list[object]) -> None:
    """The exit code is 2, as for every usage error."""
    drive = write_drive(tmp_path / "drive")
    assert run("crop", drive.path, tmp_path / "part", *options).exit_code == 2


def test_verify_says_that_there_are_no_checksums(tmp_path: Path, write_drive: WriteDrive) -> None:
    """It is no fault: sqlite has none, and ours in MCAP are 0."""
    result = run("verify", write_drive(tmp_path / "drive", "sqlite3").path)
    assert result.exit_code == 0
    assert "note: no checksums in drive.db3: changed bytes" in result.stdout
    assert "no checksums" not in run("verify", write_drive(tmp_path / "drive.bag", "ros1", "bz2").path).stdout


def test_verify_prints_every_fault_and_fails(tmp_path: Path) -> None:
    """A script must be able to rely on the failure."""
    with BagWriter(tmp_path / "drive", "sqlite3") as writer:
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono8", 1, 1, "cam")
        writer.write_image("/cam", np.zeros((2, 2), np.uint8), "mono9", 2_500_000_000, 2, "cam")
    result = run("verify", tmp_path / "drive")
    assert "row 2, /cam message 1, stamp 2500000000 ns: encoding 'mono9' is not an image encoding" in result.output
    assert "faults among its 2 messages: 1, named above" in error_of(result)


@pytest.mark.parametrize("command", ["info", "verify", "crop", "convert", "extract"])
@pytest.mark.parametrize(("content", "message"), [(None, "there is no bag at"), (b"no bag at all", "is not a bag")])
def test_a_missing_or_invalid_bag_is_reported_in_one_line(
    tmp_path: Path, command: str, content: bytes | None, message: str
) -> None:
    """Every command reports the same message."""
    path = tmp_path / "drive.bag"
    if content is not None:
        path.write_bytes(content)
    out = [tmp_path / "out"] if command not in {"info", "verify"} else []
    assert message in error_of(run(command, path, *out))


@pytest.mark.parametrize("name", ["out.txt", "drive.zip", "drive.mp4"])
def test_make_refuses_the_name_of_another_kind_of_file(name: str, tmp_path: Path) -> None:
    """It would make a folder of that name, which other programs take for a text."""
    message = error_of(run("make", tmp_path / name, "--frames", "1"))
    assert message.startswith(f"{tmp_path / name} is the name of a ")
    assert message.endswith(f"leave {Path(name).suffix} out for a folder (ROS 2)")
    assert not list(tmp_path.iterdir())
    assert run("make", tmp_path / "drive.v2", "--frames", "1", "--width", "64", "--height", "48").exit_code == 0
