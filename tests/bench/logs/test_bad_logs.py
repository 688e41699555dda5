"""What is broken in a run's files is named by file, row and column; the rest is read, and nothing is filled in."""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from bench.logs.audit import audit
from bench.logs.problems import SHOWN
from bench.logs.run_log import RunLog, load_run
from shared.resources.sampler import RESOURCES_NAME
from shared.runlog.latency_log import COLUMNS, CSV_NAME, LogError, Outcome
from shared.runlog.run_manifest import MANIFEST_NAME
from tests.support import run_damage
from tests.support.run_damage import change, later

FRAMES = 40
WIDTH = len(COLUMNS)
ANSWERED = Outcome.ANSWERED.value
Damage = Callable[[list[str]], list[str]]


def told(run: RunLog) -> list[str]:
    """The problems as lines without the folder."""
    return [str(problem).removeprefix(f"{run.folder}/") for problem in run.problems]


def damaged(folder: Path, how: Damage) -> RunLog:
    """The run after its log's lines have become others."""
    run_damage.write(folder, how(run_damage.lines(folder)))
    return load_run(folder)


LINES: dict[str, tuple[Damage, str]] = {
    # What becomes of the lines so that exactly one row is lost, and what is said of it.
    "a field too few": (lambda text: [*text[:3], text[3].rpartition(",")[0], *text[4:]], f"row 4: has {WIDTH - 1} fields where {WIDTH}"),
    "a field too many": (lambda text: [*text[:3], f"{text[3]},1", *text[4:]], f"row 4: has {WIDTH + 1} fields where {WIDTH}"),
    "an open quotation mark": (lambda text: [*text[:3], f'"{text[3]}', *text[4:]], "row 4: has a quotation mark that is"),
    "an empty line": (lambda text: [*text[:3], "", *text[4:]], "row 4: the line is empty"),
    "a line of garbage": (lambda text: [*text[:3], "x" * 70_000, *text[4:]], "row 4: the line has 70000 bytes"),
    "a line end in the midst": (lambda text: [*text[:3], f"a\rb{text[3]}", *text[4:]], "row 4: holds a line end"),
    "the same row again": (lambda text: [*text[:-1], text[3]], "row 41, column sequence: frame"),
}  # fmt: skip


@pytest.mark.parametrize("what", LINES)
def test_a_line_that_is_no_row_is_left_out_alone(damaged_run: Path, what: str) -> None:
    """Its neighbours are measured as well as ever, and keep the numbers of their lines."""
    how, said = LINES[what]
    run = damaged(damaged_run, how)
    assert len(run.frames) == FRAMES - 1
    (problem,) = told(run)
    assert problem.startswith(f"{CSV_NAME}, {said}")
    assert problem.endswith("left out")
    change(damaged_run, FRAMES, attempts="x")
    assert any(
        text.startswith(f"{CSV_NAME}, row {FRAMES}, column attempts: 'x'") for text in told(load_run(damaged_run))
    )


def test_a_file_cut_short_loses_its_last_line_alone(damaged_run: Path) -> None:
    """A disk that filled, a copy that broke off."""
    path = damaged_run / CSV_NAME
    path.write_bytes(path.read_bytes()[:-40])
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES - 1
    assert told(run) == [f"{CSV_NAME}, row {FRAMES + 1}: the line is cut short: the row is left out"]


def test_a_file_that_an_editor_saved_is_read(damaged_run: Path) -> None:
    """Spreadsheets put a mark before the first column and CRLF behind every row."""
    path = damaged_run / CSV_NAME
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    run = load_run(damaged_run)
    assert not run.problems
    assert len(run.frames) == FRAMES


def test_bytes_that_are_no_text_cost_one_row(damaged_run: Path) -> None:
    """A bad sector is not a reason to lose the run."""
    path = damaged_run / CSV_NAME
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"car", b"c\xffr", 1)
    path.write_bytes(b"\n".join(lines))
    run = load_run(damaged_run)
    assert told(run) == [f"{CSV_NAME}, row 3: holds bytes that are not UTF-8 text: the row is left out"]
    assert len(run.frames) == FRAMES - 1


@pytest.mark.parametrize(
    ("column", "text", "said"),
    [
        ("outcome", "vanished", "'vanished' is no outcome"),
        ("sequence", "-1", "'-1' is no whole number"),
        ("sequence", "1.5", "'1.5' is no whole number"),
        ("vehicle", "", "'' is empty"),
        ("session", "", "'' is empty"),
    ],
)
def test_a_row_that_does_not_say_what_it_is_of_is_left_out(
    damaged_run: Path, column: str, text: str, said: str
) -> None:
    """Nothing can be counted that has no name or no end."""
    change(damaged_run, 7, **{column: text})
    run = load_run(damaged_run)
    assert told(run) == [f"{CSV_NAME}, row 7, column {column}: {said}: the row is left out"]
    assert len(run.frames) == FRAMES - 1


