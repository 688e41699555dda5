"""Runs every server through the scenarios of the comparison of 2022, in alternating rounds of one run.

Each peer uses its first transport over TCP; Skylane uses a plain gRPC call, and a vehicle over MQTT. In each round every
server is started again, alone, and runs all scenarios: first cold, then warm. The rounds are therefore independent, as
the t-tests require, and only one large model is in memory.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from bench.peers.load_comparison.load import SETTLING, Taken, one_in_flight, warm_up
from bench.peers.load_comparison.peer_endpoint import PeerEndpoint
from bench.peers.load_comparison.plan import OURS, Plan
from bench.peers.load_comparison.startup import nothing_to_measure
from bench.peers.rig.catalogue import PEERS
from bench.peers.rig.resource_meter import Meter, Usage
from bench.peers.rig.starter import Starter
from bench.peers.rig.workload import Job, jobs
from bench.peers.scenario_comparison.scenarios import SCENARIOS, pictures
from shared.errors import SkylaneError

OUR_WAYS = ("grpc", "mqtt")


@dataclass(frozen=True, slots=True)
class Run:
    """Measurements of one server in one scenario and round."""

    scenario: str
    server: str
    way: str
    number: int  # Number of the round, from 0.
    taken: Sequence[Taken]
    usage: Usage

    @property
    def name(self) -> str:
        """Name of the candidate."""
        return f"{self.server} {self.way}"


@dataclass(slots=True)
class ScenarioMeasurements:
    """Measurements of all runs."""

    runs: list[Run] = field(default_factory=list)
    skipped: dict[str, str] = field(
        default_factory=dict
    )  # Servers or transports that were not measured completely, and why.
    versions: dict[str, str] = field(default_factory=dict)


def run(plan: Plan, on_step: Callable[[str], None]) -> ScenarioMeasurements:
    """Runs the plan's scenarios; `on_step` is called before each run.

    Raises:
        PeerError: no server can be measured.
        SkylaneError: the bag or the model cannot be used.
    """
    with tempfile.TemporaryDirectory(prefix="skylane-peers-") as folder:
        on_step("the pictures and their masks")
        work = jobs({name: pictures(plan, name) for name in plan.scenarios})
        starter = Starter(plan, next(iter(work.values()))[0], Path(folder))
        outcome = ScenarioMeasurements(versions=starter.versions)
        endpoints = [(name, way) for name in plan.names for way in ways(name)]
        for number, (server, way) in product(range(plan.rounds), endpoints):
            if server in outcome.skipped:
                continue
            step = f"round {number + 1} of {plan.rounds}, {server} {way}"
            on_step(f"{step}: starting")
            try:
                with ExitStack() as stack:
                    (endpoint,) = starter.start(server, stack, (way,), is_cold=True)
                    with endpoint.awake():
                        for scenario in _in_order(plan.scenarios, endpoint, work, plan.turn_s):
                            on_step(f"{step}: {scenario}")
                            outcome.runs.append(_measured(endpoint, scenario, number, work[scenario], plan))
            except SkylaneError as error:
                outcome.skipped[server] = f"not from round {number + 1} on: {error}"
        if not outcome.runs:
            raise nothing_to_measure(outcome.skipped)
        return outcome


def _in_order(
    names: Sequence[str], endpoint: PeerEndpoint, work: Mapping[str, Sequence[Job]], turn_s: float
) -> Iterator[str]:
    """Yields the scenarios of a newly started server: the cold ones, then the others after a warm-up with their images."""
    yield from (name for name in names if SCENARIOS[name].is_cold)
    warm = [name for name in names if not SCENARIOS[name].is_cold]
    for name in warm:
        warm_up(endpoint.connect, work[name], turn_s)
    yield from warm


def _measured(endpoint: PeerEndpoint, scenario: str, number: int, frames: Sequence[Job], plan: Plan) -> Run:
    meter = Meter(endpoint.tree)
    settling = 0 if SCENARIOS[scenario].is_cold else SETTLING
    taken = one_in_flight(endpoint.connect, frames, plan.frames, plan.turn_s, settling=settling, meter=meter)
    return Run(scenario, endpoint.server, endpoint.way, number, taken, meter.usage)


def ways(server: str) -> tuple[str, ...]:
    """Returns the measured transports of a server of NAMES."""
    if server == OURS:
        return OUR_WAYS
    return (next(way.name for way in PEERS[server].ways if way.over_tcp),)
