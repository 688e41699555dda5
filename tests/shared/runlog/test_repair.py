import shutil
from pathlib import Path

import pytest

from shared.runlog.latency_log import LatencyRow, LogError, LogWriter, Outcome, read_rows
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, PresentedLog, PresentedRow, read_presented
from shared.runlog.repair import repair, repair_all
from shared.runlog.run_manifest import read_manifest, write_manifest
from tests.support import run_damage
from tests.support.run_damage import EARLIER_RUNS, change_manifest


def _killed(folder: Path, state: str = "running") -> None:
    """Writes a run that was killed with one frame answered and one in flight."""
    with LogWriter(folder) as log:
        for sequence in range(2):
            log.open(LatencyRow("car", "/camera", "s1", sequence, Outcome.ABORTED))
        log.close(LatencyRow("car", "/camera", "s1", 0, Outcome.ANSWERED))
    write_manifest(folder, {"state": state})


def test_repair_all_completes_killed_runs(tmp_path: Path) -> None:
    """The next run in the same folder repairs earlier ones."""
    _killed(tmp_path / "killed")
    assert repair_all(tmp_path) == {tmp_path / "killed": 1}
    rows = list(read_rows(tmp_path / "killed"))
    assert [(row["outcome"], row["reason"]) for row in rows] == [("answered", ""), ("aborted", "edge_died")]
    assert read_manifest(tmp_path / "killed")["frames_read"] == 2
    assert repair_all(tmp_path) == {}


def test_repair_all_skips_runs_in_progress(tmp_path: Path) -> None:
    """Two vehicles on one machine may use one folder."""
    with LogWriter(tmp_path / "running") as log:
        log.open(LatencyRow("car", "/camera", "s1", 0, Outcome.ABORTED))
        write_manifest(tmp_path / "running", {"state": "running"})
        assert repair_all(tmp_path) == {}


def test_repair_all_skips_complete_and_broken_runs(tmp_path: Path) -> None:
    """They must not prevent the next run."""
    _killed(tmp_path / "complete", state="complete")
    _killed(tmp_path / "broken")
    (tmp_path / "broken" / "manifest.json").write_text("{")
    (tmp_path / "empty").mkdir()
    assert repair_all(tmp_path) == {}


def test_a_run_that_lost_rows_is_not_repaired(tmp_path: Path) -> None:
    """Its frames were answered, so a row with `aborted` would be wrong."""
    _killed(tmp_path, state="incomplete")
    with pytest.raises(LogError, match="was not killed"):
        repair(tmp_path)
    assert len(list(read_rows(tmp_path))) == 1


def test_frames_missing_in_the_sequence_are_added(tmp_path: Path) -> None:
    """A frame that was being encoded when its vehicle died is in no file; only the gap in the sequence shows it."""
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
    assert {rows[at]["frame_index"] for at in "12"} == {""}  # Unknown is not zero.
    assert repair(folder) == 0


@pytest.mark.parametrize("earlier", EARLIER_RUNS, ids=lambda folder: folder.name)
def test_a_killed_run_of_an_earlier_version_is_repaired_with_its_columns(earlier: Path, tmp_path: Path) -> None:
    """Rows with more fields than the header would make the whole log unreadable."""
    folder = tmp_path / "killed"
    shutil.copytree(earlier, folder)
    header, *rows = run_damage.lines(folder)
    run_damage.write(folder, [header, *rows[:-2]])
    run_damage.change_manifest(folder, state="running")
    assert repair(folder) == 2
    assert run_damage.lines(folder)[0] == header
    assert {len(line.split(",")) for line in run_damage.lines(folder)} == {len(header.split(","))}
    assert [row["outcome"] for row in read_rows(folder)] == ["answered"] * 12 + ["aborted"] * 2


