"""The trace of a run for Perfetto."""

import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from analysis.trace import trace
from shared.stages import CLOUD_STAGES, EDGE_STAGES
from tests.support import run_damage
from tests.support.synthetic_run import SyntheticRunPlan, write_run

Event = dict[str, Any]


def _run(run: Path, *options: object) -> Result:
    return CliRunner().invoke(trace, [str(run), *map(str, options)])


def _events(run: Path, out: Path) -> tuple[Event, list[Event]]:
    """Returns the head of a trace and its events; times as exact decimals."""
    ended = _run(run, "--out", out)
    assert ended.exit_code == 0, ended.output
    content = json.loads(out.read_text(), parse_float=Decimal)
    return content, content["traceEvents"]


def _ns(microseconds: Any) -> int:
    value = Decimal(microseconds) * 1000
    assert value == int(value)
    return int(value)


def _logged_ns(milliseconds: str) -> int:
    return int(Decimal(milliseconds) * 10**6)


def _spans(events: Sequence[Event]) -> list[tuple[tuple[int, int], int, int, Event]]:
    spans = [each for each in events if each["ph"] == "X"]
    return [((each["pid"], each["tid"]), _ns(each["ts"]), _ns(each["ts"]) + _ns(each["dur"]), each) for each in spans]


def _check_nesting(events: Sequence[Event]) -> None:
    """Spans of one thread contain each other or do not overlap, as the format demands."""
    threads = defaultdict(list)
    for lane, start, end, event in _spans(events):
        assert end >= start
        threads[lane].append((start, -end, event["name"]))
    for spans in threads.values():
        open_ends: list[int] = []
        for start, negative_end, name in sorted(spans, key=lambda each: each[:2]):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or -negative_end <= open_ends[-1], name
            open_ends.append(-negative_end)


def test_every_stage_has_the_time_of_the_log(consistent_run: Path, tmp_path: Path) -> None:
    """To the nanosecond: each stamp of both nodes, each duration, and their sum."""
    content, events = _events(consistent_run, tmp_path / "trace.json")
    origin = content["otherData"]["origin_ns"]
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    frame = ""
    for _, start, end, event in _spans(events):
        if event["name"].startswith("frame "):
            frame = event["name"].split(" (")[0]
        found[frame, event["name"].split(" (")[0]].append((start + origin, end + origin))
    rows = run_damage.rows(consistent_run)
    for row in rows:
        name = f"frame {row['sequence']}"
        start, end = found[name, name][0]
        assert start == int(row["t_due_ns"])
        if row["outcome"] != "answered":
            continue
        assert end - start == _logged_ns(row["total_ms"])
        for stage in EDGE_STAGES[1:]:
            if row[f"t_{stage}_ns"]:
                start, end = found[name, stage][0]
                assert (end, end - start) == (int(row[f"t_{stage}_ns"]), _logged_ns(row[f"{stage}_ms"]))
        offset = _logged_ns(row["clock_offset_ms"])
        start, end = found[name, name][1]
        assert (start, end) == (int(row["t_received_ns"]) - offset, int(row["t_replied_ns"]) - offset)
        assert end - start == _logged_ns(row["cloud_ms"])
        for stage in CLOUD_STAGES[1:]:
            start, end = found[name, stage][0]
            assert (end, end - start) == (int(row[f"t_{stage}_ns"]) - offset, _logged_ns(row[f"{stage}_ms"]))
    assert any(row["outcome"] == "dropped" for row in rows)
    _check_nesting(events)


def test_a_request_and_its_reply_connect_both_nodes(consistent_run: Path, tmp_path: Path) -> None:
    """An arrow begins and ends in a span; both ends of one have its number."""
    _, events = _events(consistent_run, tmp_path / "trace.json")
    spans = _spans(events)
    arrows = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "f"):
            arrows[event["id"]].append(event)
            assert any(
                lane == (event["pid"], event["tid"]) and start <= _ns(event["ts"]) < end
                for lane, start, end, _ in spans
            )
    answered = sum(row["outcome"] == "answered" for row in run_damage.rows(consistent_run))
    assert len(arrows) == 2 * answered
    for start, end in arrows.values():
        assert (start["ph"], end["ph"], start["name"], start["pid"] != end["pid"]) == ("s", "f", end["name"], True)


def test_lanes_and_processes_have_the_names_of_the_log(tmp_path: Path) -> None:
    """A fleet of workers, frames without one, and text that is no name."""
    run = write_run(tmp_path / "run", SyntheticRunPlan(frames=300, workers=3, reused=0.2, local=0.2))
    run_damage.change(run, 2, reason="\x1b[31mred</script>\n")
    _, events = _events(run, tmp_path / "trace.json")
    assert "\x1b" not in (tmp_path / "trace.json").read_text()
    assert not any("\x1b" in str(event) for event in events)
    names = {event["args"]["name"] for event in events if event.get("name") == "process_name"}
    assert len([name for name in names if name.startswith("worker ")]) == 3
    assert len([name for name in names if name.startswith("vehicle ")]) == 1
    named = {(event["pid"], event["tid"]) for event in events if event.get("name") == "thread_name"}
    assert {lane for lane, *_ in _spans(events)} == named
    counts = [event["args"]["frames"] for event in events if event.get("name") == "in flight"]
    assert min(counts) == 0 == counts[-1] < max(counts)
    _check_nesting(events)


@pytest.mark.parametrize("damage", [{"t_due_ns": "1"}, {"t_due_ns": str((1 << 63) - 1)}, {"t_due_ns": "soon"}])
def test_damaged_rows_are_left_out_or_refused(consistent_run: Path, tmp_path: Path, damage: dict[str, str]) -> None:
    """Nothing is written that looks right and is not."""
    run = tmp_path / "run"
    shutil.copytree(consistent_run, run)
    line = run_damage.line_of(run, "dropped" if damage["t_due_ns"] == "1" else "answered")
    run_damage.change(run, line, **damage)
    ended = _run(run)
    if damage["t_due_ns"] == "1":
        assert "apart" in str(ended.exception)
        assert not (run / "trace.json").exists()
    else:
        assert ended.exit_code == 0
        assert "1 without times left out" in ended.output
        assert "Problem: " in ended.output


def test_no_trace_replaces_one_that_cannot_be_written(consistent_run: Path, tmp_path: Path) -> None:
    """A folder without a log, a log without rows, and a place that cannot be written."""
    assert "latency.csv" in str(_run(tmp_path / "nothing").exception)
    run, out = tmp_path / "run", tmp_path / "trace.json"
    shutil.copytree(consistent_run, run)
    run_damage.write(run, run_damage.lines(run)[:1])
    assert "no frame has times" in str(_run(run).exception)
    out.write_text("before")
    for taken in (out, run / "latency.csv"):
        before = taken.read_bytes()
        assert "exists already: remove it, or choose another --out" in str(_run(run, "--out", taken).exception)
        assert taken.read_bytes() == before
    (tmp_path / "file").touch()
    assert "--out" in str(_run(consistent_run, "--out", tmp_path / "file" / "trace.json").exception)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "run", "trace.json"]
