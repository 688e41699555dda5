"""`python -m bench peers`: compares Skylane with other model servers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import click
from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bench import harness
from bench.harness import BenchRun
from bench.peers import load_comparison, scenario_comparison
from bench.peers.catalogue import PEERS
from bench.peers.clients import PeerError
from bench.peers.rig import enter_own_network, environment
from bench.peers.starter import OURS, PeerPlan
from shared.quiet import progress_console


def measure(plan: PeerPlan, run: BenchRun) -> dict[str, Any]:
    """Compare the serving overhead of Skylane and of the peers NAMES (default all) for the same TensorFlow function.

    Peers that are not installed are skipped with the reason.
    """
    return scenario_comparison.measure(plan, run) if plan.scenarios else load_comparison.measure(plan, run)


def _tables(result: Mapping[str, Any]) -> Iterator[RenderableType]:
    yield from (scenario_comparison if "scenarios" in result else load_comparison).tables(result)


peers = harness.bench_command("peers", PeerPlan, measure, _tables)
_compare = peers.callback


def _run(names: Sequence[str], *, prepare: bool, **settings: Any) -> None:
    """Chooses the peers, and prepares or compares them."""
    scenarios, codec = settings["wanted_scenarios"], settings["codec"]
    if scenarios and codec == "raw":
        raise click.UsageError("the images of scenarios are JPEGs: leave --codec raw out")
    floors = {name for name in PEERS if PEERS[name].is_floor}
    if scenarios and floors & set(names):
        raise click.UsageError(f"{', '.join(floors)} is the floor of a call, and has no scenarios: leave it out")
    chosen = tuple(dict.fromkeys(names or (name for name in PEERS if not scenarios or name not in floors)))
    if prepare:
        _prepare(chosen)
        return
    enter_own_network()
    assert _compare is not None
    _compare(names=(OURS, *chosen), **settings)


peers.callback = _run
peers.params = [
    click.Argument(["names"], metavar="[NAMES]...", nargs=-1, type=click.Choice(list(PEERS))),
    click.Option(["--prepare"], is_flag=True, help="Create the peers' environments in build/peers without measuring."),
    *peers.params,
]


def _prepare(names: Sequence[str]) -> None:
    """Creates missing environments; a failure does not affect the others."""
    failures = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=progress_console()) as progress:
        made = progress.add_task("environments", total=len(names))

        def report_step(title: str, step: str) -> None:
            progress.update(made, description=f"{title}: {step}")

        for name in names:
            one = environment(name)
            if not one.is_complete:
                try:
                    one.make(partial(report_step, PEERS[name].title))
                except PeerError as error:
                    failures.append(str(error))
            progress.advance(made)
        progress.update(made, description="environments")
    if failures:
        raise PeerError("; ".join(failures))
