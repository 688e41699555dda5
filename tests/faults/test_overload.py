"""Overload: more frames than the workers can answer, for minutes."""

import time
from collections.abc import Iterator, Sequence

import pytest

from analysis.statistics.samples import spread
from shared import clock
from shared.runlog.latency_log import Outcome
from tests.support.faults.finding import Figure
from tests.support.faults.rig import Rig
from tests.support.process_log import ProcessHistory, ProcessLog

_VEHICLES = 8
_FACTOR = 2.0  # Offered load relative to the worker's capacity.
_THINK_MS = 40.0  # Time of an answer: a wait, so that the processor is free for eight vehicles.
_CAPACITY_HZ = 1e3 / _THINK_MS
_RATE_HZ = _FACTOR * _CAPACITY_HZ / _VEHICLES
_FLAGS = ("--loop", "--window", "2", "--deadline-ms", "1500")  # At most sixteen frames wait, for 640 ms.
_SETTLED_S = 60.0  # Settling time; a third of shorter runs.
_LEAST_SHARE = 0.95
_MOST_AGE_MS = 1.25 * 1e3 / _RATE_HZ  # A newer frame replaces a waiting one after one period.
_SLOPE_MB = 0.5  # Limit per minute; checked only with two minutes of data, because new processes still grow.
_JUDGED_S = 120.0
_MOST_MB = {"broker": 64.0, "worker": 256.0, "vehicle": 256.0}


@pytest.mark.faults(
    12,
    f"{_VEHICLES} vehicles offer {_FACTOR:g} times what the worker can do",
    f"the newest frames are answered, at {_LEAST_SHARE:g} of the capacity or more; no process's memory grows",
)
def test_overload(rig: Rig, overload_s: float) -> None:
    """Eight vehicles offer a worker twice its capacity; checks throughput, age of frames, and memory growth."""
    broker = rig.broker()
    worker = rig.worker(broker.url, think_ms=_THINK_MS)
    for number in range(1, _VEHICLES + 1):
        rig.say(f"starting vehicle {number} of {_VEHICLES}")
        rig.vehicle(broker.url, f"vehicle-{number}", rate_hz=_RATE_HZ, flags=_FLAGS, waits_for_go=True)
    with ProcessLog(rig.folder / "processes.csv") as log:
        log.watch("broker", "broker", broker.pid)
        log.watch("worker", worker.name, worker.pid)
        for vehicle in rig.vehicles:
            log.watch("vehicle", vehicle.name, vehicle.pid)
            vehicle.go()
        rig.wait_for_frames(rig.vehicles, 10)
        rig.say(f"{_FACTOR:g} times the capacity for {overload_s:g} s")
        began_ns = clock.now_ns()
        time.sleep(overload_s)
        ended_ns = clock.now_ns()
    accounts = rig.end_vehicles()
    inferred_ms = [
        float(row["inferred_ms"])
        for row in rig.rows(Outcome.ANSWERED)
        if began_ns < int(row["t_mask_decoded_ns"]) <= ended_ns
    ]
    seconds = (ended_ns - began_ns) / 1e9
    used = sum(inferred_ms) / 1e3 / seconds  # Useful inferences only: the goodput relative to the engine's capacity.
    ages_ms = [(int(row["t_sent_ns"]) - int(row["t_due_ns"])) / 1e6 for row in rig.rows() if row["attempts"] == "1"]
    rig.conclude(
        accounts,
        Figure("answered in time", len(inferred_ms) / seconds, "frames/s"),
        Figure("capacity not used", 100 * (1 - used), "%", most=100 * (1 - _LEAST_SHARE)),
        Figure("age of frames when sent p99", spread(ages_ms)["p99"], "ms", most=_MOST_AGE_MS),
        Figure("dropped by newer ones", 100 * accounts.reasons["dropped(window)"] / accounts.read, "%"),
        *_memory(log.histories, overload_s),
        remarks=(f"{_VEHICLES} vehicles offer {_FACTOR:g} × {_CAPACITY_HZ:g} frames/s for {overload_s:g} s",),
    )


def _memory(lives: Sequence[ProcessHistory], seconds: float) -> Iterator[Figure]:
    """Yields for each role the steepest memory slope after the settling time, and the maximum memory."""
    settled_s = min(_SETTLED_S, seconds / 3)
    steepest_mb = _SLOPE_MB if seconds - settled_s >= _JUDGED_S else None
    for role, bound_mb in _MOST_MB.items():
        ours = [life for life in lives if life.role == role]
        slopes = [slope for life in ours if (slope := life.slope("rss_bytes", after_s=settled_s)) is not None]
        peaks = [peak for life in ours if (peak := life.peak("rss_bytes")) is not None]
        yield Figure(f"{role}'s memory slope", max(slopes) * 60 / 1e6 if slopes else None, "MB/min", most=steepest_mb)
        yield Figure(f"{role}'s memory", max(peaks) / 1e6 if peaks else None, "MB", most=bound_mb)
