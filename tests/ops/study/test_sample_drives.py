from pathlib import Path

import pytest

from analysis.study.scenarios import Footage
from analysis.study.study_plan import cells
from ops.study.sample_drives import footage, source_of
from shared.imaging.image_files import read_image_file
from tests.support.simulated_study import plan_of


def test_mixed_sizes_are_images_of_several_sizes_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are full, smaller, half, wide and tall, and repeat in this order."""
    monkeypatch.chdir(tmp_path)
    folder = footage(Footage.MIXED, "64x48", 6)
    sizes = [read_image_file(path).shape[:2] for path in sorted(folder.iterdir())]
    assert sizes == [(48, 64), (36, 48), (24, 32), (30, 64), (48, 32), (48, 64)]
    assert footage(Footage.MIXED, "64x48", 6) == folder
    assert footage(Footage.ONE, "64x48", 6) != footage(Footage.DRIVE, "64x48", 6)


def test_a_given_bag_is_played_instead_of_the_synthetic_drive(tmp_path: Path) -> None:
    """Its cells have no resolution of the synthetic camera, which would be wrong in the tables."""
    (tmp_path / "own.mcap").touch()
    plan = plan_of(tmp_path, bag=str(tmp_path / "own.mcap"), axes={"codec": ["jpeg", "raw"]})
    assert {source_of(plan, cell, 1) for cell in cells(plan)} == {tmp_path / "own.mcap"}
    assert {cell.resolution for cell in cells(plan)} == {"bag"}
