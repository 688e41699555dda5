"""Nobody is left to answer: new frames are told so within moments, though those in flight still wait for their time."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

from bench.load.null_worker import NullWorkerProcess, NullWorkerSettings
from edge.pacing.arrivals import Arrivals
from edge.pacing.replay import Pace
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import HEIGHT, WIDTH, Vehicle, connect, count_outcomes

WINDOW = 2


@contextmanager
def _workers(url: str, model: str, think_ms: float = 5.0) -> Iterator[list[int]]:
    """Two workers, processes of their own, by their numbers; what stands still goes on in the end, to be ended."""
    with ExitStack() as stack:
        pids = []
        for number in range(2):
            settings = NullWorkerSettings(f"w{number}-{model}", model, HEIGHT, WIDTH, think_ms)
            pids.append(stack.enter_context(NullWorkerProcess(url, settings)).pid)
            stack.callback(os.kill, pids[-1], signal.SIGCONT)
        yield pids


def _vehicle(url: str, source: Path, out: Path, **settings: float) -> Vehicle:
    return Vehicle(
        connect(url), source, out, pace=Pace.OPEN_LOOP, arrivals=Arrivals.UNIFORM, arrival_rate_hz=50.0, loop=True,
        model=out.name, window=WINDOW, answer_timeout_s=3.0, **settings,
    )  # fmt: skip


def test_dead_workers_are_known_though_the_window_is_full(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The frames they held take every place until they are given up: `window` would be the wrong reason for the others."""
    model = f"instant-{uuid4().hex[:6]}"
    with _workers(mosquitto_url, model, think_ms=100.0) as pids:
        vehicle = _vehicle(mosquitto_url, pictures(20), tmp_path / model)
        killed: list[int] = []

        def tick() -> None:
            tally = vehicle.tally()
            if not killed and vehicle.answered() >= 10 and tally.in_flight == WINDOW:
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                killed.append(vehicle.answered())
            if killed and ("dropped", "no_worker") in count_outcomes(vehicle.rows()):
                vehicle.stop()

        rows = vehicle.play(tick)
    reasons = [row["reason"] for row in rows]  # In the order in which the frames ended.
    assert "no answer" not in reasons[: reasons.index("no_worker")]
    assert 0 < reasons.count("no answer") <= WINDOW


def test_workers_that_stand_still_are_nobody_until_one_goes_on(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """The broker has them online for 22 seconds more; and what goes on is sent frames again at once."""
    model = f"instant-{uuid4().hex[:6]}"
    with _workers(mosquitto_url, model) as pids:
        vehicle = _vehicle(mosquitto_url, pictures(20), tmp_path / model, silence_s=0.5)
        stopped: list[int] = []
        resumed: list[int] = []
        online: list[int] = []

        def tick() -> None:
            if not stopped and vehicle.answered() >= 10:
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                stopped.append(vehicle.answered())
            elif stopped and not resumed and ("dropped", "no_worker") in count_outcomes(vehicle.rows()):
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                resumed.append(vehicle.answered())
                online.append(len(vehicle.online()))
            elif resumed and vehicle.answered() >= resumed[0] + 20:
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = count_outcomes(rows)
    assert outcomes["dropped", "no_worker"] > 0
    assert online == [2]
    assert vehicle.tally().outcomes[Outcome.ANSWERED] >= resumed[0] + 20
