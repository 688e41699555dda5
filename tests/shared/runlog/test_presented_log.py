import errno
from dataclasses import replace
from pathlib import Path

import pytest

from shared.runlog.latency_log import LogError
from shared.runlog.presented_log import (
    COLUMNS,
    PRESENTED_NAME,
    OutputOrigin,
    PresentedLog,
    PresentedRow,
    read_presented,
)
from tests.full_disk import disk_of

DUE_NS = 1_764_000_000_123_456_789  # A float loses its last digits.
ROW = PresentedRow(
    camera="/camera/left",
    session="s1",
    tick=7,
    origin=OutputOrigin.WARPED,
    frame_index=7,
    frame_stamp_ns=-5,
    due_ns=DUE_NS,
    presented_ns=DUE_NS + 1,
    source_sequence=5,
    age_ns=200_000_001,
    processing_ns=4_900_001,
    flow="quarter",
)
MISSING = PresentedRow("/camera/left", "s1", 8, OutputOrigin.NONE, "too_old", 8, 9, DUE_NS, DUE_NS)
HEADER = ",".join(COLUMNS)


def _write(folder: Path, *rows: PresentedRow) -> PresentedLog:
    with PresentedLog(folder) as log:
        for row in rows:
            log.write(row)
    return log


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Times are exact to the nanosecond, and what is unknown stays unknown."""
    _write(tmp_path, ROW, MISSING)
    assert list(read_presented(tmp_path)) == [ROW, MISSING]


def test_the_log_counts_its_rows(tmp_path: Path) -> None:
    """The manifest has the counts; details after a colon would make every failure a reason of its own."""
    failed = replace(MISSING, reason="failed: 7 is no size")
    log = _write(tmp_path, ROW, MISSING, failed, replace(failed, reason="failed: 8 is no size"))
    assert log.counts.record() == {
        "ticks": {"remote": 0, "warped": 1, "local": 0, "fused": 0, "none": 3},
        "reasons": {"failed": 2, "too_old": 1},
        "flows": {"quarter": 1},
    }


def test_texts_of_an_error_stay_in_their_cell(tmp_path: Path) -> None:
    """An error message may have line breaks and commas, and a spreadsheet evaluates what begins like a formula."""
    _write(tmp_path, replace(MISSING, reason='failed: a\n"b", c\x1b'), replace(MISSING, reason="=1+1"))
    reasons = [row.reason for row in read_presented(tmp_path)]
    assert reasons[0].startswith('failed: a "b", c')
    assert "\x1b" not in reasons[0]
    assert reasons[1] == "'=1+1"
    assert len((tmp_path / PRESENTED_NAME).read_text().splitlines()) == 3


def test_a_full_disk_loses_only_whole_rows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run goes on, lost rows are counted, and the log stays readable."""
    with disk_of(len(HEADER) + 1000):
        log = _write(tmp_path, *(replace(ROW, tick=tick) for tick in range(100)))
    assert caplog.text.count("file of the run cannot be written") == 1
    ticks = [row.tick for row in read_presented(tmp_path)]
    assert 0 < len(ticks) < 100
    assert ticks == list(range(len(ticks)))
    assert log.rows_lost == 100 - len(ticks)
    assert log.fault is not None
    assert log.fault.errno in (errno.EFBIG, errno.ENOSPC)
    assert log.counts.ticks.total() == 100


def test_a_disk_without_space_for_the_header_is_reported(tmp_path: Path) -> None:
    """The run must not start without a log, and the next one must find no half of one."""
    with disk_of(20), pytest.raises(LogError, match="make room or choose another --out"):
        PresentedLog(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_existing_log_is_not_overwritten(tmp_path: Path) -> None:
    """It belongs to another run."""
    _write(tmp_path, ROW)
    with pytest.raises(LogError, match="exists already: choose another --out"):
        PresentedLog(tmp_path)
    assert list(read_presented(tmp_path)) == [ROW]


def test_a_closed_log_writes_to_no_other_file(tmp_path: Path) -> None:
    """The file descriptor of a closed log is soon reused."""
    with PresentedLog(tmp_path) as log:
        pass
    with (tmp_path / "other").open("wb"):
        log.write(ROW)
    assert (tmp_path / "other").read_bytes() == b""
    assert log.rows_lost == 1


def test_a_row_that_a_kill_cut_short_is_left_out(tmp_path: Path) -> None:
    """The rows before it are complete."""
    _write(tmp_path, ROW, MISSING)
    path = tmp_path / PRESENTED_NAME
    path.write_bytes(path.read_bytes()[:-20])
    assert list(read_presented(tmp_path)) == [ROW]


def test_columns_of_a_later_version_are_skipped(tmp_path: Path) -> None:
    """New columns come at the end."""
    _write(tmp_path, ROW)
    path = tmp_path / PRESENTED_NAME
    path.write_text("".join(f"{line},more\n" for line in path.read_text().splitlines()))
    assert list(read_presented(tmp_path)) == [ROW]


CELLS = {
    "an unknown origin": ("origin", "guessed", "'guessed' is no origin"),
    "no tick": ("tick", "", "'' is no number of a tick"),
    "a negative tick": ("tick", "-1", "'-1' is no number of a tick"),
    "text in a number column": ("due_ns", "soon", "its due_ns is 'soon'"),
    "a number beyond 64 bits": ("age_ns", "9" * 19, "its age_ns is '9"),
    "digits of another script": ("age_ns", "٣", "its age_ns is"),
    "a negative duration": ("processing_ms", "-1.000000", "its processing_ms is"),
}


@pytest.mark.parametrize("what", CELLS)
def test_a_damaged_cell_is_named(tmp_path: Path, what: str) -> None:
    """The error says where to look."""
    column, text, problem = CELLS[what]
    _write(tmp_path, ROW)
    path = tmp_path / PRESENTED_NAME
    header, line = path.read_text().splitlines()
    cells = line.split(",")
    cells[COLUMNS.index(column)] = text
    path.write_text(f"{header}\n{','.join(cells)}\n")
    with pytest.raises(LogError, match=f"presented.csv, line 2, is not a row of a log of outputs: {problem}"):
        list(read_presented(tmp_path))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is no log of outputs"),
        (b"a,b\n1,2\n", "is no log of outputs"),
        (f"{HEADER}\n1,2\n".encode(), "line 2, is not a row"),
        (f'{HEADER}\n"1\n'.encode(), "line 2, cannot be read"),
        (f"{HEADER}\n".encode() + b"7" * (1 << 20), "line 2, has more than 16384 bytes"),
        (bytes(range(256)) * 8, "is no log of outputs"),
    ],
    ids=["empty", "another file", "too few fields", "an open quotation mark", "an endless line", "binary"],
)
def test_another_file_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    """Reading needs little memory, whatever the file contains."""
    (tmp_path / PRESENTED_NAME).write_bytes(data)
    with pytest.raises(LogError, match=problem):
        list(read_presented(tmp_path))


def test_a_missing_log_is_reported(tmp_path: Path) -> None:
    """The run had no presenter."""
    with pytest.raises(LogError, match="cannot be read: No such file"):
        list(read_presented(tmp_path))


def test_spreadsheets_may_shorten_milliseconds(tmp_path: Path) -> None:
    """They remove trailing zeros."""
    _write(tmp_path, replace(ROW, processing_ns=5_500_000))
    path = tmp_path / PRESENTED_NAME
    path.write_text(path.read_text().replace("5.500000", "5.5"))
    assert [row.processing_ns for row in read_presented(tmp_path)] == [5_500_000]
