import bz2
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import lz4.frame
import pytest
from backports import zstd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rosbag_tools.editing import rewrite
from rosbag_tools.inspection import inspect
from rosbag_tools.reading.bag import Bag, DamagedBagError
from rosbag_tools.reading.decompression import MAX_MESSAGE_BYTES, DecompressionError, decompress
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.reading.records import Message
from rosbag_tools.verification import verify
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame

WriteDrive = Callable[..., Any]
Drive = Any

KINDS = [
    ("ros1", "none"),
    ("ros1", "bz2"),
    ("ros1", "lz4"),
    ("sqlite3", "none"),
    ("sqlite3", "zstd"),
    ("sqlite3", "zstd-file"),
    ("mcap", "none"),
    ("mcap", "zstd"),
    ("mcap", "zstd-message"),
]
START_NS = 1_600_000_000_000_000_000
PERIOD_NS = 100_000_000
PATHS = {"ros1": "drive.bag", "sqlite3": "drive", "mcap": "drive"}


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory, write_drive: WriteDrive) -> list[Drive]:
    """A small bag of every kind."""
    return [write_drive(tmp_path_factory.mktemp(f"{a}-{b}") / PATHS[a], a, b) for a, b in KINDS]


def frames_until_error(path: Path) -> tuple[list[Frame | UnreadableFrame], SkylaneError | None]:
    """What a bag gives, and how it ends."""
    found: list[Frame | UnreadableFrame] = []
    try:
        source = BagSource(path)
    except SkylaneError as error:
        return found, error
    try:
        for frame in source.frames():
            found.append(frame)  # noqa: PERF402  What came before the error counts.
    except SkylaneError as error:
        return found, error
    finally:
        source.close()
    return found, None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damaged_bags_are_read_or_refused(tmp_path: Path, drives: list[Drive], data: st.DataObject) -> None:
    """Whatever became of a file, only our own errors may come of it, from every command that reads."""
    whole = data.draw(st.sampled_from(drives)).data_file
    damaged = bytearray(whole.read_bytes())
    chance = random.Random(data.draw(st.integers(0, 2**32)))
    if data.draw(st.booleans()):
        del damaged[chance.randrange(len(damaged)) :]
    else:
        reach = data.draw(st.sampled_from([len(damaged), 5000]))  # Headers lie in front.
        for _ in range(data.draw(st.integers(1, 20))):
            damaged[chance.randrange(min(reach, len(damaged)))] = chance.randrange(256)
    path = tmp_path / whole.name
    path.write_bytes(damaged)
    for frame in frames_until_error(path)[0]:
        assert isinstance(frame, Frame | UnreadableFrame)
    for use in (
        inspect,
        lambda bag: list(verify(bag)),
        lambda bag: rewrite(bag, tmp_path / "copy", bag_format="mcap", overwrite=True),
    ):
        try:
            use(path)
        except SkylaneError as error:
            assert "\n" not in str(error)  # noqa: PT017  Most damage raises nothing.


