import csv
import errno
import io
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.clock import Offset
from shared.runlog.columns import ADDED, LATENCY, milliseconds
from shared.runlog.latency_log import (
    COLUMNS,
    CSV_NAME,
    JOURNAL_NAME,
    LatencyRow,
    LogError,
    LogWriter,
    Outcome,
    csv_fields,
    csv_line,
    outcomes,
    read_header,
    read_journal,
    read_rows,
)
from shared.runlog.repair import repair
from shared.runlog.run_manifest import read_manifest, write_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage
from tests.full_disk import disk_of
from tests.support.run_damage import EARLIER_RUNS

ROW = LatencyRow(
    vehicle="car",
    camera="/left",
    session="s1",
    sequence=0,
    outcome=Outcome.ANSWERED,
    worker="w",
    edge_times={stage: 1_000 * position for position, stage in enumerate(EDGE_STAGES)},
    cloud_times={stage: 10**15 + 7 * position for position, stage in enumerate(CLOUD_STAGES)},
    clock=Offset(10**15 - 5_500, 400),
)


def _row(sequence: int, outcome: Outcome = Outcome.ANSWERED, reason: str = "", camera: str = "/left") -> LatencyRow:
    return LatencyRow("car", camera, "s1", sequence, outcome, reason, edge_times={Stage.DUE: 5})


@given(st.integers(-(10**15), 10**15))
def test_milliseconds_are_exact(value_ns: int) -> None:
    """Sums of columns equal the total column in every digit."""
    assert Decimal(milliseconds(value_ns)) == Decimal(value_ns) / 1_000_000


@given(st.lists(st.text(max_size=10), min_size=len(COLUMNS), max_size=len(COLUMNS)))
def test_a_line_equals_the_output_of_the_csv_module(values: list[str]) -> None:
    """The fast path must not change the format, whatever a field contains."""
    expected = io.StringIO()
    csv.writer(expected, lineterminator="\n").writerow(values)
    assert csv_line(dict(zip(COLUMNS, values, strict=True))) == expected.getvalue()


@given(st.data())
def test_the_durations_of_a_row_add_up_to_its_totals(data: st.DataObject) -> None:
    """No time is missing or counted twice."""
    passed = data.draw(st.lists(st.sampled_from(OPTIONAL_STAGES), unique=True))
    stages = [stage for stage in EDGE_STAGES if stage not in OPTIONAL_STAGES or stage in passed]
    edge = sorted(data.draw(st.lists(st.integers(0, 10**12), min_size=len(stages), max_size=len(stages))))
    cloud = sorted(data.draw(st.lists(st.integers(0, 10**12), min_size=8, max_size=8)))
    row = LatencyRow(
        "car", "/left", "s1", 0, Outcome.ANSWERED,
        edge_times=dict(zip(stages, edge, strict=True)),
        cloud_times=dict(zip(CLOUD_STAGES, cloud, strict=True)),
        clock=Offset(data.draw(st.integers(-(10**9), 10**9)), 5),
    )  # fmt: skip
    fields = {key: Decimal(value) for key, value in csv_fields(row).items() if key.endswith("_ms")}
    assert sum(fields[f"{stage}_ms"] for stage in stages[1:]) == fields["total_ms"]
    assert sum(fields[f"{stage}_ms"] for stage in CLOUD_STAGES[1:]) == fields["cloud_ms"]
    assert fields["returned_ms"] == fields["cloud_ms"] + fields["crossing_ms"]
    assert fields["uplink_ms"] + fields["downlink_ms"] == fields["crossing_ms"]


@pytest.mark.parametrize("outcome", [Outcome.REUSED, Outcome.ANSWERED_LOCALLY, Outcome.EXPIRED])
def test_a_result_of_the_vehicle_has_a_total_until_its_last_stage(outcome: Outcome) -> None:
    """Its frame was never sent, so `mask_decoded` does not exist; an expired one shows how late it was."""
    times = {Stage.DUE: 5, Stage.TAKEN: 1_000_005, Stage.PREPROCESSED: 2_000_005, Stage.GATED: 2_500_005}
    fields = csv_fields(replace(_row(7, outcome), edge_times=times))
    assert (fields["total_ms"], fields["gated_ms"], fields["t_gated_ns"]) == ("2.500000", "0.500000", "2500005")
    dropped = csv_fields(replace(_row(7, Outcome.DROPPED, "window"), edge_times=times))
    assert "total_ms" not in dropped
    late = csv_fields(replace(_row(7, Outcome.EXPIRED), edge_times=times | {Stage.SENT: 3_000_000}))
    assert "total_ms" not in late  # A worker reported it as late and its reply was lost.


