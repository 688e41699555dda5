"""Collects the reports of the workers and vehicles at a broker, and lists the problems of each."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from statistics import median_low
from types import MappingProxyType
from typing import Any

from shared import clock
from shared.compression import Buffer
from shared.health import SILENT_AFTER_S
from shared.messages.load import LoadReport, unpack_load
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_metrics import (
    Quantiles,
    VehicleMetrics,
    WorkerMetrics,
    unpack_vehicle_metrics,
    unpack_worker_metrics,
)
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.topics import LOADS, VEHICLE_METRICS, VEHICLE_STATUS, WORKER_METRICS, WORKER_STATUS, TopicKind
from shared.mqtt.bus import Bus, Delivery, NoBus
from shared.network.tls import SOON_DAYS
from shared.runlog.latency_log import WITH_RESULT
from shared.sanitize import printable

MAX_NODES = 1000  # Maximum for each of workers and vehicles; any client of the broker can invent names.
# The problems of a worker that left. Such workers are sorted last, as the broker keeps their names.
LEFT = [NodeState.OFFLINE.value]

_MAX_SYS_BYTES = 256
_MAX_MODELS = 64  # Maximum number of models shown for a worker.
_MAX_ENGINE = 200  # Characters.
_POLL_S = 0.02
_RETAINED_NS = 500_000_000
_SLOW = 1.5  # A worker is slow from this multiple of the median inference time of its model.
_UNANSWERED = 0.05  # Share of the last minute's frames without a result that is a problem.
_FEWEST_FRAMES = 10  # With fewer frames, no share is computed.
_BROKER_TOPICS = {  # The names of the broker's values that are shown, by topic.
    "$SYS/broker/version": "version",
    "$SYS/broker/uptime": "uptime",
    "$SYS/broker/clients/connected": "clients",
    "$SYS/broker/load/messages/received/1min": "messages_per_minute",
    "$SYS/broker/load/bytes/received/1min": "bytes_per_minute",
    "$SYS/broker/publish/messages/dropped": "dropped_messages",
}


@dataclass(frozen=True, slots=True)
class Announced:
    """The part of a node's status that is shown; the whole status, with model cards, can have a megabyte."""

    state: NodeState
    session: str
    models: Mapping[str, str]  # Versions by name.
    engine: str


