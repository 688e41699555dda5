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
from rosbag_tools.records import Message
from rosbag_tools.verification import verify
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame
from tests.rosbag_tools.conftest import PATHS, WriteDrive

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


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory, write_drive: WriteDrive) -> list[Drive]:
    """Small bags, one for each pair of format and compression."""
    return [write_drive(tmp_path_factory.mktemp(f"{a}-{b}") / PATHS[a], a, b) for a, b in KINDS]


def frames_until_error(path: Path) -> tuple[list[Frame | UnreadableFrame], SkylaneError | None]:
    """Returns the frames that are read before an error, and the error."""
    found: list[Frame | UnreadableFrame] = []
    try:
        source = BagSource(path)
    except SkylaneError as error:
        return found, error
    try:
        for frame in source.frames():
            found.append(frame)  # noqa: PERF402  Frames read before an error must be kept.
    except SkylaneError as error:
        return found, error
    finally:
        source.close()
    return found, None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.data())
def test_damaged_bags_are_read_or_refused(tmp_path: Path, drives: list[Drive], data: st.DataObject) -> None:
    """Any damage leads to frames or to an error for the user, in every function that reads bags."""
    intact = data.draw(st.sampled_from(drives)).data_file
    damaged = bytearray(intact.read_bytes())
    generator = random.Random(data.draw(st.integers(0, 2**32)))
    if data.draw(st.booleans()):
        del damaged[generator.randrange(len(damaged)) :]
    else:
        end = data.draw(st.sampled_from([len(damaged), 5000]))  # The headers are at the start.
        for _ in range(data.draw(st.integers(1, 20))):
            damaged[generator.randrange(min(end, len(damaged)))] = generator.randrange(256)
    path = tmp_path / intact.name
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
    ("bag_format", "compression"),
    [("ros1", "none"), ("ros1", "lz4"), ("sqlite3", "none"), ("mcap", "none"), ("mcap", "zstd")],
)
def test_the_frames_of_a_truncated_recording_are_read_before_the_error(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...], bag_format: str, compression: str
) -> None:
    """A killed recorder writes no index, and SQLite refuses a file shorter than its header states."""
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


@pytest.mark.parametrize(("bag_format", "compression"), [("ros1", "bz2"), ("mcap", "zstd")])
def test_a_damaged_chunk_loses_only_its_own_frames(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...], bag_format: str, compression: str
) -> None:
    """A bad sector in the middle of a bag must not make the later frames unreadable."""
    drive = write_drive(
        tmp_path / PATHS[bag_format], bag_format, compression, frames=[pixels // 16 for pixels in real_frames[:4]]
    )
    data = bytearray(drive.data_file.read_bytes())
    inside = len(data) * 5 // 8  # This position is in the third of four chunks.
    data[inside : inside + 150_000] = bytes(150_000)
    drive.data_file.write_bytes(data)
    frames, error = frames_until_error(drive.path)
    assert isinstance(error, DamagedBagError)
    assert [frame.stamp_ns for frame in frames] == [START_NS + index * PERIOD_NS for index in (0, 1, 3)]


def test_rewriting_a_truncated_bag_repairs_it(
    tmp_path: Path, write_drive: WriteDrive, real_frames: tuple[Any, ...]
) -> None:
    """The error for a truncated bag recommends `skylane bag crop`, which uses this function."""
    drive = write_drive(tmp_path / "drive.bag", "ros1", frames=real_frames)
    data = drive.path.read_bytes()
    drive.path.write_bytes(data[: len(data) * 6 // 10])
    with pytest.raises(DamagedBagError, match=r"now in .*repaired\.bag, were read"):
        rewrite(drive.path, tmp_path / "repaired.bag")
    frames, error = frames_until_error(tmp_path / "repaired.bag")
    assert error is None
    assert len(frames) == len(frames_until_error(drive.path)[0])


def test_a_ros1_bag_without_an_index_is_read_and_reported(tmp_path: Path, write_drive: WriteDrive) -> None:
    """`rosbag` calls such a bag unindexed; its recording was interrupted."""
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
def test_a_database_row_with_invalid_values_is_reported(tmp_path: Path, write_drive: WriteDrive, column: str) -> None:
    """SQLite does not check types, so a flipped byte can change a time to NULL or to text."""
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
    """A small file could produce endless rows or huge values, which would fill the memory or never end."""
    drive = write_drive(tmp_path / "drive", "sqlite3")
    with closing(sqlite3.connect(drive.data_file)) as database, database:
        database.execute("DROP TABLE messages")
        if "fts5" in computed and ("ENABLE_FTS5",) not in database.execute("PRAGMA compile_options").fetchall():
            pytest.skip("the SQLite that is loaded here has no fts5")  # A library may have loaded another SQLite.
        database.execute(computed)
        if "GENERATED" in computed:
            database.execute("INSERT INTO messages(topic_id, timestamp) VALUES (1, 1)")
    frames, error = frames_until_error(drive.path)
    assert not frames
    assert "computed when it is read" in str(error)
    assert [finding.place for finding in verify(drive.path)][:1] == ["schema"]


def test_an_mcap_file_with_another_profile_is_read(tmp_path: Path, write_drive: WriteDrive) -> None:
    """Only the recorder of ROS 2 writes the profile `ros2`; other programs also write CDR messages."""
    drive = write_drive(tmp_path / "drive", "mcap")
    data = drive.data_file.read_bytes().replace(b"\x04\0\0\0ros2", b"\x04\0\0\0none", 1)
    drive.data_file.write_bytes(data)
    frames, error = frames_until_error(drive.path)
    assert (len(frames), error) == (5, None)
    assert list(verify(drive.path)) == []


def test_scanning_a_bag_finds_the_same_messages_as_its_index(drives: list[Drive]) -> None:
    """Damaged bags are read by a scan, which must be correct for intact bags too."""
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
def test_the_decompressed_size_is_limited(compression: str) -> None:
    """A small malicious message must not fill the memory of the vehicle."""
    compressors: dict[str, Callable[[bytes], bytes]] = {
        "bz2": bz2.compress,
        "lz4": lz4.frame.compress,
        "zstd": zstd.compress,
    }
    bomb = compressors[compression](bytes(1 << 20))
    with pytest.raises(DecompressionError, match="decompresses to more than 1000 bytes"):
        decompress(bomb, compression, 1000)
    assert len(decompress(bomb, compression, MAX_MESSAGE_BYTES)) == 1 << 20
