"""The MQTT frontend: receives frames from the broker, publishes replies, and announces the worker and its models.

The network thread only stamps and submits a frame. Load reports tell vehicles that get no replies how busy the worker is.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from itertools import islice

from cloud.frontend import Frontend
from cloud.frontends.worker_metrics import MetricsReports
from cloud.node import CloudNode
from cloud.serving.decoding import read
from cloud.serving.request import Refusal, Request
from shared import clock
from shared.errors import SkylaneError
from shared.messages import topics
from shared.messages.frame import RESULT_CONTENT_TYPE, ResultMessage, Status, pack_result, peek
from shared.messages.load import LoadReport, pack_load
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MAX_ITEMS, MessageError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import LOADS, FrameId, TopicNameError
from shared.mqtt.bus import AckHandler, Bus, Delivery, Properties, Will
from shared.mqtt.name_guard import NameGuard, online_workers
from shared.runtime.periodic import run_round
from shared.stages import Stage
from shared.threads import BoundedQueue

_MAX_REFUSED = 1024
_MAX_REFUSED_BYTES = 64 << 20
_RESERVED_BYTES = 1 << 16  # The part of a mask message that is not the mask, at most.
_STATUS_TIMEOUT_S = 2.0  # Wait for the broker to acknowledge a status.
_RETAINED_TIMEOUT_S = 1.0  # Wait for retained messages, which a broker sends right after the subscription.


class SecondWorkerError(SkylaneError):
    """Another worker already serves the model, on a broker without shared subscriptions."""


class AnnouncementError(SkylaneError):
    """The cards of all models do not fit into one status message."""


class StoppingError(SkylaneError):
    """The worker is stopping and accepts no new model."""


def worker_will(worker: str, session: str) -> Will:
    """Returns the last will that reports the worker as offline."""
    return Will(topics.WORKER_STATUS.of(worker=worker), pack_status(NodeStatus(NodeState.OFFLINE, session)))


class MqttFrontend(Frontend):
    """Subscribes to the frames of the served models and publishes the replies."""

    def __init__(self, worker: CloudNode, bus: Bus) -> None:
        self._node = worker
        self._bus = bus
        self._submission = worker.submission
        self._replier = worker.replier
        self._served_models = worker.served_models
        self._worker = worker.name
        self._refused: BoundedQueue[tuple[Request, Refusal]] = BoundedQueue(_MAX_REFUSED)
        self._refused_bytes = 0
        self._refused_lock = threading.Lock()
        self._refusing: threading.Thread | None = None
        self._state: NodeState | None = None  # None before the first announcement.
        self._announce_lock = threading.Lock()  # Keeps announcements in the order of the changes they report.
        self._subscribe_lock = threading.Lock()  # Prevents a subscription after `stop`.
        self._subscribed: set[str] = set()  # Models.
        self._ever_subscribed: set[str] = set()  # Frames of all other models are for other workers.
        self._handler = self._replier.errors.guarded("mqtt", self._received)
        self._claim = NameGuard("worker", self._worker, worker.session, announce=self.announce, give_up=worker.end)
        self._load_reports = LoadReports(worker, bus, lambda: self._state is not None and not self._claim.is_lost)

    @property
    def is_online(self) -> bool:
        """True if frames reach this worker: it is connected and serves at least one model."""
        return self._state is NodeState.ONLINE and self._bus.is_connected and bool(self._subscribed)

    def start(self) -> None:
        """Starts to receive frames.

        Raises:
            SecondWorkerError: the broker supports MQTT 3.1.1 only and another worker serves one of the models.
            AnnouncementError: see `check_cards`.
        """
        self._refusing = self._node.threads.start("refusals", self._send_refusals)
        self.check_cards(self._served_models.cards())
        models = self._served_models.names
        self._check_alone(models)
        self._claim.open(self._bus)
        self._bus.subscribe(topics.RETRIES.filter(worker=self._worker), topics.RETRIES.qos, self._handler)
        for model in models:
            self._subscribe(model)
        self._state = NodeState.ONLINE
        self.announce()
        self._load_reports.start()

    def check_cards(self, cards: Collection[ModelCard]) -> None:
        """Checks that vehicles could read a status message with these cards.

        Raises:
            AnnouncementError: the message would be too large.
        """
        capacity = self._submission.admission.max_frames
        payload = pack_status(NodeStatus(NodeState.ONLINE, self._node.session, capacity, tuple(cards)))
        is_too_large = len(payload) > self._bus.max_payload_bytes - _RESERVED_BYTES
        problem = f"{len(payload)} bytes, {self._bus.payload_limit_reason}" if is_too_large else ""
        try:
            unpack_status(payload)
        except MessageError as error:
            problem = str(error)
        if problem:
            raise AnnouncementError(
                f"{len(cards)} models with all their labels do not fit into one status message ({problem}): "
                "divide them among several workers"
            )

    def add_model(self, model: str) -> None:
        """Starts to receive frames for a model.

        Raises:
            SecondWorkerError: see `start`.
            StoppingError: the worker is stopping.
        """
        self._check_alone((model,))
        with self._subscribe_lock:
            if self._state is not NodeState.ONLINE:
                raise StoppingError(f"the worker is stopping and accepts no more frames for {model}")
            self._subscribe(model)

    def remove_model(self, model: str) -> None:
        """Stops receiving frames for a model; returns once the broker has acknowledged it, or after a timeout."""
        self._subscribed.discard(model)
        self._unsubscribe([self._filter(model)])

    def announce(self, acknowledged: AckHandler | None = None) -> None:
        """Publishes the state of the worker and its models, unless it has lost its name; repeated at each reconnect."""
        with self._announce_lock:
            if self._state is None or self._claim.is_lost:
                return
            cards = self._served_models.cards() if self._state is NodeState.ONLINE else ()
            self._bus.publish(
                topics.WORKER_STATUS.of(worker=self._worker),
                pack_status(
                    NodeStatus(
                        self._state,
                        self._node.session,
                        self._submission.admission.max_frames,
                        tuple(card for card in cards if card.name in self._subscribed),
                        self._claim.age_ms,
                        self._claim.rival,
                    )
                ),
                qos=topics.WORKER_STATUS.qos,
                retained=True,
                acknowledged=acknowledged or self._claim.acknowledged,
            )
        self._load_reports.repeat()

    def stop(self) -> None:
        """Stops receiving frames; those that arrive before the broker has unsubscribed the worker are still served."""
        self._load_reports.close()
        with self._subscribe_lock:
            self._state = NodeState.STOPPING
            filters = [self._filter(model) for model in self._subscribed]
        self._unsubscribe([*filters, topics.RETRIES.filter(worker=self._worker)])

    def close(self) -> None:
        """Sends the waiting refusals, reports the worker as offline and closes the bus."""
        self._load_reports.close()
        self._refused.close()
        if self._refusing:
            self._refusing.join(self._node.drain_s)
        self._claim.close()
        self._state = NodeState.OFFLINE
        self.announce()
        self._bus.close()

    def _send_refusals(self) -> None:
        """Sends refusals until `close`; the body of the refusal thread."""
        with self._refused.reader() as get:
            while (item := get()) is not None:
                request, refusal = item
                if request.correlation is None:
                    self._count_refused(-len(request.payload))
                    try:
                        read(request)
                    except MessageError:
                        pass  # The refusal is counted as unreadable.
                    except Exception as error:  # noqa: BLE001  The frame stays refused, the worker goes on.
                        self._replier.errors.record("mqtt", error)
                self._replier.refuse(request, *refusal)

    def _filter(self, model: str) -> str:
        topic_filter = topics.FRAMES.filter(model=model)
        return (
            topics.shared(self._node.config.group, topic_filter)
            if self._bus.supports_shared_subscriptions
            else topic_filter
        )

    def _subscribe(self, model: str) -> None:
        self._subscribed.add(model)
        self._ever_subscribed.add(model)
        self._bus.subscribe(self._filter(model), self._node.config.qos, self._handler)

    def _unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribes and announces it; returns once the broker has acknowledged it, or after a timeout."""
        acknowledged = threading.Event()
        for topic_filter in filters:
            self._bus.unsubscribe(topic_filter)
        self.announce(lambda _: acknowledged.set())  # A broker processes the packets of a client in order.
        acknowledged.wait(_STATUS_TIMEOUT_S)

    def _received(self, delivery: Delivery) -> None:
        retried = topics.RETRIES.names_in(delivery.topic)
        names = retried or topics.FRAMES.names_in(delivery.topic)
        if delivery.retained:
            self._replier.ignore("retained", delivery.topic)
            return
        if names is None:
            self._replier.ignore("topic", delivery.topic)
            return
        if retried is None and names["model"] not in self._ever_subscribed:
            self._replier.ignore("model", delivery.topic)
            return
        reply_topic = topics.MASKS.of(vehicle=names["vehicle"], camera=names["camera"])
        request = Request(
            payload=delivery.payload,
            vehicle=names["vehicle"],
            camera=names["camera"],
            model=names["model"],
            reply=partial(self._reply, reply_topic, delivery.properties.traceparent),
            times={Stage.RECEIVED: delivery.received_ns},
            max_reply_bytes=self._bus.max_payload_bytes - _RESERVED_BYTES,
            traceparent=delivery.properties.traceparent,
            correlation=_correlation(delivery.properties, names),
            refuse=self._refuse,
        )
        try:
            request.header = peek(delivery.payload, delivery.received_ns)
            if delivery.properties.response_topic in (None, reply_topic):
                self._submission.submit(request)
            else:
                self._refuse(request, Refusal(Status.REJECTED, f"the response topic must be {reply_topic}"))
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            self._replier.errors.record("mqtt", error)
            reason = f"internal error ({type(error).__name__}): see the worker's log"
            self._refuse(request, Refusal(Status.FAILED, reason))

    def _refuse(self, request: Request, refusal: Refusal) -> None:
        """Queues a refusal for the refusal thread, because publishing may block."""
        if request.correlation or self._refused_bytes > _MAX_REFUSED_BYTES:
            request.payload = b""  # Only without correlation data is the payload needed to find the recipient.
        self._count_refused(len(request.payload))
        if not self._refused.offer((request, refusal)):
            self._replier.ignore("refusals_full", request.model)
            self._count_refused(-len(request.payload))
            request.finish()

    def _count_refused(self, size: int) -> None:
        with self._refused_lock:
            self._refused_bytes += size

    def _reply(self, topic: str, traceparent: str | None, message: ResultMessage) -> None:
        self._bus.publish(
            topic,
            pack_result(message),
            qos=self._node.config.qos,
            properties=Properties(
                content_type=RESULT_CONTENT_TYPE, correlation=str(message.id).encode(), traceparent=traceparent
            ),
        )

    def _check_alone(self, models: Collection[str]) -> None:
        """Without shared subscriptions, two workers of one model would both reply to every frame."""
        if self._bus.supports_shared_subscriptions:
            return

        def is_rival(name: str, status: NodeStatus) -> bool:
            return name != self._worker and any(card.name in models for card in status.cards)

        online = online_workers(self._bus, is_rival, _RETAINED_TIMEOUT_S)
        if rivals := [name for name, status in online.items() if is_rival(name, status)]:
            raise SecondWorkerError(
                f"worker {rivals[0]!r} already serves {', '.join(models)} and this broker supports MQTT 3.1.1 only, "
                "which cannot share frames between workers: use Mosquitto, or stop the other worker"
            )


