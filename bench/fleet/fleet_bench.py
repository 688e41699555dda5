"""`python -m bench fleet`: simulated vehicles against workers of known speed, with dispatch by load and by the broker's group.

The suite "targets" measures what dispatch by load promises, "sweep" shows which part saturates first, and "formula" compares
the latencies of several loads with those that `prediction` gives.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean, median
from typing import Any

import click

from bench import harness
from bench.fleet.fleet_run import DISPATCHES, GROUP, LOAD, Change, FleetArrivals, FleetCase, run_cases
from bench.fleet.prediction import check_formula, formula_cases, prediction_tables
from bench.fleet.run_record import BROKER_NODE, FLEET_NODE
from bench.harness import BenchRun, plan_record, rounds_text
from ops.broker.broker import Broker
from shared.flags import FiniteRange, WholeRange
from shared.logs import configure_logging
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

RUN, TARGETS, SWEEP, FORMULA = "run", "targets", "sweep", "formula"
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
_SWEEP_MS = 20.0
_SWEEP_LOAD = 1.2
_MAX_WORKERS = 8
_BAR_CELLS = 20
_NODES = {"fleet": FLEET_NODE, "broker": BROKER_NODE, "worker": "worker"}

Runs = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Settings of the benchmark."""

    suite: str = harness.option(
        RUN,
        type=click.Choice([RUN, TARGETS, SWEEP, FORMULA]),
        show_default=True,
        help="What to run: one load of your choice, or a set of them, which ignores the options of the load.",
    )
    vehicles: int = harness.number(8, 1, 200, "Number of vehicles.")
    worker_ms: tuple[float, ...] = harness.option(
        UNEQUAL_MS,
        multiple=True,
        type=FiniteRange(1, 60_000),
        show_default=True,
        help="Inference time of a worker (repeatable, up to 8).",
    )
    arrivals: str = harness.option(
        FleetArrivals.SATURATED.value,
        type=click.Choice([each.value for each in FleetArrivals]),
        show_default=True,
        help="When frames are due; saturated: as soon as the window has room.",
    )
    load: float = harness.number(0.8, 0.01, 10, "Offered frames relative to the workers' capacity.")
    rate_hz: float | None = harness.option(
        flag="--rate", type=FiniteRange(0.01, 1000), help="Frames per second of each vehicle, instead of --load."
    )
    window: int = harness.number(4, 1, 256, "Unanswered frames per vehicle.")
    seconds: float = harness.number(15.0, 4, 3600, "Duration of a run; the suites multiply it.")
    dispatch: tuple[str, ...] = harness.choices(
        DISPATCHES, DISPATCHES, "How a frame gets to a worker (repeatable); both alternate. [both]", "--dispatch"
    )
    change: str = harness.option(
        Change.NONE.value,
        type=click.Choice([each.value for each in Change]),
        show_default=True,
        help="Kill a worker in the middle of the run, or let one join.",
    )
    retry: bool = harness.option(
        default=True,
        flag="--retry/--no-retry",
        show_default=True,
        help="Send a frame again that gets no answer.",
    )
    rounds: int = harness.rounds(3, 100)
    seed: int | None = harness.option(
        type=WholeRange(0), help="Seed of the arrivals in the first round. [random, printed]"
    )

    def cases(self) -> list[FleetCase]:
        """Returns the cases of the suite."""
        if self.suite in _SUITES:
            return _SUITES[self.suite](self.seconds)
        values = {each.name: getattr(self, each.name) for each in fields(FleetCase) if each.name != "name"}
        values |= {"arrivals": FleetArrivals(self.arrivals), "change": Change(self.change)}
        return [FleetCase(RUN, **values)]


def measure(plan: FleetPlan, run: BenchRun) -> dict[str, Any]:
    """Let 1 to 200 vehicles send frames to 1 to 8 workers of known speed: throughput, latency, fairness and resources.

    The vehicles run in one process and send 30 kB per frame; each worker is a process whose engine takes a fixed time.
    """
    if not 1 <= len(plan.worker_ms) <= _MAX_WORKERS:
        raise click.UsageError(f"{len(plan.worker_ms)} times of --worker-ms: give 1 to {_MAX_WORKERS}")
    configure_logging(level="error")  # Every retry of a vehicle is a warning.
    seed = secrets.randbits(16) if plan.seed is None else plan.seed
    broker = run.enter_context(Broker.start())
    runs = run_cases(
        plan.cases(),
        broker,
        run.folder,
        rounds=plan.rounds,
        seed=seed,
        on_run=lambda *progress: run.step(_progress(*progress)),
    )
    result: dict[str, Any] = {
        "plan": {**plan_record(plan), "seed": seed},
        "runs": runs,
        "failures": [f"{each['case']}: {failure}" for each in runs for failure in each["failures"]],
        "broker": broker.description,
    }
    if plan.suite == TARGETS:
        result["targets"] = check_targets(runs)
    if plan.suite == FORMULA:
        result["prediction"] = check_formula(runs)
    return result


def _progress(title: str, done_s: float, total_s: float) -> str:
    cells = round(_BAR_CELLS * done_s / total_s)
    return f"{'━' * cells}{'·' * (_BAR_CELLS - cells)} {done_s:.0f} of {total_s:.0f} s  {title}"


