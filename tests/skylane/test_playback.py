"""`skylane.play` with a real broker and a real worker: results, outputs of a presenter, and what it leaves behind."""

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skylane
from analysis.logs.audit import audit
from edge.config import EdgeConfig
from edge.sinks.sink import FrameResult, PresentedTick
from shared.errors import SkylaneError
from shared.inference.model import Model
from shared.runlog.presented_log import PRESENTED_NAME, OutputOrigin, read_presented
from shared.runlog.run_manifest import read_manifest
from tests.pipeline.rig import HEIGHT, WAIT_S, WIDTH, direct, noise, pictures, worker

FRAMES = 6
MANY = 80  # More frames than wait for a program.
Settings = Callable[..., EdgeConfig]


@pytest.fixture
def config(embedded_url: str, tmp_path: Path) -> Settings:
    """Makes the configuration of a run with a presenter and a folder."""

    def make(**settings: Any) -> EdgeConfig:
        fields = {"broker": embedded_url, "vehicle": "car-loop", "model": "tiny", "out": tmp_path / "run", "sinks": ()}
        return EdgeConfig.model_validate(fields | {"closed_loop": True, "present": "hold"} | settings)

    return make


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files; the working folder is an empty one."""
    for name in ("temporary", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "temporary"


def test_a_program_gets_every_result_and_no_folder(
    embedded_url: str, model: Model, tmp_path: Path, temporary: Path
) -> None:
    """The results are those of the model, and neither the working folder nor the temporary one has a file of the run."""
    with worker(embedded_url, model):
        source = pictures(tmp_path, FRAMES)
        stream = skylane.play(source, broker=embedded_url, model="tiny", closed_loop=True, codec="raw")
        results = {result.sequence: result for result in stream}
    assert sorted(results) == list(range(FRAMES))
    for sequence, result in results.items():
        assert isinstance(result, FrameResult)
        rgb = noise(sequence, (HEIGHT, WIDTH, 3))[..., ::-1]
        np.testing.assert_array_equal(result.image, rgb)
        np.testing.assert_array_equal(result.result, direct(model, rgb))
    assert [*temporary.iterdir(), *Path.cwd().iterdir()] == []


def test_a_slow_program_gets_every_result_of_a_closed_loop(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """The run waits for the program, whose own speed is not measured."""
    with worker(embedded_url, model):
        settings = {"broker": embedded_url, "model": "tiny", "closed_loop": True}
        stream = skylane.play(pictures(tmp_path, 2 * MANY), **settings)
        first = next(stream)
        threading.Event().wait(2)  # Longer than all frames take.
        assert len([first, *stream]) == 2 * MANY


def test_files_without_a_folder_are_refused(embedded_url: str) -> None:
    """They would be removed with the temporary folder."""
    with pytest.raises(SkylaneError, match="`sinks`: the run keeps no files: set `out`"):
        skylane.play("drive.mcap", broker=embedded_url, sinks=("png",))


def test_an_unknown_setting_is_refused_at_once() -> None:
    """The message is that of a configuration file."""
    with pytest.raises(SkylaneError, match="play: modle: unknown key: did you mean model"):
        skylane.play("drive.mcap", modle="road-small")


def test_settings_override_those_of_the_configuration(config: Settings, model: Model, tmp_path: Path) -> None:
    """A program may share one configuration between runs; the folder that it asks for stays."""
    settings = config()
    with worker(settings.broker, model):
        assert len([*skylane.play(pictures(tmp_path, FRAMES), settings, frames=2)]) == 2
    assert read_manifest(tmp_path / "run")["state"] == "complete"


def test_a_program_gets_every_output(config: Settings, model: Model, tmp_path: Path) -> None:
    """The loop ends with the run, whose log has the same ticks."""
    settings = config()
    with worker(settings.broker, model):
        ticks = list(skylane.play(pictures(tmp_path, FRAMES), settings))
    logged = [(row.tick, row.origin, row.age_ns) for row in read_presented(tmp_path / "run")]
    assert [(tick.sequence, tick.origin, tick.age_ns) for tick in ticks] == logged
    assert len(ticks) == FRAMES
    assert audit(tmp_path / "run") == ()


@pytest.mark.parametrize("presenter", ["hold", None])
def test_a_program_that_leaves_the_loop_stops_the_run_in_order(
    config: Settings, model: Model, tmp_path: Path, presenter: str | None
) -> None:
    """Frames in flight are waited for, and every frame that was due has its row and its tick."""
    settings = config(loop=True, present=presenter)
    with worker(settings.broker, model):
        stream = skylane.play(pictures(tmp_path, FRAMES), settings)
        for result in stream:
            if result.result is not None:
                break
        stream.close()
    assert read_manifest(tmp_path / "run")["state"] == "complete"
    assert audit(tmp_path / "run") == ()


def test_a_slow_program_gets_the_newest_outputs(config: Settings, model: Model, tmp_path: Path) -> None:
    """An output of long ago is of no use, and a queue without bound would fill the memory."""
    settings = config()
    with worker(settings.broker, model):
        stream = skylane.play(pictures(tmp_path, MANY), settings)
        got: list[FrameResult | PresentedTick] = [next(stream)]
        (vehicle,) = (thread for thread in threading.enumerate() if thread.name == "vehicle")
        vehicle.join(WAIT_S)
        got += stream
    assert [tick.sequence for tick in got] == [0, *range(MANY - 64, MANY)]
    assert len(list(read_presented(tmp_path / "run"))) == MANY
    assert {tick.origin for tick in got} <= {OutputOrigin.NONE, OutputOrigin.REMOTE}


def test_a_run_that_cannot_begin_fails_in_the_loop(config: Settings, tmp_path: Path, temporary: Path) -> None:
    """A program must not mistake it for a run without frames."""
    for settings in (config(), config(out=None)):
        with pytest.raises(SkylaneError, match="does not exist"):
            next(skylane.play(tmp_path / "missing.mcap", settings))
    assert not (tmp_path / "run" / PRESENTED_NAME).exists()
    assert [*temporary.iterdir()] == []
