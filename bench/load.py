"""`python -m bench gateway` and `python -m bench saturation`: what a worker does under the load of many vehicles.

`gateway`: do clients at all endpoints of one worker at once get its whole throughput, fair shares and right masks? Each
client keeps a few frames unanswered, and every mask is compared with that of a direct call.

`saturation`: what becomes of the frames if vehicles offer more than the worker can do? They offer a multiple of its
capacity by a schedule, with equal rates or with one greedy vehicle, and frames have a deadline.

The clients are threads of this process, whose frames are encoded beforehand, because in reality the vehicles' computers do
that work. Rounds alternate with direct calls of the engine. A change of the machine's speed between two rounds distorts the
ratio to the bare engine, but not the share of time in which the engine was busy.
"""

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice, product
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import numpy as np
from msgspec.structs import replace

from analysis.statistics.samples import busy_share, jain, max_min_shares, spread
from bench import harness
from bench.harness import BenchRun
from cloud.models.loader import ModelLoader
from edge.transports.transport import MQTT, TRANSPORTS, Transport
from ops.processes.child import cli_flags
from ops.processes.deployment import Deployment
from ops.processes.playback import BareEngine, PlaybackSettings, encoded_frames, model_inputs
from rosbag_tools.drive.recording import sample_bag
from shared import clock
from shared.clock import Deadline
from shared.flags import WholeRange
from shared.imaging.frames import Pixels
from shared.messages.frame import FrameMessage, Status
from shared.messages.topics import FrameId
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from shared.runlog.latency_log import Outcome
from shared.runlog.percentiles import NOTE, shown
from shared.stages import Stage, Stamp
from shared.task import DEFAULT_TASK, task_named
from shared.terminal_table import Table, result_table
from shared.threads import ThreadGroup

_GATEWAY_TARGET = 0.93  # Answered frames per second divided by those of the bare engine.
_SATURATION_TARGET = 0.95  # Frames answered in time divided by the capacity of the bare engine.
_JAIN_TARGET = 0.98
_GATEWAY_IMAGES, _SATURATION_IMAGES = 8, 20
_WARM_UP_S = 2.0  # Start of a round that is not counted, until every client has sent its window or the queue is full.
_EQUAL, _GREEDY = "equal", "greedy"  # A greedy round has one vehicle with a higher rate.
_GREEDY_FACTOR = 10.0  # Rate of the greedy vehicle divided by that of each other vehicle.
_UNREACHABLE = "unreachable"  # A closed loop drops only frames that no worker received.
_CAMERA = "front"
_GRACE_S = 2.0  # Time after the deadline until a frame counts as lost, as in the vehicle node.
_LOST_AFTER_S = 60.0  # Without a deadline.
_CONNECT_TIMEOUT_S = 30.0
_POLL_S = 0.05

Span = tuple[int, int]  # Begin and end by `shared.clock`.


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
class LoadImage:
    """An image as it is sent, and the model's mask for it: H×W class ids from a direct call, or None."""

    message: FrameMessage
    mask: Pixels | None = None


@dataclass(slots=True)
class ClientTally:
    """The outcomes of one client's frames; they sum to `offered`."""

    name: str
    transport: str
    offered: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # By `shared.runlog.latency_log.Outcome`.
    answered_ns: list[int] = field(default_factory=list)  # Arrival time of each mask that came in time.
    latencies_ms: list[float] = field(default_factory=list)  # Time from due to arrival of the same masks.
    inferences: list[tuple[int, int]] = field(default_factory=list)  # Begin and end of each, ns by the worker's clock.
    wrong_pixels: int = 0  # Sum over all masks.


