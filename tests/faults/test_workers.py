"""Worker faults: killed, frozen, drained, and all gone."""

import time
from collections.abc import Iterator, Sequence

import pytest

from analysis.logs.frame_accounting import recovery_ms
from analysis.statistics.samples import spread
from ops.processes.null_worker import NullWorkerProcess
from ops.processes.vehicle_process import VehicleProcess
from shared import clock
from shared.runlog.latency_log import Outcome
from tests.support.faults.finding import Figure
from tests.support.faults.rig import Rig, answered_since, freeze, kill, resume

_S = 1e9
_RECOVERY_MS = 3000.0
_THINK_MS = 40.0
_PICTURES = 600  # More than a scenario needs, so that every mask has its own file.
_KILLS = 3
_FROZEN_S = 4.0
_DEADLINE = ("--deadline-ms", "1000")
_AWAY_S = 60.0
_REASON_S = 2.0  # Maximum time until the first frame is dropped after all workers were killed.
_FROZEN_REASON_S = 22.5  # The same after all were frozen: one and a half keepalives.
_SETTLING_S = 1.0  # The broker's acknowledgement can arrive before the last worker's will.


@pytest.mark.faults(1, "kill -9 a worker that holds frames", "they are answered by another worker")
def test_killed_worker(rig: Rig) -> None:
    """Kills workers that hold frames, one after the other, with three workers and two vehicles."""
    url, workers = _started(rig, 3)
    killed_ns = []
    for number in range(_KILLS):
        rig.wait_for_frames(rig.vehicles, 30)
        rig.say(f"kill {number + 1} of {_KILLS}")
        victim = workers.pop(0)
        killed_ns.append(clock.now_ns())
        kill(victim.pid)
        rig.wait_for_frames(rig.vehicles, 30)
        workers.append(rig.worker(url, victim.name, think_ms=_THINK_MS))
    accounts = rig.end_vehicles()
    recovered_ms = recovery_ms(rig.rows(), killed_ns)
    rig.conclude(
        accounts,
        _worst(recovered_ms),
        Figure("workers killed", _KILLS),
        Figure("frames answered by another", len(recovered_ms)),
        Figure("duplicates removed", accounts.ignored["duplicate"]),
        Figure("frames not answered", accounts.unanswered, most=0),
    )


@pytest.mark.faults(
    2,
    f"SIGSTOP a worker that holds frames for {_FROZEN_S:g} s",
    "they are answered by another worker; its late masks are counted and not taken",
)
def test_frozen_worker(rig: Rig) -> None:
    """Freezes a worker that holds frames and continues it later, with three workers and two vehicles with a deadline."""
    _, workers = _started(rig, 3, *_DEADLINE)
    rig.wait_for_frames(rig.vehicles, 30)
    frozen_ns = clock.now_ns()
    freeze(workers[0].pid)
    time.sleep(_FROZEN_S)
    resume(workers[0].pid)
    rig.wait_for_frames(rig.vehicles, 60)  # It has then answered the frames that it held.
    accounts = rig.end_vehicles()
    meanwhile = rig.rows(due_ns=(frozen_ns, frozen_ns + _FROZEN_S * _S))
    late = accounts.ignored["duplicate"] + accounts.ignored["late_or_repeated"]
    expired = sum(row["outcome"] in (Outcome.EXPIRED, Outcome.LOST) for row in meanwhile)
    rig.conclude(
        accounts,
        _worst(recovery_ms(rig.rows(), [frozen_ns])),
        Figure("expired while it stood still", 100 * expired / len(meanwhile) if meanwhile else None, "%", most=10),
        Figure("late masks counted, not taken", late),
        broken=() if late else ("the worker that stood still answered nothing late: the fault did not happen",),
    )