@pytest.mark.parametrize(
    ("bag_format", "compression"), [("ros1", "none"), ("ros1", "lz4"), ("mcap", "none"), ("mcap", "zstd")]
)
def test_cut_off_recording_gives_what_it_holds_and_says_so(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...], bag_format: str, compression: str
) -> None:
    """A recorder that was killed wrote no index: the drive up to there is still a drive."""
    drive = write_drive(tmp_path / PATHS[bag_format], bag_format, compression, frames=real_frames)
    data = drive.data_file.read_bytes()
    drive.data_file.write_bytes(data[: len(data) * 6 // 10])
    frames, error = frames_until_error(drive.path)
    assert isinstance(error, DamagedBagError)
    assert f"{len(frames)} frames were read" in str(error)
    assert "skylane bag crop" in str(error)
    assert 2 <= len(frames) < len(real_frames)
    for frame, pixels in zip(frames, drive.frames, strict=False):
        assert isinstance(frame, Frame)
        assert (frame.pixels == pixels).all()


def test_cut_off_database_gives_what_it_holds(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...]
) -> None:
    """SQLite refuses a database that is shorter than it says; its first pages are whole all the same."""
    drive = write_drive(tmp_path / "drive", "sqlite3", frames=real_frames)
    data = drive.data_file.read_bytes()
    drive.data_file.write_bytes(data[: len(data) * 6 // 10])
    frames, error = frames_until_error(drive.path)
    assert isinstance(error, DamagedBagError)
    assert 2 <= len(frames) < len(real_frames)


@pytest.mark.parametrize(("bag_format", "compression"), [("ros1", "bz2"), ("mcap", "zstd")])
def test_a_damaged_chunk_costs_its_own_frames_only(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...], bag_format: str, compression: str
) -> None:
    """One bad sector in the middle of a drive is not the end of it."""
    drive = write_drive(
        tmp_path / PATHS[bag_format], bag_format, compression, frames=[pixels // 16 for pixels in real_frames[:4]]
    )
    data = bytearray(drive.data_file.read_bytes())
    inside = len(data) * 5 // 8  # In the third of four chunks.
    data[inside : inside + 150_000] = bytes(150_000)
    drive.data_file.write_bytes(data)
    frames, error = frames_until_error(drive.path)
    assert isinstance(error, DamagedBagError)
    assert [frame.stamp_ns for frame in frames] == [START_NS + index * PERIOD_NS for index in (0, 1, 3)]


def test_cropping_a_cut_off_bag_mends_it(tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...]) -> None:
    """The remedy that the message names."""
    drive = write_drive(tmp_path / "drive.bag", "ros1", frames=real_frames)
    data = drive.path.read_bytes()
    drive.path.write_bytes(data[: len(data) * 6 // 10])
    with pytest.raises(DamagedBagError, match=r"now in .*mended\.bag, were read"):
        rewrite(drive.path, tmp_path / "mended.bag")
    frames, error = frames_until_error(tmp_path / "mended.bag")
    assert error is None
    assert len(frames) == len(frames_until_error(drive.path)[0])


def test_unindexed_ros1_bag_is_named_as_such(tmp_path: Path, write_drive: WriteDrive) -> None:
    """What `rosbag` calls unindexed: a recording whose end is missing."""
    drive = write_drive(tmp_path / "drive.bag", "ros1")
    data = bytearray(drive.path.read_bytes())
    at = data.index(b"index_pos=") + len(b"index_pos=")
    data[at : at + 8] = bytes(8)
    drive.path.write_bytes(data)
    frames, error = frames_until_error(drive.path)
    assert len(frames) == 5
    assert "the index is missing: the recording or the copy was interrupted" in str(error)
    assert any("without its index" in note for note in inspect(drive.path).notes)


@pytest.mark.parametrize(
    "column", ["timestamp = NULL", "timestamp = 'noon'", "data = NULL", "data = 'text'", "topic_id = 9"]
)
def test_database_rows_may_hold_anything(tmp_path: Path, write_drive: WriteDrive, column: str) -> None:
    """SQLite checks no types: one flipped byte turns a time into nothing."""
    drive = write_drive(tmp_path / "drive", "sqlite3")
    with closing(sqlite3.connect(drive.data_file)) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute("PRAGMA writable_schema = ON")
        database.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL', '') WHERE name = 'messages'")
    with closing(sqlite3.connect(drive.data_file)) as database, database:
        database.execute(f"UPDATE messages SET {column} WHERE id = 5")
    frames, error = frames_until_error(drive.path)
    assert len(frames) == 4
    assert error is None or "row 5" in str(error)
    assert [finding.place for finding in verify(drive.path)] == ["row 5"]
    assert inspect(drive.path).messages >= 9


@pytest.mark.parametrize(
    "computed",
    [
        """CREATE VIEW messages AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)
        SELECT i AS id, 1 AS topic_id, i AS timestamp, zeroblob(900000000) AS data FROM n""",
        """CREATE TABLE messages(id INTEGER PRIMARY KEY, topic_id INTEGER, timestamp INTEGER,
        data BLOB GENERATED ALWAYS AS (zeroblob(900000000)))""",
        "CREATE VIRTUAL TABLE messages USING fts5(id, topic_id, timestamp, data)",
    ],
    ids=["view", "column", "virtual"],
)
def test_a_database_that_computes_its_messages_is_refused(
    tmp_path: Path, write_drive: WriteDrive, computed: str
) -> None:
    """A view gives without end what takes no room in the file: reading it would fill the memory, or never end."""
    drive = write_drive(tmp_path / "drive", "sqlite3")
    with closing(sqlite3.connect(drive.data_file)) as database, database:
        database.execute("DROP TABLE messages")
        if "fts5" in computed and ("ENABLE_FTS5",) not in database.execute("PRAGMA compile_options").fetchall():
            pytest.skip("the SQLite that is loaded here has no fts5")  # A library may have brought its own.
        database.execute(computed)
        if "GENERATED" in computed:
            database.execute("INSERT INTO messages(topic_id, timestamp) VALUES (1, 1)")
    frames, error = frames_until_error(drive.path)
    assert not frames
    assert "computed when it is read" in str(error)
    assert [finding.place for finding in verify(drive.path)][:1] == ["schema"]


def test_mcap_of_another_profile_is_whole(tmp_path: Path, write_drive: WriteDrive) -> None:
    """Only ROS 2's recorder writes the profile `ros2`; others write CDR just as well."""
    drive = write_drive(tmp_path / "drive", "mcap")
    data = drive.data_file.read_bytes().replace(b"\x04\0\0\0ros2", b"\x04\0\0\0none", 1)
    drive.data_file.write_bytes(data)
    frames, error = frames_until_error(drive.path)
    assert (len(frames), error) == (5, None)
    assert list(verify(drive.path)) == []


def test_scan_and_index_agree(drives: list[Drive]) -> None:
    """The scan is what damaged bags are read by: on whole ones it must find the same."""
    for drive in drives:
        with Bag(drive.path) as bag:
            indexed = [
                (item.channel.topic, item.time_ns, item.data) for item in bag.messages() if isinstance(item, Message)
            ]
            scanned = [
                (item.channel.topic, item.time_ns, item.data) for item in bag.scan() if isinstance(item, Message)
            ]
        assert len(indexed) == 10
        assert sorted(indexed) == sorted(scanned)


@pytest.mark.parametrize("compression", ["bz2", "lz4", "zstd"])
def test_a_bomb_does_not_unfold(compression: str) -> None:
    """A few hostile bytes must not take the vehicle's memory."""
    fold: dict[str, Callable[[bytes], bytes]] = {
        "bz2": bz2.compress,
        "lz4": lz4.frame.compress,
        "zstd": zstd.compress,
    }
    bomb = fold[compression](bytes(1 << 20))
    with pytest.raises(DecompressionError, match="decompresses to more than 1000 bytes"):
        decompress(bomb, compression, 1000)
    assert len(decompress(bomb, compression, MAX_MESSAGE_BYTES)) == 1 << 20
