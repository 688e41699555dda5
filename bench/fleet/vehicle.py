"""One vehicle of the fleet: a real transport, ledger, sender and retrier, without threads and a camera of its own.

All vehicles send the same image, which is encoded once. They run in one process and therefore share its clock, so one
vehicle probes the workers' clocks for all of them.
"""

import hashlib
import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from msgspec.structs import replace

from edge import run_record
from edge.config import EdgeConfig
from edge.frame_record import Assignment, FrameRecord
from edge.ledger import Ledger, VehicleFrameLog
from edge.pipeline import prepare
from edge.receiver import Receiver
from edge.retrying import Retrier, RetryPolicy
from edge.sender import InFlightWindow, Sender, open_dispatcher
from edge.transports.mqtt_transport import open_mqtt
from edge.transports.transport import NO_WORKER, RawReply, ReplyQueue, TransportEvents
from edge.workers.dispatcher import Dispatcher
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_stats import WorkerStats
from edge.workers.worker_watch import WorkerWatch
from shared import clock
from shared.imaging.frames import Frame, Layout
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.messages.topics import FrameId
from shared.runlog.latency_log import LogWriter
from shared.runlog.run_manifest import write_manifest
from shared.stages import Stage

_CAMERA = "front"
_CARD_TIMEOUT_S = 60.0
_PREPARED = (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED)

TaggedReply = tuple["FleetVehicle", RawReply]


@dataclass(frozen=True, slots=True)
class FleetShared:
    """The objects that the vehicles of one process share."""

    replies: "queue.SimpleQueue[TaggedReply]"
    on_room: Callable[["FleetVehicle"], None]  # Called when a frame of a vehicle has ended.
    stopped: threading.Event  # Set when no more frames are sent.
    finished: threading.Event  # Set when no more replies are processed.
    clocks: WorkerClocks


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """The image that all vehicles send."""

    frame: Frame
    message: FrameMessage

    @classmethod
    def noise(cls, card: ModelCard, config: EdgeConfig, seed: int) -> Self:
        """Encodes noise in the model's input size."""
        pixels = np.random.default_rng(seed).integers(0, 256, (card.height, card.width, 3), np.uint8)
        frame = Frame(pixels, Layout.RGB8, _CAMERA, index=0, stamp_ns=0, source_ns=0, read_ns=0)
        record = FrameRecord.of(FrameId("fleet", _CAMERA, "fleet", 0), _CAMERA)
        return cls(frame, prepare(frame, record, card, config))