def test_the_camera_of_a_missing_frame_is_not_guessed(tmp_path: Path) -> None:
    """All cameras share one sequence."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        log.close(LatencyRow("car", "/left", "s1", 0, Outcome.DROPPED, "window"))
        log.close(LatencyRow("car", "/right", "s1", 2, Outcome.DROPPED, "window"))
    assert repair(folder) == 1
    assert [row["camera"] for row in read_rows(folder)] == ["/left", "/right", ""]


@pytest.mark.parametrize("sequence", ["x", "999999999999"])
def test_a_log_with_an_invalid_sequence_is_not_changed(tmp_path: Path, sequence: str) -> None:
    """A damaged digit must not add a billion rows."""
    folder = tmp_path / "killed"
    with LogWriter(folder) as log:
        log.close(LatencyRow("car", "/camera", "s1", 7_654_321, Outcome.DROPPED, "window"))
    path = folder / "latency.csv"
    broken = path.read_text().replace("7654321", sequence)
    path.write_text(broken)
    with pytest.raises(LogError, match="sequence"):
        repair(folder)
    assert path.read_text() == broken


def test_a_killed_run_gets_a_tick_for_every_frame(tmp_path: Path) -> None:
    """Every tick has an output or a reason; the time at which a frame was due is still known if it was sent."""
    _killed(tmp_path)
    with PresentedLog(tmp_path) as log:
        log.write(PresentedRow("/camera", "s1", 0, OutputOrigin.NONE, "no_result", 0, 1, 2, 3))
    change_manifest(tmp_path, presenting={"kind": "hold"})
    assert repair(tmp_path) == 1
    ticks = list(read_presented(tmp_path))
    assert [(row.tick, row.origin, row.reason, row.presented_ns) for row in ticks] == [
        (0, OutputOrigin.NONE, "no_result", 3),
        (1, OutputOrigin.NONE, "aborted", None),
    ]
    presenting = read_manifest(tmp_path)["presenting"]
    assert presenting["kind"] == "hold"
    assert presenting["ticks"]["none"] == 2
    assert presenting["reasons"] == {"aborted": 1, "no_result": 1}
    assert repair(tmp_path) == 0
    assert list(read_presented(tmp_path)) == ticks


def test_a_frame_known_from_its_tick_alone_gets_its_row(tmp_path: Path) -> None:
    """The newest frames of a killed vehicle were presented, but not sent yet; both logs must name the same frames."""
    _killed(tmp_path)
    with PresentedLog(tmp_path) as log:
        log.write(PresentedRow("/camera", "s1", 3, OutputOrigin.LOCAL, "", 3, 11, 12, 13, age_ns=0))
    assert repair(tmp_path) == 3
    (row,) = (row for row in read_rows(tmp_path) if row["sequence"] == "3")
    assert [row[name] for name in ("vehicle", "camera", "sequence", "outcome", "reason")] == [
        "car", "/camera", "3", "aborted", "edge_died",
    ]  # fmt: skip
    assert [row[name] for name in ("frame_index", "frame_stamp_ns", "t_due_ns")] == ["3", "11", "12"]
    assert {tick.tick for tick in read_presented(tmp_path)} == {0, 1, 2, 3}


def test_a_tick_that_a_kill_cut_short_is_written_anew(tmp_path: Path) -> None:
    """The rest of its row would otherwise become part of the next one."""
    _killed(tmp_path)
    with PresentedLog(tmp_path) as log:
        for tick in range(2):
            log.write(PresentedRow("/camera", "s1", tick, OutputOrigin.NONE, "no_result"))
    path = tmp_path / PRESENTED_NAME
    path.write_bytes(path.read_bytes()[:-10])
    repair(tmp_path)
    assert [row.reason for row in read_presented(tmp_path)] == ["no_result", "aborted"]


def test_a_log_of_outputs_of_another_run_is_not_repaired(tmp_path: Path) -> None:
    """Its ticks would become frames of this run."""
    _killed(tmp_path)
    with PresentedLog(tmp_path) as log:
        log.write(PresentedRow("/camera", "s2", 0, OutputOrigin.NONE, "no_result"))
    with pytest.raises(LogError, match="belongs to session 's2', the run to 's1'"):
        repair(tmp_path)
