"""A presenter is added with one file, this one, and one line in the table: here one that reverses the classes."""

from pathlib import Path

import numpy as np
import pytest

from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, PresenterEntry, PresenterParts, Tick
from edge.sinks.sink import PresentedTick
from shared.inference.model import Model
from shared.runlog.presented_log import OutputOrigin
from tests.pipeline.rig import HEIGHT, WIDTH, Vehicle, connect, direct, noise, pictures, worker

FRAMES = 5


class ReversingPresenter:
    """Presents the newest result with the classes in reverse order."""

    def __init__(self, parts: PresenterParts) -> None:
        self._last_class = len(parts.card.labels.names) - 1

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        assert tick.image.shape[:2] == (tick.geometry.target_height, tick.geometry.target_width)
        if newest is None:
            return Output(OutputOrigin.NONE)
        return Output(OutputOrigin.WARPED, self._last_class - newest.result)


def test_a_new_presenter_makes_the_outputs_of_a_run(
    embedded_url: str, model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is chosen by the name in the table; the age and the source of its outputs are recorded for it."""
    monkeypatch.setitem(PRESENTERS, "reverse", PresenterEntry(f"{__name__}:ReversingPresenter", "edge"))
    ticks: list[PresentedTick] = []
    with worker(embedded_url, model):
        out = tmp_path / "car-reversed"
        vehicle = Vehicle(connect(embedded_url), pictures(tmp_path, FRAMES), out, present="reverse", window=1)
        assert vehicle.presentation is not None
        vehicle.presentation.listeners.append(ticks.append)
        vehicle.play()
    assert [tick.origin for tick in ticks] == [OutputOrigin.NONE, *[OutputOrigin.WARPED] * (FRAMES - 1)]
    for tick in ticks[1:]:
        assert tick.source_sequence is not None
        mask = direct(model, noise(tick.source_sequence, (HEIGHT, WIDTH, 3))[..., ::-1])
        np.testing.assert_array_equal(tick.result, len(vehicle.card.labels.names) - 1 - mask)
