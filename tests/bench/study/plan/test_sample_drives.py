from pathlib import Path

import pytest

from bench.study.plan.sample_drives import footage
from bench.study.plan.scenarios import Footage
from shared.imaging.image_files import read_image_file


def test_mixed_sizes_are_images_of_several_sizes_created_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sizes are full, smaller, half, wide and tall, and repeat in this order."""
    monkeypatch.chdir(tmp_path)
    folder = footage(Footage.MIXED, "64x48", 6)
    sizes = [read_image_file(path).shape[:2] for path in sorted(folder.iterdir())]
    assert sizes == [(48, 64), (36, 48), (24, 32), (30, 64), (48, 32), (48, 64)]
    assert footage(Footage.MIXED, "64x48", 6) == folder
    assert footage(Footage.ONE, "64x48", 6) != footage(Footage.DRIVE, "64x48", 6)
