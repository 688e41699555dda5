"""All workers fail: new frames are dropped within moments, while frames in flight still wait for their timeout."""

import os
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

from edge.config import Arrivals
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import Vehicle, connect, count_outcomes, null_workers, pictures

WINDOW = 2


def _vehicle(url: str, source: Path, out: Path, **settings: Any) -> Vehicle:
    return Vehicle(
        connect(url), source, out, closed_loop=False, arrivals=Arrivals.UNIFORM, arrival_rate_hz=50.0, loop=True,
        model=out.name, window=WINDOW, answer_timeout_s=3.0, **settings,
    )  # fmt: skip


def test_dead_workers_are_detected_while_the_window_is_full(mosquitto_url: str, tmp_path: Path) -> None:
    """The frames that they held fill the window until they time out; `window` would be the wrong reason for new frames."""
    model = f"instant-{uuid4().hex[:6]}"
    with null_workers(mosquitto_url, model, 2, think_ms=100.0) as workers:
        vehicle = _vehicle(mosquitto_url, pictures(tmp_path, 20), tmp_path / model)
        killed: list[int] = []

        def tick() -> None:
            counts = vehicle.counts()
            if not killed and vehicle.answered() >= 10 and counts.in_flight == WINDOW:
                for each in workers:
                    os.kill(each.pid, signal.SIGKILL)
                killed.append(vehicle.answered())
            if killed and ("dropped", "no_worker") in count_outcomes(vehicle.rows()):
                vehicle.stop()

        rows = vehicle.play(tick)
    reasons = [row["reason"] for row in rows]  # Rows are in the order in which frames ended.
    assert "no answer" not in reasons[: reasons.index("no_worker")]
    assert 0 < reasons.count("no answer") <= WINDOW


def test_hanging_workers_get_no_frames_until_they_continue(mosquitto_url: str, tmp_path: Path) -> None:
    """The broker lists them as online for 22 more seconds; a worker that continues gets frames again at once."""
    model = f"instant-{uuid4().hex[:6]}"
    with null_workers(mosquitto_url, model, 2, think_ms=5.0) as workers:
        vehicle = _vehicle(mosquitto_url, pictures(tmp_path, 20), tmp_path / model, unresponsive_after_s=0.5)
        stopped: list[int] = []
        resumed: list[int] = []
        online: list[int] = []

        def tick() -> None:
            if not stopped and vehicle.answered() >= 10:
                for each in workers:
                    os.kill(each.pid, signal.SIGSTOP)
                stopped.append(vehicle.answered())
            elif stopped and not resumed and ("dropped", "no_worker") in count_outcomes(vehicle.rows()):
                for each in workers:
                    os.kill(each.pid, signal.SIGCONT)
                resumed.append(vehicle.answered())
                online.append(len(vehicle.online()))
            elif resumed and vehicle.answered() >= resumed[0] + 20:
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = count_outcomes(rows)
    assert outcomes["dropped", "no_worker"] > 0
    assert online == [2]
    assert vehicle.counts().outcomes[Outcome.ANSWERED] >= resumed[0] + 20
