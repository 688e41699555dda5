"""Fixtures of the bag tests: four real bags in the folder SKYLANE_TEST_BAGS, and small bags that are written here."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rosbag_tools.reading.frames import BagSource
from rosbag_tools.writer import BagWriter
from shared.imaging.frames import Frame, Pixels, UnreadableFrame

START_NS = 1_600_000_000_000_000_000
PERIOD_NS = 100_000_000
DELAY_NS = 7_000_000
PATHS = {"ros1": "drive.bag", "sqlite3": "drive", "mcap": "drive"}
TOPIC = "/cam/image_raw"

_REAL_BAGS = Path(os.environ.get("SKYLANE_TEST_BAGS", Path(__file__).parents[3] / "shared" / "data" / "bags"))


FindBag = Callable[[str], Path]
WriteDrive = Callable[..., Any]


def read_frames(path: Path, **options: Any) -> list[Frame | UnreadableFrame]:
    """Returns all frames of a bag, in the order in which they are played."""
    source = BagSource(path, **options)
    try:
        return list(source.frames())
    finally:
        source.close()


@pytest.fixture(scope="session")
def real_bag() -> FindBag:
    """Finds a real bag by its name; skips the test if this machine does not have the bag."""

    def find(name: str) -> Path:
        path = _REAL_BAGS / name
        if not path.exists():
            pytest.skip(f"no real bag {name} in {_REAL_BAGS}: set SKYLANE_TEST_BAGS to the folder of the bags")
        return path

    return find


@dataclass(frozen=True)
class Drive:
    """A small bag and the frames that were written to it."""

    path: Path
    frames: tuple[Pixels, ...]

    @property
    def data_file(self) -> Path:
        """The file that contains the messages."""
        if self.path.is_file():
            return self.path
        return next(file for file in self.path.iterdir() if file.name != "metadata.yaml")


def random_frames(count: int, height: int = 8, width: int = 12) -> tuple[Pixels, ...]:
    """Returns frames of random pixels, no two of which are similar."""
    generator = np.random.default_rng(count)
    return tuple(generator.integers(0, 256, (height, width), np.uint8) for _ in range(count))


@pytest.fixture(scope="session")
def real_frames() -> tuple[Pixels, ...]:
    """Frames as large as those of a camera, so that each one fills a chunk."""
    return random_frames(10, 1024, 1100)


@pytest.fixture(scope="session")
def write_drive() -> WriteDrive:
    """Writes a bag of Bayer frames with their camera_info at 10 Hz."""

    def write(
        path: Path,
        bag_format: str | None = None,
        compression: str = "none",
        *,
        frames: Iterable[Pixels] = random_frames(5),
        stamps: bool = True,
    ) -> Drive:
        frames = tuple(frames)
        with BagWriter(path, bag_format, compression) as writer:
            for index, pixels in enumerate(frames):
                stamp_ns = START_NS + index * PERIOD_NS if stamps else 0
                at_ns = START_NS + index * PERIOD_NS + DELAY_NS
                writer.write_image(TOPIC, pixels, "bayer_rggb8", stamp_ns, at_ns, "cam")
                writer.write_camera_info(
                    "/cam/camera_info",
                    pixels.shape[0],
                    pixels.shape[1],
                    10.0,
                    stamp_ns=stamp_ns,
                    received_ns=at_ns,
                    frame_id="cam",
                )
        return Drive(path, frames)

    return write
