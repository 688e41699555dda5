"""A repository with a small remote and a small local model, and a drive that both have seen."""

from pathlib import Path

import pytest

from bench.freshness.recording import RecordedDrivePlan, SyntheticDrive, record_drive
from tests.support.local_models import write_segmentation

CLASSES = 12


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models of the same labels that take a class by the grey level."""
    root = tmp_path_factory.mktemp("freshness-models")
    write_segmentation(root, "remote", 64, 96, CLASSES)
    write_segmentation(root, "local", 32, 48, CLASSES)
    return root


def small_plan(repository: Path, number: int = 0, frames: int = 24) -> RecordedDrivePlan:
    """A drive of a small camera at 30 Hz."""
    return RecordedDrivePlan(number, 30, frames, repository, "remote", "local", width=192, height=128)


@pytest.fixture(scope="session")
def drive(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> SyntheticDrive:
    """A recorded drive; recordings lie below the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("drives"))
        return record_drive(small_plan(repository))