class MeteredDispatcher:
    """Measures the CPU time of the choices of another dispatcher. See Dispatcher."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self.cpu_ns: list[int] = []  # CPU time of each choice.

    def choose(self, in_flight: Sequence[FrameRecord], now_ns: int, excluded: Collection[str] = ()) -> Assignment:
        """See Dispatcher."""
        begin_ns = time.thread_time_ns()
        chosen = self._dispatcher.choose(in_flight, now_ns, excluded)
        self.cpu_ns.append(time.thread_time_ns() - begin_ns)
        return chosen


class _SharedReplies(ReplyQueue):
    """Passes the replies of one vehicle to the receiver that all vehicles share."""

    def __init__(self, vehicle: "FleetVehicle", shared: "queue.SimpleQueue[TaggedReply]") -> None:
        super().__init__()
        self._vehicle = vehicle
        self._shared = shared

    def offer(self, reply: RawReply) -> None:
        """See ReplyQueue; the window of the vehicle limits the replies that wait."""
        self._shared.put((self._vehicle, reply))


class FleetVehicle:
    """A session with the broker that sends frames when it is asked to. Only one thread may call `offer` and `fill`."""

    def __init__(self, config: EdgeConfig, folder: Path, shared: FleetShared, stack: ExitStack) -> None:
        """Connects the vehicle until `stack` is closed.

        Raises:
            SkylaneError: the broker cannot be reached, or no worker serves the model.
        """
        self.name = config.vehicle
        self.session = uuid.uuid4().hex[:12]
        self._config = config
        self._folder = folder
        self._shared = shared
        self._events = TransportEvents()
        self.transport = stack.enter_context(closing(open_mqtt(config, self.session, self._events)))
        self.transport.replies = _SharedReplies(self, shared.replies)
        self.card = self.transport.wait_for_card(_CARD_TIMEOUT_S)
        self._stack = stack
        self._window = InFlightWindow(config.window, shared.stopped)
        self._image: EncodedImage | None = None
        self._manifest: dict[str, Any] = {}

    def prepare(self, image: EncodedImage, manifest: Mapping[str, Any]) -> None:
        """Opens the log; `manifest` is that of the fleet's first vehicle.

        Logs are opened after all connections, as `select`, by which the network threads wait, takes no file descriptor from 1024 on.
        """
        config, shared = self._config, self._shared
        self._image = image
        self._log = self._stack.enter_context(LogWriter(self._folder))
        stats = WorkerStats()
        workers = self.transport.workers
        self.ledger = Ledger(
            self._log,
            config,
            self.session,
            clocks=shared.clocks,
            stats=stats,
            loads=workers.loads,
        )
        self.ledger.listeners += [VehicleFrameLog().ended, self._window.ended, self._frame_ended]
        watch = WorkerWatch(workers, shared.clocks, stats)
        dispatcher = open_dispatcher(config, watch)
        self.dispatcher = None if dispatcher is None else MeteredDispatcher(dispatcher)
        self._sender = Sender(
            self.transport,
            self.ledger,
            self._window,
            node=f"edge/{self.name}/{self.session}",
            dispatcher=self.dispatcher,
            keep_messages=config.retry,
        )
        policy = RetryPolicy(stats, window=config.window, after_ms=config.retry_after_ms)
        self._retrier = Retrier(self._sender, policy, watch)
        self.receiver = Receiver(self.transport, self.ledger, shared.finished, self.card)
        own = {"session": self.session, "vehicle": self.name, "configuration": config.model_dump(mode="json")}
        self._manifest = {**manifest, **own}
        write_manifest(self._folder, self._manifest)

    def new_manifest(self, image: EncodedImage) -> dict[str, Any]:
        """Returns the manifest of this vehicle at the start of its run."""
        source = {"kind": "synthetic", "sha256": hashlib.sha256(image.message.data).hexdigest()}
        return run_record.started(self._config, self.session, source, self.card)

    def fill(self) -> None:
        """Sends frames until the window is full."""
        while self._window.has_room and not self._shared.stopped.is_set():
            self.offer(clock.now_ns())

    def offer(self, due_ns: int) -> None:
        """Sends a frame that is due, or drops it if the window is full or the run was stopped."""
        assert self._image is not None
        record = self.ledger.begin(self._image.frame, due_ns)
        if self._shared.stopped.is_set() or not self._window.has_room:
            self.ledger.drop(record, "stopped" if self._shared.stopped.is_set() else "window")
            return
        record.times.update(dict.fromkeys(_PREPARED, clock.now_ns()))
        record.geometry = self._image.message.geometry
        if not self._sender.wait_for_worker():
            self.ledger.drop(record, self._sender.unsent_reason(NO_WORKER))
            return
        message = replace(self._image.message, id=record.id, stamp_ns=due_ns, deadline=record.deadline)
        self._sender.send(record, message)

    def retry_due(self) -> float:
        """Sends the retries that are due; returns the seconds to wait until the next check."""
        return self._retrier.retry_due()

    def check(self) -> None:
        """Raises the error that ended the connection, if there was one."""
        self._events.check()

    def end(self) -> None:
        """Closes the frames that are still in flight, and completes the manifest."""
        self.ledger.close_all("the run ended")
        write_manifest(self._folder, run_record.ended(self._manifest, self.ledger.counts(), self._log.rows_lost))

    def _frame_ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        if record.row.attempts:
            self._shared.on_room(self)
