"""The load of the benchmarks: vehicles with a real transport, ledger, sender and retrier, but without a camera.

All vehicles of a group send the same images in turn, which are encoded beforehand, because in reality the vehicles' computers
do that work. They run in one process and therefore share its threads and its clock, so one vehicle probes the workers' clocks
for all of them.
"""

import hashlib
import heapq
import queue
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from edge import run_record
from edge.config import EdgeConfig
from edge.frame_record import Assignment, FrameListener, FrameRecord
from edge.ledger import Ledger, VehicleFrameLog
from edge.receiver import Receiver
from edge.retrying import Retrier, RetryPolicy
from edge.sender import InFlightWindow, Sender, open_dispatcher
from edge.transports.opening import open_transport
from edge.transports.transport import NO_WORKER, RawReply, ReplyQueue, TransportEvents
from edge.workers.dispatcher import Dispatcher
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_directory import WorkerWatch
from edge.workers.worker_stats import WorkerStats
from shared import clock
from shared.imaging.frames import Frame, Layout
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.runlog.latency_log import LogWriter
from shared.runlog.run_manifest import write_manifest
from shared.runtime.open_files import raise_file_limit
from shared.stages import Stage
from shared.threads import ThreadGroup

_CARD_TIMEOUT_S = 60.0
_POLL_S = 0.1
_JOIN_TIMEOUT_S = 60.0
_SETTLE_S = 1.0  # Time from the connections to the first frame, in which the first clock probes and loads arrive.
_RETRY_INTERVAL_S = 0.1
# Stands for every frame in the ledger; the images are those of the messages.
_FRAME = Frame(np.zeros((1, 1), np.uint8), Layout.MONO8, "front", index=0, stamp_ns=0, source_ns=0, read_ns=0)
_PREPARED = (Stage.TAKEN, Stage.DEMOSAICED, Stage.PREPROCESSED, Stage.ENCODED)

TaggedReply = tuple["FleetVehicle", RawReply]
Span = tuple[int, int]  # Begin and end by `shared.clock`.


