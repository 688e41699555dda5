"""Measures all servers with the same images and load, in alternating rounds of one run.

All servers run from start to end, each in its own environment. Servers that are not being measured are frozen with all
their processes, so that they take no processor time. The serving overhead of a call is the client's time minus the
inference time of the same call as the server measured it.
"""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bench.load.playback import PlaybackSettings
from bench.peers.load_comparison.load import Taken, many_at_a_time, one_in_flight
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.load_comparison.plan import Plan
from bench.peers.load_comparison.startup import LineUp
from bench.peers.rig.starter import Starter
from bench.peers.rig.workload import Job, by_codec, jobs
from shared.errors import SkylaneError


@dataclass(slots=True)
class Turns:
    """Measurements of one candidate with one codec, one list per round."""

    alone: list[list[Taken]] = field(default_factory=list)
    crowded: list[list[Taken]] = field(default_factory=list)
    answers_hz: list[float] = field(default_factory=list)  # Answers per second with several clients, by round.


@dataclass(frozen=True, slots=True)
class LoadMeasurements:
    """Measurements of a run."""

    turns: dict[str, dict[PeerEndpoint, Turns]]  # Keys: codec, then endpoint.
    skipped: dict[str, str]  # Servers or transports that were not measured completely, and why.
    versions: dict[str, str]


def run(plan: Plan, on_step: Callable[[str], None]) -> LoadMeasurements:
    """Starts all available servers and runs the rounds; `on_step` is called before each step.

    Raises:
        PeerError: no server can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-peers-")))
        on_step("the pictures and their masks")
        work = jobs(by_codec(PlaybackSettings(plan.bag, plan.models, plan.model, frames=plan.frames), plan.codecs))
        starter = Starter(plan, work[plan.codecs[0]][0], folder)
        lineup = LineUp(starter, work.values(), plan.turn_s, stack)
        lineup.start(dict.fromkeys(plan.names), on_step)
        turns = {codec: {endpoint: Turns() for endpoint in lineup.endpoints} for codec in plan.codecs}
        for number in range(plan.rounds):
            for codec, endpoint in product(plan.codecs, lineup.endpoints):
                if endpoint.name in lineup.skipped:
                    continue
                on_step(f"round {number + 1} of {plan.rounds}, {codec}, {endpoint.name}")
                try:
                    _turn(endpoint, work[codec], plan, turns[codec][endpoint])
                except SkylaneError as error:
                    lineup.skipped[endpoint.name] = f"not from round {number + 1} on, {codec}: {error}"
        return LoadMeasurements(turns, lineup.skipped, starter.versions)


def _turn(endpoint: PeerEndpoint, work: Sequence[Job], plan: Plan, turns: Turns) -> None:
    with endpoint.awake():
        alone = one_in_flight(endpoint.connect, work, plan.frames, plan.turn_s)
        hz, crowded = many_at_a_time(endpoint.connect, work, 2 * plan.frames, plan.clients, plan.turn_s)
    turns.alone.append(alone)
    turns.crowded.append(crowded)
    turns.answers_hz.append(hz)
