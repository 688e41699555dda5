import os
from pathlib import Path

import pytest

from shared.errors import SkylaneError
from shared.runtime.health_file import HealthFile, is_fresh


def test_the_file_exists_only_while_the_node_is_online(tmp_path: Path) -> None:
    """A container whose node has lost the broker is unhealthy."""
    path = tmp_path / "health"
    health = HealthFile(path)
    assert not path.exists()
    health.update(is_online=True)
    assert is_fresh(path)
    health.update(is_online=False)
    assert not is_fresh(path)
    assert not path.exists()
    health.update(is_online=True)
    assert is_fresh(path)
    health.remove()
    assert not path.exists()


def test_the_file_of_a_node_that_hangs_ages(tmp_path: Path) -> None:
    """The check fails until the node runs again."""
    path = tmp_path / "health"
    health = HealthFile(path, interval_s=0.0)
    health.update(is_online=True)
    os.utime(path, (0, 0))
    assert not is_fresh(path)
    health.update(is_online=True)
    assert is_fresh(path)


def test_the_file_is_not_touched_at_every_update(tmp_path: Path) -> None:
    """A vehicle updates ten times a second, and its disk may be a memory card."""
    path = tmp_path / "health"
    health = HealthFile(path, interval_s=3600.0)
    health.update(is_online=True)
    os.utime(path, (0, 0))
    health.update(is_online=True)
    assert path.stat().st_mtime == 0


def test_a_file_of_an_earlier_process_is_removed(tmp_path: Path) -> None:
    """It would report a node as healthy that is still loading its model."""
    path = tmp_path / "health"
    path.touch()
    HealthFile(path)
    assert not path.exists()


def test_an_unwritable_path_is_refused_at_the_start(tmp_path: Path) -> None:
    """Otherwise a working node would be reported as unhealthy."""
    path = tmp_path / "nowhere" / "health"
    with pytest.raises(SkylaneError, match=r"cannot be written \(No such file or directory\).*--health-file"):
        HealthFile(path)


def test_a_removed_folder_does_not_end_the_node(tmp_path: Path) -> None:
    """The check fails, but the node goes on."""
    folder = tmp_path / "folder"
    folder.mkdir()
    health = HealthFile(folder / "health", interval_s=0.0)
    health.update(is_online=True)
    (folder / "health").unlink()
    folder.rmdir()
    health.update(is_online=True)
    health.remove()
    assert not is_fresh(folder / "health")


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This is the default."""
    monkeypatch.chdir(tmp_path)
    health = HealthFile(None)
    health.update(is_online=True)
    health.remove()
    assert not list(tmp_path.iterdir())
