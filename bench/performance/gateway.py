"""Clients at all doors of one worker at once: how much of the bare engine comes back, how evenly, and how exactly.

Rounds alternate: the bare engine in a loop, then the clients, each of which keeps a few frames unanswered. Their pictures
are encoded before, and every mask that comes back is held against the direct call's, pixel by pixel.

Where a machine's speed changes from one minute to the next, so does the ratio to the bare engine. The share of the time
that the worker kept its engine busy does not: both are of the same seconds.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import click
import numpy as np
from rich.console import Console

from bench.harness.busy_time import covered_share
from bench.harness.fairness import jain
from bench.harness.output import machine_line
from bench.harness.sample_bag import sample_bag
from bench.load import playback
from bench.load.gateway_deployment import ALL_TRANSPORTS, GatewayDeployment
from bench.load.gateway_load import ClientTally, GatewayClient, Sample, run_together
from cloud.engines.engine import Placement
from cloud.models.model import Model
from cloud.models.repository import Repository, default_root
from shared.flags import FiniteRange
from shared.runtime.machine import machine
from shared.terminal_table import Table

_SHARE_TARGET = 0.93  # Of the bare engine's frames a second.
_JAIN_TARGET = 0.98
_SETTLING_S = 2.0  # At the start of a round, until every client has its frames under way.
_PICTURES = 8
_READY_S = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Who comes, and how often."""

    models: Path
    model: str = "road-small"
    engine: str | None = None
    doors: tuple[str, ...] = ALL_TRANSPORTS
    clients: int = 8
    window: int = 2  # Unanswered frames of a client.
    seconds: float = 10.0  # Of a round.
    rounds: int = 7
    bare_frames: int = 30  # Of each instance.
    instances: int | None = None  # Batches at a time, in the worker and alone; None: as the engine chooses.
    codec: str = "jpeg"
    bag: Path | None = None  # None: a synthetic drive.


