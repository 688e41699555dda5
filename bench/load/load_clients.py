"""Vehicles of a load test in one process: frames are encoded beforehand, outcomes counted, and masks compared."""

import heapq
import queue
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from uuid import uuid4

import numpy as np
from msgspec.structs import replace

from edge.transports.transport import Transport
from ops.processes.gateway_deployment import GatewayDeployment
from shared import clock
from shared.imaging.frames import Pixels
from shared.messages.deadline import Deadline
from shared.messages.frame import FrameMessage, Status
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome
from shared.runtime.threads import ThreadGroup
from shared.stages import Stage, Stamp
from shared.task import DEFAULT_TASK, task_named

_CAMERA = "front"
_GRACE_S = 2.0  # Time after the deadline until a frame counts as lost, as in the vehicle node.
_LOST_AFTER_S = 60.0  # Without a deadline.
_CONNECT_TIMEOUT_S = 30.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class LoadImage:
    """An image as it is sent, and the model's mask for it: H×W class ids from a direct call, or None."""

    message: FrameMessage
    mask: Pixels | None = None


@dataclass(slots=True)
class ClientTally:
    """The outcomes of one client's frames; they sum to `offered`."""

    name: str
    transport: str
    offered: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)  # By `shared.runlog.latency_log.Outcome`.
    answered_ns: list[int] = field(default_factory=list)  # Arrival time of each mask that came in time.
    latencies_ms: list[float] = field(default_factory=list)  # Time from due to arrival of the same masks.
    inferences: list[tuple[int, int]] = field(default_factory=list)  # Begin and end of each, ns by the worker's clock.
    wrong_pixels: int = 0  # Sum over all masks.


@dataclass(slots=True)
class LoadClient:
    """One vehicle at one endpoint; only one thread uses it."""

    tally: ClientTally
    session: str
    transport: Transport
    images: Sequence[LoadImage]  # Sent in a loop.
    window: int  # Unanswered frames.
    deadline_ms: float | None = None  # Time from due to the mask.
    _open: dict[FrameId, tuple[LoadImage, int]] = field(
        default_factory=dict
    )  # Unanswered frames, with their due times.
    _undelivered: "queue.SimpleQueue[FrameId]" = field(default_factory=queue.SimpleQueue)

    def offer(self, due_ns: int) -> None:
        """Sends a frame that is due, or drops it if the window is full."""
        while self._receive(0):
            pass
        if len(self._open) < self.window:
            self._send(due_ns)
        else:
            self.tally.offered += 1
            self.tally.outcomes[Outcome.DROPPED] += 1

    def keep_window_full(self, stop: threading.Event) -> None:
        """Sends frames until `stop` is set, then waits for the last replies; the body of a thread."""
        while not stop.is_set():
            while len(self._open) < self.window:
                self._send(clock.now_ns())
            self._receive(_POLL_S)
        self.finish()

    def finish(self) -> None:
        """Waits until every frame is answered or lost."""
        while self._open:
            self._receive(_POLL_S)

    def _send(self, due_ns: int) -> None:
        self.tally.offered += 1
        image = self.images[self.tally.offered % len(self.images)]
        frame_id = FrameId(self.tally.name, _CAMERA, self.session, self.tally.offered)
        node = f"edge/{self.tally.name}/{self.session}"
        stamps = (Stamp(Stage.DUE, node, due_ns), Stamp(Stage.SENT, node, clock.now_ns()))
        deadline = Deadline.NEVER if self.deadline_ms is None else Deadline(due_ns + round(self.deadline_ms * 1e6))
        message = replace(image.message, id=frame_id, stamps=stamps, deadline=deadline)
        self._open[frame_id] = image, due_ns
        self.transport.send(message, self.transport.pack(message), lambda _: self._undelivered.put(frame_id))

    def _receive(self, timeout_s: float) -> bool:
        """Counts the next reply, and frames that nobody received or answered; False if there was no reply in time."""
        while not self._undelivered.empty():
            self._close(self._undelivered.get(), Outcome.DROPPED)
        limit_s = _LOST_AFTER_S if self.deadline_ms is None else self.deadline_ms / 1e3 + _GRACE_S
        lost_before_ns = clock.now_ns() - round(limit_s * 1e9)
        for frame_id in [frame_id for frame_id, (_, due_ns) in self._open.items() if due_ns < lost_before_ns]:
            self._close(frame_id, Outcome.LOST)
        try:
            reply = self.transport.replies.get(block=timeout_s > 0, timeout=timeout_s)
        except queue.Empty:
            return False
        if reply is None:
            return True
        result = reply.read()
        image, due_ns = self._open.get(result.id, (None, 0))
        if image is None:
            return True  # The frame was already counted as lost.
        took_ms = (reply.returned_ns - due_ns) / 1e6
        if result.status is Status.ANSWERED and self.deadline_ms is not None and took_ms > self.deadline_ms:
            self._close(result.id, Outcome.EXPIRED)
            return True
        self._close(result.id, result.status)
        if result.status is Status.ANSWERED:
            self.tally.answered_ns.append(reply.returned_ns)
            self.tally.latencies_ms.append(took_ms)
            times_ns = {stamp.stage: stamp.at_ns for stamp in result.stamps}
            self.tally.inferences.append((times_ns[Stage.BATCHED], times_ns[Stage.INFERRED]))
            if image.mask is not None:
                mask = task_named(DEFAULT_TASK).decode(result.data, result.codec, result.shape)
                self.tally.wrong_pixels += int(np.count_nonzero(np.asarray(mask) != image.mask))
        return True

    def _close(self, frame_id: FrameId, outcome: str) -> None:
        if self._open.pop(frame_id, None) is not None:
            self.tally.outcomes[outcome] += 1


