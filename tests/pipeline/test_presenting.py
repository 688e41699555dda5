"""Outputs for now, end to end: every frame that falls due gets an output, or the reason why there is none."""

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from cloud.models.loader import ModelLoader
from edge.presenting.presentation import NO_RESULT, SKIPPED
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, PresenterEntry, PresenterParts, Tick
from edge.sinks.sink import PresentedTick
from shared.inference.model import Model
from shared.models.repository import Repository
from shared.runlog.presented_log import OutputOrigin
from tests.pipeline.rig import (
    HEIGHT,
    WAIT_S,
    WIDTH,
    Rows,
    Vehicle,
    connect,
    count_outcomes,
    direct,
    noise,
    pictures,
    worker,
)
from tests.support.local_models import write_brightness

FRAMES = 6
DARK, GREY = 20, 128


def played(
    url: str, source: Path, out: Path, on_tick: Callable[[Vehicle], None] = lambda _: None, **settings: Any
) -> tuple[list[PresentedTick], Rows]:
    """Plays with one frame in flight; returns the ticks and the rows, in the order of the frames, after comparing them."""
    options: dict[str, Any] = {"present": "hold", "window": 1}
    vehicle = Vehicle(connect(url), source, out, **options | settings)
    ticks: list[PresentedTick] = []
    assert vehicle.presentation is not None
    vehicle.presentation.listeners.append(ticks.append)
    rows = sorted(vehicle.play(lambda: on_tick(vehicle)), key=lambda row: int(row["sequence"]))
    assert [tick.sequence for tick in ticks] == [int(row["sequence"]) for row in rows]
    for tick, row in zip(ticks, rows, strict=True):
        assert (tick.camera, tick.frame_index, tick.due_ns) == (
            row["camera"],
            int(row["frame_index"]),
            int(row["t_due_ns"]),
        )
        if tick.source_sequence is not None:
            assert tick.age_ns == tick.due_ns - ticks[tick.source_sequence].due_ns
    assert "presenter" not in {thread.name for thread in threading.enumerate()}
    return ticks, rows


def greys(tmp_path: Path, levels: list[int]) -> Path:
    """Makes a folder of grey images."""
    folder = tmp_path / "greys"
    folder.mkdir()
    for index, level in enumerate(levels):
        cv2.imwrite(str(folder / f"{index:04d}.png"), np.full((HEIGHT, WIDTH, 3), level, np.uint8))
    return folder


def test_every_frame_gets_the_newest_result(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """With one frame in flight in a closed loop, the result of the frame before has arrived when a frame is due."""
    with worker(embedded_url, model):
        ticks, rows = played(embedded_url, pictures(tmp_path, FRAMES), tmp_path / "car-held")
    assert (ticks[0].origin, ticks[0].reason) == (OutputOrigin.NONE, NO_RESULT)
    for tick in ticks[1:]:
        source = tick.source_sequence
        assert tick.origin is OutputOrigin.REMOTE
        assert source in (tick.sequence - 1, tick.sequence)  # Its own result, if the presenter is slow to wake up.
        assert tick.presented_ns >= int(rows[source]["t_mask_decoded_ns"])
        np.testing.assert_array_equal(tick.result, direct(model, noise(source, (HEIGHT, WIDTH, 3))[..., ::-1]))


class BlockedPresenter:
    """Does not return from its first tick until the test releases it."""

    released = threading.Event()

    def __init__(self, parts: PresenterParts) -> None:
        del parts

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del tick, newest
        assert self.released.wait(WAIT_S)
        return Output(OutputOrigin.NONE)


def test_frames_are_sent_and_answered_while_the_presenter_works(
    embedded_url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The presenter is released when all other frames are answered, so that a frame that waited for it would hang the run."""
    monkeypatch.setitem(PRESENTERS, "blocked", PresenterEntry(f"{__name__}:BlockedPresenter", "edge"))

    def release(vehicle: Vehicle) -> None:
        if vehicle.answered() == FRAMES:
            BlockedPresenter.released.set()

    with worker(embedded_url, model):
        out = tmp_path / "car-blocked"
        ticks, rows = played(embedded_url, pictures(tmp_path, FRAMES), out, release, present="blocked")
    assert count_outcomes(rows) == {("answered", ""): FRAMES}
    reasons = [tick.reason for tick in ticks]  # The presenter took one frame, perhaps late, and the last one.
    assert reasons.count(SKIPPED) == FRAMES - 2
    assert reasons[-1] == "no_output"


@pytest.mark.mosquitto
def test_reused_and_local_results_are_presented(mosquitto_url: str, tmp_path: Path) -> None:
    """The vehicle can act on them as well: results of earlier frames count as a worker's."""
    write_brightness(tmp_path, "tiny", HEIGHT, WIDTH, steepness=1000.0)
    write_brightness(tmp_path, "local", HEIGHT // 2, WIDTH // 2, steepness=20.0)
    gate: dict[str, Any] = {"gate": "mse", "gate_threshold": 5.0}
    local: dict[str, Any] = {"local_model": "local", "models": tmp_path, "cascade": True, "c_low": 0.1, "c_high": 0.9}
    source = greys(tmp_path, [GREY, GREY, GREY, DARK, DARK, DARK])
    with ModelLoader(Repository(tmp_path)).open("tiny") as loaded, worker(mosquitto_url, loaded):
        for name, settings in (("gate", gate), ("cascade", local)):
            ticks, rows = played(mosquitto_url, source, tmp_path / f"car-{name}", **settings)
            outcomes = Counter(row["outcome"] for row in rows)
            assert outcomes == (
                {"answered": 2, "reused": 4} if name == "gate" else {"answered_locally": 3, "answered": 3}
            )
            sources = [rows[tick.source_sequence]["outcome"] for tick in ticks if tick.source_sequence is not None]
            origins = [tick.origin for tick in ticks if tick.source_sequence is not None]
            assert {"gate": "reused", "cascade": "answered_locally"}[name] in sources
            for outcome, origin in zip(sources, origins, strict=True):
                assert origin is (OutputOrigin.LOCAL if outcome == "answered_locally" else OutputOrigin.REMOTE)