@dataclass(slots=True)
class LoadClient:
    """One vehicle at one endpoint; only one thread uses it."""

    tally: ClientTally
    session: str
    transport: Transport
    images: Sequence[LoadImage]  # Sent in a loop.
    window: int  # Unanswered frames.
    deadline_ms: float | None = None  # Time from due to the mask.
    _open: dict[FrameId, tuple[LoadImage, int]] = field(default_factory=dict)  # Unanswered frames and their due times.
    _undelivered: "queue.SimpleQueue[FrameId]" = field(default_factory=queue.SimpleQueue)

    def offer(self, due_ns: int) -> None:
        """Sends a frame that is due, or drops it if the window is full."""
        while self._receive(0):
            pass
        if len(self._open) < self.window:
            self._send(due_ns)
        else:
            self.tally.offered += 1
            self.tally.outcomes[Outcome.DROPPED] += 1

    def keep_window_full(self, stop: threading.Event) -> None:
        """Sends frames until `stop` is set, then waits for the last replies; the body of a thread."""
        while not stop.is_set():
            while len(self._open) < self.window:
                self._send(clock.now_ns())
            self._receive(_POLL_S)
        self.finish()

    def finish(self) -> None:
        """Waits until every frame is answered or lost."""
        while self._open:
            self._receive(_POLL_S)

    def _send(self, due_ns: int) -> None:
        self.tally.offered += 1
        image = self.images[self.tally.offered % len(self.images)]
        frame_id = FrameId(self.tally.name, _CAMERA, self.session, self.tally.offered)
        node = f"edge/{self.tally.name}/{self.session}"
        stamps = (Stamp(Stage.DUE, node, due_ns), Stamp(Stage.SENT, node, clock.now_ns()))
        deadline = Deadline.NEVER if self.deadline_ms is None else Deadline(due_ns + round(self.deadline_ms * 1e6))
        message = replace(image.message, id=frame_id, stamps=stamps, deadline=deadline)
        self._open[frame_id] = image, due_ns
        self.transport.send(message, self.transport.pack(message), lambda _: self._undelivered.put(frame_id))

    def _receive(self, timeout_s: float) -> bool:
        """Counts the next reply, and frames that nobody received or answered; False if there was no reply in time."""
        while not self._undelivered.empty():
            self._close(self._undelivered.get(), Outcome.DROPPED)
        limit_s = _LOST_AFTER_S if self.deadline_ms is None else self.deadline_ms / 1e3 + _GRACE_S
        lost_before_ns = clock.now_ns() - round(limit_s * 1e9)
        for frame_id in [frame_id for frame_id, (_, due_ns) in self._open.items() if due_ns < lost_before_ns]:
            self._close(frame_id, Outcome.LOST)
        try:
            reply = self.transport.replies.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return False
        if reply is None:
            return True
        result = reply.read()
        image, due_ns = self._open.get(result.id, (None, 0))
        if image is None:
            return True  # The frame was already counted as lost.
        took_ms = (reply.returned_ns - due_ns) / 1e6
        if result.status is Status.ANSWERED and self.deadline_ms is not None and took_ms > self.deadline_ms:
            self._close(result.id, Outcome.EXPIRED)
            return True
        self._close(result.id, result.status)
        if result.status is Status.ANSWERED:
            self.tally.answered_ns.append(reply.returned_ns)
            self.tally.latencies_ms.append(took_ms)
            times_ns = {stamp.stage: stamp.at_ns for stamp in result.stamps}
            self.tally.inferences.append((times_ns[Stage.BATCHED], times_ns[Stage.INFERRED]))
            if image.mask is not None:
                mask = task_named(DEFAULT_TASK).decode(result.data, result.codec, result.shape)
                self.tally.wrong_pixels += int(np.count_nonzero(np.asarray(mask) != image.mask))
        return True

    def _close(self, frame_id: FrameId, outcome: str) -> None:
        if self._open.pop(frame_id, None) is not None:
            self.tally.outcomes[outcome] += 1


def run_closed_loop(clients: Sequence[LoadClient], seconds: float) -> Span:
    """Keeps the windows of all clients full for a time."""
    stop = threading.Event()
    threads = ThreadGroup(stop.set)
    begin_ns = clock.now_ns()
    for client in clients:
        threads.start(client.tally.name, partial(client.keep_window_full, stop))
    stop.wait(seconds)
    stop.set()
    end_ns = clock.now_ns()
    threads.join(2 * _LOST_AFTER_S)
    return begin_ns, end_ns


