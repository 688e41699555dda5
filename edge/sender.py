"""The sender: a window of unanswered frames, and the last word on whether a frame is worth sending."""

import threading
from collections.abc import Callable

from msgspec.structs import replace

from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.liveness import Silence
from edge.transports.transport import Transport
from shared import clock
from shared.messages.frame import FrameMessage
from shared.stages import Stage, Stamp

_LOOK_S = 0.2  # How often a wait looks whether it was stopped.


class Window:
    """How many frames may be unanswered. It counts answers, not the broker's acknowledgements."""

    def __init__(self, size: int, stop: threading.Event) -> None:
        self._size = size
        self._stop = stop
        self._condition = threading.Condition()
        self._unanswered = 0

    @property
    def is_stopped(self) -> bool:
        """Whether no more frames are to be sent."""
        return self._stop.is_set()

    def wait_for_place(self, unless: Callable[[], bool] = lambda: False) -> bool:
        """Wait until there is a place, or none is needed because of `unless`; False when stopped."""
        while not self._stop.is_set():
            if unless():
                return True
            with self._condition:
                if self._condition.wait_for(lambda: self._unanswered < self._size, timeout=_LOOK_S):
                    return not self._stop.is_set()
        return False

    def rest(self) -> None:
        """Wait for a moment, or until stopped."""
        self._stop.wait(_LOOK_S)

    def take_place(self) -> None:
        """A frame is about to be sent."""
        with self._condition:
            self._unanswered += 1

    def give_back_place(self) -> None:
        """A sent frame has ended."""
        with self._condition:
            self._unanswered -= 1
            self._condition.notify_all()


class Sender:
    """Decides whether a frame is still worth sending, and sends it."""

    def __init__(
        self,
        transport: Transport,
        ledger: Ledger,
        window: Window,
        *,
        node: str,
        silence: Silence | None = None,
        patience_s: float = 0.0,
        keeps: bool = False,
    ) -> None:
        """`silence`: tells when the workers that are online stand still; None: that is found out by time alone.

        `patience_s`: how long a frame may wait for a worker to come back; 0 where newer frames come anyway.

        `keeps`: frames stay at hand while in flight, for they may have to be sent again; the window bounds how many.
        """
        self._transport = transport
        self._ledger = ledger
        self._window = window
        self._node = node
        self._silence = silence
        self._patience_ns = round(patience_s * 1e9)
        self._keeps = keeps

    def no_worker_alive(self) -> bool:
        """Whether nobody would answer: no worker serves the model, or all that do stand still."""
        if not self._transport.wait_until_served(0.0):
            return True
        return self._silence is not None and self._silence.is_total(self._transport.online())

    def refusal(self, journey: FrameRecord) -> str | None:
        """Why a frame is not worth any work, or None."""
        if journey.deadline_ns is not None and clock.now_ns() >= journey.deadline_ns:
            return "deadline"
        if not self.no_worker_alive():
            return None
        until_ns = clock.now_ns() + self._patience_ns
        while clock.now_ns() < until_ns and not self._window.is_stopped:
            if not self._transport.wait_until_served(_LOOK_S):
                continue
            if not self.no_worker_alive():
                return None
            self._window.rest()
        self._patience_ns = 0  # Once given up on, no frame waits again.
        return "no_worker"

    def send(self, journey: FrameRecord, message: FrameMessage) -> None:
        """Stamp, pack, journal and publish a frame; a message too large for the broker is dropped instead."""
        sent_ns = journey.times[Stage.SENT] = clock.now_ns()
        journey.stamps = tuple(Stamp(stage, self._node, at_ns) for stage, at_ns in journey.times.items())
        budget_ns = None if journey.deadline_ns is None else journey.deadline_ns - sent_ns
        budget_ms = None if budget_ns is None else max(0, budget_ns // 10**6)
        message = replace(message, stamps=journey.stamps, budget_ms=budget_ms)
        parcel = self._transport.pack(message)
        if parcel.size > self._transport.largest_message:
            bound = self._transport.largest_message_told
            self._ledger.drop(journey, f"too_large: {parcel.size} bytes, {bound}")
            return
        journey.bytes_up = parcel.size
        journey.message = message if self._keeps else None
        self._window.take_place()
        self._ledger.open(journey)
        ledger, frame_id = self._ledger, journey.id
        self._transport.send(message, parcel, lambda reason: ledger.withdraw(frame_id, reason))
