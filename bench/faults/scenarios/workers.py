"""Worker faults: killed, frozen, drained, and all gone."""

from collections.abc import Sequence

from bench.faults.rig.rig import Rig, freeze, kill, resume
from bench.faults.rig.vehicle_process import VehicleProcess
from bench.faults.scenario import Figure, Finding, Scenario
from bench.harness.frame_accounting import recovery_ms
from bench.harness.samples import spread
from shared import clock
from shared.runlog.latency_log import Outcome

_S = 1e9
_RECOVERY_MS = 3000.0
_THINK_MS = 40.0
_PICTURES = 600  # More than a scenario needs, so that every mask has its own file.
_KILLS = 3
_FROZEN_S = 4.0
_DEADLINE_MS = 1000.0
_AWAY_S = 60.0
_REASON_S = 2.0  # Maximum time until the first frame is dropped after all workers were killed.
_FROZEN_REASON_S = 22.5  # The same after all were frozen: one and a half keepalives.
_SETTLING_S = 1.0  # The broker's acknowledgement can arrive before the last worker's will.
_RATE_HZ = 10.0


def killed_worker(rig: Rig) -> Finding:
    """Kills workers that hold frames, one after the other, with three workers and two vehicles."""
    broker = rig.broker()
    workers = [rig.worker(broker.url, f"worker-{number}", think_ms=_THINK_MS) for number in (1, 2, 3)]
    vehicles = _vehicles(rig, broker.url)
    killed_ns = []
    for number in range(_KILLS):
        rig.wait_for_frames(vehicles, 30)
        rig.say(f"kill {number + 1} of {_KILLS}")
        victim = workers.pop(0)
        killed_ns.append(clock.now_ns())
        kill(victim.pid)
        rig.wait_for_frames(vehicles, 30)
        workers.append(rig.worker(broker.url, victim.worker, think_ms=_THINK_MS))
    for vehicle in vehicles:
        vehicle.end()
    accounts = rig.accounts(*vehicles)
    recovered_ms = _recovery_ms(vehicles, killed_ns)
    return Finding(
        (
            _worst(recovered_ms),
            Figure("workers killed", _KILLS),
            Figure("frames answered by another", len(recovered_ms)),
            Figure("duplicates removed", accounts.ignored["duplicate"]),
            Figure("frames not answered", accounts.unanswered, most=0),
        ),
        accounts,
    )


def frozen_worker(rig: Rig) -> Finding:
    """Freezes a worker that holds frames and continues it later, with three workers and two vehicles with a deadline."""
    broker = rig.broker()
    workers = [rig.worker(broker.url, f"worker-{number}", think_ms=_THINK_MS) for number in (1, 2, 3)]
    vehicles = _vehicles(rig, broker.url, "--deadline-ms", f"{_DEADLINE_MS:g}")
    rig.wait_for_frames(vehicles, 30)
    frozen_ns = clock.now_ns()
    freeze(workers[0].pid)
    rig.wait(lambda: clock.now_ns() > frozen_ns + _FROZEN_S * _S, "the worker to have stood still long enough")
    resume(workers[0].pid)
    rig.wait_for_frames(vehicles, 60)  # It has then answered the frames that it held.
    for vehicle in vehicles:
        vehicle.end()
    accounts = rig.accounts(*vehicles)
    meanwhile = [
        row
        for vehicle in vehicles
        for row in vehicle.rows()
        if frozen_ns < int(row["t_due_ns"]) < frozen_ns + _FROZEN_S * _S
    ]
    late = accounts.ignored["duplicate"] + accounts.ignored["late_or_repeated"]
    expired = sum(row["outcome"] in (Outcome.EXPIRED, Outcome.LOST) for row in meanwhile)
    return Finding(
        (
            _worst(_recovery_ms(vehicles, [frozen_ns])),
            Figure("expired while it stood still", 100 * expired / len(meanwhile) if meanwhile else None, "%", most=10),
            Figure("late masks counted, not taken", late),
        ),
        accounts,
        broken=() if late else ("the worker that stood still answered nothing late: the fault did not happen",),
    )


def drained_worker(rig: Rig) -> Finding:
    """Drains a worker that holds frames, with two workers and two vehicles."""
    broker = rig.broker()
    workers = [rig.worker(broker.url, f"worker-{number}", think_ms=_THINK_MS) for number in (1, 2)]
    vehicles = _vehicles(rig, broker.url)
    rig.wait_for_frames(vehicles, 30)
    asked_ns = clock.now_ns()
    code = workers[0].drain()
    drained_ns = clock.now_ns()
    rig.wait_for_frames(vehicles, 30)
    for vehicle in vehicles:
        vehicle.end()
    accounts = rig.accounts(*vehicles)
    finished = sum(
        row["worker"] == workers[0].worker and int(row["t_mask_decoded_ns"] or 0) > asked_ns
        for vehicle in vehicles
        for row in vehicle.rows()
    )
    return Finding(
        (
            Figure("retries", accounts.retried, most=0),
            Figure("drained in", (drained_ns - asked_ns) / _S, "s"),
            Figure("frames finished while draining", finished),
            Figure("frames not answered", accounts.unanswered, most=0),
            Figure("exit code", code, most=0),
        ),
        accounts,
        broken=() if finished else ("the worker held no frame when it was asked to end: the fault did not happen",),
    )