def target_cases(seconds: float) -> list[FleetCase]:
    """Returns the cases of the targets; `seconds`: duration of a short run, the others take twice or four times as long."""
    load = (LOAD,)
    poisson = FleetArrivals.POISSON
    return [
        FleetCase(_UNEQUAL, UNEQUAL_MS, 8, seconds=2 * seconds),
        FleetCase(_UNEQUAL_ONCE, UNEQUAL_MS, 8, seconds=2 * seconds, retry=False),
        FleetCase(_EQUAL, _EQUAL_MS, 8, seconds=seconds),
        FleetCase(_UNEQUAL_POISSON, UNEQUAL_MS, 8, poisson, window=_OPEN_WINDOW, seconds=4 * seconds, dispatch=load),
        FleetCase(_KILLED, _EQUAL_MS, 8, seconds=seconds, dispatch=load, change=Change.KILL),
        FleetCase(_JOINED, _EQUAL_MS, 8, seconds=seconds, dispatch=load, change=Change.JOIN),
        FleetCase(_CROWD, _EQUAL_MS, 50, window=1, seconds=2 * seconds, dispatch=load),
        FleetCase(_CROWD_POISSON, _EQUAL_MS, 50, poisson, window=_OPEN_WINDOW, seconds=2 * seconds, dispatch=load),
        FleetCase(_MANY, (_MANY_MS,) * 8, 200, FleetArrivals.UNIFORM, rate_hz=1.0, seconds=2 * seconds, dispatch=load),
    ]


def _sweep_cases(seconds: float) -> list[FleetCase]:
    """Returns runs of 1 to 200 vehicles that together offer 1.2 times what 1 to 8 workers can do."""
    return [
        FleetCase(
            f"{workers} × {_SWEEP_MS:g} ms",
            (_SWEEP_MS,) * workers,
            vehicles,
            FleetArrivals.UNIFORM,
            load=_SWEEP_LOAD,
            seconds=seconds,
            dispatch=(LOAD,),
        )
        for workers in (1, 2, 4, 8)
        for vehicles in (1, 8, 50, 200)
    ]


def check_targets(runs: Runs) -> list[dict[str, Any]]:
    """Returns each target with the value of each round, their median, and whether the median meets it."""
    loads, groups = (_values(runs, "throughput_hz", _EQUAL, dispatch=dispatch) for dispatch in (LOAD, GROUP))
    crowds = [each for name in (_CROWD, _CROWD_POISSON) for each in _values(runs, "longest_imbalance_s", name)]
    killed = _values(runs, "balanced_after_ms", _KILLED, missing=_NEVER_MS)
    joined = _values(runs, "share_after_ms", _JOINED, missing=_NEVER_MS)
    return [
        _check("unequal workers: frames/s by load", _values(runs, "throughput_hz", _UNEQUAL), "≥", 30),
        _check("Poisson: p99 ÷ p99 of an ideal queue", _values(runs, "p99_ratio", _UNEQUAL_POISSON), "≤", 1.5),
        _check(
            "equal workers: throughput load ÷ group",
            [own / other for own, other in zip(loads, groups, strict=True)],
            "≥",
            0.97,
        ),
        _check("kill -9: ms until balanced", killed, "≤", _CHANGE_MS),
        _check("joined: ms until it has its share", joined, "≤", _CHANGE_MS),
        _check("50 vehicles: s with a queue over 2 × mean", crowds, "≤", 1.0),
        _check("200 vehicles: Jain's index", _values(runs, "jain", _MANY), "≥", 0.98),
        _check("dispatch: ms of CPU per frame", _values(runs, "dispatch_cpu_ms"), "≤", 0.1),
        _check("frames unaccounted for", [float(each["unaccounted"]) for each in runs], "≤", 0),
    ]


def _check(name: str, by_round: Sequence[float], sign: str, target: float) -> dict[str, Any]:
    value = median(by_round)
    is_met = value >= target if sign == "≥" else value <= target
    return {"name": name, "by_round": by_round, "median": value, "sign": sign, "target": target, "is_met": is_met}


def _values(
    runs: Runs, measure: str, case: str | None = None, *, dispatch: str = LOAD, missing: float | None = None
) -> list[float]:
    """The values of a measure in the runs of a case, by default of all; None counts as `missing`, or not at all."""
    found = (
        missing if each[measure] is None else each[measure]
        for each in runs
        if case in (None, each["case"]) and each["settings"]["dispatch"] == dispatch
    )
    return [value for value in found if value is not None]


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    suite = result["plan"]["suite"]
    yield _run_table(result["runs"])
    if suite == RUN:
        yield from _detail_tables(result["runs"])
    else:
        yield _resource_table(result["runs"])
    if suite == SWEEP:
        yield _saturation_table(result["runs"])
    if suite == FORMULA:
        yield from prediction_tables(result["prediction"])
    if suite == TARGETS:
        yield _target_table(result["targets"])
    yield f"seed {result['plan']['seed']} (first round; add one for each further round)"
    yield from result["failures"]


def _target_table(targets: Sequence[Mapping[str, Any]]) -> Table:
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


def _run_table(runs: Runs) -> Table:
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


def _detail_tables(runs: Runs) -> Iterator[Table | str]:
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
    yield _resource_table(runs)
    for each in runs:
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in each["outcomes"].items() if count)
        yield (
            f"{each['settings']['dispatch']}, seed {each['settings']['seed']}: {outcomes}; unaccounted {each['unaccounted']}; "
            f"{each['retried']} sent twice; a queue that takes over twice the mean for {each['longest_imbalance_s']:.2f} s at most"
        )
        for name in ("balanced_after_ms", "share_after_ms"):
            if name in each:
                yield f"{name.removesuffix('_ms').replace('_', ' ')} {shown(each[name], 0)} ms"


def _resource_table(runs: Runs) -> Table:
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


def _saturation_table(runs: Runs) -> Table:
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


_SUITES: Mapping[str, Callable[[float], list[FleetCase]]] = {
    TARGETS: target_cases,
    SWEEP: _sweep_cases,
    FORMULA: formula_cases,
}
fleet = harness.bench_command("fleet", FleetPlan, measure, _tables)
