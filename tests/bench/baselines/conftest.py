"""A small bag, and the tiny model of the tests of the whole journey."""

from pathlib import Path

import pytest

from rosbag_tools.drive.recording import DrivePlan, record
from tests.pipeline.conftest import models

__all__ = ["bag", "models"]

FRAMES = 2


@pytest.fixture(scope="session")
def bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A synthetic drive of two frames, wider than the tiny model."""
    path = tmp_path_factory.mktemp("bags") / "drive"
    record(path, DrivePlan(seed=1, frames=FRAMES, width=256, height=160))
    return path
