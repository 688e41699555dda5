"""Results of the scenario comparison: values by run and server, prices, and tests against Skylane's plain call."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import mean, median
from typing import Any

import numpy as np
import pandas as pd

from bench.offloading.cost import footage_cost
from bench.peers.load_comparison.plan import OURS, Plan
from bench.peers.scenario_comparison.comparison import OUR_WAYS, Run, ScenarioMeasurements
from bench.statistics.run_test import compare_runs
from shared.runtime.machine import machine

AGAINST = f"{OURS} {OUR_WAYS[0]}"
PRICE_PER_HOUR = 1.25  # EUR per hour, for the machine of 2022.
TESTED = {"mean_ms": "mean, ms", "cpu_percent": "CPU %"}  # Tested values of a run.

_QUARTERS = {"p25_ms": 25, "p50_ms": 50, "p75_ms": 75, "p95_ms": 95}

Figures = dict[str, Any]


def result(plan: Plan, outcome: ScenarioMeasurements) -> dict[str, Any]:
    """Returns the content of `--json`; values that need more runs are null."""
    runs = [_run(each) for each in outcome.runs]
    cells = {
        scenario: {
            name: _cell([each for each in outcome.runs if (each.scenario, each.name) == (scenario, name)])
            for name in _names(outcome, scenario)
        }
        for scenario in plan.scenarios
    }
    return {
        "model": plan.model,
        "plan": {
            "rounds": plan.rounds,
            "frames": plan.frames,
            "mask_codec": plan.mask_codec,
            "bag": str(plan.bag),
            "price_per_hour": PRICE_PER_HOUR,
        },
        "scenarios": cells,
        "tests": [test for figure in TESTED for test in _tests(figure, plan.scenarios, outcome, runs)],
        "runs": runs,
        "skipped": outcome.skipped,
        "versions": outcome.versions,
        "machine": machine(),
    }


def _names(outcome: ScenarioMeasurements, scenario: str) -> list[str]:
    return list(dict.fromkeys(each.name for each in outcome.runs if each.scenario == scenario))


def _run(run: Run) -> Figures:
    """Returns the values of a run, with every call."""
    return {
        "scenario": run.scenario,
        "server": run.server,
        "way": run.way,
        "round": run.number + 1,
        **_durations([run]),
        **asdict(run.usage),
        "cpu_percent": run.usage.cpu_percent,
        "calls_ms": [taken.total_ms for taken in run.taken],
        "inferences_ms": [taken.inference_ms for taken in run.taken],
    }


def _cell(runs: Sequence[Run]) -> Figures:
    """Returns the values of one server in one scenario: over all calls, the mean utilization, the maximum memory."""
    durations = _durations(runs)
    return {
        "server": runs[0].server,
        "runs": len(runs),
        **durations,
        "cpu_percent": mean(each.usage.cpu_percent for each in runs),
        "rss_mb": max(each.usage.rss_mb for each in runs),
        "pss_mb": max(each.usage.pss_mb for each in runs),
        "price_eur": footage_cost(durations["answers_hz"], PRICE_PER_HOUR).price,
    }


def _durations(runs: Sequence[Run]) -> Figures:
    """Returns statistics of all calls of the runs; `first_ms` is the median of the runs' first calls."""
    taken = [each for run in runs for each in run.taken]
    total_ms = [each.total_ms for each in taken]
    return {
        "n": len(taken),
        "mean_ms": mean(total_ms),
        **{name: float(np.percentile(total_ms, percentile)) for name, percentile in _QUARTERS.items()},
        "sum_ms": sum(total_ms),
        "first_ms": median(run.taken[0].total_ms for run in runs),
        "inference_p50_ms": median(each.inference_ms for each in taken),
        "answers_hz": len(taken) / sum(run.usage.wall_s for run in runs),
        "wrong_pixels": sum(each.wrong_pixels for each in taken),
    }


def _tests(
    figure: str, scenarios: Sequence[str], outcome: ScenarioMeasurements, runs: Sequence[Figures]
) -> list[Figures]:
    """Tests a value of each server's runs against AGAINST, paired by round and adjusted for all tests."""
    pairs = [
        (scenario, name)
        for scenario in scenarios
        for name in _names(outcome, scenario)
        if name != AGAINST and AGAINST in _names(outcome, scenario)
    ]
    sides = [(_of(runs, figure, scenario, AGAINST), _of(runs, figure, scenario, name)) for scenario, name in pairs]
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


def _of(runs: Sequence[Figures], figure: str, scenario: str, name: str) -> pd.Series:
    """Returns a value of each run of one server, by round."""
    mine = [each for each in runs if each["scenario"] == scenario and f"{each['server']} {each['way']}" == name]
    return pd.Series([each[figure] for each in mine], [each["round"] for each in mine], np.float64)


def _known(value: float) -> float | None:
    """Returns None in place of NaN or infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