def no_worker(rig: Rig) -> Finding:
    """Kills all workers of one group and freezes all of another for a minute."""
    brokers = {fault: rig.broker() for fault in ("killed", "frozen")}
    workers = {
        fault: [rig.worker(broker.url, f"{fault}-{number}", think_ms=_THINK_MS) for number in (1, 2)]
        for fault, broker in brokers.items()
    }
    flags = ["--deadline-ms", f"{_DEADLINE_MS:g}"]
    vehicles = {
        fault: rig.vehicle(broker.url, f"vehicle-{fault}", pictures=2 * _PICTURES, rate_hz=_RATE_HZ, flags=flags)
        for fault, broker in brokers.items()
    }
    rig.wait_for_frames(list(vehicles.values()), 20)
    began_ns = clock.now_ns()
    for worker in workers["killed"]:
        kill(worker.pid)
    for worker in workers["frozen"]:
        freeze(worker.pid)
    rig.wait(lambda: clock.now_ns() > began_ns + _AWAY_S * _S, "the minute without workers", limit_s=_AWAY_S + 10)
    back_ns = clock.now_ns()
    for worker in workers["frozen"]:
        resume(worker.pid)
    rig.worker(brokers["killed"].url, "killed-1", think_ms=_THINK_MS)
    rig.wait(
        lambda: all(answered_since(vehicle, back_ns) for vehicle in vehicles.values()),
        "answers to both vehicles after the workers were back",
    )
    for vehicle in vehicles.values():
        vehicle.end()
    figures = []
    for fault, limit_s in (("killed", _REASON_S), ("frozen", _FROZEN_REASON_S)):
        figures += _silence(vehicles[fault], fault, began_ns, back_ns, limit_s)
    return Finding(tuple(figures), rig.accounts(*vehicles.values()))


def answered_since(vehicle: VehicleProcess, since_ns: int) -> list[int]:
    """Returns the answer times of the frames that were due after `since_ns`, from the vehicle's log."""
    return [
        int(row["t_mask_decoded_ns"])
        for row in vehicle.rows()
        if row["outcome"] == Outcome.ANSWERED and int(row["t_due_ns"]) > since_ns
    ]


def _vehicles(rig: Rig, url: str, *flags: str) -> list[VehicleProcess]:
    return [rig.vehicle(url, f"vehicle-{number}", pictures=_PICTURES, flags=flags) for number in (1, 2)]


def _recovery_ms(vehicles: Sequence[VehicleProcess], faults_ns: Sequence[int]) -> list[float]:
    return [wait_ms for vehicle in vehicles for wait_ms in recovery_ms(vehicle.rows(), faults_ns)]


def _worst(recovered_ms: Sequence[float]) -> Figure:
    return Figure("recovery p95", spread(recovered_ms)["p95"] if recovered_ms else None, "ms", most=_RECOVERY_MS)


def _silence(vehicle: VehicleProcess, fault: str, began_ns: int, back_ns: int, limit_s: float) -> list[Figure]:
    """Returns the figures of an outage: time to the first drop, frames sent without a worker, time to recovery."""
    meanwhile = [row for row in vehicle.rows() if began_ns < int(row["t_due_ns"]) < back_ns]
    first_ns = min((int(row["t_due_ns"]) for row in meanwhile if row["reason"].startswith("no_worker")), default=None)
    known_ns = (first_ns or began_ns) + _SETTLING_S * _S
    sent_meanwhile = [row for row in meanwhile if row["t_sent_ns"] and int(row["t_due_ns"]) > known_ns]
    answered_ns = answered_since(vehicle, back_ns)
    return [
        Figure(f"{fault}: first reason after", (first_ns - began_ns) / _S if first_ns else None, "s", most=limit_s),
        Figure(f"{fault}: frames sent while no worker was known", len(sent_meanwhile), most=0),
        Figure(f"{fault}: answered again after", (min(answered_ns) - back_ns) / _S if answered_ns else None, "s"),
    ]


SCENARIOS = (
    Scenario(
        1, "killed-worker", "kill -9 a worker that holds frames", "they are answered by another worker", killed_worker
    ),
    Scenario(
        2,
        "frozen-worker",
        f"SIGSTOP a worker that holds frames for {_FROZEN_S:g} s",
        "they are answered by another worker; its late masks are counted and not taken",
        frozen_worker,
    ),
    Scenario(
        3,
        "drained-worker",
        "SIGTERM a worker that holds frames",
        "it answers what it holds and goes: no frame is sent twice",
        drained_worker,
    ),
    Scenario(
        4,
        "no-worker",
        f"all workers killed, or all frozen, for {_AWAY_S:g} s",
        f"frames are dropped(no_worker) within {_REASON_S:g} s ({_FROZEN_REASON_S:g} s), and answered again afterwards",
        no_worker,
    ),
)
