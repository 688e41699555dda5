"""What a run with a presenter writes, end to end: the log of outputs, the files of the sinks, the manifest, the summary."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from analysis.logs.audit import audit
from edge.config import EdgeConfig
from edge.outputs import OutputsError, outputs
from edge.presenting.presentation import PresentedTick
from edge.presenting.recording import OUTPUTS_FOLDER
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, read_presented
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import WAIT_S, pictures, play, worker

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
    assert f"{len(shown)} of {FRAMES} frames had an output when they were due ({len(shown)} remote)" in printed
    assert "frames had none (" in printed
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


Run = Callable[..., EdgeConfig]


@pytest.fixture
def config(embedded_url: str, tmp_path: Path) -> Run:
    """Makes the configuration of a run of a program."""

    def make(**settings: Any) -> EdgeConfig:
        fields = {"broker": embedded_url, "vehicle": "car-loop", "model": "tiny", "out": tmp_path / "run", "sinks": ()}
        return EdgeConfig.model_validate(fields | {"closed_loop": True, "present": "hold"} | settings)

    return make


def test_a_program_gets_every_output(config: Run, model: Model, tmp_path: Path) -> None:
    """The loop ends with the run, whose log has the same ticks."""
    settings = config()
    with worker(settings.broker, model):
        ticks = list(outputs(str(pictures(tmp_path, FRAMES)), settings))
    logged = [(row.tick, row.origin, row.age_ns, row.source_sequence) for row in read_presented(tmp_path / "run")]
    assert [(tick.sequence, tick.origin, tick.age_ns, tick.source_sequence) for tick in ticks] == logged
    assert len(ticks) == FRAMES
    assert audit(tmp_path / "run") == ()


def test_a_program_that_leaves_the_loop_stops_the_run_in_order(config: Run, model: Model, tmp_path: Path) -> None:
    """Frames in flight are waited for, and every frame that was due has its row and its tick."""
    settings = config(loop=True)
    with worker(settings.broker, model):
        stream = outputs(str(pictures(tmp_path, FRAMES)), settings)
        for tick in stream:
            if tick.origin is OutputOrigin.REMOTE:
                break
        stream.close()
    assert read_manifest(tmp_path / "run")["state"] == "complete"
    assert audit(tmp_path / "run") == ()


def test_a_slow_program_gets_the_newest_outputs(config: Run, model: Model, tmp_path: Path) -> None:
    """An output of long ago is of no use, and a queue without bound would fill the memory."""
    frames, settings = 80, config()
    with worker(settings.broker, model):
        stream = outputs(str(pictures(tmp_path, frames)), settings)
        got: list[PresentedTick] = [next(stream)]
        (vehicle,) = (thread for thread in threading.enumerate() if thread.name == "vehicle")
        vehicle.join(WAIT_S)
        got += stream
    assert [tick.sequence for tick in got] == [0, *range(frames - 64, frames)]
    assert len(list(read_presented(tmp_path / "run"))) == frames


def test_a_configuration_without_presenter_is_refused_at_once(config: Run) -> None:
    """The loop would never get anything."""
    with pytest.raises(OutputsError, match="set it to hold, warp or fuse"):
        outputs("drive.mcap", config(present=None))


def test_a_run_that_cannot_begin_fails_in_the_loop(config: Run, tmp_path: Path) -> None:
    """A program must not mistake it for a run without frames."""
    with pytest.raises(SkylaneError, match="does not exist"):
        next(outputs(str(tmp_path / "missing.mcap"), config()))
    assert not (tmp_path / "run" / PRESENTED_NAME).exists()
