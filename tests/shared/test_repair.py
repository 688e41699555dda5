"""Closing what killed runs left open."""

from pathlib import Path

from shared.latency_log import LogWriter, Outcome, Row, read_rows
from shared.repair import repair_all
from shared.run_manifest import read_manifest, write_manifest


def _killed(folder: Path, state: str = "running") -> None:
    """A run that opened two frames, closed one and then was no more."""
    with LogWriter(folder) as log:
        for sequence in range(2):
            log.open(Row("car", "/camera", "s1", sequence, Outcome.ABORTED))
        log.close(Row("car", "/camera", "s1", 0, Outcome.ANSWERED))
    write_manifest(folder, {"state": state})


def test_the_next_start_closes_what_killed_runs_left_open(tmp_path: Path) -> None:
    """Nobody remembers to repair a run by hand: the next one beside it must do so."""
    _killed(tmp_path / "killed")
    assert repair_all(tmp_path) == {tmp_path / "killed": 1}
    rows = list(read_rows(tmp_path / "killed"))
    assert [(row["outcome"], row["reason"]) for row in rows] == [("answered", ""), ("aborted", "edge_died")]
    assert read_manifest(tmp_path / "killed")["frames_read"] == 2
    assert repair_all(tmp_path) == {}


def test_a_run_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    """Two vehicles on one machine write beside each other."""
    with LogWriter(tmp_path / "living") as log:
        log.open(Row("car", "/camera", "s1", 0, Outcome.ABORTED))
        write_manifest(tmp_path / "living", {"state": "running"})
        assert repair_all(tmp_path) == {}


def test_what_is_no_run_does_not_hold_the_next_one_up(tmp_path: Path) -> None:
    """A folder with a broken manifest is somebody's problem, not this run's."""
    _killed(tmp_path / "complete", state="complete")
    _killed(tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "empty").mkdir()
    assert repair_all(tmp_path) == {}
