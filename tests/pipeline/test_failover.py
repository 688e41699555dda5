"""A worker that dies or stands still among others: what it held goes to one that lives, and no mask is taken twice."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from bench.load.null_worker import NullWorkerProcess, NullWorkerSettings
from bench.logs.audit import audit
from edge import run_record
from edge.config import EdgeConfig
from edge.reliability.worker_directory import NoWorkerError
from edge.transports.mqtt.transport import MqttTransport
from shared.runlog.latency_log import Outcome
from shared.runlog.run_manifest import write_manifest
from tests.pipeline.rig import HEIGHT, WAIT_S, WIDTH, Rows, Vehicle, connect, count_outcomes

WORKERS = 3


@contextmanager
def workers(url: str, model: str, think_ms: float) -> Iterator[list[NullWorkerProcess]]:
    """Three of them, processes of their own; what stands still goes on in the end, to be ended."""
    settings = [NullWorkerSettings(f"w{n}-{model}", model, HEIGHT, WIDTH, think_ms) for n in range(WORKERS)]
    with ExitStack() as stack:
        made = []
        for each in settings:
            made.append(stack.enter_context(NullWorkerProcess(url, each)))
            stack.callback(os.kill, made[-1].pid, signal.SIGCONT)
        yield made


def played(
    vehicles: list[Vehicle], frozen: NullWorkerProcess, how: signal.Signals, is_over: Callable[[], bool]
) -> list[Rows]:
    """The rows of vehicles that play round and round at the same time, until `is_over`, while a worker breaks.

    It stands still once each vehicle has had answers. Workers take turns: when each vehicle has had some more, it
    holds frames. Then it gets the signal `how`.
    """
    answered: list[int] = []  # By each vehicle, when the worker began to stand still.
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
def test_no_frame_is_lost_with_a_worker_among_others(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path, how: signal.Signals
) -> None:
    """The broker acknowledged what the dead one held and gives it to nobody: the vehicle does."""
    model = f"instant-{uuid4().hex[:6]}"
    source = pictures(40)
    with workers(mosquitto_url, model, think_ms=40) as processes:
        vehicles = [
            Vehicle(connect(mosquitto_url), source, tmp_path / f"car-{n}-{model}", model=model, window=3, loop=True)
            for n in range(2)
        ]
        found = played(vehicles, processes[0], how, lambda: any(vehicle.tally().retry_won for vehicle in vehicles))
        retried = sum(vehicle.tally().retried for vehicle in vehicles)
        won = sum(vehicle.tally().retry_won for vehicle in vehicles)
    for rows in found:
        assert set(count_outcomes(rows)) <= {("answered", ""), ("dropped", "stopped")}
    twice = [row for rows in found for row in rows if row["attempts"] == "2"]
    assert 0 < won <= retried == len(twice)
    assert {row["worker"] for row in twice if float(row["retry_wait_ms"])} <= {each.worker for each in processes[1:]}


def test_what_a_worker_answers_that_stood_still_is_not_taken_twice(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """It wakes up, and answers all it held: each of those frames has its mask already, or takes the first that comes."""
    model = f"instant-{uuid4().hex[:6]}"
    with workers(mosquitto_url, model, think_ms=30) as processes:
        frozen = processes[0].pid
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(40), tmp_path / f"car-{model}", model=model, window=3, loop=True
        )
        stopped_at: list[int] = []

        def tick() -> None:
            tally = vehicle.tally()
            if not stopped_at and vehicle.answered() >= 10:
                os.kill(frozen, signal.SIGSTOP)
                stopped_at.append(vehicle.answered())
            elif stopped_at and tally.retry_won >= 2:
                os.kill(frozen, signal.SIGCONT)
            if tally.ignored_answers.get("duplicate"):
                vehicle.stop()

        rows = vehicle.play(tick)
    outcomes = count_outcomes(rows)
    assert {outcome for outcome, _ in outcomes} <= {"answered", "dropped"}
    assert {reason for outcome, reason in outcomes if outcome == "dropped"} <= {"stopped"}
    assert vehicle.tally().ignored_answers["duplicate"] >= 1


def test_without_retries_what_a_dead_worker_held_is_lost(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """What retries are held against; and the sum is right all the same."""
    model = f"instant-{uuid4().hex[:6]}"
    with workers(mosquitto_url, model, think_ms=100) as processes:
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(30), tmp_path / f"car-{model}", model=model, window=6, retries=False,
            answer_timeout_s=2.0, loop=True,
        )  # fmt: skip
        (rows,) = played([vehicle], processes[0], signal.SIGKILL, lambda: Outcome.LOST in vehicle.tally().outcomes)
    outcomes = count_outcomes(rows)
    assert outcomes["lost", "no answer"] > 0
    assert set(outcomes) <= {("answered", ""), ("lost", "no answer"), ("dropped", "stopped")}
    assert {row["attempts"] for row in rows} == {"1"}


def test_the_log_of_a_run_with_retries_is_sound(
    mosquitto_url: str, pictures: Callable[[int], Path], tmp_path: Path
) -> None:
    """Every sum holds for frames that were sent twice, and the journal has a line for each attempt."""
    model = f"instant-{uuid4().hex[:6]}"
    with workers(mosquitto_url, model, think_ms=60) as processes:
        vehicle = Vehicle(
            connect(mosquitto_url), pictures(30), tmp_path / f"car-{model}", model=model, window=6, loop=True
        )
        played([vehicle], processes[0], signal.SIGKILL, lambda: vehicle.tally().retry_won > 0)
    tally = vehicle.tally()
    assert tally.retried > 0
    card = vehicle.card
    begun = run_record.begun(EdgeConfig(vehicle="car"), "s1", {"kind": "folder", "sha256": "a" * 64}, card)
    write_manifest(vehicle.out, run_record.ended(begun, tally, 0))
    assert audit(vehicle.out) == ()
    told = run_record.ended(begun, tally, 0)
    assert told["retries"] == {"retried": tally.retried, "won": tally.retry_won}
    assert sum(by["frames"] for by in told["answered_by"]) == tally.outcomes[Outcome.ANSWERED]
    assert {by["sha256"] for by in told["answered_by"]} == {card.sha256}


def test_a_version_that_nobody_serves_is_told(mosquitto_url: str) -> None:
    """Before anything is played, with the versions that are there; and the one that is served is found."""
    model = f"instant-{uuid4().hex[:6]}"
    with ExitStack() as stack:
        stack.enter_context(NullWorkerProcess(mosquitto_url, NullWorkerSettings(f"w-{model}", model, HEIGHT, WIDTH)))
        bus = stack.enter_context(connect(mosquitto_url))
        transport = MqttTransport(bus, vehicle=f"car-{model}", session="s1", model=model, version="1")
        assert transport.wait_for_card(WAIT_S).version == "1"
        transport = MqttTransport(bus, vehicle=f"car-{model}", session="s1", model=model, version="9")
        told = ""
        while "ask for" not in told:  # The worker's status has not come yet.
            with pytest.raises(NoWorkerError) as caught:
                transport.wait_for_card(0.1)
            told = str(caught.value)
        assert told.startswith(f"no worker serves version '9' of model '{model}': ask for 1")