@dataclass(frozen=True, slots=True)
class FleetShared:
    """The objects that the vehicles of one process share."""

    replies: "queue.SimpleQueue[TaggedReply]"
    on_room: Callable[["FleetVehicle"], None]  # Called when a frame of a vehicle has ended.
    stopped: threading.Event  # Set when no more frames are sent.
    finished: threading.Event  # Set when no more replies are processed.
    clocks: WorkerClocks


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
            SkylaneError: the broker or the worker cannot be reached, or no worker serves the model.
        """
        self.name = config.vehicle
        self.session = uuid.uuid4().hex[:12]
        self._config = config
        self._folder = folder
        self._shared = shared
        self._events = TransportEvents()
        self.transport = stack.enter_context(closing(open_transport(config, self.session, events=self._events)))
        self.transport.replies = _SharedReplies(self, shared.replies)
        self.card = self.transport.wait_for_card(_CARD_TIMEOUT_S)
        self._stack = stack
        self._window = InFlightWindow(config.window, shared.stopped)
        self._images: Sequence[FrameMessage] = ()
        self._manifest: dict[str, Any] = {}

    def prepare(
        self, images: Sequence[FrameMessage], manifest: Mapping[str, Any], on_ended: Sequence[FrameListener]
    ) -> None:
        """Opens the log; `manifest` is that of the group's first vehicle.

        Logs are opened after all connections, as `select`, by which the network threads wait, takes no file descriptor from 1024 on.
        """
        config, shared = self._config, self._shared
        self._images = images
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
        self.ledger.listeners += [VehicleFrameLog().ended, *on_ended, self._window.ended, self._frame_ended]
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

    def new_manifest(self, images: Sequence[FrameMessage]) -> dict[str, Any]:
        """Returns the manifest of this vehicle at the start of its run."""
        source = {"kind": "synthetic", "sha256": hashlib.sha256(images[0].data).hexdigest()}
        return run_record.started(self._config, self.session, source, self.card)

    def fill(self) -> None:
        """Sends frames until the window is full."""
        while self._window.has_room and not self._shared.stopped.is_set():
            self.offer(clock.now_ns())

    def offer(self, due_ns: int) -> None:
        """Sends a frame that is due, or drops it if the window is full or the run was stopped."""
        record = self.ledger.begin(_FRAME, due_ns)
        if self._shared.stopped.is_set() or not self._window.has_room:
            self.ledger.drop(record, "stopped" if self._shared.stopped.is_set() else "window")
            return
        record.times.update(dict.fromkeys(_PREPARED, clock.now_ns()))
        image = self._images[record.id.sequence % len(self._images)]
        record.geometry = image.geometry
        if not self._sender.wait_for_worker():
            self.ledger.drop(record, self._sender.unsent_reason(NO_WORKER))
            return
        self._sender.send(record, replace(image, id=record.id, stamp_ns=due_ns, deadline=record.deadline))

    def retry_due(self) -> float:
        """Sends the retries that are due; returns the seconds to wait until the next check."""
        return self._retrier.retry_due()

    def wait_until_answered(self, since_ns: int) -> None:
        """Waits for the replies to the frames in flight, the last of which was sent before `since_ns`.

        Raises:
            SkylaneError: the connection has ended for good.
        """
        self.ledger.wait_until_idle(max(0.0, self._config.answer_timeout_s - (clock.now_ns() - since_ns) / 1e9))
        self._events.check()

    def end(self) -> None:
        """Closes the frames that are still in flight, and completes the manifest."""
        self.ledger.close_all("the run ended")
        write_manifest(self._folder, run_record.ended(self._manifest, self.ledger.counts(), self._log.rows_lost))

    def _frame_ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        if record.row.attempts:
            self._shared.on_room(self)


class VehicleGroup(ExitStack):
    """The vehicles of a run, and the threads that they share; they disconnect when the block ends."""

    def __init__(self) -> None:
        super().__init__()
        self.vehicles: list[FleetVehicle] = []
        self._stopped = threading.Event()
        self._finished = threading.Event()
        self._threads = ThreadGroup(self._abort)
        self._room: queue.SimpleQueue[FleetVehicle] = queue.SimpleQueue()  # Vehicles of which a frame has ended.
        replies: queue.SimpleQueue[TaggedReply] = queue.SimpleQueue()
        self._shared = FleetShared(replies, self._room.put, self._stopped, self._finished, WorkerClocks())

    def connect(
        self,
        configs: Sequence[EdgeConfig],
        folder: Path,
        images: Callable[[ModelCard], Sequence[FrameMessage]],
        *on_ended: FrameListener,
    ) -> None:
        """Connects a vehicle for each configuration; its log is in a folder of its name.

        `images` returns the frames that all vehicles send in turn. `on_ended` get every frame that has ended.

        Raises:
            SkylaneError: the broker or a worker cannot be reached, or no worker serves the model.
        """
        raise_file_limit()
        self.vehicles = [FleetVehicle(config, folder / config.vehicle, self._shared, self) for config in configs]
        first = self.vehicles[0]
        messages = images(first.card)
        manifest = first.new_manifest(messages)
        for vehicle in self.vehicles:
            vehicle.prepare(messages, manifest, on_ended)

    def play(self, due: Sequence[Iterator[int]], seconds: float, on_time: Callable[[float], int] = lambda _: 0) -> Span:
        """Lets the vehicles send for some seconds, and waits for the last replies; returns begin and end of the sending.

        `due`: the due times of each vehicle in nanoseconds from the begin, without end; empty: each sends whenever its window
        has room. `on_time` is called with the seconds so far, and returns the nanoseconds that it took and that do not count.

        Raises:
            SkylaneError: a connection has ended for good.
        """
        try:
            self._threads.start("fleet-receiver", self._receive)
            self._threads.start("fleet-retrier", self._retry)
            probe = self.vehicles[0].transport.probe_clocks
            self._threads.start("fleet-clocks", partial(probe, self._shared.clocks, self._finished))
            return self._play(due, seconds, on_time)
        finally:
            self._abort()
            self._threads.join(_JOIN_TIMEOUT_S)
            for vehicle in self.vehicles:
                vehicle.end()

    def _play(self, due: Sequence[Iterator[int]], seconds: float, on_time: Callable[[float], int]) -> Span:
        self._stopped.wait(_SETTLE_S)
        begin_ns = clock.now_ns()
        send = partial(self._send_when_due, due, begin_ns, seconds) if due else self._keep_windows_full
        pacing = self._threads.start("fleet-pacer", send)
        spent_ns = 0
        while (left_s := seconds - (clock.now_ns() - begin_ns - spent_ns) / 1e9) > 0:
            spent_ns += on_time(seconds - left_s)
            if self._stopped.wait(min(_POLL_S, left_s)):
                break
        end_ns = clock.now_ns()
        if due:
            end_ns = begin_ns + round(seconds * 1e9)
            # A busy machine sends the last frames late; what is not sent by then is dropped.
            pacing.join(_JOIN_TIMEOUT_S)
        self._stopped.set()
        pacing.join(_JOIN_TIMEOUT_S)
        for vehicle in self.vehicles:
            vehicle.wait_until_answered(end_ns)
        return begin_ns, end_ns

    def _send_when_due(self, due: Sequence[Iterator[int]], begin_ns: int, seconds: float) -> None:
        """Sends the frames of all vehicles when they are due; the body of a thread.

        Every frame of the schedule is offered, however late: a delay of this thread counts as latency.
        """
        upcoming = [(next(times), place) for place, times in enumerate(due)]
        heapq.heapify(upcoming)
        while upcoming[0][0] < round(seconds * 1e9):
            at_ns, place = upcoming[0]
            self._stopped.wait(max(0, begin_ns + at_ns - clock.now_ns()) / 1e9)
            self.vehicles[place].offer(begin_ns + at_ns)
            heapq.heapreplace(upcoming, (next(due[place]), place))

    def _keep_windows_full(self) -> None:
        """Sends frames whenever a window has room; the body of a thread."""
        for vehicle in self.vehicles:
            vehicle.fill()
        while not self._stopped.is_set():
            try:
                self._room.get(timeout=_POLL_S).fill()
            except queue.Empty:
                continue

    def _receive(self) -> None:
        """Processes the replies of all vehicles; the body of a thread."""
        checked_ns = clock.now_ns()
        while not self._finished.is_set():
            try:
                vehicle, reply = self._shared.replies.get(timeout=_POLL_S)
            except queue.Empty:
                processed_ns = clock.now_ns()
            else:
                vehicle.receiver.process(reply)
                processed_ns = reply.returned_ns
            if processed_ns - checked_ns > _POLL_S * 1e9:
                checked_ns = processed_ns
                for each in self.vehicles:
                    each.ledger.close_timed_out(processed_ns)

    def _retry(self) -> None:
        """Sends the retries of all vehicles; the body of a thread."""
        workers = self.vehicles[0].transport.workers
        last_failure_ns = workers.last_failure_ns()
        while not self._finished.is_set():
            wait_s = min([_RETRY_INTERVAL_S, *(vehicle.retry_due() for vehicle in self.vehicles)])
            last_failure_ns = workers.last_failure_ns(after_ns=last_failure_ns, timeout_s=wait_s)

    def _abort(self) -> None:
        self._stopped.set()
        self._finished.set()
