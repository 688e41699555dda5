"""The receiver: answers into the ledger, masks on to the sinks."""

import queue
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from edge.ledger import Journey, Ledger
from edge.transports.transport import Reply, Transport
from shared import clock, masks
from shared.errors import SkylaneError
from shared.fields import MessageError
from shared.latency_log import Outcome
from shared.messages import MaskMessage, Status, unpack_mask
from shared.stages import Stage

OnMask = Callable[[Journey, npt.NDArray[np.uint8]], None]


class Receiver:
    """Reads replies one at a time; also closes the frames whose answers never came."""

    def __init__(self, transport: Transport, ledger: Ledger, on_mask: OnMask, stop: threading.Event) -> None:
        """`on_mask` gets every answered frame with its class ids, H×W uint8."""
        self._transport = transport
        self._ledger = ledger
        self._on_mask = on_mask
        self._stop = stop

    def run(self) -> None:
        """Receive until stopped; the body of the receiving thread."""
        while not self._stop.is_set():
            try:
                reply = self._transport.replies.get(timeout=0.1)
            except queue.Empty:
                reply = None
            if reply:
                self._take(reply)
            # A sink that lets us wait must not turn an answer that lies here into a loss.
            self._ledger.give_up_silent(reply.returned_ns if reply else clock.now_ns())

    def _take(self, reply: Reply) -> None:
        try:
            message = unpack_mask(reply.payload)
        except MessageError:
            self._ledger.ignore("unreadable")
            return
        journey = self._ledger.accept(message)
        if journey is None:
            return
        journey.times[Stage.RETURNED] = reply.returned_ns
        mask, fault = _decoded(message, journey)
        journey.times[Stage.MASK_DECODED] = clock.now_ns()
        outcome = self._ledger.finish(journey, message, len(reply.payload), fault)
        if mask is not None and outcome is Outcome.ANSWERED:
            self._on_mask(journey, mask)


def _decoded(message: MaskMessage, journey: Journey) -> tuple[npt.NDArray[np.uint8] | None, str]:
    """The mask of an answer, or why there is none though there should be."""
    if message.status is not Status.ANSWERED or message.shape is None:
        return None, ""
    plan = journey.geometry
    if plan and message.shape not in (
        (plan.target_height, plan.target_width),
        (plan.source_height, plan.source_width),
    ):
        height, width = message.shape
        return None, f"mask cannot be used: {height}×{width} is the size of neither the frame nor the model's input"
    try:
        return masks.decode(message.data, message.codec, message.shape), ""
    except SkylaneError as error:
        return None, f"mask cannot be used: {error}"
