"""Clients of one worker's endpoints, in threads of one process: images encoded beforehand, every reply compared."""

import queue
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edge.transports.transport import Transport
from shared import clock
from shared.messages.frame import FrameMessage, Status
from shared.messages.topics import FrameId
from shared.runtime.threads import ThreadGroup
from shared.stages import Stage, Stamp
from shared.tasks.task import DEFAULT_TASK, task_named

_CAMERA = "front"
_LAST_REPLIES_TIMEOUT_S = 60.0
_POLL_S = 0.1
_LOST = "lost"
_UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class ReferenceImage:
    """An image as it is sent, as the worker decodes it, and the model's mask for it."""

    message: FrameMessage
    pixels: npt.NDArray[np.uint8]  # H×W×3, in the model's colour order.
    mask: npt.NDArray[np.uint8]  # H×W class ids, from a direct call.


@dataclass(frozen=True, slots=True)
class ClientTally:
    """The outcomes of one client's frames."""

    name: str
    transport: str
    answered_ns: tuple[int, ...]  # Arrival time of each mask.
    inferences: tuple[tuple[int, int], ...]  # Begin and end of each inference by the worker's clock, ns.
    outcomes: Mapping[str, int]  # Frames by status, including `answered`.
    wrong_pixels: int  # Sum over all masks.


@dataclass(slots=True)
class GatewayClient:
    """Keeps a window of frames unanswered at one endpoint."""

    name: str  # Name of the vehicle.
    transport_name: str
    session: str
    transport: Transport
    images: Sequence[ReferenceImage]
    window: int
    _sequence: int = 0
    _open: dict[FrameId, ReferenceImage] = field(default_factory=dict)
    _answered_ns: list[int] = field(default_factory=list)
    _inferences: list[tuple[int, int]] = field(default_factory=list)
    _outcomes: Counter[str] = field(default_factory=Counter)
    _wrong_pixels: int = 0
    _refused: "queue.SimpleQueue[FrameId]" = field(default_factory=queue.SimpleQueue)

    def run(self, stop: threading.Event) -> None:
        """Sends until `stop` is set, then waits for the last replies; the body of a thread."""
        while not stop.is_set():
            while len(self._open) < self.window:
                self._send()
            self._receive()
        deadline_ns = clock.now_ns() + round(_LAST_REPLIES_TIMEOUT_S * 1e9)
        while self._open and clock.now_ns() < deadline_ns:
            self._receive()
        self._outcomes[_LOST] += len(self._open)

    def tally(self) -> ClientTally:
        """Returns the outcomes after `run` has ended."""
        return ClientTally(
            self.name,
            self.transport_name,
            tuple(self._answered_ns),
            tuple(self._inferences),
            dict(self._outcomes),
            self._wrong_pixels,
        )

    def _send(self) -> None:
        self._sequence += 1
        image = self.images[self._sequence % len(self.images)]
        frame_id = FrameId(self.name, _CAMERA, self.session, self._sequence)
        node, now_ns = f"edge/{self.name}/{self.session}", clock.now_ns()
        stamps = (Stamp(Stage.DUE, node, now_ns), Stamp(Stage.SENT, node, now_ns))
        message = replace(image.message, id=frame_id, stamps=stamps)
        self._open[frame_id] = image
        self.transport.send(message, self.transport.pack(message), lambda _: self._refused.put(frame_id))

    def _receive(self) -> None:
        """Waits shortly for a reply and compares its mask with the expected one."""
        while not self._refused.empty():
            if self._open.pop(self._refused.get(), None) is not None:
                self._outcomes[_UNREACHABLE] += 1
        try:
            reply = self.transport.replies.get(timeout=_POLL_S)
        except queue.Empty:
            return
        if reply is None:
            return
        result = reply.read()
        image = self._open.pop(result.id, None)
        if image is None:
            return
        self._outcomes[result.status] += 1
        if result.status is Status.ANSWERED:
            mask = task_named(DEFAULT_TASK).decode(result.data, result.codec, result.shape)
            self._wrong_pixels += int(np.count_nonzero(np.asarray(mask) != image.mask))
            self._answered_ns.append(reply.returned_ns)
            times_ns = {stamp.stage: stamp.at_ns for stamp in result.stamps}
            self._inferences.append((times_ns[Stage.BATCHED], times_ns[Stage.INFERRED]))


def run_together(clients: Sequence[GatewayClient], seconds: float) -> tuple[int, int]:
    """Runs all clients for a time; returns its begin and end by `shared.clock`."""
    stop = threading.Event()
    threads = ThreadGroup(stop.set)
    begin_ns = clock.now_ns()
    for client in clients:
        threads.start(client.name, partial(client.run, stop))
    stop.wait(seconds)
    stop.set()
    end_ns = clock.now_ns()
    threads.join(2 * _LAST_REPLIES_TIMEOUT_S)
    return begin_ns, end_ns
