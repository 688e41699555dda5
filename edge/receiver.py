"""The receiver: decodes replies, passes them to the ledger, and passes results to the sinks."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edge.reliability.frame_record import FrameRecord
from edge.reliability.ledger import Ledger
from edge.transports.messages import RawReply
from edge.transports.transport import Transport
from shared import clock
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.messages.frame import ResultMessage, Status
from shared.messages.results import ModelResult
from shared.runlog.latency_log import Outcome
from shared.stages import Stage
from shared.tasks.task import task_named

OnResult = Callable[[FrameRecord, ModelResult], None]


@dataclass(frozen=True, slots=True)
class Receiver:
    """Processes replies one at a time, and closes frames whose reply is overdue."""

    transport: Transport
    ledger: Ledger
    on_result: OnResult  # Called with every answered frame.
    stop: threading.Event
    task: str  # Task of the model; results of other tasks are failures.
    keep: Sequence[OnResult] = ()  # Called with every result in time, before its frame ends and makes room for others.

    def run(self) -> None:
        """Receives until stopped; the body of a thread."""
        while not self.stop.is_set():
            try:
                reply = self.transport.replies.get(timeout=0.1)
            except queue.Empty:
                reply = None
            if reply:
                self.process(reply)
            # While replies are queued, frames time out by the arrival time of the last one processed: slow sinks
            # must not turn a reply that has arrived into a loss.
            self.ledger.close_timed_out(reply.returned_ns if reply else clock.now_ns())

    def process(self, reply: RawReply) -> None:
        """Accounts for one reply, and passes its result on."""
        try:
            message = reply.read()
        except MessageError:
            self.ledger.ignore("unreadable")
            return
        record = self.ledger.accept(message)
        if record is None:
            return
        record.times[Stage.RETURNED] = reply.returned_ns
        result, fault = decode_result(message, record, self.task)
        record.times[Stage.MASK_DECODED] = clock.now_ns()
        answer = None if result is None else ModelResult(result, message.model_version, message.engine)
        if answer is not None and not record.deadline.is_expired(record.times[Stage.MASK_DECODED]):
            for keep in self.keep:
                keep(record, answer)
        outcome = self.ledger.finish(record, message, reply.size, fault)
        if answer is not None and outcome is Outcome.ANSWERED:
            self.on_result(record, answer)


def decode_result(message: ResultMessage, record: FrameRecord, task: str) -> tuple[Any, str]:
    """Returns the result in a reply, or None and the problem with it. `task`: the task of the requested model.

    A reply without a result, because the worker refused the frame, is no problem: both are empty then.
    """
    if message.status is not Status.ANSWERED:
        return None, ""
    plug_in = task_named(task)
    if message.task != task:
        return None, f"{plug_in.result_name} cannot be used: its model answers a {message.task}"
    try:
        return plug_in.decode(message.data, message.codec, message.shape, record.geometry), ""
    except SkylaneError as error:
        return None, f"{plug_in.result_name} cannot be used: {error}"