@pytest.mark.parametrize(
    "text", ["fast", "1e3", "inf", "nan", "1,5", "1.", ".5", "1.0000001", "--1.000000", "9" * 40, "-1.000000"]
)
def test_a_cell_that_holds_no_number_is_left_out_alone(damaged_run: Path, text: str) -> None:
    """The row's other columns were measured; the cell becomes a hole, not a zero."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, total_ms=text)
    run = load_run(damaged_run)
    (problem,) = told(run)
    assert problem.startswith(f"{CSV_NAME}, row {line}, column total_ms: {text[:40]!r}"[:60])
    assert len(run.frames) == FRAMES
    assert pd.isna(run.frames["total_ms"].iloc[line - 2])
    assert run.frames["inferred_ms"].iloc[line - 2] > 0


def test_milliseconds_that_a_spreadsheet_wrote_are_read(damaged_run: Path) -> None:
    """It leaves the zeros at the end out; the number is the same, to the nanosecond."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_encoded_ns=lambda _: run_damage.rows(damaged_run)[line - 2]["t_preprocessed_ns"])
    change(damaged_run, line, encoded_ms="0", read_ms="12.5")
    run = load_run(damaged_run)
    assert not run.problems
    assert run.frames[["encoded_ms", "read_ms"]].iloc[line - 2].tolist() == [0.0, 12.5]


def test_holes_are_told_once_a_row(damaged_run: Path) -> None:
    """A worker that tells none of its stages leaves seventeen holes: one line says so."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, **dict.fromkeys(("t_inferred_ns", "inferred_ms", "batched_ms"), ""))
    (problem,) = told(load_run(damaged_run))
    assert problem == (
        f"{CSV_NAME}, row {line}, column t_inferred_ns: is empty, and 2 more columns, though the frame was answered"
    )


def test_a_clock_that_runs_backwards_costs_the_row_its_times_and_not_its_outcome(damaged_run: Path) -> None:
    """No duration of such a row is true; that the frame was answered is."""
    line = run_damage.line_of(damaged_run, ANSWERED)
    change(damaged_run, line, t_decoded_ns=later(-(10**10)))
    run = load_run(damaged_run)
    row = run.frames.iloc[line - 2]
    assert row["outcome"] == ANSWERED
    assert pd.isna(row[["total_ms", "t_due_ns", "inferred_ms", "crossing_ms"]]).all()
    assert row["bytes_up"] > 0
    (problem,) = told(run)
    assert re.fullmatch(
        rf"{CSV_NAME}, row {line}, column t_decoded_ns: is \d+ ns before the stamp it follows: "
        "the row's times are left out",
        problem,
    )


def test_of_two_runs_mixed_in_a_file_the_manifests_is_kept(damaged_run: Path) -> None:
    """Their figures together are nobody's; most rows are no argument where the manifest says which run it is."""
    text = run_damage.lines(damaged_run)
    session = json.loads((damaged_run / MANIFEST_NAME).read_text())["session"]
    foreign = [line.replace(session, "another") for line in text[1:]]
    run_damage.write(damaged_run, [*text[:4], *foreign])
    run = load_run(damaged_run)
    assert set(run.frames["session"]) == {session}
    assert len(run.frames) == 3
    problems = told(run)
    assert problems[0] == (
        f"{CSV_NAME}, row 5, column session: is of another run (vehicle 'car', session 'another'; "
        f"this one: 'car', '{session}'): the row is left out"
    )
    assert len(problems) == SHOWN + 1
    assert problems[-1] == f"{CSV_NAME}: {FRAMES - SHOWN} more rows of other runs"


def test_where_no_manifest_tells_the_run_with_most_rows_is_kept(damaged_run: Path) -> None:
    """And that the manifest is missing is said."""
    (damaged_run / MANIFEST_NAME).unlink()
    change(damaged_run, 2, vehicle="van")
    run = load_run(damaged_run)
    assert set(run.frames["vehicle"]) == {"car"}
    assert not run.manifest
    of_row, of_manifest = told(run)
    assert of_row.startswith(f"{CSV_NAME}, row 2, column session: is of another run (vehicle 'van'")
    assert of_manifest == f"{MANIFEST_NAME}: is not there: what was played to whom by what is not known"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a run's manifest"),
        ('{"session": "another"}', "is of session 'another', which no row of the log is of: it is left out"),
        ('{"session": ["x"]}', "is of session ['x'], which no row of the log is of: it is left out"),
        ("{}", "is of session None, which no row of the log is of: it is left out"),
    ],
)
def test_a_manifest_that_is_broken_or_anothers_is_left_out(damaged_run: Path, text: str, said: str) -> None:
    """A run must not be described by what another was made of."""
    (damaged_run / MANIFEST_NAME).write_text(text)
    run = load_run(damaged_run)
    assert not run.manifest
    assert len(run.frames) == FRAMES
    (problem,) = told(run)
    assert problem.startswith(f"{MANIFEST_NAME}: {said}")


