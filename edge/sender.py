"""The sender: limits the frames in flight, waits for a worker, and delivers frames to workers."""

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from msgspec import structs

from edge.config import EdgeConfig
from edge.frame_record import ANY_WORKER, Assignment, FrameRecord
from edge.ledger import Ledger
from edge.transports.transport import NO_BROKER, NO_WORKER, TRANSPORTS, EncodedRequest, OnUndelivered, Transport
from edge.workers.dispatcher import DISPATCHERS, Dispatcher
from edge.workers.worker_directory import LivenessMonitor, WorkerWatch
from shared import clock
from shared.messages.frame import FrameMessage
from shared.messages.results import ModelResult
from shared.registry import load
from shared.stages import Stage, Stamp

_POLL_S = 0.2


class InFlightWindow:
    """Limits the number of frames that were sent and have no answer yet."""

    def __init__(self, size: int, stop: threading.Event) -> None:
        self._size = size
        self._stop = stop
        self._condition = threading.Condition()
        self.in_flight = 0

    @property
    def is_stopped(self) -> bool:
        """True once the run was stopped."""
        return self._stop.is_set()

    @property
    def has_room(self) -> bool:
        """True if another frame may be sent."""
        return self.in_flight < self._size

    def wait_for_room(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the window has room or `unless` returns True; returns False when stopped."""
        while not self._stop.is_set():
            if unless():
                return True
            with self._condition:
                if self._condition.wait_for(lambda: self.has_room, timeout=_POLL_S):
                    return not self._stop.is_set()
        return False

    def pause(self) -> None:
        """Waits for a moment, or until stopped."""
        self._stop.wait(_POLL_S)

    def acquire(self) -> None:
        """Adds a frame that is about to be sent to the window."""
        with self._condition:
            self.in_flight += 1

    def ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        """Removes a frame that has ended from the window, if it was sent. See FrameListener."""
        if record.row.attempts:
            with self._condition:
                self.in_flight -= 1
                self._condition.notify_all()


@dataclass(slots=True)
class Sender:
    """Sends frames, and waits for workers."""

    transport: Transport
    ledger: Ledger
    window: InFlightWindow
    node: str  # Name of this process in stamps.
    dispatcher: Dispatcher | None = None  # None: the transport chooses the worker of every frame.
    liveness: LivenessMonitor | None = (
        None  # Detects that all online workers hang; without it, frames sent to them time out.
    )
    worker_wait_s: float = 0.0  # Time that a frame may wait for a worker to return.
    keep_messages: bool = False  # True to keep sent messages for a retry, at most one per frame in flight.

    def no_worker_alive(self) -> bool:
        """Returns whether no worker serves the model, or all that do are unresponsive."""
        if not self.transport.workers.wait_until_served(0.0):
            return True
        return self.liveness is not None and self.liveness.all_unresponsive()

    def wait_for_worker(self) -> bool:
        """Waits for a worker up to `worker_wait_s`; returns False if none is alive then, and later calls do not wait."""
        if not self.no_worker_alive():
            return True
        wait_until_ns = clock.now_ns() + round(self.worker_wait_s * 1e9)
        while clock.now_ns() < wait_until_ns and not self.window.is_stopped:
            if not self.transport.workers.wait_until_served(_POLL_S):
                continue
            if not self.no_worker_alive():
                return True
            self.window.pause()
        self.worker_wait_s = 0.0  # No worker returned in that time, so later frames do not wait.
        return False

    def unsent_reason(self, reason: str) -> str:
        """Returns NO_BROKER if the broker is disconnected, else `reason`: why a frame is not sent now."""
        return NO_BROKER if self.transport.has_lost_broker else reason

    def send(self, record: FrameRecord, message: FrameMessage) -> None:
        """Stamps, encodes, journals and sends a frame; drops it if it exceeds the transport's size limit."""
        assignment = self.assign()
        record.times[Stage.SENT] = clock.now_ns()
        record.stamps = tuple(Stamp(stage, self.node, at_ns) for stage, at_ns in record.times.items())
        message = structs.replace(message, stamps=record.stamps)
        request = self.transport.pack(message)
        if excess := self.transport.excess(request):
            self.ledger.drop(record, f"too_large: {excess}")
            return
        record.row.bytes_up = request.size
        record.message = message if self.keep_messages else None
        self.window.acquire()
        self.ledger.open(record, assignment)
        ledger, frame_id = self.ledger, record.id
        self.deliver(message, request, assignment, lambda reason: ledger.close_undelivered(frame_id, reason))

    def assign(self, excluded: Collection[str] = ()) -> Assignment:
        """Returns the worker for the next frame, except those in `excluded`."""
        if self.dispatcher is None:
            return ANY_WORKER
        return self.dispatcher.choose(self.ledger.in_flight(), clock.now_ns(), excluded)

    def deliver(
        self,
        message: FrameMessage,
        request: EncodedRequest,
        assignment: Assignment,
        on_undelivered: OnUndelivered,
        unreachable: tuple[str, ...] = (),
    ) -> None:
        """Sends an attempt of a frame that the ledger expects.

        A frame that reached no worker is sent to another one in the same attempt. `unreachable`: the workers to
        which it could not be delivered. `on_undelivered` is called with the reason if no worker got it.
        """
        worker = assignment.worker

        def undelivered(reason: str) -> None:
            loads = self.transport.workers.loads
            if worker is None or loads is None or not assignment.expected_ns or reason != NO_WORKER:
                on_undelivered(reason)
                return
            loads.unreachable(worker, clock.now_ns())
            tried = (*unreachable, worker)
            other = self.assign(excluded=tried)
            if self.ledger.reassign(message.id, message.attempt, other):
                self.deliver(message, request, other, on_undelivered, tried)

        self.transport.send(message, request, undelivered, worker=worker)


def open_dispatcher(config: EdgeConfig, watch: WorkerWatch) -> Dispatcher | None:
    """Returns the dispatcher for the workers of a transport; None if the transport calls the workers itself."""
    if TRANSPORTS[config.transport].endpoint != "broker":
        return None
    dispatcher: Dispatcher = load("dispatcher", DISPATCHERS, config.dispatch)(watch)
    return dispatcher
