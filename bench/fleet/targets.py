"""The targets of dispatch by load, and the check of the runs of the suite."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from bench.fleet.arrivals import FleetArrivals
from bench.fleet.cases import GROUP, LOAD, Change, FleetCase
from bench.harness.output import rounds_text
from shared.terminal_table import Table, result_table

UNEQUAL_MS = (100.0, 100.0, 100.0, 500.0)
_EQUAL_MS = (100.0,) * 4
_MANY_MS = 30.0  # Eight of them answer 267 frames per second.
_OPEN_WINDOW = 64  # Large enough that an open loop drops no frame.
_UNEQUAL, _UNEQUAL_ONCE = "unequal workers", "unequal, no retries"
_UNEQUAL_POISSON, _EQUAL = "unequal, Poisson", "equal workers"
_KILLED, _JOINED, _MANY = "kill -9", "a worker joins", "200 vehicles"
_CROWD, _CROWD_POISSON = "50 vehicles", "50 vehicles, Poisson"
_CHANGE_MS = 1000.0  # Longest time until the load is balanced after a worker died or joined.
_NEVER_MS = 1e9

Runs = Sequence[Mapping[str, Any]]


def target_cases(seconds: float) -> list[FleetCase]:
    """Returns the cases of the targets; `seconds`: duration of a short run, the others take twice or four times as long."""
    load = (LOAD,)
    poisson = FleetArrivals.POISSON
    return [
        FleetCase(_UNEQUAL, UNEQUAL_MS, 8, seconds=2 * seconds),
        FleetCase(_UNEQUAL_ONCE, UNEQUAL_MS, 8, seconds=2 * seconds, retry=False),
        FleetCase(_EQUAL, _EQUAL_MS, 8, seconds=seconds),
        FleetCase(_UNEQUAL_POISSON, UNEQUAL_MS, 8, poisson, window=_OPEN_WINDOW, seconds=4 * seconds, dispatches=load),
        FleetCase(_KILLED, _EQUAL_MS, 8, seconds=seconds, dispatches=load, change=Change.KILL),
        FleetCase(_JOINED, _EQUAL_MS, 8, seconds=seconds, dispatches=load, change=Change.JOIN),
        FleetCase(_CROWD, _EQUAL_MS, 50, window=1, seconds=2 * seconds, dispatches=load),
        FleetCase(_CROWD_POISSON, _EQUAL_MS, 50, poisson, window=_OPEN_WINDOW, seconds=2 * seconds, dispatches=load),
        FleetCase(
            _MANY, (_MANY_MS,) * 8, 200, FleetArrivals.UNIFORM, rate_hz=1.0, seconds=2 * seconds, dispatches=load
        ),
    ]


def check_targets(runs: Runs) -> list[dict[str, Any]]:
    """Returns each target with the value of each round, their median, and whether the median meets it."""
    return list(_checks(runs))


def target_table(targets: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `check_targets`."""
    rows = [
        (
            each["name"],
            each["median"],
            f"{min(each['by_round']):.3f} to {max(each['by_round']):.3f}",
            f"{each['sign']} {each['target']:g}",
            rounds_text(each["is_met"], each["target"], each["by_round"]),
        )
        for each in targets
        if each["by_round"]
    ]
    columns = {"target": "<", "median": ".3f", "by round": "", "wanted": "", "": "<"}
    return result_table("Targets of dispatch by load", columns, rows)


def _checks(runs: Runs) -> Iterator[dict[str, Any]]:
    poisson, many, killed = (_of(runs, name) for name in (_UNEQUAL_POISSON, _MANY, _KILLED))
    crowds = [*_of(runs, _CROWD), *_of(runs, _CROWD_POISSON)]
    loads, groups = (_of(runs, _EQUAL, dispatch) for dispatch in (LOAD, GROUP))
    yield _check("unequal workers: frames/s by load", _values(_of(runs, _UNEQUAL), "throughput_hz"), at_least=30)
    yield _check("Poisson: p99 ÷ p99 of an ideal queue", _values(poisson, "p99_ratio"), at_most=1.5)
    ratios = [own["throughput_hz"] / other["throughput_hz"] for own, other in zip(loads, groups, strict=True)]
    yield _check("equal workers: throughput load ÷ group", ratios, at_least=0.97)
    yield _check("kill -9: ms until balanced", _values(killed, "balanced_after_ms", _NEVER_MS), at_most=_CHANGE_MS)
    joined = _values(_of(runs, _JOINED), "share_after_ms", _NEVER_MS)
    yield _check("joined: ms until it has its share", joined, at_most=_CHANGE_MS)
    yield _check("50 vehicles: s with a queue over 2 × mean", _values(crowds, "longest_imbalance_s"), at_most=1.0)
    yield _check("200 vehicles: Jain's index", _values(many, "jain"), at_least=0.98)
    yield _check("dispatch: ms of CPU per frame", _values(_of(runs), "dispatch_cpu_ms"), at_most=0.1)
    yield _check("frames unaccounted for", [float(each["unaccounted"]) for each in runs], at_most=0)


def _check(
    name: str, by_round: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> dict[str, Any]:
    value = median(by_round)
    is_met = (at_least is None or value >= at_least) and (at_most is None or value <= at_most)
    return {
        "name": name,
        "by_round": list(by_round),
        "median": value,
        "sign": "≥" if at_most is None else "≤",
        "target": at_least if at_most is None else at_most,
        "is_met": is_met,
    }


def _of(runs: Runs, case: str | None = None, dispatch: str = LOAD) -> Runs:
    """The runs of a case, by default of all, with one kind of dispatch."""
    return [each for each in runs if case in (None, each["case"]) and each["settings"]["dispatch"] == dispatch]


def _values(runs: Runs, measure: str, missing: float | None = None) -> list[float]:
    """The values of a measure; those that are None count as `missing`, or not at all."""
    found = (missing if each[measure] is None else each[measure] for each in runs)
    return [value for value in found if value is not None]