def run_open_loop(clients: Sequence[LoadClient], rates_hz: Sequence[float], seconds: float) -> Span:
    """Offers frames at each client's rate for a time, and waits for the last replies; returns the time of the offer.

    Frames are due by a schedule that does not depend on earlier replies, and their latency counts from then. The clients'
    schedules are spread evenly, so that clients with equal rates take turns.
    """
    begin_ns = clock.now_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    due = [
        (begin_ns + round(1e9 * place / len(clients) / rate_hz), place)
        for place, rate_hz in enumerate(rates_hz)
        if rate_hz > 0
    ]
    heapq.heapify(due)
    pause = threading.Event()
    while due and due[0][0] < end_ns:
        due_ns, place = due[0]
        if (wait_ns := due_ns - clock.now_ns()) > 0:
            pause.wait(wait_ns / 1e9)
        clients[place].offer(due_ns)
        heapq.heapreplace(due, (due_ns + round(1e9 / rates_hz[place]), place))
    for client in clients:
        client.finish()
    return begin_ns, end_ns


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
        self._window = plan.window

    def load(
        self,
        images: Sequence[LoadImage],
        transports: Iterable[str],
        offer: Callable[[Sequence[LoadClient]], Span],
        deadline_ms: float | None = None,
    ) -> tuple[list[ClientTally], Span]:
        """Connects a client for each of the transports and lets them send; returns their tallies and the time of it.

        Raises:
            SkylaneError: an endpoint cannot be reached.
        """
        clients = []
        with ExitStack() as stack:
            for number, name in enumerate(transports, start=1):
                vehicle, session = f"client-{number}", uuid4().hex[:12]
                model = images[0].message.model
                transport = self.deployment.transport(name, vehicle, session, model, window=self._window)
                stack.enter_context(closing(transport))
                transport.wait_for_card(_CONNECT_TIMEOUT_S)
                tally = ClientTally(vehicle, name)
                clients.append(LoadClient(tally, session, transport, images, self._window, deadline_ms))
            span_ns = offer(clients)
        return [client.tally for client in clients], span_ns


def measure_gateway(plan: GatewayPlan, run: BenchRun) -> dict[str, Any]:
    """Run clients at all endpoints of one worker at once: throughput, fairness, and every mask compared."""
    worker = _LoadedWorker(run, plan, plan.transports, _GATEWAY_IMAGES, instances=plan.instances)
    images = [
        LoadImage(message, worker.model.predict(np.asarray(image, np.uint8)[None])[0])
        for message, image in zip(worker.messages, worker.inputs, strict=True)
    ]
    offer = partial(run_closed_loop, seconds=plan.seconds + _WARM_UP_S)
    rounds = []
    for number in range(plan.rounds):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.clients} clients")
        tallies, span_ns = worker.load(images, islice(cycle(plan.transports), plan.clients), offer)
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(gateway_round(tallies, span_ns, worker.bare.round_hz()))
    return {
        "plan": harness.plan_record(plan),
        "clients": {tally.name: tally.transport for tally in tallies},
        "rounds": rounds,
        **{key: median(each[key] for each in rounds) for key in ("ratio", "engine_busy", "jain")},
        "wrong_pixels": sum(each["wrong_pixels"] for each in rounds),
        "engine": worker.model.describe(),
        "broker": worker.deployment.broker.description,
    }


