"""Outputs for now, end to end: every frame that falls due gets an output, or the reason why there is none."""

from pathlib import Path

import numpy as np

from edge.presenting.presentation import NO_RESULT, PresentedTick
from shared.models.model import Model
from shared.runlog.presented_log import OutputOrigin
from tests.pipeline.rig import HEIGHT, WIDTH, Vehicle, connect, direct, noise, pictures, worker

FRAMES = 6


def test_every_frame_gets_the_newest_result(embedded_url: str, model: Model, tmp_path: Path) -> None:
    """In a closed loop with one frame in flight, the result of the frame before has arrived when a frame is due."""
    ticks: list[PresentedTick] = []
    with worker(embedded_url, model):
        out = tmp_path / "car-held"
        vehicle = Vehicle(connect(embedded_url), pictures(tmp_path, FRAMES), out, present="hold", window=1)
        assert vehicle.presentation is not None
        vehicle.presentation.listeners.append(ticks.append)
        rows = vehicle.play()
    assert [tick.sequence for tick in ticks] == [int(row["sequence"]) for row in rows] == list(range(FRAMES))
    assert (ticks[0].output.origin, ticks[0].output.reason) == (OutputOrigin.NONE, NO_RESULT)
    for tick in ticks[1:]:
        source = tick.source_sequence
        assert tick.output.origin is OutputOrigin.REMOTE
        assert source in (tick.sequence - 1, tick.sequence)  # Its own result, if the presenter is slow to wake up.
        assert tick.age_ns == tick.due_ns - ticks[source].due_ns
        assert tick.presented_ns >= int(rows[source]["t_mask_decoded_ns"])
        np.testing.assert_array_equal(tick.output.result, direct(model, noise(source, (HEIGHT, WIDTH, 3))[..., ::-1]))
