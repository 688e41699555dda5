"""Many vehicles in one light process: sends encoded frames in an open loop and counts their outcomes."""

import heapq
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from uuid import uuid4

from msgspec.structs import replace

from shared import clock
from shared.messages import topics
from shared.messages.deadline import Deadline
from shared.messages.frame import FRAME_CONTENT_TYPE, FrameMessage, Status, pack_frame, unpack_result
from shared.messages.topics import FrameId
from shared.mqtt.bus import Ack, Delivery, Properties
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.runlog.latency_log import Outcome
from shared.stages import Stage, Stamp

_CAMERA = "front"
_GRACE_S = 2.0  # Time after the deadline until a frame counts as lost, as in the vehicle node.
_POLL_S = 0.05
_OUTCOMES = {
    Status.EXPIRED: Outcome.EXPIRED,
    Status.OVERLOADED: Outcome.OVERLOADED,
    Status.REJECTED: Outcome.REJECTED,
    Status.FAILED: Outcome.FAILED,
}


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """The load that one vehicle offers."""

    name: str
    rate_hz: float
    window: int  # Unanswered frames; a frame that is due while the window is full is dropped.


@dataclass(frozen=True, slots=True)
class VehicleTally:
    """The outcomes of one vehicle's frames; they sum to `offered`."""

    name: str
    offered: int
    outcomes: Counter[str]  # By `shared.runlog.latency_log.Outcome`.
    answered_ns: tuple[int, ...]  # Arrival time of each mask that came in time, by `shared.clock`.
    latencies_ms: tuple[float, ...]  # Time from due to arrival of the same masks.


class LoadGenerator:
    """Offers frames to the workers behind a broker, and counts the outcomes.

    Open loop: frames are due by a schedule that does not depend on earlier replies, and their latency counts from then.
    The vehicles' schedules are spread evenly, so that vehicles with equal rates take turns.
    """

    def __init__(
        self,
        broker_url: str,
        frames: Sequence[FrameMessage],
        vehicles: Sequence[OfferedLoad],
        *,
        deadline_ms: float,
        duration_s: float,
    ) -> None:
        """`frames` are sent in a loop, with new ids for every vehicle; a mask counts as answered within `deadline_ms`."""
        self._address = Address.parse(broker_url)
        self._frames = frames
        self._vehicles = vehicles
        self._deadline_ns = round(deadline_ms * 1e6)
        self._duration_ns = round(duration_s * 1e9)

    def run(self) -> tuple[Sequence[VehicleTally], tuple[int, int]]:
        """Offers frames for the given duration and waits for the last replies.

        Returns the tallies in the order of the vehicles, and begin and end of the offer, ns by `shared.clock`. Frames that
        still wait at its end are answered after it.

        Raises:
            SkylaneError: the broker cannot be reached.
        """
        session = uuid4().hex[:12]
        with ExitStack() as stack:
            vehicles = [_Vehicle(load, session, self._deadline_ns) for load in self._vehicles]
            for vehicle in vehicles:
                vehicle.open(stack.enter_context(MqttBus(self._address, f"load-{vehicle.load.name}-{session}")))
            span_ns = self._offer(vehicles)
            for vehicle in vehicles:
                vehicle.wait()
        return [vehicle.tally() for vehicle in vehicles], span_ns

    def _offer(self, vehicles: Sequence["_Vehicle"]) -> tuple[int, int]:
        begin_ns = clock.now_ns()
        end_ns = begin_ns + self._duration_ns
        due = [
            (begin_ns + round(1e9 * place / len(vehicles) / vehicle.load.rate_hz), place)
            for place, vehicle in enumerate(vehicles)
            if vehicle.load.rate_hz > 0
        ]
        heapq.heapify(due)
        pause = threading.Event()
        offered = 0
        while due and due[0][0] < end_ns:
            due_ns, place = due[0]
            if (wait_ns := due_ns - clock.now_ns()) > 0:
                pause.wait(wait_ns / 1e9)
            vehicles[place].offer(self._frames[offered % len(self._frames)], due_ns)
            offered += 1
            heapq.heapreplace(due, (due_ns + round(1e9 / vehicles[place].load.rate_hz), place))
        return begin_ns, end_ns