def measure_saturation(plan: SaturationPlan, run: BenchRun) -> dict[str, Any]:
    """Offer a worker more than it can do: frames answered in time, fairness, and outcomes of the other frames."""
    worker = _LoadedWorker(run, plan, [MQTT], _SATURATION_IMAGES, precision=plan.precision)
    images = [LoadImage(message) for message in worker.messages]
    rounds = []
    for number, load in product(range(plan.rounds), (_EQUAL, _GREEDY)):
        run.step(f"round {number + 1} of {plan.rounds}: {plan.vehicles} vehicles, {load}")
        rates_hz = offered_rates_hz(plan, worker.bare.hz, is_greedy=load == _GREEDY)
        offer = partial(run_open_loop, rates_hz=rates_hz, seconds=_WARM_UP_S + plan.seconds)
        deadline_ms = plan.deadline_frames * 1e3 / worker.bare.hz
        tallies, span_ns = worker.load(images, [MQTT] * plan.vehicles, offer, deadline_ms)
        run.step(f"round {number + 1} of {plan.rounds}: the bare engine")
        rounds.append(saturation_round(load, rates_hz, tallies, span_ns, worker.bare.round_hz()))

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


def gateway_round(tallies: Sequence[ClientTally], span_ns: Span, bare_hz: float) -> dict[str, Any]:
    """Computes the results of a round; throughput and fairness count replies within its span after the warm-up."""
    counts, seconds = _answers(tallies, span_ns)
    answered_hz = sum(counts) / seconds
    outcomes = {_UNREACHABLE if name == Outcome.DROPPED else name: n for name, n in _outcomes(tallies).items()}
    return {
        "bare_hz": bare_hz,
        "answered_hz": answered_hz,
        "ratio": answered_hz / bare_hz,
        # The share of the time from the first to the last inference.
        "engine_busy": busy_share([inference for tally in tallies for inference in tally.inferences]),
        "jain": jain(counts),
        "least_to_most": min(counts) / max(counts) if max(counts) else 0.0,
        "answers": {tally.name: count for tally, count in zip(tallies, counts, strict=True)},
        "outcomes": outcomes,
        "wrong_pixels": sum(tally.wrong_pixels for tally in tallies),
    }


def saturation_round(
    load: str, rates_hz: Sequence[float], tallies: Sequence[ClientTally], span_ns: Span, capacity_hz: float
) -> dict[str, Any]:
    """Computes the results of a round.

    Throughput and fairness count masks that arrived in time and within the span after the warm-up; outcomes and latencies
    count all frames of the round.
    """
    counts, seconds = _answers(tallies, span_ns)
    in_time_hz = [count / seconds for count in counts]
    fair_hz = max_min_shares(rates_hz, sum(in_time_hz))
    relative = [got / fair if fair else 0.0 for got, fair in zip(in_time_hz, fair_hz, strict=True)]
    outcomes = _outcomes(tallies)
    latencies_ms = [value for tally in tallies for value in tally.latencies_ms]
    return {
        "load": load,
        "capacity_hz": capacity_hz,
        "in_time_hz": sum(in_time_hz),
        "share": sum(in_time_hz) / capacity_hz,
        "jain": jain(relative),  # Of the vehicles' throughputs, each divided by its max-min fair share.
        "greedy_share": relative[0] if load == _GREEDY else None,
        "outcomes": dict(outcomes),
        "unaccounted": sum(tally.offered for tally in tallies) - outcomes.total(),
        "latency_ms": spread(latencies_ms) if latencies_ms else {},
    }


def _answers(tallies: Sequence[ClientTally], span_ns: Span) -> tuple[list[int], float]:
    """Returns each client's number of masks in the span without the warm-up, and its seconds."""
    begin_ns, end_ns = span_ns[0] + round(_WARM_UP_S * 1e9), span_ns[1]
    counts = [sum(begin_ns <= at_ns < end_ns for at_ns in tally.answered_ns) for tally in tallies]
    return counts, (end_ns - begin_ns) / 1e9


def _outcomes(tallies: Sequence[ClientTally]) -> Counter[str]:
    return sum((tally.outcomes for tally in tallies), Counter())


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


gateway = harness.bench_command("gateway", GatewayPlan, measure_gateway, _gateway_tables, json=harness.JSON_FILE)
saturation = harness.bench_command("saturation", SaturationPlan, measure_saturation, _saturation_tables)