@pytest.mark.faults(
    3,
    "SIGTERM a worker that holds frames",
    "it answers what it holds and goes: no frame is sent twice",
)
def test_drained_worker(rig: Rig) -> None:
    """Drains a worker that holds frames, with two workers and two vehicles."""
    _, workers = _started(rig, 2)
    rig.wait_for_frames(rig.vehicles, 30)
    asked_ns = clock.now_ns()
    code = workers[0].drain()
    drained_ns = clock.now_ns()
    rig.wait_for_frames(rig.vehicles, 30)
    accounts = rig.end_vehicles()
    by_drained = [row for row in rig.rows() if row["worker"] == workers[0].name]
    finished = sum(int(row["t_mask_decoded_ns"] or 0) > asked_ns for row in by_drained)
    rig.conclude(
        accounts,
        Figure("retries", accounts.retried, most=0),
        Figure("drained in", (drained_ns - asked_ns) / _S, "s"),
        Figure("frames finished while draining", finished),
        Figure("frames not answered", accounts.unanswered, most=0),
        Figure("exit code", code, most=0),
        broken=() if finished else ("the worker held no frame when it was asked to end: the fault did not happen",),
    )


@pytest.mark.faults(
    4,
    f"all workers killed, or all frozen, for {_AWAY_S:g} s",
    f"frames are dropped(no_worker) within {_REASON_S:g} s ({_FROZEN_REASON_S:g} s), and answered again afterwards",
)
def test_no_worker(rig: Rig) -> None:
    """Kills all workers of one group and freezes all of another for a minute."""
    faults = ("killed", "frozen")
    brokers = {fault: rig.broker() for fault in faults}
    killed, frozen = (
        [rig.worker(brokers[fault].url, f"{fault}-{number}", think_ms=_THINK_MS) for number in (1, 2)]
        for fault in faults
    )
    for fault in faults:
        url, flags = brokers[fault].url, _DEADLINE
        rig.vehicle(url, f"vehicle-{fault}", pictures=2 * _PICTURES, rate_hz=10, flags=flags)
    rig.wait_for_frames(rig.vehicles, 20)
    began_ns = clock.now_ns()
    for worker in killed:
        kill(worker.pid)
    for worker in frozen:
        freeze(worker.pid)
    time.sleep(_AWAY_S)
    back_ns = clock.now_ns()
    for worker in frozen:
        resume(worker.pid)
    rig.worker(brokers["killed"].url, "killed-1", think_ms=_THINK_MS)
    rig.wait(
        lambda: all(answered_since(vehicle, back_ns) for vehicle in rig.vehicles),
        "answers to both vehicles after the workers were back",
    )
    accounts = rig.end_vehicles()
    limits_s = (_REASON_S, _FROZEN_REASON_S)
    figures = [
        figure
        for vehicle, fault, limit_s in zip(rig.vehicles, faults, limits_s, strict=True)
        for figure in _silence(vehicle, fault, began_ns, back_ns, limit_s)
    ]
    rig.conclude(accounts, *figures)


def _started(rig: Rig, workers: int, *flags: str) -> tuple[str, list[NullWorkerProcess]]:
    """Starts a broker, workers and two vehicles; returns the broker's URL and the workers."""
    url = rig.broker().url
    started = [rig.worker(url, f"worker-{number}", think_ms=_THINK_MS) for number in range(1, workers + 1)]
    for number in (1, 2):
        rig.vehicle(url, f"vehicle-{number}", pictures=_PICTURES, flags=flags)
    return url, started


def _worst(recovered_ms: Sequence[float]) -> Figure:
    return Figure("recovery p95", spread(recovered_ms)["p95"], "ms", most=_RECOVERY_MS)


def _silence(vehicle: VehicleProcess, fault: str, began_ns: int, back_ns: int, limit_s: float) -> Iterator[Figure]:
    """Yields the figures of an outage: time to the first drop, frames sent without a worker, time to recovery."""
    meanwhile = vehicle.rows(due_ns=(began_ns, back_ns))
    first_ns = min((int(row["t_due_ns"]) for row in meanwhile if row["reason"].startswith("no_worker")), default=None)
    known_ns = (first_ns or began_ns) + _SETTLING_S * _S
    sent = sum(bool(row["t_sent_ns"]) and int(row["t_due_ns"]) > known_ns for row in meanwhile)
    answered_ns = answered_since(vehicle, back_ns)
    yield Figure(f"{fault}: first reason after", (first_ns - began_ns) / _S if first_ns else None, "s", most=limit_s)
    yield Figure(f"{fault}: frames sent while no worker was known", sent, most=0)
    yield Figure(f"{fault}: answered again after", (min(answered_ns) - back_ns) / _S if answered_ns else None, "s")