@dataclass(frozen=True, slots=True)
class Round:
    """What a round gave."""

    bare_hz: float  # The mean of the bare loops before and after.
    answered_hz: float
    ratio: float
    engine_busy: float  # Of the time from the first inference to the last, that in which there was one.
    jain: float  # Of the answers that each client got.
    least_to_most: float
    answers: Mapping[str, int]  # By client.
    outcomes: Mapping[str, int]
    wrong_pixels: int


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` holds.

    Raises:
        SkylaneError: the model, the broker, the worker or one of its doors cannot be used.
    """
    with ExitStack() as stack:
        model = stack.enter_context(
            Repository(plan.models).load(
                plan.model, Placement(device="cpu", instances=plan.instances), engine=plan.engine
            )
        )
        on_step("starting a worker with all its doors open")
        site = stack.enter_context(
            GatewayDeployment(
                models=plan.models,
                model=plan.model,
                doors=plan.doors,
                engine=plan.engine,
                instances=plan.instances,
            )
        )
        samples = _samples(plan, model)
        pictures = [sample.picture for sample in samples]
        model.warm_up()
        on_step("the bare engine")
        bare_hz = [playback.bare_hz(model, pictures, plan.bare_frames)]
        rounds = []
        for number in range(plan.rounds):
            on_step(f"round {number + 1} of {plan.rounds}: {plan.clients} clients")
            tallies, span_ns = _round(plan, site, samples)
            on_step(f"round {number + 1} of {plan.rounds}: the bare engine")
            bare_hz.append(playback.bare_hz(model, pictures, plan.bare_frames))
            rounds.append(judged(tallies, span_ns, sum(bare_hz[-2:]) / 2))
        return {
            "plan": {key: str(value) if isinstance(value, Path) else value for key, value in asdict(plan).items()},
            "clients": {tally.name: tally.door for tally in tallies},
            "rounds": [asdict(each) for each in rounds],
            "ratio": median(each.ratio for each in rounds),
            "engine_busy": median(each.engine_busy for each in rounds),
            "jain": median(each.jain for each in rounds),
            "wrong_pixels": sum(each.wrong_pixels for each in rounds),
            "engine": model.describe(),
            "broker": site.broker.description,
            "machine": machine(),
        }


def judged(tallies: Sequence[ClientTally], span_ns: tuple[int, int], bare_hz: float) -> Round:
    """The figures of a round: the answers that came within its span, without the settling at its start."""
    begun_ns, ended_ns = span_ns[0] + round(_SETTLING_S * 1e9), span_ns[1]
    answers = {tally.name: sum(begun_ns <= at_ns < ended_ns for at_ns in tally.answered_ns) for tally in tallies}
    outcomes: Counter[str] = Counter()
    for tally in tallies:
        outcomes.update(tally.outcomes)
    answered_hz = sum(answers.values()) * 1e9 / (ended_ns - begun_ns)
    most = max(answers.values())
    return Round(
        bare_hz=bare_hz,
        answered_hz=answered_hz,
        ratio=answered_hz / bare_hz,
        engine_busy=covered_share([inference for tally in tallies for inference in tally.inferences]),
        jain=jain(list(answers.values())),
        least_to_most=min(answers.values()) / most if most else 0.0,
        answers=answers,
        outcomes={name: count for name, count in outcomes.items() if count},
        wrong_pixels=sum(tally.wrong_pixels for tally in tallies),
    )


def _samples(plan: Plan, model: Model) -> list[Sample]:
    bag = plan.bag or sample_bag(_PICTURES)
    how = playback.Plan(bag=bag, models=plan.models, model=plan.model, codec=plan.codec, frames=_PICTURES)
    messages, pictures = playback.prepared(how, model), playback.decoded(how, model)
    arrays = [np.asarray(picture, np.uint8) for picture in pictures]
    return [
        Sample(message, picture, model.predict(picture[None])[0])
        for message, picture in zip(messages, arrays, strict=True)
    ]


def _round(plan: Plan, site: GatewayDeployment, samples: Sequence[Sample]) -> tuple[list[ClientTally], tuple[int, int]]:
    with ExitStack() as stack:
        clients = []
        for number, door in enumerate(islice(cycle(plan.doors), plan.clients)):
            name, session = f"client-{number + 1}", uuid4().hex[:12]
            transport = stack.enter_context(closing(site.transport(door, name, session, plan.model)))
            transport.wait_for_card(_READY_S)
            clients.append(GatewayClient(name, door, session, transport, samples, plan.window))
        span_ns = run_together(clients, plan.seconds + _SETTLING_S)
    return [client.tally() for client in clients], span_ns


@click.command()
@click.option("--models", type=click.Path(file_okay=False, path_type=Path), help="The model repository.")
@click.option("--model", default="road-small", show_default=True)
@click.option("--engine", help="What runs it. [as its manifest says]")
@click.option("--door", "doors", multiple=True, type=click.Choice(ALL_TRANSPORTS), help="These alone. [all]")
@click.option("--clients", type=click.IntRange(1, 64), default=8, show_default=True)
@click.option("--window", type=click.IntRange(1, 64), default=2, show_default=True, help="Of each client.")
@click.option("--instances", type=click.IntRange(1, 64), help="Batches at a time. [as the engine chooses]")
@click.option("--codec", type=click.Choice(["raw", "jpeg", "png", "lz4", "zstd"]), default="jpeg", show_default=True)
@click.option("--seconds", type=FiniteRange(1, 3600), default=10.0, show_default=True, help="Of a round.")
@click.option("--rounds", type=click.IntRange(1, 100), default=7, show_default=True)
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the result there as JSON.")
def doors(models: Path | None, doors: tuple[str, ...], path: Path | None, **how: Any) -> None:
    """Let clients in by all doors at once: the worker's throughput, its fairness, and every mask compared."""
    with Console(stderr=True).status("preparing") as status:
        result = measure(Plan(models=models or default_root(), doors=doors or ALL_TRANSPORTS, **how), status.update)
    if path is not None:
        path.write_text(json.dumps(result, indent=2), encoding="utf-8")
    _print(result, Console())


def _print(result: Mapping[str, Any], console: Console) -> None:
    plan = result["plan"]
    table = Table(title=f"{plan['clients']} clients at the doors of one worker; {plan['model']}, {plan['codec']}")
    for heading in (
        "round",
        "bare /s",
        "answered /s",
        "ratio",
        "engine busy",
        "Jain",
        "least ÷ most",
        "outcomes",
        "wrong pixels",
    ):
        table.add_column(heading, justify="left" if heading == "outcomes" else "right")
    for number, each in enumerate(result["rounds"], start=1):
        outcomes = ", ".join(f"{name} {count}" for name, count in each["outcomes"].items())
        figures = [each[key] for key in ("bare_hz", "answered_hz", "ratio", "engine_busy", "jain", "least_to_most")]
        table.add_row(str(number), *(f"{value:.3f}" for value in figures), outcomes, str(each["wrong_pixels"]))
    shares = Table(title="Answers by client")
    for heading in ("client", "door", *(f"round {number + 1}" for number in range(len(result["rounds"])))):
        shares.add_column(heading, justify="left" if heading in ("client", "door") else "right")
    for name, door in result["clients"].items():
        shares.add_row(name, door, *(str(each["answers"][name]) for each in result["rounds"]))
    console.print(table)
    console.print(shares)
    for name, value, target in (
        ("answered, over the bare engine's frames a second", result["ratio"], _SHARE_TARGET),
        ("Jain's index", result["jain"], _JAIN_TARGET),
    ):
        verdict = "met" if value >= target else "NOT met"
        console.print(f"{name}: {value:.3f} (median of rounds; target {target}, {verdict})", highlight=False)
    console.print(
        f"the engine was busy for {result['engine_busy']:.2%} of the time (median of rounds)", highlight=False
    )
    told = "every mask is the direct call's" if not result["wrong_pixels"] else "NOT every mask is the direct call's"
    console.print(f"{told}: {result['wrong_pixels']} pixels differ", highlight=False)
    console.print(machine_line(result["machine"], result["broker"]), highlight=False)
    console.print(result["engine"], highlight=False)
