"""`skylane bench peers`: compares Skylane with other model servers."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bench.harness.environment import sample_bag
from bench.peers.clients.client import PeerError
from bench.peers.load_comparison import comparison as contest
from bench.peers.load_comparison import result, table
from bench.peers.load_comparison.plan import MASK_CODEC, OURS, Plan
from bench.peers.rig import network
from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.environments import environment
from bench.peers.rig.workload import CODECS
from bench.peers.scenario_comparison import comparison as trial
from bench.peers.scenario_comparison import result as trial_result
from bench.peers.scenario_comparison import table as trial_table
from bench.peers.scenario_comparison.scenarios import SCENARIOS
from cloud.models.repository import default_root
from shared.imaging.mask_codecs import MASK_CODECS

_ALL = "all"


@click.command()
@click.argument("names", metavar="[NAMES]...", nargs=-1, type=click.Choice(list(PEERS)))
@click.option("--prepare", is_flag=True, help="Create the peers' environments in build/peers without measuring.")
@click.option("--bag", type=click.Path(exists=True, path_type=Path), help="Frames to send. [a synthetic drive]")
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option(
    "--model", default="road-small", show_default=True, help="Frozen graph for segmentation or classification."
)
@click.option("--codec", type=click.Choice([*CODECS, "both"]), default="both", show_default=True)
@click.option("--rounds", type=click.IntRange(1, 1000), default=5, show_default=True)
@click.option("--frames", type=click.IntRange(4, 10_000), default=20, show_default=True, help="A turn.")
@click.option(
    "--clients", type=click.IntRange(2, 64), default=8, show_default=True, help="Number of clients in throughput turns."
)
@click.option(
    "--scenario",
    "scenarios",
    multiple=True,
    type=click.Choice([*SCENARIOS, _ALL]),
    help="Scenario of the comparison of 2022 to measure instead of the serving overhead (repeatable). JPEG only.",
)
@click.option(
    "--mask-codec",
    type=click.Choice(list(MASK_CODECS)),
    default=MASK_CODEC,
    show_default=True,
    help="Encoding of Skylane's results; the peers send theirs uncompressed.",
)
@click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="Also write the result to this file."
)
def peers(
    names: tuple[str, ...],
    *,
    prepare: bool,
    bag: Path | None,
    models: Path | None,
    codec: str,
    scenarios: tuple[str, ...],
    json_file: Path | None,
    **plan: Any,
) -> None:
    """Compare the serving overhead of Skylane and of the peers NAMES (default all) for the same TensorFlow function.

    Peers that are not installed are skipped with the reason.
    """
    if scenarios and codec == "raw":
        raise click.UsageError("the pictures of scenarios are JPEGs: leave --codec raw out")
    floors = {name for name in PEERS if PEERS[name].is_floor}
    if scenarios and floors & set(names):
        raise click.UsageError(f"{', '.join(floors)} is the floor of a call, and has no scenarios: leave it out")
    chosen = tuple(dict.fromkeys(names or (name for name in PEERS if not scenarios or name not in floors)))
    console = Console(stderr=True)
    if prepare:
        _prepare(chosen, console)
        return
    network.enter()
    wanted = Plan(
        bag=bag or sample_bag(plan["frames"]),
        models=models or default_root(),
        names=(OURS, *chosen),
        codecs=CODECS if codec == "both" else (codec,),
        scenarios=tuple(name for name in SCENARIOS if {name, _ALL} & set(scenarios)),
        **plan,
    )
    with console.status("preparing") as status:
        if wanted.scenarios:
            found, show = trial_result.result(wanted, trial.run(wanted, status.update)), trial_table.show
        else:
            found, show = result.result(wanted, contest.run(wanted, status.update)), table.show
    if json_file:
        json_file.write_text(json.dumps(found, indent=2), encoding="utf-8")
    show(found, Console())


def _prepare(names: Sequence[str], console: Console) -> None:
    """Creates missing environments; a failure does not affect the others."""
    failures = []
    with Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=console) as progress:
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