RESOURCES: dict[str, tuple[Damage, str, int]] = {
    # What becomes of the lines, what is said of it, and how many rows are lost.
    "no number": (lambda text: [*text[:2], re.sub(r"^(\d+,[^,]+,\d*),", r"\1,fast", text[2]), *text[3:]], "row 3, column", 0),
    "no time": (lambda text: [text[0], f"x{text[1]}", *text[2:]], "row 2, column at_ns: is no whole number", 1),
    "no node": (lambda text: [text[0], text[1].replace("machine", ""), *text[2:]], "row 2, column node: is empty", 1),
    "a field too few": (lambda text: [text[0], text[1][:-1], *text[2:]], "row 2: has 9 fields where 10 are named", 1),
}  # fmt: skip


@pytest.mark.parametrize("what", RESOURCES)
def test_broken_resources_are_told_and_hurt_no_figure_of_time(damaged_run: Path, what: str) -> None:
    """What was sampled beside a run is no reason to lose the run."""
    how, said, lost = RESOURCES[what]
    text = run_damage.lines(damaged_run, RESOURCES_NAME)
    run_damage.write(damaged_run, how(text), RESOURCES_NAME)
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES
    assert len(run.resources) == len(text) - 1 - lost
    (problem,) = told(run)
    assert problem.startswith(f"{RESOURCES_NAME}, {said}")
    assert audit(damaged_run) == run.problems


@pytest.mark.parametrize("text", ["", "\n", "a,b\n1,2\n", "a,a\n"])
def test_resources_of_another_kind_are_left_out_whole(damaged_run: Path, text: str) -> None:
    """A file that happens to be called so."""
    (damaged_run / RESOURCES_NAME).write_text(text)
    run = load_run(damaged_run)
    assert run.resources.empty
    assert len(run.problems) == 1
    (damaged_run / RESOURCES_NAME).unlink()
    assert not load_run(damaged_run).problems


def test_another_schema_is_refused_with_its_columns(damaged_run: Path) -> None:
    """Guessing which column was meant would fill figures in; naming the nearest one helps whoever renamed it."""
    text = run_damage.lines(damaged_run)
    run_damage.write(damaged_run, [text[0].replace("total_ms", "totals_ms").replace(",outcome", ",result"), *text[1:]])
    with pytest.raises(LogError, match=r"it is of another version: it has no column outcome, total_ms .but totals_ms."):
        load_run(damaged_run)
    run_damage.write(damaged_run, ["time,value", "1,2"])
    with pytest.raises(
        LogError, match=r"latency.csv, row 1: this is no latency log: it has no column vehicle, .* more"
    ):
        load_run(damaged_run)


@pytest.mark.parametrize("content", [b"", b"\n", b"\xff\xfe\x00", b"\x00" * 100, b'"', b"a,a\n"])
def test_what_is_no_table_is_refused_in_one_line(damaged_run: Path, content: bytes) -> None:
    """An empty file, a binary one, one of nothing but a quotation mark."""
    (damaged_run / CSV_NAME).write_bytes(content)
    with pytest.raises(LogError, match=r"latency\.csv, row 1"):
        load_run(damaged_run)


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """The first thing that everybody gets wrong."""
    for folder in (tmp_path, tmp_path / "none"):
        with pytest.raises(LogError, match=r"latency\.csv cannot be read: No such file or directory: give the folder"):
            load_run(folder)


def test_garbage_is_counted_and_not_recited(damaged_run: Path) -> None:
    """A file of a hundred thousand broken rows must not make a report of a hundred thousand lines."""
    chance = random.Random(5)
    path = damaged_run / CSV_NAME
    path.write_bytes(path.read_bytes() + chance.randbytes(200_000) + b"\n" + b"1,2,3\n" * 5000)
    run = load_run(damaged_run)
    assert len(run.frames) == FRAMES
    assert len(run.problems) == SHOWN + 1
    assert re.fullmatch(rf"{CSV_NAME}: \d{{4}} more lines that are no rows", told(run)[-1])


def test_no_damage_ends_in_a_traceback(damaged_run: Path) -> None:
    """Bytes that flip anywhere in any of the files: what can be read is read, or one line says why not."""
    chance = random.Random(6)
    names = [CSV_NAME, MANIFEST_NAME, RESOURCES_NAME, "latency.journal"]
    whole = {name: (damaged_run / name).read_bytes() for name in names}
    for _ in range(60):
        name = chance.choice(names)
        content = bytearray(whole[name])
        for _ in range(chance.choice((1, 3, 50))):
            content[chance.randrange(len(content))] = chance.choice((0, 10, 13, 34, 44, 45, 57, 0xC3, 0xFF))
        (damaged_run / name).write_bytes(content[: chance.choice((len(content), len(content) // 2))])
        try:
            audit(damaged_run)
            assert len(load_run(damaged_run).frames) <= FRAMES
        except LogError as error:
            assert str(damaged_run) in str(error)  # noqa: PT017 (most damage raises nothing)
        (damaged_run / name).write_bytes(whole[name])


def test_a_session_that_is_no_name_is_of_no_log(damaged_run: Path) -> None:
    """Not even of an empty one: it has been a traceback."""
    run_damage.write(damaged_run, run_damage.lines(damaged_run)[:1])
    run_damage.change_manifest(damaged_run, session=[1, 2])
    run = load_run(damaged_run)
    assert run.manifest == {}
    assert any("is of session [1, 2]" in problem for problem in told(run))
