import csv
import errno
import io
import os
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.clock import Offset
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
    milliseconds,
    outcomes,
    read_rows,
)
from shared.runlog.repair import repair
from shared.runlog.run_manifest import read_manifest, write_manifest
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage
from tests.full_disk import disk_of

ROW = LatencyRow(
    vehicle="car",
    camera="/left",
    session="s1",
    sequence=0,
    outcome=Outcome.ANSWERED,
    worker="w",
    edge_times={stage: 1_000 * place for place, stage in enumerate(EDGE_STAGES)},
    cloud_times={stage: 10**15 + 7 * place for place, stage in enumerate(CLOUD_STAGES)},
    clock=Offset(10**15 - 5_500, 400),
)


def _row(sequence: int, outcome: Outcome = Outcome.ANSWERED, reason: str = "", camera: str = "/left") -> LatencyRow:
    return LatencyRow("car", camera, "s1", sequence, outcome, reason, edge_times={Stage.DUE: 5})


@given(st.integers(-(10**15), 10**15))
def test_milliseconds_are_exact(value_ns: int) -> None:
    """Sums of the columns must equal the column of the sum, digit for digit."""
    assert Decimal(milliseconds(value_ns)) == Decimal(value_ns) / 1_000_000


@given(st.lists(st.text(max_size=10), min_size=len(COLUMNS), max_size=len(COLUMNS)))
def test_a_line_is_what_the_csv_module_writes(values: list[str]) -> None:
    """Whatever is in a field; the quick way must not be another way."""
    expected = io.StringIO()
    csv.writer(expected, lineterminator="\n").writerow(values)
    assert csv_line(dict(zip(COLUMNS, values, strict=True))) == expected.getvalue()


@given(st.data())
def test_the_durations_of_a_row_sum_to_its_totals(data: st.DataObject) -> None:
    """The promise of the CSV: nothing of the time is missing, nothing counted twice."""
    edge = sorted(data.draw(st.lists(st.integers(0, 10**12), min_size=8, max_size=8)))
    cloud = sorted(data.draw(st.lists(st.integers(0, 10**12), min_size=8, max_size=8)))
    row = LatencyRow(
        "car", "/left", "s1", 0, Outcome.ANSWERED,
        edge_times=dict(zip(EDGE_STAGES, edge, strict=True)),
        cloud_times=dict(zip(CLOUD_STAGES, cloud, strict=True)),
        clock=Offset(data.draw(st.integers(-(10**9), 10**9)), 5),
    )  # fmt: skip
    fields = {key: Decimal(value) for key, value in csv_fields(row).items() if key.endswith("_ms")}
    assert sum(fields[f"{stage}_ms"] for stage in EDGE_STAGES[1:]) == fields["total_ms"]
    assert sum(fields[f"{stage}_ms"] for stage in CLOUD_STAGES[1:]) == fields["cloud_ms"]
    assert fields["returned_ms"] == fields["cloud_ms"] + fields["crossing_ms"]
    assert fields["uplink_ms"] + fields["downlink_ms"] == fields["crossing_ms"]


def test_what_was_not_measured_is_empty_and_never_nought(tmp_path: Path) -> None:
    """A dropped frame has no inference time; a nought would lower every mean."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0, Outcome.DROPPED, "window"))
    (row,) = read_rows(tmp_path)
    assert (row["outcome"], row["reason"], row["t_due_ns"]) == ("dropped", "window", "5")
    assert row["total_ms"] == row["inferred_ms"] == row["t_sent_ns"] == row["clock_offset_ms"] == ""


def test_the_file_is_the_schema(tmp_path: Path) -> None:
    """Other programs read it by its column names, from the first line."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    with (tmp_path / CSV_NAME).open(newline="") as file:
        header, row = csv.reader(file)
    assert tuple(header) == COLUMNS
    assert len(row) == len(COLUMNS)
    assert len(set(COLUMNS)) == len(COLUMNS)


