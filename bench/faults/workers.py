"""Faults of workers: killed, frozen, asked to end, all gone."""

from bench.faults.rig import Rig, kill
from bench.faults.scenario import Figure, Finding, Scenario
from bench.spread import spread
from shared import clock
from shared.latency_log import Outcome

_MS = 1e6


def killed_worker(rig: Rig) -> Finding:
    """Three workers, two vehicles; one worker is killed in mid-run, with frames in hand."""
    broker = rig.broker()
    workers = [rig.worker(broker.url, f"worker-{number}", think_ms=40) for number in (1, 2, 3)]
    vehicles = [rig.vehicle(broker.url, f"vehicle-{number}", pictures=200) for number in (1, 2)]
    rig.wait(lambda: all(vehicle.closed() > 50 for vehicle in vehicles), "50 frames of each vehicle")
    killed_ns = clock.now_ns()
    kill(workers[0].pid)
    for vehicle in vehicles:
        vehicle.wait()
    recovery_ms = [
        (int(row["t_mask_decoded_ns"]) - max(killed_ns, int(row["t_sent_ns"]) - float(row["retry_wait_ms"]) * _MS))
        / _MS
        for vehicle in vehicles
        for row in vehicle.rows()
        if row["outcome"] == Outcome.ANSWERED and float(row["retry_wait_ms"]) > 0
    ]
    return Finding(
        (
            Figure("recovery p95", spread(recovery_ms)["p95"] if recovery_ms else None, "ms", most=3000),
            Figure("frames retried", len(recovery_ms)),
        ),
        rig.accounts(*vehicles),
    )


SCENARIOS = (
    Scenario(
        1, "killed-worker", "kill -9 a worker that holds frames", "they are answered by another worker", killed_worker
    ),
)
