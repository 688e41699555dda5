"""Overload: more frames than the workers can answer, for minutes."""

import time
from collections.abc import Sequence

from bench.faults.rig.rig import Rig
from bench.faults.rig.vehicle_process import VehicleProcess
from bench.faults.scenario import Figure, Finding, Scenario
from bench.harness.process_log import ProcessHistory, ProcessLog
from bench.harness.samples import spread
from shared import clock
from shared.runlog.latency_log import Outcome

_S, _MS = 1e9, 1e6
_VEHICLES = 8
_FACTOR = 2.0  # Offered load relative to the worker's capacity.
_THINK_MS = 40.0  # Time of an answer: a wait, so that the processor is free for eight vehicles.
_CAPACITY_HZ = 1e3 / _THINK_MS
_RATE_HZ = _FACTOR * _CAPACITY_HZ / _VEHICLES
_WINDOW = 2  # At most sixteen frames wait, for 640 ms.
_DEADLINE_MS = 1500.0
_SETTLED_S = 60.0  # Settling time; a third of shorter runs.
_LEAST_SHARE = 0.95
_MOST_AGE_MS = 1.25 * 1e3 / _RATE_HZ  # A newer frame replaces a waiting one after one period.
_SLOPE_MB = 0.5  # Limit per minute; checked only with two minutes of data, because new processes still grow.
_JUDGED_S = 120.0
_MOST_MB = {"broker": 64.0, "worker": 256.0, "vehicle": 256.0}


def overload(rig: Rig) -> Finding:
    """Eight vehicles offer a worker twice its capacity; checks throughput, age of frames, and memory growth."""
    broker = rig.broker()
    worker = rig.worker(broker.url, think_ms=_THINK_MS)
    flags = ["--loop", "--window", str(_WINDOW), "--deadline-ms", f"{_DEADLINE_MS:g}"]
    vehicles = []
    for number in range(1, _VEHICLES + 1):
        rig.say(f"starting vehicle {number} of {_VEHICLES}")
        vehicles.append(rig.vehicle(broker.url, f"vehicle-{number}", rate_hz=_RATE_HZ, flags=flags, waits_for_go=True))
    with ProcessLog(rig.folder / "processes.csv") as log:
        log.watch("broker", "broker", broker.pid)
        log.watch("worker", worker.worker, worker.pid)
        for vehicle in vehicles:
            log.watch("vehicle", vehicle.name, vehicle.pid)
            vehicle.go()
        rig.wait_for_frames(vehicles, 10)
        rig.say(f"{_FACTOR:g} times the capacity for {rig.overload_s:g} s")
        began_ns = clock.now_ns()
        time.sleep(rig.overload_s)
        ended_ns = clock.now_ns()
    for vehicle in vehicles:
        vehicle.stop()
    for vehicle in vehicles:
        vehicle.end()
    accounts = rig.accounts(*vehicles)
    answered_hz, share = _goodput(vehicles, began_ns, ended_ns)
    ages_ms = _ages_ms(vehicles)
    return Finding(
        (
            Figure("answered in time", answered_hz, "frames/s"),
            Figure("capacity not used", 100 * (1 - share), "%", most=100 * (1 - _LEAST_SHARE)),
            Figure("age of frames when sent p99", spread(ages_ms)["p99"] if ages_ms else None, "ms", most=_MOST_AGE_MS),
            Figure("dropped by newer ones", 100 * accounts.reasons["dropped(window)"] / accounts.read, "%"),
            *_memory(log.histories, rig.overload_s),
        ),
        accounts,
        remarks=(f"{_VEHICLES} vehicles offer {_FACTOR:g} × {_CAPACITY_HZ:g} frames/s for {rig.overload_s:g} s",),
    )


def _goodput(vehicles: Sequence[VehicleProcess], began_ns: int, ended_ns: int) -> tuple[float, float]:
    """Returns the answered frames per second between two times, and the share of the time that their inferences took.

    The share is the goodput relative to the capacity of the engine, because useless inferences are not answered.
    """
    inferred_ms = [
        float(row["inferred_ms"])
        for vehicle in vehicles
        for row in vehicle.rows()
        if row["outcome"] == Outcome.ANSWERED and began_ns < int(row["t_mask_decoded_ns"]) <= ended_ns
    ]
    return len(inferred_ms) * _S / (ended_ns - began_ns), sum(inferred_ms) * _MS / (ended_ns - began_ns)


def _ages_ms(vehicles: Sequence[VehicleProcess]) -> list[float]:
    """Returns the age of each frame when it was sent, in ms."""
    return [
        (int(row["t_sent_ns"]) - int(row["t_due_ns"])) / _MS
        for vehicle in vehicles
        for row in vehicle.rows()
        if row["attempts"] == "1"
    ]


def _memory(lives: Sequence[ProcessHistory], seconds: float) -> list[Figure]:
    """Returns for each role the steepest memory slope after the settling time, and the maximum memory."""
    settled_s = min(_SETTLED_S, seconds / 3)
    steepest_mb = _SLOPE_MB if seconds - settled_s >= _JUDGED_S else None
    figures = []
    for role, bound_mb in _MOST_MB.items():
        ours = [life for life in lives if life.role == role]
        slopes = [life.slope("rss_bytes", after_s=settled_s) for life in ours]
        known = [60 * each / 1e6 for each in slopes if each is not None]
        most = [each for life in ours if (each := life.peak("rss_bytes")) is not None]
        figures += [
            Figure(f"{role}'s memory slope", max(known, default=None), "MB/min", most=steepest_mb),
            Figure(f"{role}'s memory", max(most) / 1e6 if most else None, "MB", most=bound_mb),
        ]
    return figures


SCENARIOS = (
    Scenario(
        12,
        "overload",
        f"{_VEHICLES} vehicles offer {_FACTOR:g} times what the worker can do",
        f"the newest frames are answered, at {_LEAST_SHARE:g} of the capacity or more; no process's memory grows",
        overload,
    ),
)
