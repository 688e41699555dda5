"""Runs every server through the four scenarios of the comparison of 2022, in alternating rounds of one run.

Each peer uses its first transport over TCP; Skylane uses a plain gRPC call, and a vehicle over MQTT. In each round every
server is started again, alone, and runs all scenarios: first cold, then warm. The rounds are therefore independent, as
the t-tests require, and only one large model is in memory.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd

from analysis.offloading import footage_cost
from analysis.report.output.number_format import NOTHING, number, probability
from analysis.statistics.comparison import PAIRED, compare_runs
from analysis.study.scenarios import Footage
from bench.harness import BenchRun, alternating
from bench.peers.catalogue import PEERS
from bench.peers.load_comparison import closing_lines
from bench.peers.rig import Meter
from bench.peers.starter import OURS, SCENARIOS, PeerPlan, Starter, nothing_to_measure
from bench.peers.workload import SETTLING, Taken, jobs, one_in_flight, warm_up
from ops.processes.playback import PlaybackSettings
from ops.study.sample_drives import footage
from shared.errors import SkylaneError
from shared.imaging.geometry import Resize
from shared.terminal_table import Table, result_table

OUR_WAYS = ("grpc", "mqtt")
AGAINST = f"{OURS} {OUR_WAYS[0]}"
PRICE_PER_HOUR = 1.25  # EUR per hour, for the machine of 2022.
TESTED = {"mean_ms": "mean, ms", "cpu_percent": "CPU %"}  # Tested values of a run.

_CAMERA = "1936x1216"  # Size of the images from which the mixed sizes are made.
_PERCENTILES = {"p25_ms": 25, "p50_ms": 50, "p75_ms": 75, "p95_ms": 95}
_NOTES = (
    "first: the median of the runs' first calls that count. wrong: pixels of all masks, or bytes of all scores, against "
    "the direct call. CPU: 100 % is one core, the mean of the runs. MB: the most resident at a time, and at the end with "
    "what is shared divided. EUR: of 24 h of footage at 24 frames a second, at {price_per_hour} EUR an hour and this rate."
)

Figures = Mapping[str, Any]  # Values of a run, or of all runs of one server in one scenario.


def measure(plan: PeerPlan, run: BenchRun) -> dict[str, Any]:
    """Runs the plan's scenarios; returns the JSON output.

    Raises:
        PeerError: no server can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    run.step("the images and their masks")
    work = jobs({name: images(plan, name) for name in plan.scenarios})
    starter = Starter(plan, next(iter(work.values()))[0], run.folder)
    runs: list[Figures] = []
    skipped: dict[str, str] = {}
    endpoints = [(server, way) for server in plan.names for way in ways(server)]
    for round_number, (server, way) in alternating(endpoints, plan.rounds):
        if server in skipped:
            continue
        step = f"round {round_number + 1} of {plan.rounds}, {server} {way}"
        run.step(f"{step}: starting")
        try:
            with ExitStack() as stack:
                (endpoint,) = starter.start(server, stack, (way,), is_cold=True)
                stack.enter_context(endpoint.awake())
                for scenario in _in_order(plan.scenarios):
                    run.step(f"{step}: {scenario}")
                    settling = 0 if SCENARIOS[scenario].is_cold else SETTLING
                    if settling:
                        warm_up(endpoint.connect, work[scenario], plan.turn_s)
                    meter = Meter(endpoint.tree)
                    taken = one_in_flight(
                        endpoint.connect, work[scenario], plan.frames, plan.turn_s, settling=settling, meter=meter
                    )
                    place = {"scenario": scenario, "server": server, "way": way, "round": round_number + 1}
                    runs.append({**place, **run_figures(taken, meter.usage)})
        except SkylaneError as error:
            skipped[server] = f"not from round {round_number + 1} on: {error}"
    if not runs:
        raise nothing_to_measure(skipped)
    return {**summarise(plan, runs), "skipped": skipped, "versions": starter.versions}