def test_columns_of_later_versions_are_at_the_end(tmp_path: Path) -> None:
    """Programs that read by position still find the columns of earlier versions."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0))
        log.close(replace(_row(1, Outcome.REUSED), gate_distance=12.5, reused_sequence=0, local_confidence=1.0))
        log.close(replace(_row(2), dispatch="load"))
    first, second, third = read_rows(tmp_path)
    assert COLUMNS[-len(ADDED) :] == ADDED
    assert {first[name] for name in ADDED} == {""}
    assert [second[name] for name in ADDED[:3]] == ["12.500000", "0", "1.000000"]
    assert (COLUMNS[-1], second["dispatch"], third["dispatch"]) == ("dispatch", "", "load")


@pytest.mark.parametrize("folder", EARLIER_RUNS, ids=lambda folder: folder.name)
def test_a_log_of_an_earlier_version_is_read(folder: Path) -> None:
    """Runs of an earlier version stay readable: the columns that they lack are empty."""
    absent = set(COLUMNS) - set(read_header(folder))
    rows = list(read_rows(folder))
    assert outcomes(rows) == {Outcome.ANSWERED: 14}
    assert "dispatch" in absent
    assert absent <= set(ADDED)
    assert {row[name] for row in rows for name in absent} == {""}
    assert {row["outcome"] for row in read_journal(folder)} == {"aborted"}


def test_missing_measurements_are_empty(tmp_path: Path) -> None:
    """A dropped frame has no inference time, and zero would lower every mean."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0, Outcome.DROPPED, "window"))
    (row,) = read_rows(tmp_path)
    assert (row["outcome"], row["reason"], row["t_due_ns"]) == ("dropped", "window", "5")
    assert row["total_ms"] == row["inferred_ms"] == row["t_sent_ns"] == row["clock_offset_ms"] == ""


def test_the_header_names_all_columns(tmp_path: Path) -> None:
    """Other programs read the file by column name."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    with (tmp_path / CSV_NAME).open(newline="") as file:
        header, row = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert len(row) == len(COLUMNS)
    assert len(set(COLUMNS)) == len(COLUMNS)


@given(camera=st.text(max_size=50), reason=st.text(max_size=300))
def test_no_camera_or_reason_can_forge_a_row(
    camera: str, reason: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Names come from bags and folders, and reasons from the network."""
    folder = tmp_path_factory.mktemp("log")
    with LogWriter(folder) as log:
        log.open(_row(0, Outcome.ABORTED, reason, camera))
        log.close(_row(0, Outcome.FAILED, reason, camera))
        log.close(_row(1))
    assert [row["sequence"] for row in read_rows(folder)] == ["0", "1"]
    assert (folder / CSV_NAME).read_bytes().count(b"\n") == 3


BLANKS = " \t\ufeff"


@pytest.mark.parametrize("reason", ["=1+1", "+1", "-1", "@SUM(1)", " \t=1+1", "\ufeff=1+1", "\uff1d1+1"])
def test_a_text_from_a_worker_is_not_a_formula(reason: str) -> None:
    """A spreadsheet would evaluate it, and a formula can access the network."""
    assert csv_fields(_row(0, Outcome.FAILED, reason))["reason"] == f"'{reason.lstrip(BLANKS)}"


def test_a_text_from_a_worker_has_no_control_characters() -> None:
    """An escape sequence could clear the screen of a reader who uses `cat`."""
    assert csv_fields(_row(0, Outcome.FAILED, "a\x1b[2Jb\x00c\u202ed"))["reason"] == "a [2Jb c d"


def test_a_name_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    """Linux allows any byte in the name of an image folder."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0, camera=os.fsdecode(b"caf\xe9")))
    assert log.rows_lost == 0
    assert next(read_rows(tmp_path))["camera"] == r"caf\udce9"


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    """A second log in the same folder is refused."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    with pytest.raises(LogError, match="already holds a run: choose another --out"):
        LogWriter(tmp_path)
    assert len(list(read_rows(tmp_path))) == 1


def test_a_killed_run_is_repaired_once(tmp_path: Path) -> None:
    """Frames in flight become `aborted`, with the data of the journal, and incomplete rows are removed."""
    with LogWriter(tmp_path) as log:
        for sequence in range(4):
            log.open(_row(sequence, Outcome.ABORTED))
        log.open(_row(3, Outcome.ABORTED))  # A retry of the same frame.
        for sequence in range(2):
            log.close(_row(sequence))
    write_manifest(tmp_path, {"state": "running", "vehicle": "car"})
    for name in (CSV_NAME, JOURNAL_NAME):
        with (tmp_path / name).open("ab") as file:
            file.write(b"car,/left,s1,9,ans")
    assert repair(tmp_path) == 2
    assert repair(tmp_path) == 0
    rows = list(read_rows(tmp_path))
    assert [(row["sequence"], row["outcome"]) for row in rows] == [
        ("0", "answered"), ("1", "answered"), ("2", "aborted"), ("3", "aborted"),
    ]  # fmt: skip
    assert rows[2]["reason"] == "edge_died"
    assert rows[2]["t_due_ns"] == "5"
    manifest = read_manifest(tmp_path)
    assert (manifest["state"], manifest["frames_read"], manifest["vehicle"]) == ("repaired", 4, "car")
    assert sum(manifest["outcomes"].values()) == 4


