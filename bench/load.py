"""`python -m bench gateway` and `python -m bench saturation`: what a worker does under the load of many vehicles.

`gateway`: do vehicles at all endpoints of one worker at once get its whole throughput, fair shares and right masks? Each
keeps a few frames unanswered, and every mask is compared with that of a direct call.

`saturation`: what becomes of the frames if vehicles offer more than the worker can do? They offer a multiple of its
capacity by a schedule, with equal rates or with one greedy vehicle, and frames have a deadline.

The vehicles are those of `bench.fleet.vehicle`, and their logs say what became of the frames. Rounds alternate with direct
calls of the engine. A change of the machine's speed between two rounds distorts the ratio to the bare engine, but not the
share of time in which the engine was busy.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from analysis.logs.frame_accounting import FrameAccounts
from analysis.statistics.samples import busy_share, jain, max_min_shares, spread
from bench import harness
from bench.fleet.run_record import read_frames
from bench.fleet.vehicle import Span, VehicleGroup
from bench.harness import BenchRun
from cloud.models.loader import ModelLoader
from edge.config import EdgeConfig
from edge.frame_record import FrameListener, FrameRecord
from edge.pacing import uniform_ns
from edge.transports.transport import MQTT, TRANSPORTS
from ops.processes.child import cli_flags
from ops.processes.deployment import Deployment
from ops.processes.playback import BareEngine, PlaybackSettings, encoded_frames, model_inputs
from rosbag_tools.drive.recording import sample_bag
from shared.flags import WholeRange
from shared.imaging.frames import Pixels
from shared.logs import configure_logging
from shared.messages.results import ModelResult
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import NOTE, shown
from shared.terminal_table import Table, result_table

_GATEWAY_TARGET = 0.93  # Answered frames per second divided by those of the bare engine.
_SATURATION_TARGET = 0.95  # Frames answered in time divided by the capacity of the bare engine.
_JAIN_TARGET = 0.98
_GATEWAY_IMAGES, _SATURATION_IMAGES = 8, 20
_WARM_UP_S = 2.0  # Start of a round that is not counted, until every vehicle has sent its window or the queue is full.
_EQUAL, _GREEDY = "equal", "greedy"  # A greedy round has one vehicle with a higher rate.
_GREEDY_FACTOR = 10.0  # Rate of the greedy vehicle divided by that of each other vehicle.
_LOST_AFTER_S = 60.0  # Without a deadline.
_UNREACHABLE = "unreachable"  # A closed loop drops only frames that no worker received.


@dataclass(frozen=True, slots=True)
class GatewayPlan:
    """Settings of `gateway`."""

    models: Path = harness.models()
    model: str = harness.model()
    engine: str | None = harness.engine()
    transports: tuple[str, ...] = harness.choices(
        tuple(TRANSPORTS), tuple(TRANSPORTS), "Transport to use (repeatable). [all]", "--transport"
    )
    clients: int = harness.number(8, 1, 64, "Number of clients.")
    window: int = harness.number(2, 1, 64, "Unanswered frames per client.")
    instances: int | None = harness.option(
        type=WholeRange(1, 64), help="Batches that are inferred at a time. [as the engine chooses]"
    )
    codec: str = harness.codec()
    seconds: float = harness.number(10.0, 1, 3600, "Duration of a round.")
    rounds: int = harness.rounds(7, 100)
    bare_frames: int = 30  # Per model instance.


@dataclass(frozen=True, slots=True)
class SaturationPlan:
    """Settings of `saturation`."""

    models: Path = harness.models()
    model: str = harness.model()
    engine: str | None = harness.engine()
    precision: str | None = harness.option(help="Precision of the engine. [as the model's manifest says]")
    vehicles: int = harness.number(8, 2, 64, "Number of vehicles.")
    factor: float = harness.number(2.0, 0.1, 20, "Offered load, in multiples of the engine's capacity.")
    deadline_frames: float = harness.number(10.0, 1, 1000, "Deadline, in multiples of one inference.")
    window: int = harness.number(4, 1, 1000, "Unanswered frames per vehicle.")
    seconds: float = harness.number(15.0, 1, 3600, "Duration of a round.")
    rounds: int = harness.rounds(3, 100)
    bare_frames: int = 30  # Per model instance.
    codec: str = "jpeg"
    quality: int = 85


@dataclass(frozen=True, slots=True)
class LoadedRound:
    """What became of the frames of a round."""

    frames: pd.DataFrame  # See `read_frames`.
    accounts: FrameAccounts
    vehicles: Mapping[str, str]  # Transports by vehicle.
    span_ns: Span  # The time in which frames were sent.

    @property
    def seconds(self) -> float:
        """The duration without the warm-up."""
        return (self.span_ns[1] - self.span_ns[0]) / 1e9 - _WARM_UP_S

    def answers(self) -> list[int]:
        """Returns each vehicle's number of results in time that arrived in the time of sending without the warm-up."""
        arrived_ns, begin_ns = self.answered["returned_ns"], self.span_ns[0] + round(_WARM_UP_S * 1e9)
        counted = self.answered[(arrived_ns >= begin_ns) & (arrived_ns < self.span_ns[1])]["vehicle"].value_counts()
        return [int(counted.get(name, 0)) for name in self.vehicles]

    @property
    def answered(self) -> pd.DataFrame:
        """The frames with a result in time."""
        return self.frames[self.frames["outcome"] == Outcome.ANSWERED]

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of frames by outcome, of those that occurred."""
        return {name: count for name, count in self.accounts.by_outcome.items() if count}


class _LoadedWorker:
    """A worker with its endpoints, and the same model in this process, until `run` ends."""

    def __init__(
        self,
        run: BenchRun,
        plan: GatewayPlan | SaturationPlan,
        transports: Iterable[str],
        frames: int,
        *,
        precision: str | None = None,
        instances: int | None = None,
    ) -> None:
        placement = Placement(device="cpu", precision=Precision(precision) if precision else None, instances=instances)
        loader = ModelLoader(Repository(plan.models), placement, engine=plan.engine)
        self.model = run.enter_context(loader.open(plan.model))
        run.step("starting a worker")
        flags = cli_flags(engine=plan.engine, precision=precision, instances=instances)
        self.deployment = run.enter_context(
            Deployment(models=plan.models, model=plan.model, transports=[*transports], flags=flags)
        )
        settings = PlaybackSettings(sample_bag(frames), plan.models, plan.model, plan.codec, frames=frames)
        self.messages = encoded_frames(settings, self.model)
        self.inputs = model_inputs(settings, self.model)
        self.model.warm_up()
        run.step("the bare engine")
        self.bare = BareEngine(self.model, self.inputs, plan.bare_frames)
        self._plan = plan
        self._folder = run.folder

    def load(
        self,
        transports: Iterable[str],
        name: str,
        *on_ended: FrameListener,
        rates_hz: Sequence[float] = (),
        deadline_ms: float | None = None,
    ) -> LoadedRound:
        """Lets a vehicle for each of the transports send for one round, whose logs get a folder of this name.

        `rates_hz`: of each vehicle; empty: they keep their windows full. `on_ended` get every frame that has ended.

        Raises:
            SkylaneError: an endpoint cannot be reached.
        """
        plan, folder = self._plan, self._folder / name
        vehicles = {f"vehicle-{number:03d}": transport for number, transport in enumerate(transports, start=1)}
        settings = {"model": plan.model, "window": plan.window, "retry": False, "deadline_ms": deadline_ms}
        settings["answer_timeout_s"] = _LOST_AFTER_S
        configs = [
            EdgeConfig.model_validate({"vehicle": vehicle, **settings, **self.deployment.endpoint(transport)})
            for vehicle, transport in vehicles.items()
        ]
        with VehicleGroup() as group:
            group.connect(configs, folder, lambda _: self.messages, *on_ended)
            span_ns = group.play(even_turns(rates_hz), _WARM_UP_S + plan.seconds)
        accounts = FrameAccounts()
        for vehicle in vehicles:
            accounts.add(folder / vehicle)
        return LoadedRound(read_frames(folder), accounts, vehicles, span_ns)


def even_turns(rates_hz: Sequence[float]) -> list[Iterator[int]]:
    """Returns schedules that are spread evenly, so that vehicles with equal rates take turns."""
    phases_ns = [round(1e9 * place / len(rates_hz) / rate_hz) for place, rate_hz in enumerate(rates_hz)]
    return [map(phase_ns.__add__, uniform_ns(rate_hz)) for phase_ns, rate_hz in zip(phases_ns, rates_hz, strict=True)]


class WrongPixels:
    """Counts the pixels in which masks differ from that of a direct call for the same image. A FrameListener."""

    def __init__(self, masks: Sequence[Pixels]) -> None:
        """`masks`: H×W class ids of each image that the vehicles send in turn."""
        self._masks = masks
        self.count = 0  # In all masks.

    def __call__(self, record: FrameRecord, result: ModelResult | None) -> None:
        """See FrameListener."""
        if result is not None:
            mask = self._masks[record.id.sequence % len(self._masks)]
            self.count += int(np.count_nonzero(np.asarray(result.result) != mask))


def measure_gateway(plan: GatewayPlan, run: BenchRun) -> dict[str, Any]:
    """Run clients at all endpoints of one worker at once: throughput, fairness, and every mask compared."""
    configure_logging(level="error")  # A frame that no worker received is a warning.
    worker = _LoadedWorker(run, plan, plan.transports, _GATEWAY_IMAGES, instances=plan.instances)
    masks = [worker.model.predict(np.asarray(image, np.uint8)[None])[0] for image in worker.inputs]
    rounds = []
    for number in range(plan.rounds):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.clients} clients")
        wrong = WrongPixels(masks)
        loaded = worker.load(islice(cycle(plan.transports), plan.clients), f"round-{number}", wrong)
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(gateway_round(loaded, worker.bare.round_hz(), wrong.count))
    return {
        "plan": harness.plan_record(plan),
        "clients": loaded.vehicles,
        "rounds": rounds,
        **{key: median(each[key] for each in rounds) for key in ("ratio", "engine_busy", "jain")},
        "wrong_pixels": sum(each["wrong_pixels"] for each in rounds),
        "engine": worker.model.describe(),
        "broker": worker.deployment.broker.description,
    }


def measure_saturation(plan: SaturationPlan, run: BenchRun) -> dict[str, Any]:
    """Offer a worker more than it can do: frames answered in time, fairness, and outcomes of the other frames."""
    configure_logging(level="error")  # Every frame without a result is a warning.
    worker = _LoadedWorker(run, plan, [MQTT], _SATURATION_IMAGES, precision=plan.precision)
    rounds = []
    for number, load in product(range(plan.rounds), (_EQUAL, _GREEDY)):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.vehicles} vehicles, {load}")
        rates_hz = offered_rates_hz(plan, worker.bare.hz, is_greedy=load == _GREEDY)
        deadline_ms = plan.deadline_frames * 1e3 / worker.bare.hz
        vehicles, name = [MQTT] * plan.vehicles, f"{load}-{number}"
        loaded = worker.load(vehicles, name, rates_hz=rates_hz, deadline_ms=deadline_ms)
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(saturation_round(load, rates_hz, loaded, worker.bare.round_hz()))

    def median_of(load: str, measure: str) -> float:
        return float(median(each[measure] for each in rounds if each["load"] == load))

    broker = worker.deployment.broker
    return {
        "plan": harness.plan_record(plan),
        "rounds": rounds,
        "share": median_of(_EQUAL, "share"),
        "jain": median_of(_EQUAL, "jain"),
        "greedy_jain": median_of(_GREEDY, "jain"),
        "greedy_share": median_of(_GREEDY, "greedy_share"),
        "unaccounted": sum(each["unaccounted"] for each in rounds),
        "peak_mb": {"worker": _peak_mb(worker.deployment.worker.pid), "broker": _peak_mb(broker.pid)},
        "engine": worker.model.describe(),
        "broker": broker.description,
    }


def offered_rates_hz(plan: SaturationPlan, capacity_hz: float, *, is_greedy: bool) -> list[float]:
    """Divides `factor` times the capacity among the vehicles."""
    weights = [_GREEDY_FACTOR if is_greedy and number == 0 else 1.0 for number in range(plan.vehicles)]
    return [plan.factor * capacity_hz * weight / sum(weights) for weight in weights]


def gateway_round(loaded: LoadedRound, bare_hz: float, wrong_pixels: int) -> dict[str, Any]:
    """Returns the results of a round; throughput and fairness count replies while frames are sent, after the warm-up."""
    counts, answered = loaded.answers(), loaded.answered
    answered_hz = sum(counts) / loaded.seconds
    inferences = answered.loc[answered["inferred_ns"] > 0, ["batched_ns", "inferred_ns"]]
    return {
        "bare_hz": bare_hz,
        "answered_hz": answered_hz,
        "ratio": answered_hz / bare_hz,
        # The share of the time from the first to the last inference.
        "engine_busy": busy_share(list(inferences.itertuples(index=False, name=None))),
        "jain": jain(counts),
        "least_to_most": min(counts) / max(counts) if max(counts) else 0.0,
        "answers": dict(zip(loaded.vehicles, counts, strict=True)),
        "outcomes": {_UNREACHABLE if name == Outcome.DROPPED else name: n for name, n in loaded.outcomes.items()},
        "wrong_pixels": wrong_pixels,
    }


def saturation_round(load: str, rates_hz: Sequence[float], loaded: LoadedRound, capacity_hz: float) -> dict[str, Any]:
    """Returns the results of a round.

    Throughput and fairness count masks that arrived in time and while frames were sent, after the warm-up; outcomes and
    latencies, from due to arrival, count all frames of the round.
    """
    in_time_hz = [count / loaded.seconds for count in loaded.answers()]
    fair_hz = max_min_shares(rates_hz, sum(in_time_hz))
    relative = [got / fair if fair else 0.0 for got, fair in zip(in_time_hz, fair_hz, strict=True)]
    latencies_ms = ((loaded.answered["returned_ns"] - loaded.answered["due_ns"]) / 1e6).tolist()
    return {
        "load": load,
        "capacity_hz": capacity_hz,
        "in_time_hz": sum(in_time_hz),
        "share": sum(in_time_hz) / capacity_hz,
        "jain": jain(relative),  # Of the vehicles' throughputs, each divided by its max-min fair share.
        "greedy_share": relative[0] if load == _GREEDY else None,
        "outcomes": loaded.outcomes,
        "unaccounted": loaded.accounts.unaccounted,
        "latency_ms": spread(latencies_ms) if latencies_ms else {},
    }


def _peak_mb(pid: int | None) -> float | None:
    """The peak resident memory of a process in MB (10⁶ bytes), from the kernel."""
    if pid is None:
        return None
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return None


def _gateway_tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan, rounds = result["plan"], result["rounds"]
    numbers = {"bare /s": "bare_hz", "answered /s": "answered_hz", "ratio": "ratio"}
    numbers |= {"engine busy": "engine_busy", "Jain": "jain", "least ÷ most": "least_to_most"}
    yield result_table(
        f"{plan['clients']} clients at the endpoints of one worker; {plan['model']}, {plan['codec']}",
        {"round": "", **dict.fromkeys(numbers, ".3f"), "outcomes": "<", "wrong pixels": ""},
        [
            (
                number,
                *(each[key] for key in numbers.values()),
                ", ".join(f"{name} {count}" for name, count in each["outcomes"].items()),
                each["wrong_pixels"],
            )
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
    yield harness.target_line(
        "answered frames per second ÷ bare engine", [each["ratio"] for each in rounds], _GATEWAY_TARGET
    )
    yield harness.target_line("Jain's index", [each["jain"] for each in rounds], _JAIN_TARGET)
    yield f"the engine was busy {result['engine_busy']:.2%} of the time (median of rounds)"
    wrong = result["wrong_pixels"]
    yield f"{'NOT every' if wrong else 'every'} mask equals that of the direct call: {wrong} pixels differ"


def _saturation_tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    plan = result["plan"]
    columns = {"load": "<", "bare /s": ".2f", "in time /s": ".2f", "share": ".3f", "Jain": ".4f", "greedy": ".3f"}
    keys = ("load", "capacity_hz", "in_time_hz", "share", "jain", "greedy_share")
    yield result_table(
        f"{plan['vehicles']} vehicles offer {plan['factor']:g}× the capacity of the bare engine, "
        f"deadline {plan['deadline_frames']:g} inference times",
        {**columns, "p50 ms": "", "p99 ms": ""},
        [
            (*(each[key] for key in keys), *(shown(each["latency_ms"].get(key), 0) for key in ("median", "p99")))
            for each in result["rounds"]
        ],
        NOTE,
    )
    rows = []
    for load in (_EQUAL, _GREEDY):
        counts = Counter[str]()
        for each in result["rounds"]:
            counts.update(each["outcomes"] if each["load"] == load else {})
        rows.append((load, counts.total(), *(counts[outcome] for outcome in Outcome)))
    columns = {"load": "<", "offered": "", **dict.fromkeys(map(str, Outcome), "")}
    yield result_table("Outcomes of the frames, all rounds", columns, rows)
    for name, load, measure, target in (
        ("answered in time ÷ capacity of the bare engine", _EQUAL, "share", _SATURATION_TARGET),
        ("Jain's index, equal vehicles", _EQUAL, "jain", _JAIN_TARGET),
        ("Jain's index of max-min shares, one greedy vehicle", _GREEDY, "jain", _JAIN_TARGET),
    ):
        yield harness.target_line(name, [each[measure] for each in result["rounds"] if each["load"] == load], target)
    peaks = ", ".join(f"{name} {peak:.0f} MB" for name, peak in result["peak_mb"].items() if peak is not None)
    yield f"unaccounted {result['unaccounted']}; peak resident memory: {peaks}"


gateway = harness.bench_command("gateway", GatewayPlan, measure_gateway, _gateway_tables)
saturation = harness.bench_command("saturation", SaturationPlan, measure_saturation, _saturation_tables)
