import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from analysis.logs.audit import audit
from analysis.logs.problems import SHOWN_PER_KIND
from analysis.logs.run_log import RunLog, load_run
from shared.resources.sampler import RESOURCES_NAME
from shared.runlog.latency_log import COLUMNS, CSV_NAME, LogError, Outcome
from shared.runlog.run_manifest import MANIFEST_NAME
from tests.support import run_damage
from tests.support.run_damage import change, later

FRAMES = 40
WIDTH = len(COLUMNS)
ANSWERED = Outcome.ANSWERED.value
Damage = Callable[[list[str]], list[str]]


def problems_of(run: RunLog) -> list[str]:
    """Returns the problems as text without the folder."""
    return [str(problem).removeprefix(f"{run.folder}/") for problem in run.problems]


def load_damaged(folder: Path, how: Damage) -> RunLog:
    """Replaces the lines of the log by the result of `how` and reads the run."""
    run_damage.write(folder, how(run_damage.lines(folder)))
    return load_run(folder)


LINES: dict[str, tuple[Damage, str]] = {
    # A change that makes exactly one row unreadable, and the expected problem.
    "a field too few": (lambda text: [*text[:3], text[3].rpartition(",")[0], *text[4:]], f"row 4: has {WIDTH - 1} fields, but the header has {WIDTH}"),
    "a field too many": (lambda text: [*text[:3], f"{text[3]},1", *text[4:]], f"row 4: has {WIDTH + 1} fields, but the header has {WIDTH}"),
    "an open quotation mark": (lambda text: [*text[:3], f'"{text[3]}', *text[4:]], "row 4: has an unclosed quotation mark"),
    "an empty line": (lambda text: [*text[:3], "", *text[4:]], "row 4: the line is empty"),
    "a line of garbage": (lambda text: [*text[:3], "x" * 70_000, *text[4:]], "row 4: the line has 70000 bytes"),
    "a carriage return": (lambda text: [*text[:3], f"a\rb{text[3]}", *text[4:]], "row 4: contains a carriage return"),
    "the same row again": (lambda text: [*text[:-1], text[3]], "row 41, column sequence: frame"),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_an_unreadable_line_is_skipped_alone(damaged_run: Path, what: str) -> None:
    """The other rows are still read and keep their line numbers."""
    how, expected = LINES[what]
    run = load_damaged(damaged_run, how)
    assert len(run.frames) == FRAMES - 1
    (problem,) = problems_of(run)
    assert problem.startswith(f"{CSV_NAME}, {expected}")
    assert problem.endswith("skipped")
    change(damaged_run, FRAMES, attempts="x")
    assert any(
        text.startswith(f"{CSV_NAME}, row {FRAMES}, column attempts: 'x'")
        for text in problems_of(load_run(damaged_run))
    )


def test_a_truncated_file_loses_only_its_last_line(damaged_run: Path) -> None:
    """The disk was full, or the copy of the file was interrupted."""
    path = damaged_run / CSV_NAME
    path.write_bytes(path.read_bytes()[:-40])
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES - 1
    assert problems_of(run) == [f"{CSV_NAME}, row {FRAMES + 1}: the line is truncated: the row is skipped"]


def test_a_file_saved_by_a_spreadsheet_is_read(damaged_run: Path) -> None:
    """Spreadsheets write a byte order mark and end lines with CRLF."""
    path = damaged_run / CSV_NAME
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    run = load_run(damaged_run)
    assert not run.problems
    assert len(run.frames) == FRAMES


def test_bytes_that_are_not_text_cost_one_row(damaged_run: Path) -> None:
    """A damaged disk sector must not make the whole run unreadable."""
    path = damaged_run / CSV_NAME
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"car", b"c\xffr", 1)
    path.write_bytes(b"\n".join(lines))
    run = load_run(damaged_run)
    assert problems_of(run) == [f"{CSV_NAME}, row 3: contains bytes that are not UTF-8: the row is skipped"]
    assert len(run.frames) == FRAMES - 1


@pytest.mark.parametrize(
    ("column", "text", "expected"),
    [
        ("outcome", "vanished", "'vanished' is not an outcome"),
        ("sequence", "-1", "'-1' is not an integer"),
        ("sequence", "1.5", "'1.5' is not an integer"),
        ("vehicle", "", "'' is empty"),
        ("session", "", "'' is empty"),
    ],
)
def test_a_row_without_its_identifying_values_is_skipped(
    damaged_run: Path, column: str, text: str, expected: str
) -> None:
    """A row without vehicle, session, sequence number or outcome cannot be counted."""
    change(damaged_run, 7, **{column: text})
    run = load_run(damaged_run)
    assert problems_of(run) == [f"{CSV_NAME}, row 7, column {column}: {expected}: the row is skipped"]
    assert len(run.frames) == FRAMES - 1