@given(camera=st.text(max_size=50), reason=st.text(max_size=300))
def test_any_camera_and_reason_stay_one_row(camera: str, reason: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Names come from bags and folders, reasons from the wire; a line feed in one must not forge a row."""
    folder = tmp_path_factory.mktemp("log")
    with LogWriter(folder) as log:
        log.open(_row(0, Outcome.ABORTED, reason, camera))
        log.close(_row(0, Outcome.FAILED, reason, camera))
        log.close(_row(1))
    assert [row["sequence"] for row in read_rows(folder)] == ["0", "1"]
    assert (folder / CSV_NAME).read_bytes().count(b"\n") == 3


BLANKS = " \t\ufeff"


@pytest.mark.parametrize("reason", ["=1+1", "+1", "-1", "@SUM(1)", " \t=1+1", "\ufeff=1+1", "\uff1d1+1"])
def test_a_workers_words_are_no_formula(reason: str) -> None:
    """Whoever opens the log in a spreadsheet calculates what begins like that, and may fetch and send with it."""
    assert csv_fields(_row(0, Outcome.FAILED, reason))["reason"] == f"'{reason.lstrip(BLANKS)}"


def test_a_workers_words_do_not_steer_a_terminal() -> None:
    """The log is read by `cat` and `less` too: an escape could clear the screen, or write over what was said."""
    assert csv_fields(_row(0, Outcome.FAILED, "a\x1b[2Jb\x00c\u202ed"))["reason"] == "a [2Jb c d"


def test_a_folder_whose_name_is_not_utf8_can_be_logged(tmp_path: Path) -> None:
    """Linux allows any byte in a name; a folder of pictures is called by it."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0, camera=os.fsdecode(b"caf\xe9")))
    assert log.rows_lost == 0
    assert next(read_rows(tmp_path))["camera"] == r"caf\udce9"


def test_a_run_is_never_written_over(tmp_path: Path) -> None:
    """Nothing written is lost."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    with pytest.raises(LogError, match="already holds a run: choose another --out"):
        LogWriter(tmp_path)
    assert len(list(read_rows(tmp_path))) == 1


def test_a_killed_run_is_closed_once(tmp_path: Path) -> None:
    """Frames that were open when the edge died are `aborted`, with all that was known of them; half rows are cut off."""
    with LogWriter(tmp_path) as log:
        for sequence in range(4):
            log.open(_row(sequence, Outcome.ABORTED))
        log.open(_row(3, Outcome.ABORTED))  # A frame that was sent twice is still one frame.
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


def test_a_run_that_goes_on_is_not_repaired(tmp_path: Path) -> None:
    """Its open frames would get a second row when they are answered."""
    with LogWriter(tmp_path) as log:
        log.open(_row(0, Outcome.ABORTED))
        with pytest.raises(LogError, match="is being written by a node that still runs: stop it first"):
            repair(tmp_path)
    assert repair(tmp_path) == 1


def test_a_run_killed_before_its_manifest_can_still_be_repaired(tmp_path: Path) -> None:
    """The manifest is written a moment after the log begins."""
    with LogWriter(tmp_path) as log:
        log.open(_row(0, Outcome.ABORTED))
    assert repair(tmp_path) == 1


def test_what_is_no_run_cannot_be_repaired(tmp_path: Path) -> None:
    """The user gave the wrong folder."""
    with pytest.raises(LogError, match="give the folder of a run"):
        repair(tmp_path)


def test_a_full_disk_loses_rows_but_never_half_of_one(tmp_path: Path) -> None:
    """The run goes on, the loss is counted, and what was written stays readable."""
    with disk_of(len(",".join(COLUMNS)) + 1000), LogWriter(tmp_path) as log:
        for sequence in range(100):
            log.close(_row(sequence))
    rows = list(read_rows(tmp_path))
    assert 0 < len(rows) < 100
    assert log.rows_lost == 100 - len(rows)
    assert log.fault is not None
    assert log.fault.errno in (errno.EFBIG, errno.ENOSPC)
    assert [int(row["sequence"]) for row in rows] == list(range(len(rows)))


def test_half_a_row_is_taken_back_before_there_is_room_again(tmp_path: Path) -> None:
    """The next row would be written behind it, and the log be unreadable from there on."""
    with LogWriter(tmp_path) as log:
        log.close(_row(0))
        with disk_of((tmp_path / CSV_NAME).stat().st_size + 20):
            log.close(_row(1))
        log.close(_row(2))
    assert [row["sequence"] for row in read_rows(tmp_path)] == ["0", "2"]
    assert log.rows_lost == 1


def test_a_disk_without_room_for_the_first_line_is_told_at_once(tmp_path: Path) -> None:
    """A run without a log is none."""
    with disk_of(100), pytest.raises(LogError, match="make room or choose another --out"):
        LogWriter(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    """One line and not a traceback."""
    (tmp_path / "file").write_text("")
    with pytest.raises(LogError, match="cannot be written"):
        LogWriter(tmp_path / "file" / "run")


def test_a_thread_that_outlives_the_log_writes_nowhere(tmp_path: Path) -> None:
    """The number of a closed file is soon another file's."""
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
        (",".join(COLUMNS) + "\n" + "x" * 200_000 + "\n", "cannot be read"),
    ],
)
def test_a_foreign_file_is_told_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    """`report` is given whatever lies around."""
    (tmp_path / CSV_NAME).write_text(text)
    with pytest.raises(LogError, match=reason):
        list(read_rows(tmp_path))


def test_columns_of_a_later_version_are_read_over(tmp_path: Path) -> None:
    """The next version adds some."""
    with LogWriter(tmp_path) as log:
        log.close(ROW)
    header, row = (tmp_path / CSV_NAME).read_text().splitlines()
    (tmp_path / CSV_NAME).write_text(f"{header},reused\n{row},yes\n")
    assert outcomes(read_rows(tmp_path)) == {Outcome.ANSWERED: 1}


@pytest.mark.parametrize("text", ["[]", "{", "\xff"])
def test_a_broken_manifest_is_told(tmp_path: Path, text: str) -> None:
    """One line and not a traceback."""
    (tmp_path / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(LogError):
        read_manifest(tmp_path)
