"""The receiver: answers into the ledger, results on to the sinks."""

import queue
import threading
from collections.abc import Callable

from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.reply_decoding import decoded
from edge.transports.transport import Reply, Transport
from shared import clock
from shared.encoding.msgpack_reader import MessageError
from shared.messages.frame import ResultMessage
from shared.messages.model_card import Task
from shared.messages.results import Result
from shared.runlog.latency_log import Outcome
from shared.stages import Stage

OnResult = Callable[[FrameRecord, ResultMessage, Result], None]


class Receiver:
    """Reads replies one at a time; also closes the frames whose answers never came."""

    def __init__(
        self, transport: Transport, ledger: Ledger, on_result: OnResult, stop: threading.Event, task: Task
    ) -> None:
        """`on_result` gets every answered frame with its answer and the result in it, which is one of `task`."""
        self._transport = transport
        self._ledger = ledger
        self._on_result = on_result
        self._task = task
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
            message = reply.read()
        except MessageError:
            self._ledger.ignore("unreadable")
            return
        journey = self._ledger.accept(message)
        if journey is None:
            return
        journey.times[Stage.RETURNED] = reply.returned_ns
        result, fault = decoded(message, journey, self._task)
        journey.times[Stage.MASK_DECODED] = clock.now_ns()
        outcome = self._ledger.finish(journey, message, reply.size, fault)
        if result is not None and outcome is Outcome.ANSWERED:
            self._on_result(journey, message, result)