@pytest.mark.parametrize(
    "text", ["fast", "1e3", "inf", "nan", "1,5", "1.", ".5", "1.0000001", "--1.000000", "9" * 40, "-1.000000"]
)
def test_a_cell_that_is_not_a_number_is_skipped_alone(damaged_run: Path, text: str) -> None:
    """The row's other columns are kept; the cell becomes NaN, not zero."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, total_ms=text)
    run = load_run(damaged_run)
    (problem,) = problems_of(run)
    assert problem.startswith(f"{CSV_NAME}, row {line}, column total_ms: {text[:40]!r}"[:60])
    assert len(run.frames) == FRAMES
    assert pd.isna(run.frames["total_ms"].iloc[line - 2])
    assert run.frames["inferred_ms"].iloc[line - 2] > 0


def test_milliseconds_without_trailing_zeros_are_read(damaged_run: Path) -> None:
    """Spreadsheets remove trailing zeros; the number stays the same to the nanosecond."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_encoded_ns=lambda _: run_damage.rows(damaged_run)[line - 2]["t_preprocessed_ns"])
    change(damaged_run, line, encoded_ms="0", read_ms="12.5")
    run = load_run(damaged_run)
    assert not run.problems
    assert run.frames[["encoded_ms", "read_ms"]].iloc[line - 2].tolist() == [0.0, 12.5]


def test_empty_cells_are_reported_once_per_row(damaged_run: Path) -> None:
    """A worker that reports no stage times leaves seventeen empty cells, which become a single problem."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, **dict.fromkeys(("t_inferred_ns", "inferred_ms", "batched_ms"), ""))
    (problem,) = problems_of(load_run(damaged_run))
    assert problem == (
        f"{CSV_NAME}, row {line}, column t_inferred_ns: is empty, and 2 more columns, but the frame was answered"
    )


def test_a_row_with_decreasing_timestamps_loses_its_times_and_keeps_its_outcome(damaged_run: Path) -> None:
    """No duration of such a row can be trusted, but the frame was answered."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_decoded_ns=later(-(10**10)))
    run = load_run(damaged_run)
    row = run.frames.iloc[line - 2]
    assert row["outcome"] == ANSWERED
    assert pd.isna(row[["total_ms", "t_due_ns", "inferred_ms", "crossing_ms"]]).all()
    assert row["bytes_up"] > 0
    (problem,) = problems_of(run)
    assert re.fullmatch(
        rf"{CSV_NAME}, row {line}, column t_decoded_ns: is \d+ ns before the previous timestamp: "
        "the row's times are skipped",
        problem,
    )


def test_a_log_with_rows_of_two_runs_keeps_the_session_of_the_manifest(damaged_run: Path) -> None:
    """The manifest decides, even if the other run has more rows."""
    text = run_damage.lines(damaged_run)
    session = json.loads((damaged_run / MANIFEST_NAME).read_text())["session"]
    foreign = [line.replace(session, "another") for line in text[1:]]
    run_damage.write(damaged_run, [*text[:4], *foreign])
    run = load_run(damaged_run)
    assert set(run.frames["session"]) == {session}
    assert len(run.frames) == 3
    problems = problems_of(run)
    assert problems[0] == (
        f"{CSV_NAME}, row 5, column session: belongs to another run (vehicle 'car', session 'another'; "
        f"this one: 'car', '{session}'): the row is skipped"
    )
    assert len(problems) == SHOWN_PER_KIND + 1
    assert problems[-1] == f"{CSV_NAME}: {FRAMES - SHOWN_PER_KIND} more rows of other runs"


def test_without_a_manifest_the_run_with_the_most_rows_is_kept(damaged_run: Path) -> None:
    """The missing manifest is reported as a problem."""
    (damaged_run / MANIFEST_NAME).unlink()
    change(damaged_run, 2, vehicle="van")
    run = load_run(damaged_run)
    assert set(run.frames["vehicle"]) == {"car"}
    assert not run.manifest
    row_problem, manifest_problem = problems_of(run)
    assert row_problem.startswith(f"{CSV_NAME}, row 2, column session: belongs to another run (vehicle 'van'")
    assert manifest_problem == f"{MANIFEST_NAME}: is missing: source, model and settings of the run are unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a run's manifest"),
        ('{"session": "another"}', "belongs to session 'another', but no row of the log does: it is ignored"),
        ('{"session": ["x"]}', "belongs to session ['x'], but no row of the log does: it is ignored"),
        ("{}", "belongs to session None, but no row of the log does: it is ignored"),
    ],
)
def test_a_manifest_that_is_broken_or_of_another_run_is_ignored(damaged_run: Path, text: str, expected: str) -> None:
    """A run must not be described by the manifest of another run."""
    (damaged_run / MANIFEST_NAME).write_text(text)
    run = load_run(damaged_run)
    assert not run.manifest
    assert len(run.frames) == FRAMES
    (problem,) = problems_of(run)
    assert problem.startswith(f"{MANIFEST_NAME}: {expected}")


