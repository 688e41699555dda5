import math
from collections.abc import Collection
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from shared.runlog.latency_log import COLUMNS, LatencyRow, LogError, LogWriter, Outcome, csv_fields, read_rows
from shared.runlog.latency_table import (
    PARTS,
    outcome_table,
    parts_of,
    stage_table,
    summarise,
    vehicle_result_tables,
)
from shared.runlog.percentiles import NOTE
from shared.stages import CLOUD_STAGES, EDGE_STAGES, OPTIONAL_STAGES, Stage


def _answered(sequence: int, step_ns: int, optional: Collection[Stage] = ()) -> LatencyRow:
    """A frame that took `step_ns` in each edge stage, except for 20 steps away, of which 14 at the worker."""
    stages = [stage for stage in EDGE_STAGES if stage not in OPTIONAL_STAGES or stage in optional]
    edge = {stage: position * step_ns for position, stage in enumerate(stages)}
    for stage in (Stage.RETURNED, Stage.MASK_DECODED):
        edge[stage] += 19 * step_ns
    cloud = {stage: 2 * position * step_ns for position, stage in enumerate(CLOUD_STAGES)}
    return LatencyRow("car", "/left", "s1", sequence, Outcome.ANSWERED, edge_times=edge, cloud_times=cloud)


def test_the_shares_of_the_stages_add_up_to_one(tmp_path: Path) -> None:
    """Readers look for the slowest stage."""
    with LogWriter(tmp_path) as log:
        for sequence in range(5):
            log.close(_answered(sequence, 1_000_000 * (sequence + 1)))
    summaries = {summary.name: summary for summary in summarise(read_rows(tmp_path))}
    assert list(summaries) == [*map(str, PARTS), "total"]
    assert sum(summaries[str(part)].share for part in PARTS) == pytest.approx(1.0)
    assert summaries["total"].share == pytest.approx(1.0)
    assert summaries["crossing"].p50_ms == pytest.approx(3 * (20 - 14))
    assert summaries["inferred"].p50_ms == pytest.approx(3 * 2)
    assert summaries["total"].p95_ms == pytest.approx(26 * 4.8)
    assert math.isnan(summaries["total"].p99_ms)
    assert summaries["total"].count == 5


def test_a_stage_that_some_frames_passed_is_summarised_over_those(tmp_path: Path) -> None:
    """A frame that skipped the local model spent no time there: its absence must not lower the percentiles."""
    with LogWriter(tmp_path) as log:
        log.close(_answered(0, 1_000_000))
        log.close(_answered(1, 1_000_000, {Stage.GATED}))
        log.close(_answered(2, 1_000_000, {Stage.GATED, Stage.INFERRED_LOCALLY}))
    summaries = summarise(read_rows(tmp_path))
    assert [summary.name for summary in summaries] == [*parts_of(OPTIONAL_STAGES), "total"]
    by_name = {summary.name: summary for summary in summaries}
    assert (by_name["gated"].count, by_name["inferred_locally"].count, by_name["total"].count) == (2, 1, 3)
    assert by_name["gated"].p50_ms == pytest.approx(1.0)
    assert sum(summary.share for summary in summaries[:-1]) == pytest.approx(1.0)
    out = StringIO()
    Console(file=out, width=80).print(stage_table(summaries))
    assert "inferred_locally (1 frames)" in out.getvalue()


def test_results_of_the_vehicle_have_their_own_table(tmp_path: Path) -> None:
    """They take a fraction of the time of a worker's answer and would hide it in one distribution."""
    times = {Stage.DUE: 0, Stage.TAKEN: 1_000_000, Stage.GATED: 2_000_000}
    with LogWriter(tmp_path) as log:
        log.close(_answered(0, 1_000_000))
        log.close(LatencyRow("car", "/left", "s1", 1, Outcome.REUSED, edge_times=times, reused_sequence=0))
        local = times | {Stage.INFERRED_LOCALLY: 7_000_000}
        log.close(LatencyRow("car", "/left", "s1", 2, Outcome.ANSWERED_LOCALLY, edge_times=local))
    rows = list(read_rows(tmp_path))
    assert summarise(rows)[-1].count == 1
    (table,) = vehicle_result_tables(rows)
    out = StringIO()
    Console(file=out, width=80).print(table)
    lines = [[cell.strip() for cell in line.split("│")[1:3]] for line in out.getvalue().splitlines() if "│" in line]
    assert lines == [["reused", "1"], ["answered_locally", "1"]]
    assert "2.0" in out.getvalue()
    assert "7.0" in out.getvalue()
    assert not list(vehicle_result_tables(rows[:1]))


