import re
from pathlib import Path

import pytest

from shared.runlog.latency_log import LogError, LogWriter
from shared.runlog.run_folder import contents, discard_unless_started, free_folder, run_folder


def test_a_folder_is_named_by_time_and_vehicle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing shows runs in order; a second run in the same second gets another folder."""
    monkeypatch.chdir(tmp_path)
    folder = run_folder("car-1")
    assert re.fullmatch(r"runs/\d{8}-\d{6}-car-1", str(folder))
    folder.mkdir(parents=True)
    assert free_folder(folder) == folder.with_name(f"{folder.name}-2")


def test_a_run_that_does_not_begin_leaves_no_files(tmp_path: Path) -> None:
    """Files that existed before are kept."""
    new, old = tmp_path / "new", tmp_path / "old"
    old.mkdir()
    (old / "notes.txt").write_text("mine")
    for folder in (new, old):
        before = contents(folder)
        with LogWriter(folder), discard_unless_started(folder, before):
            (folder / "masks").mkdir()
            (folder / "masks" / "1.png").write_bytes(b"")
    assert not new.exists()
    assert [path.name for path in old.iterdir()] == ["notes.txt"]


def test_a_run_that_began_keeps_its_folder(tmp_path: Path) -> None:
    """The way it ends does not matter."""
    with LogWriter(tmp_path), discard_unless_started(tmp_path, contents(tmp_path)) as begin:
        begin()
    assert (tmp_path / "latency.csv").exists()


@pytest.mark.parametrize("path", ["file", "file/below", "/proc/here"])
def test_an_unwritable_path_is_not_reported_as_a_full_disk(tmp_path: Path, path: str) -> None:
    """Freeing space would not help. No files are left behind."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LogError, match="choose another --out") as raised:
        LogWriter(tmp_path / path)
    assert "make room" not in str(raised.value)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_log_that_cannot_be_started_leaves_no_files(tmp_path: Path) -> None:
    """The existing journal belongs to another run."""
    (tmp_path / "latency.journal").write_text("")
    with pytest.raises(LogError, match="already holds a run"):
        LogWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["latency.journal"]
