"""Intake: the worker's door to the broker. The network thread stamps, admits and returns."""

import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

from cloud.admission import Admission
from cloud.decoding import read
from cloud.replies import Replier
from cloud.request import Request
from cloud.serving import Serving
from shared import topics
from shared.bus import Acknowledged, Bus, Delivery, Properties, Will
from shared.errors import SkylaneError
from shared.fields import MessageError
from shared.messages import (
    MASK_CONTENT_TYPE,
    MaskMessage,
    NodeState,
    NodeStatus,
    Status,
    pack_mask,
    pack_status,
    unpack_status,
)
from shared.stages import Stage
from shared.threads import Handover
from shared.topics import FrameId, TopicNameError

_MAX_REFUSED = 1024
_MAX_REFUSED_BYTES = 64 << 20
_ROOM_BYTES = 1 << 16  # For what a mask message holds beside the mask.
_KNOWN_WITHIN_S = 2.0  # A broker that is gone acknowledges nothing.
_RETAINED_WITHIN_S = 1.0  # A broker sends what it retains right after the subscription.


class SecondWorkerError(SkylaneError):
    """A broker that cannot share a subscription already has a worker for the model."""


def worker_will(worker: str, session: str) -> Will:
    """What the broker says when the worker goes without a word."""
    return Will(topics.WORKER_STATUS.of(worker=worker), pack_status(NodeStatus(NodeState.OFFLINE, session)))


class Intake:
    """Subscribes to the models' frames and publishes the answers."""

    def __init__(
        self,
        bus: Bus,
        admission: Admission,
        replier: Replier,
        serving: Serving,
        *,
        worker: str,
        session: str,
        group: str = topics.GROUP,
        qos: int = topics.FRAMES.qos,
    ) -> None:
        self._bus = bus
        self._admission = admission
        self._replier = replier
        self._serving = serving
        self._worker = worker
        self._session = session
        self._group = group
        self._qos = qos
        self._refused: Handover[tuple[Request, Status, str]] = Handover(_MAX_REFUSED)
        self._refused_bytes = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Take frames from now on.

        Raises:
            SecondWorkerError: the broker speaks MQTT 3.1.1 only and another worker serves one of the models.
        """
        if not self._bus.shares_subscriptions:
            self._check_alone()
        for topic_filter in self._filters():
            self._bus.subscribe(topic_filter, self._qos, self._received)
        self.announce()

    def announce(self, state: NodeState = NodeState.ONLINE, acknowledged: Acknowledged | None = None) -> None:
        """Tell where the worker stands and what it serves; again on every reconnect."""
        cards = self._serving.cards() if state is NodeState.ONLINE else ()
        self._bus.publish(
            topics.WORKER_STATUS.of(worker=self._worker),
            pack_status(NodeStatus(state, self._session, self._admission.max_frames, cards)),
            qos=topics.WORKER_STATUS.qos,
            retained=True,
            acknowledged=acknowledged,
        )

    def stop(self) -> None:
        """Take no more frames; what came until the broker knows of it is still answered."""
        known = threading.Event()
        for topic_filter in self._filters():
            self._bus.unsubscribe(topic_filter)
        self.announce(NodeState.STOPPING, lambda _: known.set())  # A broker does one thing after the other.
        known.wait(_KNOWN_WITHIN_S)

    def end_refusals(self) -> None:
        """No more frames will be refused: let the refusing thread end when it has answered."""
        self._refused.close()

    def close(self) -> None:
        """Leave the broker; every answer must have been published."""
        self.announce(NodeState.OFFLINE)
        self._bus.close()

    def run(self) -> None:
        """Answer what could not be admitted, off the network thread; the body of the refusing thread."""
        with self._refused.reader() as get:
            while (item := get()) is not None:
                request, status, reason = item
                if request.correlation is None:
                    self._count_refused(-len(request.payload))
                    with suppress(MessageError):  # Then nothing tells whose it is.
                        read(request)
                self._replier.refuse(request, status, reason)

    @property
    def _models(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(card.name for card in self._serving.cards()))

    def _filters(self) -> Sequence[str]:
        filters = [topics.FRAMES.filter(model=model) for model in self._models]
        if self._bus.shares_subscriptions:
            return [topics.shared(self._group, topic_filter) for topic_filter in filters]
        return filters

    def _received(self, delivery: Delivery) -> None:
        names = topics.FRAMES.names_in(delivery.topic)
        if names is None or names["model"] not in self._models:
            return
        reply_topic = topics.MASKS.of(vehicle=names["vehicle"], camera=names["camera"])
        request = Request(
            payload=delivery.payload,
            vehicle=names["vehicle"],
            camera=names["camera"],
            model=names["model"],
            answer=lambda message: self._publish(reply_topic, message, delivery.properties.traceparent),
            times={Stage.RECEIVED: delivery.received_ns},
            largest_answer=self._bus.largest_payload - _ROOM_BYTES,
            correlation=_correlation(delivery.properties, names),
        )
        if delivery.properties.response_topic not in (None, reply_topic):
            self._refuse(request, Status.REJECTED, f"the response topic must be {reply_topic}")
        elif not self._admission.offer(request):
            self._refuse(request, Status.OVERLOADED, f"{self._admission.depth} frames are waiting")

    def _refuse(self, request: Request, status: Status, reason: str) -> None:
        if request.correlation or self._refused_bytes > _MAX_REFUSED_BYTES:
            request.payload = b""  # Only MQTT 3.1.1 tells within it alone whose it is.
        self._count_refused(len(request.payload))
        if not self._refused.offer((request, status, reason)):
            # Beyond so many unanswered refusals silence is the only bound left; the edge closes it by time.
            self._count_refused(-len(request.payload))

    def _count_refused(self, size: int) -> None:
        with self._lock:
            self._refused_bytes += size

    def _publish(self, topic: str, message: MaskMessage, traceparent: str | None) -> None:
        self._bus.publish(
            topic,
            pack_mask(message),
            qos=self._qos,
            properties=Properties(
                content_type=MASK_CONTENT_TYPE, correlation=str(message.id).encode(), traceparent=traceparent
            ),
        )

    def _check_alone(self) -> None:
        """One plain subscription each would have every worker answer every frame."""
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
            if status.state is NodeState.ONLINE and any(card.name in self._models for card in status.cards):
                others.put(names["worker"])
                settled.set()

        self._bus.subscribe(topics.WORKER_STATUS.filter(), topics.WORKER_STATUS.qos, announced)
        settled.wait(_RETAINED_WITHIN_S)
        self._bus.unsubscribe(topics.WORKER_STATUS.filter())
        if not others.empty():
            raise SecondWorkerError(
                f"worker {others.get()!r} already serves {', '.join(self._models)} and this broker speaks MQTT 3.1.1, "
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
