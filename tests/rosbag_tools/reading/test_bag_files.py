"""Which files a bag consists of, and what metadata.yaml and the names of files state that is not true."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from backports import zstd

from rosbag_tools.editing import rewrite
from rosbag_tools.extraction import extract
from rosbag_tools.inspection import inspect
from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.verification import verify
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Frame

START_NS = 1_700_000_000 * 10**9
PERIOD_NS = 10**8
FRAMES = 4  # Of each part.


def write_part(path: Path, number: int = 0, topic: str = "/cam/image_raw") -> Path:
    """Writes one part of a recording: four frames whose pixels are their numbers in the recording."""
    suffix = path.suffix
    bag_format = {".bag": "ros1", ".db3": "sqlite3", ".mcap": "mcap"}[suffix]
    target = path if suffix == ".bag" else path.with_name("writing")
    path.parent.mkdir(parents=True, exist_ok=True)
    with BagWriter(target, bag_format) as writer:
        for index in range(number * FRAMES, (number + 1) * FRAMES):
            at_ns = START_NS + index * PERIOD_NS
            writer.write_image(topic, np.full((2, 4), index, np.uint8), "mono8", at_ns, at_ns, "cam")
    if target != path:
        next(target.glob(f"*{suffix}")).rename(path)
        shutil.rmtree(target)
    return path


def write_split(folder: Path, numbers: tuple[int, ...] = (0, 1, 2), suffix: str = ".db3") -> Path:
    """Writes a split recording without metadata."""
    for number in numbers:
        write_part(folder / f"rec_{number}{suffix}", number)
    return folder


def write_metadata(folder: Path, names: list[str], count: int, **changes: Any) -> Path:
    """Writes the metadata of a recording of `count` messages with these files."""
    topic = {"name": "/cam/image_raw", "type": "sensor_msgs/msg/Image", "serialization_format": "cdr"}
    about = {
        "version": 9,
        "storage_identifier": "sqlite3",
        "duration": {"nanoseconds": (count - 1) * PERIOD_NS},
        "starting_time": {"nanoseconds_since_epoch": START_NS},
        "message_count": count,
        "topics_with_message_count": [{"topic_metadata": topic, "message_count": count}],
        "compression_format": "",
        "compression_mode": "",
        "relative_file_paths": names,
        **changes,
    }
    (folder / "metadata.yaml").write_text(yaml.safe_dump({"rosbag2_bagfile_information": about}), encoding="utf-8")
    return folder


def pixels(path: Path) -> list[int]:
    """Returns the numbers of the frames of a bag, in the order in which they are played."""
    source = BagSource(path)
    try:
        return [int(frame.pixels[0, 0]) for frame in source.frames() if isinstance(frame, Frame)]
    finally:
        source.close()


def notes(path: Path) -> str:
    """Returns the notes of `skylane bag info`, after checking that a run record has those on files as well."""
    with Bag(path) as bag:
        about_files = bag.notes
    source = BagSource(path)
    source.close()
    recorded = source.provenance["notes"]
    assert isinstance(recorded, list)
    assert set(about_files) <= set(recorded)
    report = inspect(path).notes
    assert set(about_files) <= set(report)
    return "\n".join(report)


def faults(path: Path) -> list[str]:
    """Returns what `skylane bag verify` prints."""
    return [f"{fault.place} {fault.reason}" for fault in verify(path)]


def test_a_listed_file_that_is_missing_is_named(tmp_path: Path) -> None:
    """Without the file, a third of the drive would be missing from a result that looks complete."""
    bag = write_metadata(write_split(tmp_path / "b", (0, 2)), [f"rec_{n}.db3" for n in range(3)], 12)
    assert pixels(bag) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert "lists files that are not there: rec_1.db3" in notes(bag)
    assert "counts 12 messages, and the data files have 8" in notes(bag)
    assert len(faults(bag)) == 2
    assert rewrite(bag, tmp_path / "copy").messages == 8
    assert extract(bag, tmp_path / "out").frames == 8


def test_a_file_that_is_not_listed_is_named_and_not_read(tmp_path: Path) -> None:
    """`ros2 bag play` plays the listed files; the other may belong to another recording."""
    bag = write_metadata(write_split(tmp_path / "b"), ["rec_0.db3", "rec_1.db3"], 8)
    assert pixels(bag) == list(range(8))
    assert faults(bag) == ["metadata.yaml does not list files of its folder: rec_2.db3 (not read: give one by itself)"]


@pytest.mark.parametrize(
    ("changes", "claim"),
    [
        ({"message_count": 9}, "counts 9 messages, and the data files have 8"),
        ({"starting_time": {"nanoseconds_since_epoch": START_NS - 10**9}}, "states a start of"),
        ({"duration": {"nanoseconds": 10**12}}, "states a duration of"),
        ({"storage_identifier": "mcap"}, "states the storage mcap"),
        ({"compression_mode": "FILE", "compression_format": "zstd"}, "states the compression mode FILE"),
        (
            {"files": [{"path": "rec_0.db3", "message_count": 5}, {"path": "rec_1.db3", "message_count": 4}]},
            "counts 5 messages of rec_0.db3, and the data files have 4",
        ),
        (
            {
                "topics_with_message_count": [
                    {"topic_metadata": {"name": f"/{name}", "type": "sensor_msgs/msg/Image"}, "message_count": count}
                    for name, count in (("cam/image_raw", 7), ("lidar", 1))
                ]
            },
            "counts 7 messages of cam/image_raw (sensor_msgs/Image), and the data files have 8",
        ),
    ],
    ids=["total", "start", "duration", "storage", "compression", "file", "topic"],
)
def test_a_statement_that_is_not_true_is_a_fault(tmp_path: Path, changes: dict[str, Any], claim: str) -> None:
    """Each key of metadata.yaml that the data can contradict is compared."""
    bag = write_metadata(write_split(tmp_path / "b", (0, 1)), ["rec_0.db3", "rec_1.db3"], 8, **changes)
    assert any(claim in fault for fault in faults(bag))
    assert claim in notes(bag)
    assert pixels(bag) == list(range(8))


@pytest.mark.parametrize("version", range(1, 10))
def test_true_metadata_of_every_version_gives_no_fault(tmp_path: Path, version: int) -> None:
    """Early versions put the bag's name before the file's and know neither compression nor single files."""
    names = ["b/rec_0.db3", "b/rec_1.db3"] if version < 3 else ["rec_0.db3", "rec_1.db3"]
    bag = write_metadata(write_split(tmp_path / "b", (0, 1)), names, 8, version=version)
    if version < 3:
        about = yaml.safe_load((bag / "metadata.yaml").read_text(encoding="utf-8"))
        del about["rosbag2_bagfile_information"]["compression_mode"]
        (bag / "metadata.yaml").write_text(yaml.safe_dump(about), encoding="utf-8")
    assert (faults(bag), notes(bag), pixels(bag)) == ([], "", list(range(8)))


@pytest.mark.parametrize(
    "names",
    [
        ["/home/someone/b/rec_0.db3", "/home/someone/b/rec_1.db3"],
        ["C:\\drives\\rec_0.db3", "C:\\drives\\rec_1.db3"],
        ["../b/rec_0.db3", "rec_1.db3"],
    ],
)
def test_paths_of_another_machine_are_found_by_their_names(tmp_path: Path, names: list[str]) -> None:
    """Some tools write absolute paths."""
    bag = write_metadata(write_split(tmp_path / "b", (0, 1)), names, 8)
    assert (faults(bag), pixels(bag)) == ([], list(range(8)))


def test_files_in_subfolders_are_read_if_they_are_listed(tmp_path: Path) -> None:
    """Two files in different subfolders may have the same name."""
    for number, name in enumerate(("a", "b")):
        write_part(tmp_path / "bag" / name / "rec_0.db3", number)
    bag = write_metadata(tmp_path / "bag", ["a/rec_0.db3", "b/rec_0.db3"], 8)
    assert (faults(bag), pixels(bag)) == ([], list(range(8)))


def test_a_listed_path_does_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    """A bag from a stranger must not make a file of this machine part of a result."""
    write_part(tmp_path / "secret" / "other_1.db3", 1)
    bag = tmp_path / "bag"
    write_part(bag / "rec_0.db3")
    (bag / "sub").symlink_to(tmp_path / "secret")
    write_metadata(bag, ["rec_0.db3", "../secret/other_1.db3", "sub/other_1.db3", "../../etc/passwd", "\0"], 4)
    assert pixels(bag) == [0, 1, 2, 3]
    (fault,) = faults(bag)
    assert "../secret/other_1.db3, sub/other_1.db3, ../../etc/passwd and 1 more" in fault


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rosbag2_bagfile_information: [", "is not valid YAML"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nrosbag2_bagfile_information: [*b, *b]", "aliases are not supported"),
        ("rosbag2_bagfile_information: {relative_file_paths: 5}", "relative_file_paths"),
        ("rosbag2_bagfile_information: {relative_file_paths: [rec_0.db3], message_count: many}", "message_count"),
        ("other: 1", "rosbag2_bagfile_information: is missing"),
        ("- 1", "is a list or a single value instead of a map"),
        ("rosbag2_bagfile_information: {relative_file_paths: [" + "x," * 1_000_000 + "]}", "is larger than"),
        ("\x1b[31m: [", "is not valid YAML"),
    ],
)
def test_metadata_that_cannot_be_used_is_a_fault_and_the_files_are_read(tmp_path: Path, text: str, reason: str) -> None:
    """The data files need no metadata; the user learns that it was not used."""
    bag = write_split(tmp_path / "b", (0, 1))
    (bag / "metadata.yaml").write_text(text, encoding="utf-8")
    (fault,) = faults(bag)
    assert fault.startswith("metadata.yaml cannot be used: ")
    assert reason in fault
    assert fault.isprintable()
    assert pixels(bag) == list(range(8))


def test_metadata_without_data_files_names_what_is_missing(tmp_path: Path) -> None:
    """The data files were not copied."""
    with pytest.raises(SkylaneError, match=r"contains no \.db3 .* lists files that are not there: rec_0\.db3"):
        Bag(write_metadata(tmp_path, ["rec_0.db3"], 4))


def test_one_file_of_a_split_bag_is_played_and_called_a_part(tmp_path: Path) -> None:
    """Somebody who gives one file may believe that it is the whole drive."""
    bag = write_metadata(write_split(tmp_path / "b"), [f"rec_{n}.db3" for n in range(3)], 12)
    assert pixels(bag / "rec_1.db3") == [4, 5, 6, 7]
    assert "rec_1.db3 is one of 3 files of a recording" in notes(bag / "rec_1.db3")
    assert faults(bag / "rec_1.db3") == []
    write_split(tmp_path / "gap", (0, 2))
    assert "rec_0.db3 is one of 2 files of a recording numbered 0 to 2 without 1: the first is 1" in notes(
        tmp_path / "gap" / "rec_0.db3"
    )
    write_split(tmp_path / "ros1", (0, 1), ".bag")
    assert "rec_0.bag is one of 2 files of a recording" in notes(tmp_path / "ros1" / "rec_0.bag")


@pytest.mark.parametrize("suffix", [".db3", ".mcap"])
@pytest.mark.parametrize("with_metadata", [True, False])
def test_a_file_and_its_compressed_copy_are_one_data_file(tmp_path: Path, suffix: str, *, with_metadata: bool) -> None:
    """`ros2 bag play` leaves the decompressed file beside the compressed one."""
    bag = tmp_path / "b"
    data = write_part(bag / f"rec_0{suffix}")
    data.with_name(f"{data.name}.zstd").write_bytes(zstd.compress(data.read_bytes()))
    if with_metadata:
        changes = {"compression_mode": "FILE", "storage_identifier": {".db3": "sqlite3"}.get(suffix, "mcap")}
        write_metadata(bag, [f"{data.name}.zstd"], 4, **changes)
    assert pixels(bag) == [0, 1, 2, 3]
    assert notes(bag) == f"not read: {data.name}.zstd (copies of files that are read)"
    assert faults(bag) == []
    data.unlink()
    assert (pixels(bag), notes(bag), faults(bag)) == ([0, 1, 2, 3], "", [])


def test_compressed_files_may_be_listed_without_their_suffix(tmp_path: Path) -> None:
    """Early recorders list the names before compression."""
    bag = tmp_path / "b"
    data = write_part(bag / "rec_0.db3")
    data.with_name("rec_0.db3.zstd").write_bytes(zstd.compress(data.read_bytes()))
    data.unlink()
    write_metadata(bag, ["rec_0.db3"], 4, compression_mode="FILE", compression_format="zstd")
    assert (faults(bag), pixels(bag)) == ([], [0, 1, 2, 3])


@pytest.mark.parametrize(
    "names",
    [
        ("drive_0.bag", "drive_1.bag", "drive_10.bag"),
        ("2024-05-01-10-00-00_0.bag", "2024-05-01-10-05-00_1.bag", "2024-05-01-10-10-00_2.bag"),
        ("run_2024-05-01-10-00-00_0.bag", "run_2024-05-01-10-05-00_1.bag", "run_2024-05-01-10-10-00_2.bag"),
    ],
)
def test_parts_of_a_ros1_recording_are_one_bag(tmp_path: Path, names: tuple[str, ...]) -> None:
    """`rosbag record --split` writes such files, with the time of each if no name was given."""
    folder = tmp_path / "f"
    for number, name in enumerate(names):
        write_part(folder / name, number)
    assert pixels(folder) == list(range(12))
    assert inspect(folder).messages == 12
    assert rewrite(folder, tmp_path / "all.bag").messages == 12
    assert pixels(tmp_path / "all.bag") == list(range(12))
    assert extract(folder, tmp_path / "out").frames == 12


@pytest.mark.parametrize("suffix", [".bag", ".db3", ".mcap"])
def test_a_missing_part_of_a_recording_without_metadata_is_a_fault(tmp_path: Path, suffix: str) -> None:
    """The numbers in the names show the hole."""
    folder = write_split(tmp_path / "f", (3, 4, 7), suffix)
    assert faults(folder) == ["folder has parts of a recording numbered 3 to 7 without 2: the first is 5"]
    assert pixels(folder) == [*range(12, 20), *range(28, 32)]


@pytest.mark.parametrize(
    "names",
    [
        ("morning.bag", "evening.bag"),
        ("a_0.bag", "b_1.bag"),
        ("a_2024-05-01-10-00-00_0.bag", "a_2024-05-02-10-00-00_0.bag"),
    ],
)
def test_ros1_bags_with_unrelated_names_are_refused_together(tmp_path: Path, names: tuple[str, ...]) -> None:
    """A folder of single recordings is a library, not a drive."""
    for number, name in enumerate(names):
        write_part(tmp_path / name, number)
    with pytest.raises(SkylaneError, match=r"are not parts of one recording: give one of .*\.bag"):
        Bag(tmp_path)


@pytest.mark.parametrize("suffix", [".bag", ".db3", ".mcap"])
@pytest.mark.parametrize(("overlap_ns", "is_refused"), [(4 * 10**9, True), (10**9 + 1, True), (10**9, False)])
def test_numbered_files_that_were_recorded_at_the_same_time_are_refused(
    tmp_path: Path, suffix: str, overlap_ns: int, *, is_refused: bool
) -> None:
    """One process per camera records such files; the parts of one recording overlap by a second at most."""
    for name, start_ns in {"cam_0": START_NS, "cam_1": START_NS + 4 * 10**9 - overlap_ns}.items():
        with BagWriter(
            tmp_path / (f"{name}.bag" if suffix == ".bag" else name),
            {".bag": "ros1", ".db3": "sqlite3"}.get(suffix, "mcap"),
        ) as writer:
            for second in range(5):
                at_ns = start_ns + second * 10**9
                writer.write_image(f"/{name}", np.zeros((2, 4), np.uint8), "mono8", at_ns, at_ns, "cam")
        if suffix != ".bag":
            next((tmp_path / name).glob(f"*{suffix}")).rename(tmp_path / f"{name}{suffix}")
            shutil.rmtree(tmp_path / name)
    refusal = pytest.raises(SkylaneError, match="were recorded at the same time") if is_refused else nullcontext()
    with refusal, Bag(tmp_path):
        pass


def test_ros1_files_that_are_no_parts_are_named(tmp_path: Path) -> None:
    """rosbag keeps the original of a repaired bag, and an interrupted part has another suffix."""
    folder = write_split(tmp_path / "f", (0, 1), ".bag")
    shutil.copy(folder / "rec_0.bag", folder / "rec_0.orig.bag")
    shutil.copy(folder / "rec_1.bag", folder / "rec_2.bag.active")
    assert pixels(folder) == list(range(8))
    assert "rec_0.orig.bag (copies of files that are read)" in notes(folder)
    assert "rec_2.bag.active (an interrupted recording: give it by itself)" in notes(folder)
    assert pixels(folder / "rec_2.bag.active") == [4, 5, 6, 7]


def test_ros1_bags_beside_a_ros2_bag_are_named(tmp_path: Path) -> None:
    """A folder with a bag and its conversion is common."""
    write_part(tmp_path / "rec_0.mcap")
    write_part(tmp_path / "old.bag", 1)
    assert pixels(tmp_path) == [0, 1, 2, 3]
    assert "not read: old.bag (ROS 1 bags beside a ROS 2 bag: give one of them)" in notes(tmp_path)


def test_what_is_not_a_file_is_named_and_does_not_block(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever."""
    write_part(tmp_path / "rec_0.db3")
    os.mkfifo(tmp_path / "rec_1.db3")
    (tmp_path / "rec_2.db3").mkdir()
    (tmp_path / "rec_3.db3").symlink_to("rec_4.db3")
    (tmp_path / "rec_4.db3").symlink_to("rec_3.db3")
    assert pixels(tmp_path) == [0, 1, 2, 3]
    assert "rec_1.db3, rec_2.db3, rec_3.db3 and 1 more (not a file that can be read)" in notes(tmp_path)
    os.mkfifo(tmp_path / "metadata.yaml")
    assert faults(tmp_path) == ["metadata.yaml is not a file"]
    with pytest.raises(SkylaneError, match="neither a file nor a folder"):
        Bag(tmp_path / "rec_1.db3")
    with pytest.raises(SkylaneError, match="there is no bag"):
        Bag(tmp_path / "rec_3.db3")


def test_commands_that_show_no_notes_log_them_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who crops or plays a bag learns that a file is missing; a run in a loop reads the bag again and again."""
    bag = write_metadata(write_split(tmp_path / "b", (0,)), ["rec_0.db3", "rec_1.db3"], 4)
    rewrite(bag, tmp_path / "copy")
    assert caplog.text.count("lists files that are not there: rec_1.db3") == 1
    source = BagSource(bag)
    for _ in range(3):
        assert len(list(source.frames())) == FRAMES
    source.close()
    assert caplog.text.count("lists files that are not there: rec_1.db3") == 2