def ways(server: str) -> tuple[str, ...]:
    """Returns the measured transports of a server of NAMES."""
    if server == OURS:
        return OUR_WAYS
    return (next(way.name for way in PEERS[server].ways if way.over_tcp),)


def images(plan: PeerPlan, name: str) -> PlaybackSettings:
    """Returns the playback settings for the frames of a scenario, which are all JPEG images.

    The images have the size of the model's input, except for the mixed sizes. The server stretches those, because
    stretching is the only resize method that needs no agreement between servers on cropping or padding.
    """
    drive = PlaybackSettings(plan.bag, plan.models, plan.model, frames=plan.frames)
    match SCENARIOS[name].footage:
        case Footage.ONE:
            return replace(drive, frames=1)
        case Footage.DRIVE:
            return drive
        case Footage.MIXED:
            folder = footage(Footage.MIXED, _CAMERA, plan.frames)
            return replace(drive, bag=folder, resize=Resize.STRETCH, resize_at="cloud")


def _in_order(names: Iterable[str]) -> list[str]:
    """Returns the scenarios of a newly started server: the cold ones first."""
    return sorted(names, key=lambda name: not SCENARIOS[name].is_cold)


def run_figures(taken: Sequence[Taken], usage: Mapping[str, float]) -> dict[str, Any]:
    """Returns the values of a run, with every call."""
    calls = {
        "calls_ms": [each.total_ms for each in taken],
        "inferences_ms": [each.inference_ms for each in taken],
        "wrong_pixels": sum(each.wrong_pixels for each in taken),
        **usage,
    }
    return {**_durations([calls]), **calls}


def _durations(runs: Sequence[Figures]) -> dict[str, Any]:
    """Returns statistics of all calls of the runs; `first_ms` is the median of the runs' first calls."""
    calls_ms = [call_ms for run in runs for call_ms in run["calls_ms"]]
    return {
        "n": len(calls_ms),
        "mean_ms": mean(calls_ms),
        **{name: float(np.percentile(calls_ms, percentile)) for name, percentile in _PERCENTILES.items()},
        "sum_ms": sum(calls_ms),
        "first_ms": median(run["calls_ms"][0] for run in runs),
        "inference_p50_ms": median(each_ms for run in runs for each_ms in run["inferences_ms"]),
        "answers_hz": len(calls_ms) / sum(run["wall_s"] for run in runs),
        "wrong_pixels": sum(run["wrong_pixels"] for run in runs),
    }


def summarise(plan: PeerPlan, runs: Sequence[Figures]) -> dict[str, Any]:
    """Returns the measured part of the JSON output; values that need more runs are null."""
    groups: dict[str, dict[str, list[Figures]]] = {scenario: {} for scenario in plan.scenarios}
    for run in runs:
        groups[run["scenario"]].setdefault(f"{run['server']} {run['way']}", []).append(run)
    settings = {name: getattr(plan, name) for name in ("rounds", "frames", "mask_codec")}
    return {
        "model": plan.model,
        "plan": {**settings, "bag": str(plan.bag), "price_per_hour": PRICE_PER_HOUR},
        "scenarios": {
            scenario: {name: _cell(own) for name, own in by_name.items()} for scenario, by_name in groups.items()
        },
        "tests": [test for figure in TESTED for test in _tests(figure, groups)],
        "runs": list(runs),
    }


def _cell(runs: Sequence[Figures]) -> Figures:
    """Returns the values of one server in one scenario: over all calls, the mean utilization, the maximum memory."""
    durations = _durations(runs)
    return {
        "server": runs[0]["server"],
        "runs": len(runs),
        **durations,
        "cpu_percent": mean(run["cpu_percent"] for run in runs),
        "rss_mb": max(run["rss_mb"] for run in runs),
        "pss_mb": max(run["pss_mb"] for run in runs),
        "price_eur": footage_cost(durations["answers_hz"], PRICE_PER_HOUR).price,
    }