@dataclass(slots=True)
class _Vehicle:
    """One vehicle with its connection and its counts."""

    load: OfferedLoad
    session: str
    deadline_ns: int
    _bus: MqttBus | None = None
    _sequence: int = 0
    _outcomes: Counter[str] = field(default_factory=Counter)
    _answered_ns: list[int] = field(default_factory=list)
    _latencies_ms: list[float] = field(default_factory=list)
    _unanswered: dict[FrameId, int] = field(default_factory=dict)  # Due time by frame.
    _condition: threading.Condition = field(default_factory=threading.Condition)

    def open(self, bus: MqttBus) -> None:
        """Subscribes to replies."""
        self._bus = bus
        bus.subscribe(topics.MASKS.filter(vehicle=self.load.name), topics.MASKS.qos, self._returned)

    def offer(self, frame: FrameMessage, due_ns: int) -> None:
        """Sends a frame that is due, or drops it if the window is full."""
        now_ns = clock.now_ns()
        with self._condition:
            self._close_lost(now_ns)
            self._sequence += 1
            if len(self._unanswered) >= self.load.window:
                self._outcomes[Outcome.DROPPED] += 1
                return
            frame_id = FrameId(self.load.name, _CAMERA, self.session, self._sequence)
            self._unanswered[frame_id] = due_ns
        node = f"edge/{self.load.name}/{self.session}"
        self._publish(
            replace(
                frame,
                id=frame_id,
                deadline=Deadline(due_ns + self.deadline_ns),
                stamps=(Stamp(Stage.DUE, node, due_ns), Stamp(Stage.SENT, node, now_ns)),
            )
        )

    def wait(self) -> None:
        """Waits until every frame is answered or lost."""
        with self._condition:
            while self._unanswered:
                self._condition.wait(_POLL_S)
                self._close_lost(clock.now_ns())

    def tally(self) -> VehicleTally:
        """Returns the outcomes of all frames."""
        answered_ns, latencies_ms = tuple(self._answered_ns), tuple(self._latencies_ms)
        return VehicleTally(self.load.name, self._sequence, self._outcomes, answered_ns, latencies_ms)

    def _publish(self, message: FrameMessage) -> None:
        assert self._bus is not None
        frame_id = message.id

        def acknowledged(ack: Ack) -> None:
            if ack.no_subscriber or not ack.accepted:
                self._close(frame_id, Outcome.DROPPED)

        self._bus.publish(
            topics.FRAMES.of(model=message.model, vehicle=self.load.name, camera=_CAMERA),
            pack_frame(message),
            qos=topics.FRAMES.qos,
            properties=Properties(
                content_type=FRAME_CONTENT_TYPE,
                response_topic=topics.MASKS.of(vehicle=self.load.name, camera=_CAMERA),
                correlation=str(frame_id).encode(),
            ),
            acknowledged=acknowledged,
        )

    def _returned(self, delivery: Delivery) -> None:
        result = unpack_result(delivery.payload)
        due_ns = self._unanswered.get(result.id)
        if due_ns is None:
            return  # The frame belongs to an earlier round, or was already counted as lost.
        took_ns = delivery.received_ns - due_ns
        if result.status is not Status.ANSWERED:
            self._close(result.id, _OUTCOMES[result.status])
        elif took_ns > self.deadline_ns:
            self._close(result.id, Outcome.EXPIRED)
        elif self._close(result.id, Outcome.ANSWERED):
            self._answered_ns.append(delivery.received_ns)
            self._latencies_ms.append(took_ns / 1e6)

    def _close(self, frame_id: FrameId, outcome: Outcome) -> bool:
        with self._condition:
            if self._unanswered.pop(frame_id, None) is None:
                return False
            self._outcomes[outcome] += 1
            self._condition.notify_all()
        return True

    def _close_lost(self, now_ns: int) -> None:
        lost_before_ns = now_ns - self.deadline_ns - round(_GRACE_S * 1e9)
        for frame_id in [frame_id for frame_id, due_ns in self._unanswered.items() if due_ns < lost_before_ns]:
            del self._unanswered[frame_id]
            self._outcomes[Outcome.LOST] += 1
