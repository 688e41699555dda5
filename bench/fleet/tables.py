"""Tables of the fleet's runs."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.fleet.fleet_run import BROKER_NODE, FLEET_NODE
from bench.fleet.prediction import MEASURES
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

_NODES = {"fleet": FLEET_NODE, "broker": BROKER_NODE, "worker": "worker"}

Runs = Sequence[Mapping[str, Any]]


def run_table(runs: Runs) -> Table:
    """Throughput, latency and fairness of every run."""
    columns = {
        "case": "<", "by": "<", "vehicles": "", "frames/s": ".1f", "of": ".1f", "p50 ms": "", "p99 ms": "", "÷ ideal": "",
        "Jain": ".3f", "limit": "<",
    }  # fmt: skip
    rows = []
    for each in runs:
        latency = each["latency_ms"] or {}
        times = (shown(latency.get("median"), 0), shown(latency.get("p99"), 0), shown(each["p99_ratio"], 2))
        settings = each["settings"]
        possible_hz = min(each["capacity_hz"], each["offered_hz"] or each["capacity_hz"])
        rows.append(
            (
                *(each["case"], settings["dispatch"], str(settings["vehicles"]), each["throughput_hz"], possible_hz),
                *(*times, each["jain"], each["limit"]),
            )
        )
    return result_table("Runs", columns, rows, NOTE)


def detail_tables(runs: Runs) -> Iterator[Table | str]:
    """The workers of every run, and what its processes used."""
    columns = {
        "by": "<", "worker": "<", "ms": ".0f", "frames/s": ".2f", "busy": ".2f", "mean queue": ".2f", "max": ".0f",
    }  # fmt: skip
    keys = ("service_ms", "throughput_hz", "busy", "mean_queue", "max_queue")
    rows = [
        (each["settings"]["dispatch"], name, *(worker[key] for key in keys))
        for each in runs
        for name, worker in each["by_worker"].items()
    ]
    yield result_table("Workers", columns, rows)
    yield resource_table(runs)
    for each in runs:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in each["outcomes"].items() if count)
        yield (
            f"{each['settings']['dispatch']}, seed {each['settings']['seed']}: {outcomes}; unaccounted {each['unaccounted']}; "
            f"{each['retried']} sent twice; a queue that takes over twice the mean for {each['longest_imbalance_s']:.2f} s at most"
        )
        for name in ("balanced_after_ms", "share_after_ms"):
            if name in each:
                yield f"{name.removesuffix('_ms').replace('_', ' ')} {shown(each[name], 0)} ms"


def resource_table(runs: Runs) -> Table:
    """Memory and CPU of the fleet's process, the broker and a worker."""
    columns = {"by": "<", "vehicles": ""}
    for name in _NODES:
        columns |= {f"{name} CPU %": "", f"{name} MB": ""}
    rows = []
    for each in runs:
        usages = [each["resources"].get(node, {}) for node in _NODES.values()]
        cells = [shown(usage.get(key), 0) for usage in usages for key in ("cpu_percent", "rss_mb")]
        rows.append((each["settings"]["dispatch"], str(each["settings"]["vehicles"]), *cells))
    return result_table("CPU (per cent of a core) and peak memory", columns, rows)


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


def saturation_table(runs: Runs) -> Table:
    """The frames per second at which each process would need a whole core, from its CPU time per frame."""
    rows = []
    for name, node in _NODES.items():
        loads = [
            (each["resources"][node]["cpu_percent"], each["throughput_hz"], len(each["workers"]))
            for each in runs
            if node in each["resources"]
        ]
        # The workers share the frames; each of the other processes has all of them.
        per_frame_ms = [
            10 * cpu / throughput_hz * (workers if name == "worker" else 1)
            for cpu, throughput_hz, workers in loads
            if cpu is not None and throughput_hz
        ]
        if per_frame_ms:
            rows.append((name, min(per_frame_ms), fmean(per_frame_ms), max(per_frame_ms), 1e3 / max(per_frame_ms)))
    columns = {"process": "<", "least": ".2f", "mean": ".2f", "most": ".2f", "frames/s of a core": ".0f"}
    return result_table("CPU per frame in ms, and the frames per second of a whole core", columns, rows)
