"""Closing what killed runs left open."""

from pathlib import Path

import pytest

from shared.runlog.latency_log import LatencyRow, LogError, LogWriter, Outcome, read_rows
from shared.runlog.repair import repair, repair_all
from shared.runlog.run_manifest import read_manifest, write_manifest


def _killed(folder: Path, state: str = "running") -> None:
    """A run that opened two frames, closed one and then was no more."""
    with LogWriter(folder) as log:
        for sequence in range(2):
            log.open(LatencyRow("car", "/camera", "s1", sequence, Outcome.ABORTED))
        log.close(LatencyRow("car", "/camera", "s1", 0, Outcome.ANSWERED))
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
        log.open(LatencyRow("car", "/camera", "s1", 0, Outcome.ABORTED))
        write_manifest(tmp_path / "living", {"state": "running"})
        assert repair_all(tmp_path) == {}


def test_what_is_no_run_does_not_hold_the_next_one_up(tmp_path: Path) -> None:
    """A folder with a broken manifest is somebody's problem, not this run's."""
    _killed(tmp_path / "complete", state="complete")
    _killed(tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "empty").mkdir()
    assert repair_all(tmp_path) == {}


def test_rows_that_a_full_disk_took_are_not_made_up(tmp_path: Path) -> None:
    """Their frames were answered: a row that says `aborted` would be untrue."""
    _killed(tmp_path, state="incomplete")
    with pytest.raises(LogError, match="was not killed"):
        repair(tmp_path)
    assert len(list(read_rows(tmp_path))) == 1


def test_frames_that_were_passed_over_on_their_way_are_closed(tmp_path: Path) -> None:
    """A frame that was being encoded when its vehicle died is in no file: the gap in the sequence is all that tells."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        log.close(LatencyRow("car", "/camera", "s1", 0, Outcome.DROPPED, "window"))
        log.open(LatencyRow("car", "/camera", "s1", 3, Outcome.ABORTED))
    assert repair(folder) == 3
    rows = {row["sequence"]: row for row in read_rows(folder)}
    assert sorted(rows) == ["0", "1", "2", "3"]
    assert {(rows[at]["vehicle"], rows[at]["camera"], rows[at]["outcome"]) for at in "12"} == {
        ("car", "/camera", "aborted")
    }
    assert {rows[at]["frame_index"] for at in "12"} == {""}  # Not known is not zero.
    assert repair(folder) == 0


def test_of_several_cameras_a_lost_frames_is_not_guessed(tmp_path: Path) -> None:
    """One sequence counts the frames of all cameras."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        log.close(LatencyRow("car", "/left", "s1", 0, Outcome.DROPPED, "window"))
        log.close(LatencyRow("car", "/right", "s1", 2, Outcome.DROPPED, "window"))
    assert repair(folder) == 1
    assert [row["camera"] for row in read_rows(folder)] == ["/left", "/right", ""]


@pytest.mark.parametrize("sequence", ["x", "999999999999"])
def test_a_log_with_a_broken_sequence_is_left_as_it_is(tmp_path: Path, sequence: str) -> None:
    """A flipped byte must not become a billion rows of frames that never were."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        log.close(LatencyRow("car", "/camera", "s1", 7_654_321, Outcome.DROPPED, "window"))
    path = folder / "latency.csv"
    broken = path.read_text().replace("7654321", sequence)
    path.write_text(broken)
    with pytest.raises(LogError, match="sequence"):
        repair(folder)
    assert path.read_text() == broken


def test_a_manifest_that_is_nested_without_end_is_no_json(tmp_path: Path) -> None:
    """The parser gives up on it in a way of its own."""
    (tmp_path / "manifest.json").write_text("[" * 100_000)
    with pytest.raises(LogError, match="is not JSON"):
        read_manifest(tmp_path)
