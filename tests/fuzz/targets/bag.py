"""Fuzz target of the bag reader: files of all three formats, read by index and sequentially."""

import atexit
import random
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import numpy as np

from rosbag_tools.reading.bag import Bag
from rosbag_tools.reading.frames import BagSource
from rosbag_tools.records import Damage, Message
from rosbag_tools.writer import BagWriter
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, UnreadableFrame
from tests.support.mcap_files import Channel, camera_message, write_mcap
from tests.support.video_streams import LOW_DELAY, encode, write_video

MAX_BYTES = 1 << 16
_NAMES = {b"#ROSBAG": "drive.bag", b"SQLite ": "drive.db3", b"\x89MCAP0": "drive.mcap"}
_KINDS = (
    *(("ros1", "none"), ("ros1", "bz2"), ("ros1", "lz4")),
    *(("sqlite3", "none"), ("sqlite3", "zstd")),
    *(("mcap", "none"), ("mcap", "zstd"), ("mcap", "zstd-message")),
)
_FRAMES = 3

_folder = Path(tempfile.mkdtemp(prefix="skylane-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, _folder, ignore_errors=True)


def seeds() -> Iterator[bytes]:
    """Yields a small bag of every format and compression."""
    pixels = np.random.default_rng(1).integers(0, 4, (4, 6), np.uint8)
    for number, (bag_format, compression) in enumerate(_KINDS):
        path = _folder / f"{number}" / ("drive.bag" if bag_format == "ros1" else "drive")
        path.parent.mkdir()
        with BagWriter(path, bag_format, compression) as writer:
            for index in range(_FRAMES):
                stamp_ns = 10**18 + index * 10**8
                writer.write_image("/cam/image_raw", pixels, "mono8", stamp_ns, stamp_ns + 1, "cam")
        file = path if path.is_file() else next(each for each in path.iterdir() if each.suffix != ".yaml")
        if bag_format == "sqlite3":
            _shrink(file)
        yield file.read_bytes()
        shutil.rmtree(path.parent)
    path = _folder / "seed.mcap"
    write_video(path, "h264", [packet.data for packet in encode(*LOW_DELAY["h264"], frames=_FRAMES, size=(64, 48))])
    yield path.read_bytes()
    channel = Channel("/cam", "foxglove.RawImage")
    messages = [(0, camera_message(channel.schema, 10**18, pixels, encoding="mono8")) for _ in range(_FRAMES)]
    write_mcap(path, [channel], messages)
    yield path.read_bytes()
    path.unlink()


def run(data: bytes) -> None:
    """Reads a file in both ways; raises only on a bug."""
    path = _folder / _NAMES.get(data[:7], "drive.bag")
    path.write_bytes(data)
    with suppress(SkylaneError):
        source = BagSource(path)
        try:
            for frame in source.frames():
                assert isinstance(frame, Frame | UnreadableFrame)
        finally:
            source.close()
    with suppress(SkylaneError), Bag(path) as bag:
        for item in bag.scan():  # `skylane bag verify` reads images in the same manner.
            assert isinstance(item, Message | Damage)


def mutated(data: bytes, seed: int) -> bytes:
    """Overwrites, duplicates, moves or removes a block, as faulty disks and copies do."""
    rng = random.Random(seed)
    if not data:
        return data
    begin = rng.randrange(len(data))
    end = min(len(data), begin + rng.choice((1, 4, 8, 64, 512)))
    elsewhere = rng.randrange(len(data))
    block = data[begin:end]
    match rng.randrange(5):
        case 0:
            return data[:elsewhere] + block + data[elsewhere + len(block) :]
        case 1:
            return data[:elsewhere] + block + data[elsewhere:]
        case 2:
            return data[:begin] + data[end:]
        case 3:
            return data[:begin] + rng.choice((b"\x00", b"\xff", b"\x7f")) * len(block) + data[end:]
    return data[:begin]


def _shrink(path: Path) -> None:
    """Reduces the page size: a database of a few messages would take 40 KB otherwise."""
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA page_size = 512")
        database.execute("VACUUM")
