"""Clients at the doors of one worker, in threads of one light process: pictures encoded before, every answer compared."""

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
from shared.messages import results
from shared.messages.frame import FrameMessage, Status
from shared.messages.model_card import Task
from shared.messages.topics import FrameId
from shared.runtime.threads import ThreadGroup
from shared.stages import Stage, Stamp

_CAMERA = "front"
_PATIENCE_S = 60.0  # For the answers of the last frames.
_LOST = "lost"
_UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Sample:
    """A picture as it is sent, as the worker decodes it, and what the model's direct call gives for it."""

    message: FrameMessage
    picture: npt.NDArray[np.uint8]  # H×W×3, in the model's colour order.
    mask: npt.NDArray[np.uint8]  # H×W class ids.


@dataclass(frozen=True, slots=True)
class ClientTally:
    """What became of a client's frames."""

    name: str
    door: str
    answered_ns: tuple[int, ...]  # When each answer came.
    inferences: tuple[tuple[int, int], ...]  # When each was at the engine, from when to when, by the worker's clock.
    outcomes: Mapping[str, int]  # By status; `answered` among them.
    wrong_pixels: int  # Of all masks together.


@dataclass(slots=True)
class GatewayClient:
    """Keeps a window of frames unanswered at a door."""

    name: str  # The vehicle's.
    door: str
    session: str
    transport: Transport
    samples: Sequence[Sample]
    window: int
    _sequence: int = 0
    _open: dict[FrameId, Sample] = field(default_factory=dict)
    _answered_ns: list[int] = field(default_factory=list)
    _inferences: list[tuple[int, int]] = field(default_factory=list)
    _outcomes: Counter[str] = field(default_factory=Counter)
    _wrong_pixels: int = 0
    _refused: "queue.SimpleQueue[FrameId]" = field(default_factory=queue.SimpleQueue)

    def run(self, stop: threading.Event) -> None:
        """Send until told to stop, then wait for the last answers; the body of a thread."""
        while not stop.is_set():
            while len(self._open) < self.window:
                self._send()
            self._take(0.1)
        until_ns = clock.now_ns() + round(_PATIENCE_S * 1e9)
        while self._open and clock.now_ns() < until_ns:
            self._take(0.1)
        self._outcomes[_LOST] += len(self._open)

    def tally(self) -> ClientTally:
        """What became of all, once `run` is over."""
        return ClientTally(
            self.name,
            self.door,
            tuple(self._answered_ns),
            tuple(self._inferences),
            dict(self._outcomes),
            self._wrong_pixels,
        )

    def _send(self) -> None:
        self._sequence += 1
        sample = self.samples[self._sequence % len(self.samples)]
        frame_id = FrameId(self.name, _CAMERA, self.session, self._sequence)
        node, now_ns = f"edge/{self.name}/{self.session}", clock.now_ns()
        stamps = (Stamp(Stage.DUE, node, now_ns), Stamp(Stage.SENT, node, now_ns))
        message = replace(sample.message, id=frame_id, stamps=stamps)
        self._open[frame_id] = sample
        self.transport.send(message, self.transport.pack(message), lambda _: self._refused.put(frame_id))

    def _take(self, timeout_s: float) -> None:
        """Wait for an answer, and hold its mask against the direct call's."""
        while not self._refused.empty():
            if self._open.pop(self._refused.get(), None) is not None:
                self._outcomes[_UNREACHABLE] += 1
        try:
            reply = self.transport.replies.get(timeout=timeout_s)
        except queue.Empty:
            return
        if reply is None:
            return
        answer = reply.read()
        sample = self._open.pop(answer.id, None)
        if sample is None:
            return
        self._outcomes[answer.status] += 1
        if answer.status is Status.ANSWERED:
            mask = results.decode(Task.SEGMENTATION, answer.data, answer.codec, answer.shape)
            self._wrong_pixels += int(np.count_nonzero(np.asarray(mask) != sample.mask))
            self._answered_ns.append(reply.returned_ns)
            at_ns = {stamp.stage: stamp.at_ns for stamp in answer.stamps}
            self._inferences.append((at_ns[Stage.BATCHED], at_ns[Stage.INFERRED]))


def run_together(clients: Sequence[GatewayClient], seconds: float) -> tuple[int, int]:
    """Have all clients send for so long; when that began and ended, by `shared.clock`."""
    stop = threading.Event()
    threads = ThreadGroup(stop.set)
    begun_ns = clock.now_ns()
    for client in clients:
        threads.start(client.name, partial(client.run, stop))
    stop.wait(seconds)
    stop.set()
    ended_ns = clock.now_ns()
    threads.join(2 * _PATIENCE_S)
    return begun_ns, ended_ns
