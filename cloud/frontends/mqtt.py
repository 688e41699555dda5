"""MqttFrontend: the worker's door to the broker. The network thread stamps, admits and returns."""

import queue
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial

from cloud.serving.admission import Admission
from cloud.serving.circuit_breaker import CircuitBreaker
from cloud.serving.decoding import read
from cloud.serving.inflight import Unanswered
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import Serving
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.messages import topics
from shared.messages.frame import RESULT_CONTENT_TYPE, ResultMessage, Status, pack_result
from shared.messages.frame_header import peek
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FrameId, TopicNameError
from shared.mqtt.bus import AckHandler, Bus, Delivery, Properties, Will
from shared.mqtt.name_guard import NameGuard
from shared.runtime.threads import BoundedQueue
from shared.stages import Stage

_MAX_REFUSED = 1024
_MAX_REFUSED_BYTES = 64 << 20
_ROOM_BYTES = 1 << 16  # For what a mask message holds beside the mask.
_KNOWN_WITHIN_S = 2.0  # A broker that is gone acknowledges nothing.
_RETAINED_WITHIN_S = 1.0  # A broker sends what it retains right after the subscription.
_ANSWERED_WITHIN_S = 10.0


class SecondWorkerError(SkylaneError):
    """A broker that cannot share a subscription already has a worker for the model."""


class AnnouncementError(SkylaneError):
    """A worker cannot tell vehicles of all that it would serve."""


class StoppingError(SkylaneError):
    """A worker that is leaving takes on nothing new."""


def worker_will(worker: str, session: str) -> Will:
    """What the broker says when the worker goes without a word."""
    return Will(topics.WORKER_STATUS.of(worker=worker), pack_status(NodeStatus(NodeState.OFFLINE, session)))