def _tests(figure: str, groups: Mapping[str, Mapping[str, Sequence[Figures]]]) -> list[Figures]:
    """Tests a value of each server's runs against AGAINST, paired by round and adjusted for all tests."""
    values = {
        (scenario, name): pd.Series([run[figure] for run in runs], [run["round"] for run in runs], np.float64)
        for scenario, by_name in groups.items()
        for name, runs in by_name.items()
    }
    pairs = [(scenario, name) for scenario, name in values if name != AGAINST and (scenario, AGAINST) in values]
    sides = [(values[scenario, AGAINST], values[scenario, name]) for scenario, name in pairs]
    return [
        {
            "figure": figure,
            "scenario": scenario,
            "of": name,
            "against": AGAINST,
            "runs": [each.b.count, each.a.count],
            "difference": _known(each.difference.value),
            "low": _known(each.difference.low),
            "high": _known(each.difference.high),
            "test": each.method,
            "p_value": _known(each.p_value),
            "verdict": each.verdict,
        }
        for (scenario, name), each in zip(pairs, compare_runs(sides, in_blocks=True), strict=True)
    ]


def _known(value: float) -> float | None:
    """Returns None in place of NaN or infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    """Yields call times and resource usage by scenario, then the tests and the skipped servers."""
    for scenario, cells in result["scenarios"].items():
        if cells:
            yield _duration_table(result["model"], scenario, cells)
            yield _usage_table(scenario, cells)
    yield _NOTES.format(**result["plan"])
    if result["tests"]:
        yield _test_table(result["tests"])
    yield from closing_lines(result)


def _duration_table(model: str, scenario: str, cells: Mapping[str, Figures]) -> Table:
    keys = ("mean_ms", *_PERCENTILES, "first_ms")
    rows = [
        (name, each["n"], *(_three(each[key]) for key in keys), each["answers_hz"], each["wrong_pixels"])
        for name, each in sorted(cells.items(), key=lambda item: float(item[1]["mean_ms"]))
    ]
    headings = dict.fromkeys((key.removesuffix("_ms") for key in keys), "")
    return result_table(
        f"{model}, {scenario}: ms of a call, one in flight",
        {"way": "<!", "n": "", **headings, "/s": ".2f", "wrong": ""},
        rows,
        SCENARIOS[scenario].help,
    )


def _usage_table(scenario: str, cells: Mapping[str, Figures]) -> Table:
    return result_table(
        f"{scenario}: what the server's processes take",
        {"way": "<!", "CPU %": ",.0f", "RSS MB": ",.0f", "PSS MB": ",.0f", "EUR": ".2f"},
        [
            (name, *(each[key] for key in ("cpu_percent", "rss_mb", "pss_mb", "price_eur")))
            for name, each in sorted(cells.items(), key=lambda item: float(item[1]["price_eur"]))
        ],
    )


def _test_table(tests: Sequence[Figures]) -> Table:
    rows = []
    for each in tests:
        interval = "" if each["low"] is None else f"{_three(each['low'])} to {_three(each['high'])}"
        p = NOTHING if each["p_value"] is None else probability(each["p_value"])
        figure = TESTED[each["figure"]]
        rows.append((each["scenario"], each["of"], figure, _three(each["difference"]), interval, each["verdict"], p))
    columns = dict.fromkeys(("figure", "difference", "interval", "verdict", "p"), "")
    return result_table(
        f"The runs' means against those of {AGAINST}",
        {"scenario": "<!", "way": "<!", **columns},
        rows,
        f"The difference with its 95 % interval and p-value: {PAIRED} over the rounds, adjusted by Bonferroni's method for "
        "all tests of its figure.",
    )


def _three(value: float) -> str:
    """Formats a number with two decimals if the size is below 10, with one below 1000, otherwise without."""
    size = abs(value)
    return number(value, 2 if size < 10 else 1 if size < 1000 else 0)