def _correlation(properties: Properties, names: Mapping[str, str]) -> FrameId | None:
    """The frame id in the Correlation Data property, if it matches vehicle and camera of the topic."""
    if properties.correlation is None:
        return None
    try:
        frame_id = FrameId.parse(properties.correlation.decode("ascii"))
    except (UnicodeDecodeError, TopicNameError):
        return None
    return frame_id if (frame_id.vehicle, frame_id.camera) == (names["vehicle"], names["camera"]) else None


_INTERVAL_NS = 500_000_000  # Mean time between reports of a busy worker.
_IDLE_INTERVAL_NS = 2_000_000_000  # Time between reports of an idle worker.


class LoadReports:
    """Publishes reports: at once when the worker becomes idle or busy, and at intervals; beside them, its metrics.

    Their rate is limited by a token bucket of two that gets two tokens a second. Reports at intervals leave one token for
    the next change.
    """

    def __init__(self, worker: CloudNode, bus: Bus, may_publish: Callable[[], bool]) -> None:
        """`may_publish` returns False while the worker is not online, or if another process has its name."""
        self._node = worker
        self._bus = bus
        self._may_publish = may_publish
        self._topic = LOADS.of(worker=worker.name)
        self._woken = threading.Event()
        self._closed = threading.Event()
        self._was_busy: bool | None = None  # The last reported state; None makes the next report due.
        self._full_ns = 0  # Time at which the token bucket is full again.
        self._metrics = MetricsReports(worker, bus)
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Starts the thread that publishes the reports."""
        self._node.in_flight.watch(self._woken.set)
        self._thread = self._node.threads.start("load-reports", self._run)

    def repeat(self) -> None:
        """Makes a report due, because the models or the connection have changed."""
        self._was_busy = None
        self._woken.set()

    def close(self) -> None:
        """Ends the reports and removes the last one from the broker."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._woken.set()
        if self._thread:
            self._thread.join(self._node.drain_s)
        if self._may_publish():
            self._bus.publish(self._topic, b"", qos=LOADS.qos, retained=True)
        self._metrics.close()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._woken.clear()
            if self._may_publish() and self._bus.is_connected:
                if clock.now_ns() >= self._metrics.due_ns:
                    run_round("metrics", self._metrics.publish)
                wait_ns = self._due_ns() - clock.now_ns()
                if wait_ns <= 0:
                    run_round("load", self._publish)
                    continue
                wait_ns = min(wait_ns, self._metrics.due_ns - clock.now_ns())
            else:
                wait_ns = _IDLE_INTERVAL_NS
            self._woken.wait(max(0, wait_ns) / 1e9)

    def _due_ns(self) -> int:
        """The time of the next report."""
        if self._was_busy is not self._is_busy:
            return self._full_ns - _INTERVAL_NS  # One token suffices.
        return self._full_ns if self._was_busy else self._full_ns - _INTERVAL_NS + _IDLE_INTERVAL_NS

    def _publish(self) -> None:
        self._was_busy = self._is_busy
        self._full_ns = max(self._full_ns, clock.now_ns()) + _INTERVAL_NS
        models = dict(islice(self._node.load_meter.loads().items(), MAX_ITEMS))
        report = LoadReport(self._node.session, models)
        self._bus.publish(self._topic, pack_load(report), qos=LOADS.qos, retained=True)

    @property
    def _is_busy(self) -> bool:
        return self._node.in_flight.total > 0
