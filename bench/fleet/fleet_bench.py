"""`skylane bench fleet`: simulated vehicles against workers of known speed, with dispatch by load and by the broker's group.

The suite "targets" measures what dispatch by load promises, "sweep" shows which part saturates first, and "formula" compares
the latencies of several loads with those that `prediction` gives.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import click

from bench.fleet.arrivals import FleetArrivals
from bench.fleet.cases import DISPATCHES, LOAD, CaseRunner, Change, FleetCase
from bench.fleet.prediction import check_formula, formula_cases
from bench.fleet.tables import detail_tables, prediction_tables, resource_table, run_table, saturation_table
from bench.fleet.targets import UNEQUAL_MS, check_targets, target_cases, target_table
from bench.harness import options
from bench.harness.comparison import plan_record
from ops.broker.broker import Broker
from ops.processes.environment import BenchRun
from shared.flags import FiniteRange, WholeRange
from shared.logs import configure_logging
from shared.terminal_table import Table

RUN, TARGETS, SWEEP, FORMULA = "run", "targets", "sweep", "formula"
_SWEEP_MS = 20.0
_SWEEP_LOAD = 1.2
_MAX_WORKERS = 8
_BAR_CELLS = 20


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """Settings of the benchmark."""

    suite: str = options.option(
        RUN,
        type=click.Choice([RUN, TARGETS, SWEEP, FORMULA]),
        show_default=True,
        help="What to run: one load of your choice, or a set of them, which ignores the options of the load.",
    )
    vehicles: int = options.number(8, 1, 200, "Number of vehicles.")
    worker_ms: tuple[float, ...] = options.option(
        UNEQUAL_MS,
        multiple=True,
        type=FiniteRange(1, 60_000),
        show_default=True,
        help="Inference time of a worker (repeatable, up to 8).",
    )
    arrivals: str = options.option(
        FleetArrivals.SATURATED.value,
        type=click.Choice([each.value for each in FleetArrivals]),
        show_default=True,
        help="When frames are due; saturated: as soon as the window has room.",
    )
    load: float = options.number(0.8, 0.01, 10, "Offered frames relative to the workers' capacity.")
    rate_hz: float | None = options.option(
        flag="--rate", type=FiniteRange(0.01, 1000), help="Frames per second of each vehicle, instead of --load."
    )
    window: int = options.number(4, 1, 256, "Unanswered frames per vehicle.")
    seconds: float = options.number(15.0, 4, 3600, "Duration of a run; the suites multiply it.")
    dispatch: tuple[str, ...] = options.choices(
        DISPATCHES, DISPATCHES, "How a frame gets to a worker (repeatable); both alternate. [both]", "--dispatch"
    )
    change: str = options.option(
        Change.NONE.value,
        type=click.Choice([each.value for each in Change]),
        show_default=True,
        help="Kill a worker in the middle of the run, or let one join.",
    )
    retry: bool = options.option(
        default=True,
        flag="--retry/--no-retry",
        show_default=True,
        help="Send a frame again that gets no answer.",
    )
    rounds: int = options.rounds(3, 100)
    seed: int | None = options.option(
        type=WholeRange(0), help="Seed of the arrivals in the first round. [random, printed]"
    )

    def cases(self) -> list[FleetCase]:
        """Returns the cases of the suite."""
        if self.suite in _SUITES:
            return _SUITES[self.suite](self.seconds)
        return [
            FleetCase(
                "run",
                self.worker_ms,
                self.vehicles,
                FleetArrivals(self.arrivals),
                self.load,
                self.rate_hz,
                self.window,
                self.seconds,
                self.dispatch,
                Change(self.change),
                self.retry,
            )
        ]


def measure(plan: FleetPlan, run: BenchRun) -> dict[str, Any]:
    """Let 1 to 200 vehicles send frames to 1 to 8 workers of known speed: throughput, latency, fairness and resources.

    The vehicles run in one process and send 30 kB per frame; each worker is a process whose engine takes a fixed time.
    """
    if not 1 <= len(plan.worker_ms) <= _MAX_WORKERS:
        raise click.UsageError(f"{len(plan.worker_ms)} times of --worker-ms: give 1 to {_MAX_WORKERS}")
    configure_logging(level="error")  # Every retry of a vehicle is a warning.
    seed = secrets.randbits(16) if plan.seed is None else plan.seed
    broker = run.enter_context(Broker.start())
    runner = CaseRunner(broker, run.folder, plan.rounds, seed, lambda *progress: run.step(_progress(*progress)))
    runs = runner.run(plan.cases())
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


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    suite = result["plan"]["suite"]
    yield run_table(result["runs"])
    if suite == RUN:
        yield from detail_tables(result["runs"])
    else:
        yield resource_table(result["runs"])
    if suite == SWEEP:
        yield saturation_table(result["runs"])
    if suite == FORMULA:
        yield from prediction_tables(result["prediction"])
    if suite == TARGETS:
        yield target_table(result["targets"])
    yield f"seed {result['plan']['seed']} (first round; add one for each further round)"
    yield from result["failures"]


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
            dispatches=(LOAD,),
        )
        for workers in (1, 2, 4, 8)
        for vehicles in (1, 8, 50, 200)
    ]


_SUITES: Mapping[str, Callable[[float], list[FleetCase]]] = {
    TARGETS: target_cases,
    SWEEP: _sweep_cases,
    FORMULA: formula_cases,
}
fleet = options.bench_command("fleet", FleetPlan, measure, _tables, json=options.JSON_FILE)