def connect_clients(
    stack: ExitStack,
    deployment: GatewayDeployment,
    transports: Sequence[str],
    images: Sequence[LoadImage],
    window: int,
    *,
    deadline_ms: float | None = None,
) -> list[LoadClient]:
    """Connects a client for each of the transports until the stack is closed.

    Raises:
        SkylaneError: an endpoint cannot be reached.
    """
    clients = []
    for number, name in enumerate(transports, start=1):
        vehicle, session = f"client-{number}", uuid4().hex[:12]
        transport = deployment.transport(name, vehicle, session, images[0].message.model, window=window)
        stack.enter_context(closing(transport))
        transport.wait_for_card(_CONNECT_TIMEOUT_S)
        clients.append(LoadClient(ClientTally(vehicle, name), session, transport, images, window, deadline_ms))
    return clients


def run_closed_loop(clients: Sequence[LoadClient], seconds: float) -> tuple[int, int]:
    """Keeps the windows of all clients full for a time; returns its begin and end by `shared.clock`."""
    stop = threading.Event()
    threads = ThreadGroup(stop.set)
    begin_ns = clock.now_ns()
    for client in clients:
        threads.start(client.tally.name, partial(client.keep_window_full, stop))
    stop.wait(seconds)
    stop.set()
    end_ns = clock.now_ns()
    threads.join(2 * _LOST_AFTER_S)
    return begin_ns, end_ns


def run_open_loop(clients: Sequence[LoadClient], rates_hz: Sequence[float], seconds: float) -> tuple[int, int]:
    """Offers frames at each client's rate for a time, and waits for the last replies; returns the begin and end of the offer.

    Frames are due by a schedule that does not depend on earlier replies, and their latency counts from then. The clients'
    schedules are spread evenly, so that clients with equal rates take turns.
    """
    begin_ns = clock.now_ns()
    end_ns = begin_ns + round(seconds * 1e9)
    due = [
        (begin_ns + round(1e9 * place / len(clients) / rate_hz), place)
        for place, rate_hz in enumerate(rates_hz)
        if rate_hz > 0
    ]
    heapq.heapify(due)
    pause = threading.Event()
    while due and due[0][0] < end_ns:
        due_ns, place = due[0]
        if (wait_ns := due_ns - clock.now_ns()) > 0:
            pause.wait(wait_ns / 1e9)
        clients[place].offer(due_ns)
        heapq.heapreplace(due, (due_ns + round(1e9 / rates_hz[place]), place))
    for client in clients:
        client.finish()
    return begin_ns, end_ns