def test_a_run_in_progress_is_not_repaired(tmp_path: Path) -> None:
    """Its frames in flight would get a second row when they are answered."""
    with LogWriter(tmp_path) as log:
        log.open(_row(0, Outcome.ABORTED))
        with pytest.raises(LogError, match="is being written by a node that still runs: stop it first"):
            repair(tmp_path)
    assert repair(tmp_path) == 1


def test_a_folder_without_a_run_cannot_be_repaired(tmp_path: Path) -> None:
    """The error asks for the folder of a run."""
    with pytest.raises(LogError, match="give the folder of a run"):
        repair(tmp_path)


def test_a_full_disk_loses_only_whole_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, lost rows are counted, and the log stays readable."""
    with disk_of(len(",".join(COLUMNS)) + 1000), LogWriter(tmp_path) as log:
        for sequence in range(100):
            log.close(_row(sequence))
            if log.rows_lost == 1:  # It is logged when it begins, while there may be time to make room, and once.
                assert caplog.text.count("file of the run cannot be written") == 1
    assert caplog.text.count("file of the run cannot be written") == 1
    assert str(tmp_path / CSV_NAME) in caplog.text
    rows = list(read_rows(tmp_path))
    assert 0 < len(rows) < 100
    assert log.rows_lost == 100 - len(rows)
    assert log.fault is not None
    assert log.fault.errno in (errno.EFBIG, errno.ENOSPC)
    assert [int(row["sequence"]) for row in rows] == list(range(len(rows)))


def test_a_partly_written_row_is_removed(tmp_path: Path) -> None:
    """A later row would otherwise follow it on the same line."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0))
        with disk_of((tmp_path / CSV_NAME).stat().st_size + 20):
            log.close(_row(1))
        log.close(_row(2))
    assert [row["sequence"] for row in read_rows(tmp_path)] == ["0", "2"]
    assert log.rows_lost == 1


def test_a_disk_without_space_for_the_header_is_reported(tmp_path: Path) -> None:
    """The run must not start without a log."""
    with disk_of(100), pytest.raises(LogError, match="make room or choose another --out"):
        LogWriter(tmp_path)


def test_a_folder_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    """The parent is a file."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be written"):
        LogWriter(tmp_path / "file" / "run")


def test_a_closed_log_writes_to_no_other_file(tmp_path: Path) -> None:
    """The file descriptor of a closed log is soon reused."""
    with LogWriter(tmp_path) as log:
        pass
    with (tmp_path / "other").open("wb"):
        log.close(ROW)
    assert (tmp_path / "other").read_bytes() == b""
    assert log.rows_lost == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a latency log"),
        ("a,b\n1,2\n", "is not a latency log"),
        (",".join(COLUMNS) + "\n1,2\n", "line 2, is not a row"),
        (",".join(COLUMNS) + "\n" + "," * (len(COLUMNS) - 1) + "\n", "line 2, is not a row"),
        (",".join(COLUMNS) + "\n" + "x" * 200_000 + "\n", "line 2, is not a row"),
    ],
)
def test_a_file_that_is_not_a_latency_log_is_reported(tmp_path: Path, text: str, reason: str) -> None:
    """The error names the line."""
    (tmp_path / CSV_NAME).write_text(text)
    with pytest.raises(LogError, match=reason):
        list(read_rows(tmp_path))


def test_unknown_columns_are_ignored(tmp_path: Path) -> None:
    """Later versions add columns."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    header, row = (tmp_path / CSV_NAME).read_text().splitlines()
    (tmp_path / CSV_NAME).write_text(f"{header},weather\n{row},rain\n")
    assert outcomes(read_rows(tmp_path)) == {Outcome.ANSWERED: 1}


@pytest.mark.parametrize("text", ["[]", "{", "\xff", "[" * 100_000], ids=range(4))
def test_a_broken_manifest_is_reported(tmp_path: Path, text: str) -> None:
    """The error is a LogError."""
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(LogError):
        read_manifest(tmp_path)


def test_lines_that_are_not_rows_can_be_skipped(tmp_path: Path) -> None:
    """A trace of a damaged run shows the other rows, and says which are missing."""
    row = csv_line({"sequence": "7", "outcome": "answered"})
    (tmp_path / CSV_NAME).write_text(f'{",".join(COLUMNS)}\n"open{row}1,2\n{row}')
    problems: list[str] = []
    assert [each["sequence"] for each in read_rows(tmp_path, problems)] == ["7"]
    assert [problem.partition(", ")[2] for problem in problems] == [
        f"line {line}, is not a row of a latency log: it is skipped" for line in (2, 3)
    ]


@pytest.mark.parametrize("value_ns", [0, 1, -1, 10**6, -(10**6) - 5, 86_400 * 10**9])
def test_milliseconds_are_read_back_exactly(value_ns: int) -> None:
    """Spreadsheets remove trailing zeros."""
    text = milliseconds(value_ns)
    assert (
        LATENCY["total_ms"].number(text)
        == LATENCY["total_ms"].number(text.rstrip("0").rstrip(".") if value_ns else text)
        == value_ns
    )
    assert {LATENCY["total_ms"].number(bad) for bad in ("", "soon", "1.2345678", "1e3", "--1", "nan")} == {None}
