"""Failure of one of several workers: its frames go to another, and no frame is answered twice."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import pytest

from analysis.logs.audit import audit
from edge import run_record
from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport
from edge.workers.worker_directory import NoWorkerError
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import write_manifest
from tests.pipeline.rig import HEIGHT, WAIT_S, WIDTH, Rows, Vehicle, connect, count_outcomes, null_workers, pictures

WORKERS = 3


def played(
    vehicles: list[Vehicle], frozen: NullWorkerProcess, how: signal.Signals, is_over: Callable[[], bool]
) -> list[Rows]:
    """Plays vehicles in a loop at the same time until `is_over`, lets a worker fail, and returns the rows.

    The worker is paused once each vehicle has answers. After some more answers it must hold frames, because the workers
    take turns. Then it gets the signal `how`.
    """
    answered: list[int] = []  # Answers of each vehicle when the worker was paused.
    broken = threading.Event()
    ticking = threading.Lock()
    found: list[Rows] = [[] for _ in vehicles]

    def tick() -> None:
        with ticking:
            if not answered and all(vehicle.answered() >= 10 for vehicle in vehicles):
                os.kill(frozen.pid, signal.SIGSTOP)
                answered.extend(vehicle.answered() for vehicle in vehicles)
            elif answered and not broken.is_set():
                counts = zip(vehicles, answered, strict=True)
                if all(vehicle.answered() >= before + WORKERS for vehicle, before in counts):
                    os.kill(frozen.pid, how)
                    broken.set()
            elif broken.is_set() and is_over():
                for vehicle in vehicles:
                    vehicle.stop()

    def play(place: int) -> None:
        found[place] = vehicles[place].play(tick)

    threads = [threading.Thread(target=play, args=(place,), name=f"car-{place}") for place in range(len(vehicles))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_no_frame_is_lost_when_one_of_several_workers_fails(
    mosquitto_url: str, tmp_path: Path, how: signal.Signals
) -> None:
    """The broker does not redeliver the frames that the worker held; the vehicle sends them again.

    The sums of log and manifest hold for frames that were sent twice, and the journal has a line per attempt.
    """
    model = f"instant-{uuid4().hex[:6]}"
    source = pictures(tmp_path, 40)
    with null_workers(mosquitto_url, model, WORKERS, think_ms=40) as processes:
        vehicles = [
            Vehicle(connect(mosquitto_url), source, tmp_path / f"car-{n}-{model}", model=model, window=3, loop=True)
            for n in range(2)
        ]
        found = played(vehicles, processes[0], how, lambda: any(vehicle.counts().retry_won for vehicle in vehicles))
        retried = sum(vehicle.counts().retried for vehicle in vehicles)
        won = sum(vehicle.counts().retry_won for vehicle in vehicles)
    for vehicle, rows in zip(vehicles, found, strict=True):
        assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
        counts, source_of = vehicle.counts(), {"kind": "folder", "sha256": "a" * 64}
        manifest = run_record.ended(run_record.started(EdgeConfig(), "s1", source_of, vehicle.card), counts, 0)
        write_manifest(vehicle.out, manifest)
        assert audit(vehicle.out) == ()
        assert sum(by["frames"] for by in manifest["answered_by"]) == counts.outcomes[Outcome.ANSWERED]
    twice = [row for rows in found for row in rows if row["attempts"] == "2"]
    assert 0 < won <= retried == len(twice)
    assert {row["worker"] for row in twice if float(row["retry_wait_ms"])} <= {each.name for each in processes[1:]}


def test_late_answers_of_a_resumed_worker_are_duplicates(mosquitto_url: str, tmp_path: Path) -> None:
    """The worker answers all frames that it held; each frame uses only the first answer."""
    model = f"instant-{uuid4().hex[:6]}"
    with null_workers(mosquitto_url, model, WORKERS, think_ms=30) as processes:
        frozen = processes[0].pid
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
                os.kill(frozen, signal.SIGCONT)
            elif vehicle.answered() >= turn and not counts.retried:
                os.kill(frozen, signal.SIGCONT if turn % 40 == 30 else signal.SIGSTOP)
                turn = next(turns)

        rows = vehicle.play(tick)
    outcomes = count_outcomes(rows)
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped"}
    assert {reason for outcome, reason in outcomes if outcome == "dropped"} <= {"stopped"}
    assert vehicle.counts().ignored_answers["duplicate"] >= 1


def test_without_retries_the_frames_of_a_dead_worker_are_lost(mosquitto_url: str, tmp_path: Path) -> None:
    """Every frame still has its row."""
    model = f"instant-{uuid4().hex[:6]}"
    with null_workers(mosquitto_url, model, WORKERS, think_ms=100) as processes:
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(tmp_path, 30), tmp_path / f"car-{model}", model=model, window=6, retry=False,
            answer_timeout_s=2.0, loop=True,
        )  # fmt: skip
        (rows,) = played([vehicle], processes[0], signal.SIGKILL, lambda: Outcome.LOST in vehicle.counts().outcomes)
    outcomes = count_outcomes(rows)
    assert outcomes["lost", "no answer"] > 0
    assert set(outcomes) <= {("answered", ""), ("lost", "no answer"), ("dropped", "stopped")}
    assert {row["attempts"] for row in rows if row["outcome"] != "dropped"} == {"1"}


def test_a_missing_version_is_an_error_that_names_the_available_ones(mosquitto_url: str) -> None:
    """The error comes before anything is played."""
    model = f"instant-{uuid4().hex[:6]}"
    with ExitStack() as stack:
        stack.enter_context(NullWorkerProcess(mosquitto_url, NullWorkerSettings(f"w-{model}", model, HEIGHT, WIDTH)))
        bus = stack.enter_context(connect(mosquitto_url))
        transport = MqttTransport(bus, EdgeConfig(vehicle=f"car-{model}", model=model, model_version="1"), "s1")
        assert transport.wait_for_card(WAIT_S).version == "1"
        transport = MqttTransport(bus, EdgeConfig(vehicle=f"car-{model}", model=model, model_version="9"), "s1")
        message = ""
        while "ask for" not in message:  # The worker's status may not have arrived yet.
            with pytest.raises(NoWorkerError) as caught:
                transport.wait_for_card(0.1)
            message = str(caught.value)
        assert message.startswith(f"no worker serves version '9' of model '{model}': ask for 1")
