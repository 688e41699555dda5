import math
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from shared.runlog.latency_log import LatencyRow, LogError, LogWriter, Outcome, csv_fields, read_rows
from shared.runlog.latency_table import PARTS, outcome_table, stage_table, summarise
from shared.runlog.percentiles import NOTE
from shared.stages import CLOUD_STAGES, EDGE_STAGES, Stage


def _answered(sequence: int, step_ns: int) -> LatencyRow:
    """A frame whose every edge stage took `step_ns`; it was away for 20 of them, and 14 went into the cloud's seven."""
    edge = {stage: place * step_ns for place, stage in enumerate(EDGE_STAGES)}
    for stage in (Stage.RETURNED, Stage.MASK_DECODED):
        edge[stage] += 19 * step_ns
    cloud = {stage: 2 * place * step_ns for place, stage in enumerate(CLOUD_STAGES)}
    return LatencyRow("car", "/left", "s1", sequence, Outcome.ANSWERED, edge_times=edge, cloud_times=cloud)


def test_the_parts_share_the_total_between_them(tmp_path: Path) -> None:
    """The table's reader looks for the stage to mend: shares that do not sum to one would mislead."""
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


def test_p99_is_shown_from_a_hundred_frames_on_and_a_note_says_so(tmp_path: Path) -> None:
    """Of twelve frames it would be the slowest one under another name."""
    for count in (99, 100):
        with LogWriter(tmp_path / str(count)) as log:
            for sequence in range(count):
                log.close(_answered(sequence, 1_000_000))
        out = StringIO()
        Console(file=out, width=80).print(stage_table(summarise(read_rows(tmp_path / str(count)))))
        assert ("–" in out.getvalue()) == (NOTE in out.getvalue()) == (count < 100)


def test_frames_without_all_stages_are_left_out(tmp_path: Path) -> None:
    """A worker that lies about its times, or lacks a stage, gets no column; a dropped frame has none."""
    answered = _answered(0, 1000)
    with LogWriter(tmp_path) as log:
        log.close(answered)
        log.close(LatencyRow("car", "/left", "s1", 1, Outcome.ANSWERED, edge_times=answered.edge_times))
        log.close(LatencyRow("car", "/left", "s1", 2, Outcome.DROPPED, "window", edge_times={Stage.DUE: 0}))
    assert {summary.count for summary in summarise(read_rows(tmp_path))} == {1}
    assert summarise([]) == []


@pytest.mark.parametrize("duration", ["soon", "nan", "inf", "-inf"])
def test_a_duration_that_is_no_number_is_told(duration: str) -> None:
    """The file may have been edited."""
    row = dict.fromkeys(csv_fields(_answered(0, 1000)), "1") | csv_fields(_answered(0, 1000)) | {"total_ms": duration}
    with pytest.raises(LogError, match="no number"):
        summarise([row])


def test_outcomes_are_counted_with_their_reasons(tmp_path: Path) -> None:
    """`too_large: 70000000 bytes …` and its like count as one reason."""
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


def test_a_workers_words_are_no_colours() -> None:
    """A reason like this one ended the vehicle's process when all its frames had been accounted for."""
    row = LatencyRow("car", "/left", "s1", 0, Outcome.FAILED, "[/] [red]x")
    shown = StringIO()
    Console(file=shown, width=80).print(outcome_table([csv_fields(row)]))
    assert "[/] [red]x 1" in shown.getvalue()
