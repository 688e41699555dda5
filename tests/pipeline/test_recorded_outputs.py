"""What a run with a presenter writes, end to end: the log of outputs, the files of the sinks, the manifest, the summary."""

import json
from pathlib import Path
from typing import Any

from analysis.logs.audit import audit
from analysis.logs.run_log import load_run
from analysis.streaming.tick_outputs import held_outputs, own_outputs
from edge.presenting.presented_run import OUTPUTS_FOLDER
from shared.inference.model import Model
from shared.runlog.presented_log import OutputOrigin, read_presented
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import pictures, play, worker

FRAMES = 6


def _json_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_a_run_writes_every_output(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """Log, JSON lines, manifest and summary agree, and the results as they came back are in the run's folder as ever."""
    with worker(embedded_url, model):
        source, out = pictures(tmp_path, FRAMES), tmp_path / "car-outputs"
        settings = {"closed_loop": True, "window": 1, "present": "hold"}
        code, printed = play(source, embedded_url, out, sinks=("jsonl", "png"), **settings)
    assert code == 0, printed
    assert audit(out) == ()
    ticks = list(read_presented(out))
    assert [row.tick for row in ticks] == list(range(FRAMES))
    shown = [row for row in ticks if row.origin is OutputOrigin.REMOTE]
    assert f"For the tick: {len(shown)} of {FRAMES} frames got an output ({len(shown)} remote), ready " in printed
    assert "frames got none (" in printed
    held = next(iter(held_outputs(load_run(out).frames, own_outputs(load_run(out).frames)).values()))
    ready = sum(tick.source is not None for tick in held)
    assert f"At the tick: {ready} of {FRAMES} frames had an output that was ready when they were due" in printed
    lines = {line["sequence"]: line for line in _json_lines(out / OUTPUTS_FOLDER)}
    for row in ticks:
        line = lines[row.tick]
        assert (line["camera"], line["index"], line["origin"]) == (row.camera, row.frame_index, row.origin)
        assert (line.get("age_ns"), line.get("source_sequence")) == (row.age_ns, row.source_sequence)
        assert line.get("reason", "") == row.reason
        assert ("classes" in line) == (row.origin is not OutputOrigin.NONE)
    assert len(list((out / OUTPUTS_FOLDER).rglob("masks/*/*.png"))) == len(shown)
    assert {line["origin"] for line in _json_lines(out)} == {"worker"}
    presenting = read_manifest(out)["presenting"]
    assert presenting["kind"] == "hold"
    assert presenting["ticks"] == {
        "remote": len(shown),
        "warped": 0,
        "local": 0,
        "fused": 0,
        "none": FRAMES - len(shown),
    }
    assert (presenting["rows_lost"], presenting["outputs_not_written"]) == (0, 0)


def test_a_run_without_presenter_writes_none(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """Its folder is that of earlier versions."""
    with worker(embedded_url, model):
        out = tmp_path / "car-plain"
        code, printed = play(pictures(tmp_path, FRAMES), embedded_url, out, closed_loop=True, sinks=("jsonl",))
    assert code == 0, printed
    assert "output" not in printed
    assert {path.name for path in out.iterdir()} == {
        "latency.csv", "latency.journal", "manifest.json", "resources.csv", "results.jsonl",
    }  # fmt: skip
    assert "presenting" not in read_manifest(out)


def test_a_sink_that_fails_ends_the_writing_of_outputs_only(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """The run goes on, its log is complete, and the exit code shows that files are missing."""
    with worker(embedded_url, model):
        source, out = pictures(tmp_path, FRAMES), tmp_path / "car-failing"
        (out / OUTPUTS_FOLDER).mkdir(parents=True)
        (out / OUTPUTS_FOLDER / "masks_colour").write_text("a file where the sink needs a folder")
        code, printed = play(source, embedded_url, out, closed_loop=True, present="hold", sinks=("jsonl", "png"))
    assert code == 1, printed
    assert audit(out) == ()
    assert len(_json_lines(out / OUTPUTS_FOLDER)) == FRAMES
    assert len(list((out / "masks").rglob("*.png"))) == FRAMES
