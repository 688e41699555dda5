"""`skylane bench gateway`: clients at all endpoints of one worker at once: throughput, fairness and correct masks.

Rounds alternate between direct calls of the engine and clients that each keep a few frames unanswered. The images are
encoded beforehand, and every mask is compared with that of a direct call. A change of the
machine's speed between two rounds distorts the ratio to the bare engine, but not the share of time in which the engine
was busy.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from analysis.statistics.samples import busy_share, jain
from bench.harness import options
from bench.harness.comparison import plan_record
from bench.harness.output import target_line
from bench.load.load_clients import ClientTally, LoadImage, connect_clients, run_closed_loop
from cloud.models.loader import ModelLoader
from edge.transports.transport import TRANSPORTS
from ops.processes.environment import BenchRun
from ops.processes.gateway_deployment import GatewayDeployment
from ops.processes.playback import BareEngine, PlaybackSettings, encoded_frames, model_inputs
from ops.processes.worker_process import engine_flags
from rosbag_tools.drive.recording import sample_bag
from shared.flags import WholeRange
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.runlog.latency_log import Outcome
from shared.terminal_table import Table, result_table

_THROUGHPUT_TARGET = 0.93  # Answered frames per second divided by those of the bare engine.
_JAIN_TARGET = 0.98
_WARM_UP_S = 2.0  # Start of a round that is not counted, until every client has sent its window.
_IMAGES = 8
_UNREACHABLE = "unreachable"  # A closed loop drops only frames that no worker received.


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """Settings of the benchmark."""

    models: Path = options.models()
    model: str = options.model()
    engine: str | None = options.engine()
    transports: tuple[str, ...] = options.choices(
        tuple(TRANSPORTS), tuple(TRANSPORTS), "Transport to use (repeatable). [all]", "--transport", old="--door"
    )
    clients: int = options.number(8, 1, 64, "Number of clients.")
    window: int = options.number(2, 1, 64, "Unanswered frames per client.")
    instances: int | None = options.option(
        type=WholeRange(1, 64), help="Batches that are inferred at a time. [as the engine chooses]"
    )
    codec: str = options.codec()
    seconds: float = options.number(10.0, 1, 3600, "Duration of a round.")
    rounds: int = options.rounds(7, 100)
    bare_frames: int = 30  # Per model instance.


def measure(plan: GatewayPlan, run: BenchRun) -> dict[str, Any]:
    """Run clients at all endpoints of one worker at once: throughput, fairness, and every mask compared."""
    placement = Placement(device="cpu", instances=plan.instances)
    model = run.enter_context(ModelLoader(Repository(plan.models), placement, engine=plan.engine).open(plan.model))
    run.step("starting a worker with all endpoints")
    flags = engine_flags(engine=plan.engine, instances=plan.instances)
    deployment = run.enter_context(
        GatewayDeployment(models=plan.models, model=plan.model, transports=plan.transports, flags=flags)
    )
    settings = PlaybackSettings(sample_bag(_IMAGES), plan.models, plan.model, plan.codec, frames=_IMAGES)
    inputs = [np.asarray(image, np.uint8) for image in model_inputs(settings, model)]
    images = [
        LoadImage(message, model.predict(image[None])[0])
        for message, image in zip(encoded_frames(settings, model), inputs, strict=True)
    ]
    model.warm_up()
    run.step("the bare engine")
    bare = BareEngine(model, inputs, plan.bare_frames)
    rounds = []
    for number in range(plan.rounds):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.clients} clients")
        with ExitStack() as stack:
            transports = list(islice(cycle(plan.transports), plan.clients))
            clients = connect_clients(stack, deployment, transports, images, plan.window)
            span_ns = run_closed_loop(clients, plan.seconds + _WARM_UP_S)
        tallies = [client.tally for client in clients]
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(summarise_round(tallies, span_ns, bare.round_hz()))
    return {
        "plan": plan_record(plan),
        "clients": {tally.name: tally.transport for tally in tallies},
        "rounds": rounds,
        **{key: median(each[key] for each in rounds) for key in ("ratio", "engine_busy", "jain")},
        "wrong_pixels": sum(each["wrong_pixels"] for each in rounds),
        "engine": model.describe(),
        "broker": deployment.broker.description,
    }


def summarise_round(tallies: Sequence[ClientTally], span_ns: tuple[int, int], bare_hz: float) -> dict[str, Any]:
    """Computes the results of a round; throughput and fairness count replies within its span after the warm-up."""
    begin_ns, end_ns = span_ns[0] + round(_WARM_UP_S * 1e9), span_ns[1]
    answers = {tally.name: sum(begin_ns <= at_ns < end_ns for at_ns in tally.answered_ns) for tally in tallies}
    outcomes: Counter[str] = Counter()
    for tally in tallies:
        outcomes.update(tally.outcomes)
    answered_hz = sum(answers.values()) * 1e9 / (end_ns - begin_ns)
    most = max(answers.values())
    return {
        "bare_hz": bare_hz,
        "answered_hz": answered_hz,
        "ratio": answered_hz / bare_hz,
        # The share of the time from the first to the last inference.
        "engine_busy": busy_share([inference for tally in tallies for inference in tally.inferences]),
        "jain": jain(list(answers.values())),
        "least_to_most": min(answers.values()) / most if most else 0.0,
        "answers": answers,
        "outcomes": {_UNREACHABLE if name == Outcome.DROPPED else name: count for name, count in outcomes.items()},
        "wrong_pixels": sum(tally.wrong_pixels for tally in tallies),
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan, rounds = result["plan"], result["rounds"]
    numbers = {"bare /s": "bare_hz", "answered /s": "answered_hz", "ratio": "ratio"}
    numbers |= {"engine busy": "engine_busy", "Jain": "jain", "least ÷ most": "least_to_most"}
    yield result_table(
        f"{plan['clients']} clients at the endpoints of one worker; {plan['model']}, {plan['codec']}",
        {"round": "", **dict.fromkeys(numbers, ".3f"), "outcomes": "<", "wrong pixels": ""},
        [
            (number, *(each[key] for key in numbers.values()), _counts(each["outcomes"]), each["wrong_pixels"])
            for number, each in enumerate(rounds, start=1)
        ],
    )
    yield result_table(
        "Replies by client",
        {"client": "<", "transport": "<", **{f"round {number + 1}": "" for number in range(len(rounds))}},
        [
            (name, transport, *(each["answers"][name] for each in rounds))
            for name, transport in result["clients"].items()
        ],
    )
    yield target_line(
        "answered frames per second ÷ bare engine", [each["ratio"] for each in rounds], _THROUGHPUT_TARGET
    )
    yield target_line("Jain's index", [each["jain"] for each in rounds], _JAIN_TARGET)
    yield f"the engine was busy {result['engine_busy']:.2%} of the time (median of rounds)"
    wrong = result["wrong_pixels"]
    yield f"{'NOT every' if wrong else 'every'} mask equals that of the direct call: {wrong} pixels differ"


def _counts(outcomes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in outcomes.items())


gateway = options.bench_command("gateway", GatewayPlan, measure, _tables, json=options.JSON_FILE)
