"""Predicts waiting times under dispatch by load from a queue with n equal servers, constant service and random arrivals.

    latency = inference time + overhead + wait in the M/D/n queue

The overhead is measured at the lowest load; no number is fitted.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.fleet.fleet_run import LOAD, FleetArrivals, FleetCase
from bench.fleet.shared_queue import MEASURES, SharedQueue
from shared.terminal_table import Table, result_table

_VEHICLES = 20
_WINDOW = 64  # Large enough that no frame is dropped.
# Number of workers, inference time and load of each point. The first one has the lowest load.
_POINTS = (
    (4, 50.0, 0.3), (4, 50.0, 0.5), (4, 50.0, 0.6), (4, 50.0, 0.75), (4, 50.0, 0.85), (4, 50.0, 0.9), (2, 50.0, 0.8),
    (8, 50.0, 0.7), (4, 100.0, 0.8), (6, 80.0, 0.85),
)  # fmt: skip


def formula_cases(seconds: float) -> list[FleetCase]:
    """Returns the load points that the formula is checked at, with 20 vehicles and Poisson arrivals."""
    return [
        FleetCase(
            f"{workers} × {service_ms:g} ms at {load:.0%}",
            (service_ms,) * workers,
            _VEHICLES,
            FleetArrivals.POISSON,
            load=load,
            window=_WINDOW,
            seconds=4 * seconds,
            dispatch=(LOAD,),
        )
        for workers, service_ms, load in _POINTS
    ]


def _queue(record: Mapping[str, Any]) -> SharedQueue:
    """Returns the queue with the load of a run with equal workers."""
    worker_ms = list(record["workers"].values())
    return SharedQueue(len(worker_ms), worker_ms[0], record["offered_hz"])


def check_formula(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the overhead, and the predicted and measured latencies of the runs of `formula_cases`.

    The overhead is the median latency at the lowest load, where most frames do not wait, minus the inference and the predicted wait.
    """
    queues = [_queue(run) for run in runs]
    base = min(range(len(runs)), key=lambda place: queues[place].utilisation)
    overhead_ms = runs[base]["latency_ms"]["median"] - queues[base].service_ms - queues[base].waits_ms()["median"]
    points = [
        {
            "case": run["case"],
            "utilisation": queue.utilisation,
            "predicted_ms": {
                name: queue.service_ms + overhead_ms + wait_ms for name, wait_ms in queue.waits_ms().items()
            },
            "measured_ms": {name: run["latency_ms"][name] for name in MEASURES},
            "predicted_hz": min(queue.arrivals_hz, run["capacity_hz"]),
            "throughput_hz": run["throughput_hz"],
        }
        for run, queue in zip(runs, queues, strict=True)
    ]
    return {"formula": {"overhead_ms": overhead_ms}, "points": points}


def prediction_tables(prediction: Mapping[str, Any]) -> Iterator[Table | str]:
    """Predicted and measured latencies of each load point, and the overhead."""
    columns = {"point": "<!", "load": ".2f", **dict.fromkeys(MEASURES, "")}
    rows = []
    for each in prediction["points"]:
        pairs = [(each["measured_ms"][name], each["predicted_ms"][name]) for name in MEASURES]
        cells = [f"{own:.0f}, {formula:.0f} ({formula / own - 1:+.0%})" for own, formula in pairs]
        rows.append((each["case"], each["utilisation"], *cells))
    yield result_table("Latency in ms: measured, by the M/D/n queue (error)", columns, rows)
    yield f"overhead {prediction['formula']['overhead_ms']:.1f} ms, measured at the lowest load"
