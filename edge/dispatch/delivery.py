"""FrameDelivery: sends frames to the workers that a dispatcher chooses, and to others if those cannot be reached."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from edge.config import EdgeConfig
from edge.dispatch.dispatcher import DISPATCHERS, Dispatcher
from edge.frame_record import ANY_WORKER, Assignment
from edge.frames.ledger import Ledger
from edge.transports.transport import NO_WORKER, TRANSPORTS, EncodedRequest, OnUndelivered, Transport
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerDirectory
from shared import clock
from shared.messages.frame import FrameMessage
from shared.registry import load


@dataclass(frozen=True, slots=True)
class OutgoingFrame:
    """An attempt of a frame, and where it is sent."""

    message: FrameMessage
    request: EncodedRequest
    assignment: Assignment
    unreachable: tuple[str, ...] = ()  # Workers to which it could not be delivered.


@dataclass(frozen=True, slots=True)
class FrameDelivery:
    """Sends attempts of frames. A frame that has certainly reached no worker goes to another one in the same attempt."""

    transport: Transport
    ledger: Ledger
    dispatcher: Dispatcher | None = None  # None: the transport chooses the worker of every frame.

    def assign(self, excluded: Collection[str] = ()) -> Assignment:
        """Returns where to send the next frame."""
        if self.dispatcher is None:
            return ANY_WORKER
        return self.dispatcher.choose(self.ledger.in_flight(), clock.now_ns(), excluded)

    def send(self, frame: OutgoingFrame, on_undelivered: OnUndelivered) -> None:
        """Sends a frame that the ledger expects; `on_undelivered` is called with the reason if no worker got it."""
        worker = frame.assignment.worker

        def undelivered(reason: str) -> None:
            loads = self.transport.workers.loads
            if worker is None or loads is None or not frame.assignment.expected_ns or reason != NO_WORKER:
                on_undelivered(reason)
                return
            loads.unreachable(worker, clock.now_ns())
            tried = (*frame.unreachable, worker)
            other = replace(frame, assignment=self.assign(excluded=tried), unreachable=tried)
            if self.ledger.reassign(frame.message.id, frame.message.attempt, other.assignment):
                self.send(other, on_undelivered)

        self.transport.send(frame.message, frame.request, undelivered, worker=worker)


def open_dispatcher(config: EdgeConfig, workers: WorkerDirectory, clocks: WorkerClocks) -> Dispatcher | None:
    """Returns the dispatcher for the workers of a transport; None if the transport calls the workers itself."""
    if TRANSPORTS[config.transport].endpoint != "broker":
        return None
    dispatcher: Dispatcher = load("dispatcher", DISPATCHERS, config.dispatch)(workers, clocks)
    return dispatcher