class MqttFrontend:
    """Subscribes to the models' frames and publishes the answers."""

    def __init__(
        self,
        admission: Admission,
        replier: Replier,
        serving: Serving,
        *,
        worker: str,
        session: str,
        group: str = topics.GROUP,
        qos: int = topics.FRAMES.qos,
        circuit_breaker: CircuitBreaker | None = None,
        give_up: Callable[[SkylaneError], None] = lambda _: None,
    ) -> None:
        """`circuit_breaker` is asked whose frames are refused at the door.

        `give_up` is told, on the network thread, why the worker cannot go on under its name.
        """
        self._opened_bus: Bus | None = None
        self._admission = admission
        self._replier = replier
        self._serving = serving
        self._worker = worker
        self._session = session
        self._group = group
        self._qos = qos
        self._refused: BoundedQueue[tuple[Request, Status, str]] = BoundedQueue(_MAX_REFUSED)
        self._refused_bytes = 0
        self._lock = threading.Lock()
        self._state: NodeState | None = None  # None: nothing was announced yet.
        self._announcing = threading.Lock()  # What is told last must be what is so.
        self._admitting = threading.Lock()  # A model that is loaded late must not be subscribed to after we left.
        self._admitted: set[str] = set()  # Models whose frames are taken.
        self._ever_admitted: set[str] = set()  # Frames of the others are meant for other workers.
        self._unanswered = Unanswered()
        self._ignored: Counter[str] = Counter()  # By the network thread alone.
        self._hold_off = circuit_breaker or CircuitBreaker()
        self._handler = replier.errors.guarded("mqtt", self._received)
        self._claim = NameGuard("worker", worker, session, announce=self.announce, give_up=give_up)

    @property
    def ignored(self) -> Mapping[str, int]:
        """How many frames got no word back, by the reason.

        `topic`: it names no vehicle and camera; `model`: it is none of this worker's; `retained`: the broker had kept it,
        and would give it to every worker that connects; `refusals_full`: so many refusals waited to be told that one
        more would have cost memory without end.
        """
        return dict(self._ignored)

    @property
    def is_online(self) -> bool:
        """Whether frames reach this worker: it is connected and serves at least one model."""
        return self._state is NodeState.ONLINE and self._bus.is_connected and bool(self._admitted)

    def open(self, bus: Bus) -> None:
        """Takes frames that arrive over `bus` from now on.

        Raises:
            SecondWorkerError: the broker speaks MQTT 3.1.1 only and another worker serves one of the models.
            AnnouncementError: as `check`.
        """
        self._opened_bus = bus
        self.check(self._serving.cards())
        models = self._serving.models
        self._check_alone(models)
        self._claim.open(self._bus)
        self._bus.subscribe(topics.RETRIES.filter(worker=self._worker), topics.RETRIES.qos, self._handler)
        for model in models:
            self._subscribe(model)
        self._state = NodeState.ONLINE
        self.announce()

    def check(self, cards: Collection[ModelCard]) -> None:
        """Whether vehicles can read what would announce these models.

        Raises:
            AnnouncementError: it is more than a status may hold.
        """
        payload = pack_status(NodeStatus(NodeState.ONLINE, self._session, self._admission.max_frames, tuple(cards)))
        problem = f"{len(payload)} bytes" if len(payload) > self._bus.max_payload_bytes - _ROOM_BYTES else ""
        try:
            unpack_status(payload)
        except MessageError as error:
            problem = str(error)
        if problem:
            raise AnnouncementError(
                f"{len(cards)} models with all their labels cannot be announced in one status ({problem}): "
                "divide them among several workers"
            )

    def admit(self, model: str) -> None:
        """Take a model's frames from now on.

        Raises:
            SecondWorkerError: as `open`.
            StoppingError: the worker has begun to leave.
        """
        self._check_alone((model,))
        with self._admitting:
            if self._state is not NodeState.ONLINE:
                raise StoppingError(f"the worker is stopping: it takes no frames of {model} any more")
            self._subscribe(model)

    def dismiss(self, model: str) -> None:
        """Take a model's frames no more; returns when those that came have been answered, or after ten seconds."""
        self._admitted.discard(model)
        self._leave([self._filter(model)])
        self._unanswered.wait_until_none(model, _ANSWERED_WITHIN_S)

    def announce(self, acknowledged: AckHandler | None = None) -> None:
        """Tell where the worker stands and what it serves, while its name is its own; again on every reconnect."""
        with self._announcing:
            if self._state is None or self._claim.is_lost:
                return
            cards = self._serving.cards() if self._state is NodeState.ONLINE else ()
            served = tuple(card for card in cards if card.name in self._admitted)
            self._bus.publish(
                topics.WORKER_STATUS.of(worker=self._worker),
                pack_status(
                    NodeStatus(
                        self._state,
                        self._session,
                        self._admission.max_frames,
                        served,
                        self._claim.age_ms,
                        self._claim.rival,
                    )
                ),
                qos=topics.WORKER_STATUS.qos,
                retained=True,
                acknowledged=acknowledged or self._claim.acknowledged,
            )

    def stop(self) -> None:
        """Take no more frames; what came until the broker knows of it is still answered."""
        with self._admitting:
            self._state = NodeState.STOPPING
            filters = [self._filter(model) for model in self._admitted]
        self._leave([*filters, topics.RETRIES.filter(worker=self._worker)])

    def close_refusals(self) -> None:
        """No more frames will be refused: let the refusing thread end when it has answered."""
        self._refused.close()

    def close(self) -> None:
        """Leave the broker; every answer must have been published."""
        if self._opened_bus is None:
            return
        self._claim.close()
        self._state = NodeState.OFFLINE
        self.announce()
        self._bus.close()

    def refuse(self, request: Request, status: Status, reason: str) -> None:
        """Tell whoever sent a frame why it is not worked on, off this thread where telling it may have to wait."""
        if request.message is not None:  # It came through another door, whose caller only waits for a word.
            self._replier.refuse(request, status, reason)
            return
        if request.correlation or self._refused_bytes > _MAX_REFUSED_BYTES:
            request.payload = b""  # Only MQTT 3.1.1 tells within it alone whose it is.
        self._count_refused(len(request.payload))
        if not self._refused.offer((request, status, reason)):
            # Beyond so many unanswered refusals silence is the only bound left; the edge closes it by time.
            self._ignored["refusals_full"] += 1
            self._count_refused(-len(request.payload))
            if request.correlation is not None:
                self._unanswered.left(request.model)

    def run(self) -> None:
        """Answer what could not be admitted, off the network thread; the body of the refusing thread."""
        with self._refused.reader() as get:
            while (item := get()) is not None:
                request, status, reason = item
                if request.correlation is None:
                    self._count_refused(-len(request.payload))
                    try:
                        read(request)
                    except MessageError:
                        pass  # The refusal is counted as unreadable.
                    except Exception as error:  # noqa: BLE001  The frame stays refused, the worker goes on.
                        self._replier.errors.record("mqtt", error)
                self._replier.refuse(request, status, reason)

    @property
    def _bus(self) -> Bus:
        assert self._opened_bus is not None, "the intake is not open"
        return self._opened_bus

    def _filter(self, model: str) -> str:
        topic_filter = topics.FRAMES.filter(model=model)
        return topics.shared(self._group, topic_filter) if self._bus.supports_shared_subscriptions else topic_filter

    def _subscribe(self, model: str) -> None:
        self._admitted.add(model)
        self._ever_admitted.add(model)
        self._bus.subscribe(self._filter(model), self._qos, self._handler)

    def _leave(self, filters: Iterable[str]) -> None:
        """Take subscriptions back and say so; returns when the broker knows, or does not answer."""
        known = threading.Event()
        for topic_filter in filters:
            self._bus.unsubscribe(topic_filter)
        self.announce(lambda _: known.set())  # A broker does one thing after the other.
        known.wait(_KNOWN_WITHIN_S)

    def _received(self, delivery: Delivery) -> None:
        retried = topics.RETRIES.names_in(delivery.topic)
        names = retried or topics.FRAMES.names_in(delivery.topic)
        if delivery.retained:
            self._ignore("retained", delivery.topic)
            return
        if names is None:
            self._ignore("topic", delivery.topic)
            return
        if retried is None and names["model"] not in self._ever_admitted:
            self._ignore("model", delivery.topic)
            return
        reply_topic = topics.MASKS.of(vehicle=names["vehicle"], camera=names["camera"])
        correlation = _correlation(delivery.properties, names)
        request = Request(
            payload=delivery.payload,
            vehicle=names["vehicle"],
            camera=names["camera"],
            model=names["model"],
            answer=partial(self._answer, reply_topic, correlation, names["model"], delivery.properties.traceparent),
            times={Stage.RECEIVED: delivery.received_ns},
            max_reply_bytes=self._bus.max_payload_bytes - _ROOM_BYTES,
            correlation=correlation,
        )
        if request.correlation is not None:  # A sender that only the message names may never be answered.
            self._unanswered.came(request.model)
        try:
            request.head = peek(delivery.payload)
            self._admit(request, delivery, reply_topic)
        except Exception as error:  # noqa: BLE001  The frame fails, the worker goes on.
            self._replier.errors.record("mqtt", error)
            self.refuse(request, Status.FAILED, f"internal error ({type(error).__name__}): see the worker's log")

    def _ignore(self, reason: str, topic: str) -> None:
        self._ignored[reason] += 1
        self._replier.log.ignored(reason, topic)

    def _admit(self, request: Request, delivery: Delivery, reply_topic: str) -> None:
        """Hands a frame to admission, or refuses it."""
        if delivery.properties.response_topic not in (None, reply_topic):
            self.refuse(request, Status.REJECTED, f"the response topic must be {reply_topic}")
            return
        if held := self._hold_off.reason(request.vehicle):
            self.refuse(request, Status.REJECTED, held)
            return
        for refused in self._admission.offer(request):
            if refused.is_expired:
                self.refuse(refused, Status.EXPIRED, "its budget ended while it waited")
            else:
                self.refuse(refused, Status.OVERLOADED, f"{self._admission.depth} frames are waiting")

    def _count_refused(self, size: int) -> None:
        with self._lock:
            self._refused_bytes += size

    def _answer(
        self, topic: str, correlation: FrameId | None, model: str, traceparent: str | None, message: ResultMessage
    ) -> None:
        self._bus.publish(
            topic,
            pack_result(message),
            qos=self._qos,
            properties=Properties(
                content_type=RESULT_CONTENT_TYPE, correlation=str(message.id).encode(), traceparent=traceparent
            ),
        )
        if correlation is not None:
            self._unanswered.left(model)

    def _check_alone(self, models: Collection[str]) -> None:
        """One plain subscription each would have every worker answer every frame."""
        if self._bus.supports_shared_subscriptions:
            return
        others: queue.SimpleQueue[str] = queue.SimpleQueue()
        settled = threading.Event()

        def announced(delivery: Delivery) -> None:
            names = topics.WORKER_STATUS.names_in(delivery.topic)
            if names is None or names["worker"] == self._worker:
                return
            try:
                status = unpack_status(delivery.payload)
            except MessageError:
                return
            if status.state is NodeState.ONLINE and any(card.name in models for card in status.cards):
                others.put(names["worker"])
                settled.set()

        self._bus.subscribe(topics.WORKER_STATUS.filter(), topics.WORKER_STATUS.qos, announced)
        settled.wait(_RETAINED_WITHIN_S)
        self._bus.unsubscribe(topics.WORKER_STATUS.filter())
        if not others.empty():
            raise SecondWorkerError(
                f"worker {others.get()!r} already serves {', '.join(models)} and this broker speaks MQTT 3.1.1, "
                "which cannot share frames between workers: use Mosquitto, or stop the other worker"
            )


def _correlation(properties: Properties, names: Mapping[str, str]) -> FrameId | None:
    """The frame's id beside the payload, if it is the sender's own."""
    if properties.correlation is None:
        return None
    try:
        frame_id = FrameId.parse(properties.correlation.decode("ascii"))
    except (UnicodeDecodeError, TopicNameError):
        return None
    return frame_id if (frame_id.vehicle, frame_id.camera) == (names["vehicle"], names["camera"]) else None