RESOURCES: dict[str, tuple[Damage, str, int]] = {
    # A change of the lines, the expected problem, and the number of skipped rows.
    "not a number": (lambda text: [*text[:2], re.sub(r"^(\d+,[^,]+,\d*),", r"\1,fast", text[2]), *text[3:]], "row 3, column", 0),
    "no time": (lambda text: [text[0], f"x{text[1]}", *text[2:]], "row 2, column at_ns: is not an integer", 1),
    "no node": (lambda text: [text[0], text[1].replace("machine", ""), *text[2:]], "row 2, column node: is empty", 1),
    "a field too few": (lambda text: [text[0], text[1][:-1], *text[2:]], "row 2: has 9 fields, but the header has 10", 1),
}  # fmt: skip


@pytest.mark.parametrize("what", RESOURCES)
def test_broken_resources_are_reported_and_do_not_affect_the_frames(damaged_run: Path, what: str) -> None:
    """An unreadable resource file must not make the run unreadable."""
    how, expected, skipped = RESOURCES[what]
    text = run_damage.lines(damaged_run, RESOURCES_NAME)
    run_damage.write(damaged_run, how(text), RESOURCES_NAME)
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES
    assert len(run.resources) == len(text) - 1 - skipped
    (problem,) = problems_of(run)
    assert problem.startswith(f"{RESOURCES_NAME}, {expected}")
    assert audit(damaged_run) == run.problems


@pytest.mark.parametrize("text", ["", "\n", "a,b\n1,2\n", "a,a\n"])
def test_a_resource_file_with_other_columns_is_skipped_whole(damaged_run: Path, text: str) -> None:
    """The file only has the name of a resource file."""
    (damaged_run / RESOURCES_NAME).write_text(text)
    run = load_run(damaged_run)
    assert run.resources.empty
    assert len(run.problems) == 1
    (damaged_run / RESOURCES_NAME).unlink()
    assert not load_run(damaged_run).problems


def test_a_log_with_other_columns_is_rejected_with_the_nearest_names(damaged_run: Path) -> None:
    """The reader must not guess columns, but naming the nearest one helps a user who renamed it."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, [text[0].replace("total_ms", "totals_ms").replace(",outcome", ",result"), *text[1:]])
    with pytest.raises(
        LogError, match=r"the log has another version: it has no column outcome, total_ms .but totals_ms."
    ):
        load_run(damaged_run)
    run_damage.write(damaged_run, ["time,value", "1,2"])
    with pytest.raises(
        LogError, match=r"latency.csv, row 1: this is not a latency log: it has no column vehicle, .* more"
    ):
        load_run(damaged_run)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"\x00" * 100, b'"', b"a,a\n"])
def test_a_file_that_is_not_a_table_is_rejected_in_one_line(damaged_run: Path, content: bytes) -> None:
    """The log is empty, binary, or a single quotation mark."""
    (damaged_run / CSV_NAME).write_bytes(content)
    with pytest.raises(LogError, match=r"latency\.csv, row 1"):
        load_run(damaged_run)


def test_a_folder_without_a_run_is_rejected(tmp_path: Path) -> None:
    """A wrong path is the most common mistake; the message asks for the folder of a run."""
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(LogError, match=r"latency\.csv cannot be read: No such file or directory: give the folder"):
            load_run(folder)


def test_problems_of_one_kind_are_listed_up_to_a_limit_and_then_counted(damaged_run: Path) -> None:
    """A file with a hundred thousand broken rows must not produce a report of a hundred thousand lines."""
    chance = random.Random(5)
    path = damaged_run / CSV_NAME
    path.write_bytes(path.read_bytes() + chance.randbytes(200_000) + b"\n" + b"1,2,3\n" * 5000)
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES
    assert len(run.problems) == SHOWN_PER_KIND + 1
    assert re.fullmatch(rf"{CSV_NAME}: \d{{4}} more lines that are not rows", problems_of(run)[-1])


def test_a_session_that_is_not_text_matches_no_log(damaged_run: Path) -> None:
    """This manifest beside an empty log once caused a traceback."""
    run_damage.write(damaged_run, run_damage.lines(damaged_run)[:1])
    run_damage.change_manifest(damaged_run, session=[1, 2])
    run = load_run(damaged_run)
    assert run.manifest == {}
    assert any("belongs to session [1, 2]" in problem for problem in problems_of(run))
