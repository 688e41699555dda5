import re
from pathlib import Path

import pytest

from shared.runlog.latency_log import LogError, LogWriter
from shared.runlog.run_folder import contents, discard_unless_started, free_folder, run_folder


def test_a_run_is_named_by_its_time_and_then_its_vehicle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing is in the order of the runs; two vehicles of one name in one second get folders of their own."""
    monkeypatch.chdir(tmp_path)
    folder = run_folder("car-1")
    assert re.fullmatch(r"runs/\d{8}-\d{6}-car-1", str(folder))
    folder.mkdir(parents=True)
    assert free_folder(folder) == folder.with_name(f"{folder.name}-2")


def test_a_run_that_does_not_begin_leaves_nothing(tmp_path: Path) -> None:
    """Neither a folder that it made, nor what it wrote beside what lay there."""
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
    """However it ends."""
    with LogWriter(tmp_path), discard_unless_started(tmp_path, contents(tmp_path)) as begin:
        begin()
    assert (tmp_path / "latency.csv").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/here"])
def test_a_place_that_cannot_be_written_is_not_called_full(tmp_path: Path, place: str) -> None:
    """Making room would not help; and nothing is left behind."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LogError, match="choose another --out") as raised:
        LogWriter(tmp_path / place)
    assert "make room" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_log_that_cannot_be_started_leaves_no_folder(tmp_path: Path) -> None:
    """A journal in the way is somebody else's; the log beside it was ours."""
    (tmp_path / "latency.journal").write_text("")
    with pytest.raises(LogError, match="already holds a run"):
        LogWriter(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["latency.journal"]