@dataclass(slots=True)
class FleetNode:
    """The latest reports of a worker or a vehicle."""

    name: str
    status: Announced | None = None
    load: LoadReport | None = None
    metrics: Any = None  # WorkerMetrics or VehicleMetrics.
    heard_ns: int | None = None  # Arrival of the latest metrics.
    invalid: dict[str, str] = field(default_factory=dict)  # Why the latest status, load or metrics cannot be read.

    @property
    def state(self) -> str:
        """The state of the node; "unannounced" if the broker has no status of it."""
        return self.status.state.value if self.status else "unannounced"

    @property
    def is_online(self) -> bool:
        """True if the node's status at the broker is online."""
        return self.state == NodeState.ONLINE

    @property
    def inference_ms(self) -> float | None:
        """The median inference time of a worker; None for a vehicle, or before the first inference."""
        inference = getattr(self.metrics, "inference", None)
        return inference.p50_ms if inference else None


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet at one moment, as plain values; nodes with problems come first."""

    problems: list[str]  # Problems of the fleet as a whole.
    broker: Mapping[str, str]
    workers: list[dict[str, Any]]
    vehicles: list[dict[str, Any]]
    vehicles_offline: int  # Not in `vehicles`, as the broker keeps the names of all vehicles that ever connected.
    left_out: int  # Nodes beyond `MAX_NODES`.
    certificate_days: Mapping[str, float]  # Remaining validity of certificates and the revocation list, by file name.


class FleetMonitor:
    """Collects the reports of nodes. The network thread adds reports, any thread reads the state."""

    def __init__(self) -> None:
        self._since_ns = clock.now_ns()
        self._lock = threading.Lock()
        self._workers: dict[str, FleetNode] = {}
        self._vehicles: dict[str, FleetNode] = {}
        self._broker: dict[str, str] = {}
        self._left_out: set[int] = set()
        self._bus: Bus = NoBus()

    def open(self, bus: Bus) -> None:
        """Subscribes to all reports."""
        self._bus = bus
        readers: tuple[tuple[TopicKind, dict[str, FleetNode], str, Callable[[Any], Any]], ...] = (
            (WORKER_STATUS, self._workers, "status", _read_status),
            (VEHICLE_STATUS, self._vehicles, "status", _read_status),
            (LOADS, self._workers, "load", unpack_load),
            (WORKER_METRICS, self._workers, "metrics", unpack_worker_metrics),
            (VEHICLE_METRICS, self._vehicles, "metrics", unpack_vehicle_metrics),
        )
        for kind, nodes, part, read in readers:
            bus.subscribe(kind.filter(), kind.qos, partial(self._add, kind, nodes, part, read))
        for topic in _BROKER_TOPICS:
            bus.subscribe(topic, 0, self._add_broker)

    @property
    def is_connected(self) -> bool:
        """True if the connection to the broker is up."""
        return self._bus.is_connected

    def wait_until_heard(self, timeout_s: float) -> None:
        """Waits until every node that is online has reported since the start, or until the time is over."""
        deadline_ns = self._since_ns + round(timeout_s * 1e9)
        while (now_ns := clock.now_ns()) < deadline_ns:
            with self._lock:
                nodes = [*self._workers.values(), *self._vehicles.values()]
            retained = now_ns - self._since_ns > _RETAINED_NS  # Retained messages arrive right after the subscription.
            if retained and all(node.heard_ns for node in nodes if node.is_online):
                return
            time.sleep(_POLL_S)

    def state(self, expiries_s: Mapping[str, float] = MappingProxyType({})) -> FleetState:
        """Returns the fleet as it is now. `expiries_s`: when certificates expire, in seconds since 1970."""
        now_ns = clock.now_ns()
        days = {name: round((expires_s - now_ns / 1e9) / 86_400, 1) for name, expires_s in expiries_s.items()}
        with self._lock:
            workers, vehicles = (list(map(copy, nodes.values())) for nodes in (self._workers, self._vehicles))
            broker, left_out = dict(self._broker), len(self._left_out)
        present = [node for node in vehicles if node.is_online or node.metrics is not None or node.invalid]
        usual_ms = _usual_ms(workers)
        worker_rows = [self._row(node, WorkerMetrics, usual_ms, now_ns) | _serving(node) for node in workers]
        vehicle_rows = [self._row(node, VehicleMetrics, usual_ms, now_ns) for node in present]
        for rows in (worker_rows, vehicle_rows):
            rows.sort(key=lambda row: (row["problems"] == LEFT, not row["problems"], row["name"]))
        problems = list(self._problems([*workers, *vehicles], broker, left_out))
        for name, left in days.items():
            if left < SOON_DAYS:
                what = "the revocation list" if name == "crl.pem" else "the certificate"
                problems.append(f"{what} {name} {'has expired' if left < 0 else f'expires in {left:.0f} days'}")
        return FleetState(problems, broker, worker_rows, vehicle_rows, len(vehicles) - len(present), left_out, days)

    def _problems(self, nodes: list[FleetNode], broker: Mapping[str, str], left_out: int) -> Iterator[str]:
        if not self.is_connected:
            yield "the connection to the broker is lost: what follows is old"
        elif nodes and not broker and not any(node.metrics for node in nodes):
            yield "no reports arrive: a secured broker sends them to viewers and operators only, see --name"
        if left_out:
            yield f"{left_out} or more further names report, and are left out"

    def _add(
        self, kind: TopicKind, nodes: dict[str, FleetNode], part: str, read: Callable[[Any], Any], delivery: Delivery
    ) -> None:
        names = kind.names_in(delivery.topic)
        if names is None:
            return
        (name,) = names.values()
        with self._lock:
            if name not in nodes and len(nodes) >= MAX_NODES and not _evict_offline(nodes):
                if len(self._left_out) < MAX_NODES:  # The number is as bounded as the names.
                    self._left_out.add(hash(name))
                return
            node = nodes.setdefault(name, FleetNode(name))
            if part == "load" and not len(delivery.payload):  # A worker that leaves clears its load.
                node.load = None
                return
            try:
                setattr(node, part, read(delivery.payload))
            except MessageError as error:
                node.invalid = node.invalid | {part: printable(str(error))[:120]}
                return
            node.invalid = {other: problem for other, problem in node.invalid.items() if other != part}
            if part == "metrics":
                node.heard_ns = delivery.received_ns

    def _add_broker(self, delivery: Delivery) -> None:
        text = bytes(delivery.payload[:_MAX_SYS_BYTES]).decode(errors="replace")
        with self._lock:
            self._broker[_BROKER_TOPICS[delivery.topic]] = printable(text)

    def _row(self, node: FleetNode, kind: Any, usual_ms: Mapping[str, float], now_ns: int) -> dict[str, Any]:
        """Returns the values of a node for the table and for JSON; a value that is not known is None."""
        metrics = node.metrics
        problems = [*self._faults(node, now_ns), *_slow(node, usual_ms), *(_unanswered(metrics) if metrics else ())]
        row: dict[str, Any] = {"name": node.name, "state": node.state, "problems": problems, "frames_per_s": None}
        if metrics and metrics.seconds:
            answered = sum(metrics.frames.values()) - missed_frames(metrics.frames).total()
            row["frames_per_s"] = round(answered / max(metrics.seconds, 1.0), 2)
        for name in kind.__struct_fields__:
            value = getattr(metrics, name, None)
            if name in ("queue", "inference", "total"):
                row[f"{name}_ms"] = {"p50": value.p50_ms, "p95": value.p95_ms} if isinstance(value, Quantiles) else None
            elif name not in ("session", "seconds"):
                row[name] = value
        row["seen_s_ago"] = None if node.heard_ns is None else round(max(0, now_ns - node.heard_ns) / 1e9, 1)
        return row

    def _faults(self, node: FleetNode, now_ns: int) -> Iterator[str]:
        """Yields the problems that a worker or a vehicle can have."""
        if node.state == "unannounced":
            yield "reports, but the broker has no status of it"
        elif not node.is_online:
            yield node.state
        silent_s = (now_ns - (node.heard_ns or self._since_ns)) / 1e9
        if node.is_online and silent_s > SILENT_AFTER_S:
            yield f"silent for {silent_s:.0f} s" if node.heard_ns else "sends no metrics"
        if node.status and node.metrics and node.is_online and node.status.session != node.metrics.session:
            yield "two processes of this name report"
        for part, problem in node.invalid.items():
            yield f"sends what cannot be read: {part}: {problem}"


def missed_frames(frames: Mapping[str, int]) -> Counter[str]:
    """Returns the frames without a result, by outcome."""
    return Counter({name: count for name, count in frames.items() if name not in WITH_RESULT})


def _read_status(payload: Buffer) -> Announced:
    status = unpack_status(payload)
    cards = status.cards[:_MAX_MODELS]
    engines = ", ".join(dict.fromkeys(f"{card.engine} {card.precision}" for card in cards))
    return Announced(status.state, status.session, {card.name: card.version for card in cards}, engines[:_MAX_ENGINE])


def _evict_offline(nodes: dict[str, FleetNode]) -> bool:
    """Removes a node that left before the monitor started; returns whether there was such a node."""
    left = (name for name, node in nodes.items() if node.status and not node.is_online and not node.metrics)
    name = next(left, None)
    return name is not None and bool(nodes.pop(name))


def _serving(node: FleetNode) -> dict[str, Any]:
    """Returns the models, the engine and the load of a worker."""
    load = next(iter(node.load.models.values()), None) if node.load else None
    return {
        "models": [f"{model} {version}" for model, version in node.status.models.items()] if node.status else [],
        "engine": node.status.engine if node.status else "",
        "in_queue": load.queue if load else None,
        "free": load.free if load else None,
    }


def _usual_ms(workers: list[FleetNode]) -> dict[str, float]:
    """Returns the lower median of the inference times of the workers with each model."""
    times: dict[str, list[float]] = {}
    for node in workers:
        if node.status and node.inference_ms is not None:
            for model in node.status.models:
                times.setdefault(model, []).append(node.inference_ms)
    return {model: median_low(values) for model, values in times.items()}


def _slow(node: FleetNode, usual_ms: Mapping[str, float]) -> Iterator[str]:
    """Yields a problem if a worker needs longer for a frame than the other workers with its models."""
    own_ms = node.inference_ms
    if own_ms is not None and node.status and node.status.models:
        others_ms = max(usual_ms[model] for model in node.status.models)
        if own_ms > _SLOW * others_ms:
            yield f"slow: inference {own_ms:.0f} ms, the others {others_ms:.0f} ms"


def _unanswered(metrics: WorkerMetrics | VehicleMetrics) -> Iterator[str]:
    """Yields a problem if many frames get no result, with their most frequent outcome."""
    missed, total = missed_frames(metrics.frames), sum(metrics.frames.values())
    if total < _FEWEST_FRAMES or missed.total() < _UNANSWERED * total:
        return
    verb, reason = "refuses", missed.most_common(1)[0][0]
    if isinstance(metrics, VehicleMetrics):
        verb, reason = "loses", f"{reason}: {metrics.reason}" if metrics.reason else reason
    yield f"{verb} {100 * missed.total() / total:.0f} % of the frames ({reason})"