def test_p99_is_shown_from_100_frames(tmp_path: Path) -> None:
    """Below that, a dash and a note replace it."""
    for count in (99, 100):
        with LogWriter(tmp_path / str(count)) as log:
            for sequence in range(count):
                log.close(_answered(sequence, 1_000_000))
        out = StringIO()
        Console(file=out, width=80).print(stage_table(summarise(read_rows(tmp_path / str(count)))))
        assert ("–" in out.getvalue()) == (NOTE in out.getvalue()) == (count < 100)


def test_frames_without_all_stages_are_skipped(tmp_path: Path) -> None:
    """A worker may omit stages, and a dropped frame has few."""
    answered = _answered(0, 1000)
    with LogWriter(tmp_path) as log:
        log.close(answered)
        log.close(LatencyRow("car", "/left", "s1", 1, Outcome.ANSWERED, edge_times=answered.edge_times))
        log.close(LatencyRow("car", "/left", "s1", 2, Outcome.DROPPED, "window", edge_times={Stage.DUE: 0}))
    assert {summary.count for summary in summarise(read_rows(tmp_path))} == {1}
    assert summarise([]) == []


@pytest.mark.parametrize("duration", ["soon", "nan", "inf", "-inf"])
def test_an_invalid_duration_is_reported(duration: str) -> None:
    """The file may have been edited by hand."""
    row = dict.fromkeys(COLUMNS, "") | csv_fields(_answered(0, 1000)) | {"total_ms": duration}
    with pytest.raises(LogError, match=r"is not a (finite )?number"):
        summarise([row])


def test_outcomes_are_counted_with_their_reasons(tmp_path: Path) -> None:
    """Details after the colon, as in `too_large: 5 bytes`, do not distinguish reasons."""
    with LogWriter(tmp_path) as log:
        log.close(_answered(0, 1000))
        for sequence, reason in enumerate(("window", "too_large: 5 bytes", "too_large: 6 bytes"), start=1):
            log.close(LatencyRow("car", "/left", "s1", sequence, Outcome.DROPPED, reason))
    rows = list(read_rows(tmp_path))
    console = Console(width=100, record=True, file=StringIO())
    console.print(outcome_table(rows), stage_table(summarise(rows)))
    text = console.export_text()
    assert "4 frames read" in text
    assert "too_large 2, window 1" in text
    assert "1 answered frames" in text


def test_frames_without_a_row_are_counted_too() -> None:
    """On a full disk, a run of 100 frames once said `27 frames read`, beside `73 rows were not written`."""
    console = Console(width=100, record=True, file=StringIO())
    rows = [csv_fields(_answered(0, 1000)), csv_fields(LatencyRow("c", "/l", "s1", 1, Outcome.DROPPED, "window"))]
    console.print(outcome_table(rows, {Outcome.ANSWERED: 90, Outcome.DROPPED: 7, Outcome.LOST: 3}))
    words = " ".join(console.export_text().replace("│", " ").split())
    assert "100 frames read, 98 of them without a row" in words
    assert "answered 90 dropped 7 window 1 lost 3" in words


def test_markup_in_a_reason_is_not_interpreted() -> None:
    """Invalid Rich markup once ended a vehicle at the end of its run."""
    row = LatencyRow("car", "/left", "s1", 0, Outcome.FAILED, "[/] [red]x")
    out = StringIO()
    Console(file=out, width=80).print(outcome_table([csv_fields(row)]))
    assert "[/] [red]x 1" in out.getvalue()
