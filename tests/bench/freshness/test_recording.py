"""Recordings of drives with the results of both models."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.freshness.recording import SyntheticDrive, record_drive


def test_a_drive_is_recorded_once_and_its_seed_decides(
    drive: SyntheticDrive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another place gets the same pixels and masks; the second call there renders no frame."""
    monkeypatch.chdir(tmp_path)
    for rendered in (24, 0):
        frames: list[int] = []
        again = record_drive(drive.plan, frames.append)
        assert len(frames) == rendered
        for name in ("images", "truths", "remote"):
            assert np.array_equal(getattr(again, name), getattr(drive, name)), name
        for one, other in zip(again.local, drive.local, strict=True):
            assert np.array_equal(one.result, other.result)
            assert np.array_equal(one.probabilities, other.probabilities)  # type: ignore[arg-type]
        assert again.sizes == drive.sizes


def test_a_recording_has_the_size_of_the_model_input(drive: SyntheticDrive) -> None:
    """Images, labels and both models' masks can be compared pixel by pixel."""
    assert drive.images.shape == (24, 64, 96, 3)
    local = np.stack([each.result for each in drive.local])
    assert drive.truths.shape == drive.remote.shape == local.shape == (24, 64, 96)
    assert not np.array_equal(drive.remote, local)
    shapes = {each.probabilities.shape for each in drive.local if each.probabilities is not None}
    assert shapes == {(32, 48, 12)}
    assert all(frame_bytes > 100 and mask_bytes > 10 for frame_bytes, mask_bytes in drive.sizes)


def test_other_weathers_and_models_are_other_recordings(drive: SyntheticDrive) -> None:
    """A recording never stands for another drive or for a model that has changed."""
    folders = {each.folder() for each in (drive.plan, replace(drive.plan, number=1), replace(drive.plan, frames=9))}
    assert len(folders) == 3
    assert len({replace(drive.plan, number=number).weather for number in range(5)}) == 5


def test_a_slower_camera_sees_every_third_frame(drive: SyntheticDrive) -> None:
    """One recording serves both frame rates."""
    slow = drive.only_every(3)
    assert slow.period_ns == 100_000_000
    assert np.array_equal(slow.images, drive.images[::3])
    assert len(slow.sizes) == len(slow.truths) == 8
    assert slow.name == drive.name
