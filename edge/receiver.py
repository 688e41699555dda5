"""The receiver: decodes replies, and passes them to the ledger with their results."""

import queue
import threading
from dataclasses import dataclass, field
from typing import Any

from edge.frame_record import FrameRecord
from edge.ledger import Ledger, VehicleFrameLog
from edge.transports.transport import RawReply, Transport
from edge.workers.worker_directory import WorkerDirectory
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.labels import MAX_LABELS
from shared.messages.frame import ResultMessage, Status
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.messages.results import ModelResult
from shared.sanitize import printable
from shared.stages import Stage
from shared.task import task_named


@dataclass(frozen=True, slots=True)
class Receiver:
    """Processes replies one at a time, and closes frames whose reply is overdue."""

    transport: Transport
    ledger: Ledger
    stop: threading.Event
    card: ModelCard  # The model of the run; results of another model are failures.
    frame_log: VehicleFrameLog = field(default_factory=VehicleFrameLog)

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
        """Accounts for one reply."""
        try:
            message = reply.read()
        except MessageError:
            self.ledger.ignore("unreadable")
            return
        record = self.ledger.accept(message)
        if record is None:
            return
        record.times[Stage.RETURNED] = reply.returned_ns
        result, fault = decode_result(message, record, self.card, self.transport.workers)
        record.times[Stage.MASK_DECODED] = clock.now_ns()
        if message.status is Status.ANSWERED:
            self.frame_log.answered(message, self.card.name)
        answer = None if result is None else ModelResult(result, message.model_version, message.engine)
        self.ledger.finish(record, message, reply.size, answer, fault)


def decode_result(
    message: ResultMessage, record: FrameRecord, card: ModelCard, workers: WorkerDirectory
) -> tuple[Any, str]:
    """Returns the result in a reply, or None and the problem with it.

    A reply without a result, because the worker refused the frame, is no problem: it gives None and "".

    Args:
        message: The reply.
        record: The frame.
        card: The model of the run.
        workers: The workers and the models that they have announced.
    """
    if message.status is not Status.ANSWERED:
        return None, ""
    plug_in = task_named(card.task)
    try:
        _check_model(message, card, workers)
        labels = len(card.labels.names) or MAX_LABELS  # A model of raw tensors may have none.
        return plug_in.decode(message.data, message.codec, message.shape, record.geometry, labels), ""
    except SkylaneError as error:
        return None, f"{plug_in.result_name} cannot be used: {error}"


def _check_model(message: ResultMessage, card: ModelCard, workers: WorkerDirectory) -> None:
    """Checks that a result is of the model of the run, or of another version of it that takes its place.

    Raises:
        SkylaneError: the task or model differs, or no worker announced the version, or its size or labels differ.
    """
    if message.task != card.task:
        raise SkylaneError(f"its model answers a {message.task}")
    if message.model != card.name:
        raise SkylaneError(f"it is of model {printable(message.model[:80])}, not of {card.name}")
    if (message.model_version, message.model_sha256) == (card.version, card.sha256):
        return
    other = workers.announced_card(message.model_version, message.model_sha256)
    given = f"it is of version {printable(message.model_version[:80])} with hash {printable(message.model_sha256[:12])}"
    if other is None:
        raise SkylaneError(f"{given}, which no worker announced")
    if (other.task, other.height, other.width, other.labels.names) != (
        card.task,
        card.height,
        card.width,
        card.labels.names,
    ):
        raise SkylaneError(
            f"{given}, whose input or labels differ from version {card.version}, with which the run began"
        )
