"""Workers that are killed or frozen: others answer their frames, and without others frames are dropped at once."""

import os
import signal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from analysis.logs.audit import audit
from edge import run_record
from edge.config import Arrivals, EdgeConfig
from shared.messages import topics
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import write_manifest
from tests.pipeline.rig import (
    Vehicle,
    connect,
    count_outcomes,
    null_model,
    null_worker_process,
    pictures,
    worker,
)


@pytest.fixture
def model() -> str:
    """Returns the name of a model of this test's workers alone."""
    return f"instant-{uuid4().hex[:6]}"


def test_the_frames_of_a_killed_worker_are_answered_by_others(mosquitto_url: str, tmp_path: Path, model: str) -> None:
    """The broker does not deliver them again; the vehicle sends them as soon as the broker reports the worker's end."""
    with (
        null_worker_process(mosquitto_url, model, think_ms=20.0) as victim,
        worker(mosquitto_url, null_model(model, 200.0), name=f"slow-{model}", group=topics.GROUP),
    ):
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(tmp_path, 20), tmp_path / f"car-{model}", model=model, window=4, loop=True
        )
        killed: list[int] = []

        def tick() -> None:
            if not killed and vehicle.answered() >= 40:
                os.kill(victim.pid, signal.SIGKILL)
                killed.append(victim.pid)
            elif vehicle.answered() >= 60:
                vehicle.stop()

        rows = vehicle.play(tick)
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    twice = [row for row in rows if row["attempts"] == "2"]
    assert len(twice) == vehicle.counts().retried <= 4  # No more than were in flight.
    assert all(row["worker"].startswith("slow") for row in twice if row["outcome"] == Outcome.ANSWERED)


def test_the_frames_of_a_frozen_worker_are_answered_once(mosquitto_url: str, tmp_path: Path, model: str) -> None:
    """Another worker answers them; when the frozen one continues, its late answers are duplicates.

    The sums of log and manifest hold for frames that were sent twice, and the journal has a line per attempt.
    """
    with (
        null_worker_process(mosquitto_url, model, think_ms=30.0) as frozen,
        worker(mosquitto_url, null_model(model, 30.0), name=f"other-{model}", group=topics.GROUP),
    ):
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(tmp_path, 40), tmp_path / f"car-{model}", model=model, window=6, loop=True
        )
        turns = iter(range(10, 10**6, 20))
        turn = next(turns)

        def tick() -> None:
            """Freezes the worker for 20 answers at a time, until it held a frame that another answered."""
            nonlocal turn
            counts = vehicle.counts()
            if counts.ignored_answers.get("duplicate"):
                vehicle.stop()
            elif counts.retry_won:
                os.kill(frozen.pid, signal.SIGCONT)
            elif vehicle.answered() >= turn and not counts.retried:
                os.kill(frozen.pid, signal.SIGCONT if turn % 40 == 30 else signal.SIGSTOP)
                turn = next(turns)

        rows = vehicle.play(tick)
    counts = vehicle.counts()
    assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    assert counts.ignored_answers["duplicate"] >= 1
    twice = [row for row in rows if row["attempts"] == "2"]
    assert 0 < counts.retry_won <= counts.retried == len(twice)
    source: dict[str, Any] = {"kind": "folder", "sha256": "a" * 64}
    manifest = run_record.ended(run_record.started(EdgeConfig(), "s1", source, vehicle.card), counts, 0)
    write_manifest(vehicle.out, manifest)
    assert audit(vehicle.out) == ()
    assert sum(by["frames"] for by in manifest["answered_by"]) == counts.outcomes[Outcome.ANSWERED]


WINDOW = 2


def only_worker_fails(
    url: str, tmp_path: Path, model: str, number: signal.Signals, **settings: Any
) -> tuple[Vehicle, list[str]]:
    """Sends a signal to the only worker while the window is full, continues it when frames are dropped, and then stops.

    Returns the vehicle and the reasons of its rows, in the order in which the frames ended.
    """
    with null_worker_process(url, model, think_ms=100.0) as process:
        vehicle = Vehicle(
            connect(url), pictures(tmp_path, 20), tmp_path / f"car-{model}", closed_loop=False, arrivals=Arrivals.UNIFORM,
            arrival_rate_hz=50.0, loop=True, model=model, window=WINDOW, answer_timeout_s=3.0, **settings,
        )  # fmt: skip
        failed: list[int] = []
        resumed: list[int] = []

        def tick() -> None:
            answered, is_dropping = vehicle.answered(), ("dropped", "no_worker") in count_outcomes(vehicle.rows())
            if not failed and answered >= 10 and vehicle.counts().in_flight == WINDOW:
                os.kill(process.pid, number)
                failed.append(answered)
            elif failed and not resumed and is_dropping:
                os.kill(process.pid, signal.SIGCONT)
                resumed.append(answered)
                assert len(vehicle.online()) == (number is signal.SIGSTOP)
            elif resumed and (number is signal.SIGKILL or answered >= resumed[0] + 10):
                vehicle.stop()

        rows = vehicle.play(tick)
    return vehicle, [row["reason"] for row in rows]


def test_a_dead_worker_is_detected_while_the_window_is_full(mosquitto_url: str, tmp_path: Path, model: str) -> None:
    """The frames that it held fill the window until they time out; `window` would be the wrong reason for new frames."""
    _, reasons = only_worker_fails(mosquitto_url, tmp_path, model, signal.SIGKILL)
    assert "no answer" not in reasons[: reasons.index("no_worker")]
    assert 0 < reasons.count("no answer") <= WINDOW


def test_a_hanging_worker_gets_no_frames_until_it_continues(mosquitto_url: str, tmp_path: Path, model: str) -> None:
    """The broker lists it as online for 22 more seconds; it gets frames again at once when it continues."""
    vehicle, reasons = only_worker_fails(mosquitto_url, tmp_path, model, signal.SIGSTOP, unresponsive_after_s=0.5)
    assert reasons.count("no_worker") > 0
    assert vehicle.counts().outcomes[Outcome.ANSWERED] >= 20
