"""Reproduction of Distributed NoScope: a client that plays a bag as fast as it can, and servers; each is a child process.

1. The difference detector compares a frame of 50×50 pixels with the latest frame that was not reused. If the mean squared
   error is at most a threshold, that frame's answer is reused, even if it has not arrived yet.
2. The specialised network answers where it is confident.
3. Otherwise the reference network answers, on a server chosen uniformly at random. A server receives the next frame when it
   has answered the previous one; until then frames wait in the client's queue for this server.

Steps 1 and 2 run in the event loop. Without them and with one server, this is the undistributed system. Images cross the
link as raw pixels: "payload compression" is among the open points of the original. The servers' network is that of Skylane's
worker: it gives the same answers and takes the same fixed time.
"""

import asyncio
import random
import struct
import sys
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from ops.processes import child
from ops.processes.child import BenchError
from ops.processes.fixed_time import open_fixed_time
from rosbag_tools.reading.frames import BagSource
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame
from shared.imaging.geometry import apply, plan
from shared.imaging.opencv import cv2
from shared.inference.model import open_local
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.reuse.tuning import Tuning

_SHAPE = struct.Struct("!III")  # Height, width and channels, before the pixels.
_REPLY = struct.Struct("!dd")  # The score of the second label, and the time of the inference in milliseconds.
_SMALL_SIDE = 50
_ONE_THREAD = Placement("cpu", intra_threads=1)
_LABELS = 2

Image = npt.NDArray[np.uint8]  # H×W×3.


async def serve_reference(models: str, model: str, answers: Sequence[str], inference_ms: float) -> None:
    """Answers images, one after the other, until the parent closes the standard input; sends it the port."""
    with open_fixed_time(Path(models), model, [Path(file) for file in answers], inference_ms) as opened:

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError, ConnectionError):  # The client closed the connection.
                while True:
                    shape = _SHAPE.unpack(await reader.readexactly(_SHAPE.size))
                    image = np.frombuffer(await reader.readexactly(prod(shape)), np.uint8).reshape(shape)
                    begin_ns = perf_counter_ns()
                    scores = opened.infer(image[np.newaxis])["scores"][0]  # Blocks the server, as the original's did.
                    writer.write(_REPLY.pack(float(scores[1]), (perf_counter_ns() - begin_ns) / 1e6))
                    await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, ended.set)
        async with server:
            child.reply({"port": server.sockets[0].getsockname()[1]})
            await ended.wait()


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """The score of the second label, its origin, and what a request's time consisted of."""

    origin: str  # "reference" or "local".
    score: float
    client_queue_ms: float = 0.0
    network_ms: float = 0.0
    compute_ms: float = 0.0


@dataclass(slots=True)
class ReferenceConnection:
    """A connection to a server, with one frame in flight."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_free: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, image: Image) -> ScoredAnswer:
        """Waits until the server is free, sends an image and returns the answer."""
        data = image.tobytes()
        begin_ns = perf_counter_ns()
        async with self.is_free:
            sent_ns = perf_counter_ns()
            self.writer.write(_SHAPE.pack(*image.shape))
            self.writer.write(data)
            score, inferred_ms = _REPLY.unpack(await self.reader.readexactly(_REPLY.size))
        round_trip_ms = (perf_counter_ns() - sent_ns) / 1e6
        return ScoredAnswer("reference", score, (sent_ns - begin_ns) / 1e6, round_trip_ms - inferred_ms, inferred_ms)


@dataclass(frozen=True, slots=True)
class _Reference:
    """The frame whose answer may be reused."""

    index: int
    small: npt.NDArray[np.float32]
    answer: Awaitable[ScoredAnswer]


class NoScope:
    """The reproduced client, which plays a bag once."""

    def __init__(
        self, *, bag: str, frames: int, models: str, model: str, local_model: str, tuning: Mapping[str, Any]
    ) -> None:
        """`tuning`: the thresholds of the detector and of the specialised network."""
        repository = Repository(Path(models))
        self._bag = Path(bag)
        self._frames = frames
        self._card = repository.find(model).card()
        if len(self._card.labels.names) != _LABELS:
            raise BenchError(f"{model} does not answer yes or no: choose a classifier with two labels")
        self._local = open_local(repository.find(local_model), _ONE_THREAD)
        self._local.warm_up()
        self._tuning = Tuning.model_validate(tuning)
        self._reference: _Reference | None = None
        self._detector_ms: list[float] = []
        self._specialised_ms: list[float] = []

    def play(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Plays the bag with the servers at the `ports`; `reuse`: with detector and specialised network.

        Returns the seconds, and for every frame the label id and the origin; the median times of the two steps, and the
        mean of each part of a request's latency, in milliseconds.
        """
        return asyncio.run(self._play(request["ports"], random.Random(request["seed"]), reuse=request["reuse"]))

    async def _play(self, ports: Sequence[int], generator: random.Random, *, reuse: bool) -> Mapping[str, Any]:
        servers = [ReferenceConnection(*await asyncio.open_connection("127.0.0.1", port)) for port in ports]
        source = BagSource(self._bag)
        begin_ns = perf_counter_ns()
        answers: list[tuple[Awaitable[ScoredAnswer], bool]] = []
        try:
            for frame in islice((item for item in source.frames() if isinstance(item, Frame)), self._frames):
                answers.append(self._answer(frame, servers, generator, reuse=reuse))
                await asyncio.sleep(0)  # Lets requests and replies through.
            results = [(await answer, is_reused) for answer, is_reused in answers]
        finally:
            source.close()
        seconds = (perf_counter_ns() - begin_ns) / 1e9
        for server in servers:
            server.writer.close()
        steps_ms = {"detector_ms": self._detector_ms, "specialised_ms": self._specialised_ms}
        return _record(results, seconds) | {step: median(each) for step, each in steps_ms.items() if each}

    def _answer(
        self, frame: Frame, servers: Sequence[ReferenceConnection], generator: random.Random, *, reuse: bool
    ) -> tuple[Awaitable[ScoredAnswer], bool]:
        """Returns a frame's answer, which may still be on its way, and whether it is that of an earlier frame."""
        image = self._prepared(frame, self._card)
        begin_ns = perf_counter_ns()
        small = _small(image)
        reference = self._reference_near(frame, small) if reuse else None
        self._detector_ms.append((perf_counter_ns() - begin_ns) / 1e6)
        if reference is not None:
            return reference.answer, True
        answer = self._locally(frame) if reuse else None
        if answer is None:
            answer = asyncio.ensure_future(generator.choice(servers).ask(image))
        self._reference = _Reference(frame.index, small, answer)
        return answer, False

    def _reference_near(self, frame: Frame, small: npt.NDArray[np.float32]) -> _Reference | None:
        """Returns the frame whose answer fits this frame; None if there is none."""
        gate, reference = self._tuning.gate, self._reference
        if gate is None or gate.mse is None or reference is None or frame.index - reference.index > gate.reuse_frames:
            return None
        return reference if np.mean((small - reference.small) ** 2) <= gate.mse else None

    def _locally(self, frame: Frame) -> asyncio.Future[ScoredAnswer] | None:
        """Returns the specialised network's answer; None if it is not confident."""
        limits = self._tuning.local
        if limits is None:
            return None
        begin_ns = perf_counter_ns()
        image = self._prepared(frame, self._local.card)
        score = _calibrated(float(self._local.infer(image[np.newaxis])["scores"][0, 1]), limits.temperature)
        self._specialised_ms.append((perf_counter_ns() - begin_ns) / 1e6)
        if limits.c_low < score < limits.c_high:
            return None
        found: asyncio.Future[ScoredAnswer] = asyncio.get_running_loop().create_future()
        found.set_result(ScoredAnswer("local", score))
        return found

    def _prepared(self, frame: Frame, card: ModelCard) -> Image:
        """Converts a frame to colour, and crops and resizes it with the reference's rule to the input of a network."""
        height, width = frame.pixels.shape[:2]
        is_large = height >= 2 * card.height and width >= 2 * card.width
        colour = to_colour(frame.pixels, frame.layout, card.layout, "binning" if is_large else "bilinear")
        fitted = apply(colour, plan(self._card.resize, height, width, card.height, card.width))
        return np.ascontiguousarray(fitted, np.uint8)


def _small(image: Image) -> npt.NDArray[np.float32]:
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    return np.asarray(cv2.resize(grey, (_SMALL_SIDE, _SMALL_SIDE), interpolation=cv2.INTER_AREA), np.float32)


def _calibrated(score: float, temperature: float) -> float:
    """Divides the logit of a probability by the temperature."""
    clipped = min(max(score, 1e-7), 1 - 1e-7)
    odds: float = (clipped / (1 - clipped)) ** (1 / temperature)
    return odds / (1 + odds)


def _record(results: Sequence[tuple[ScoredAnswer, bool]], seconds: float) -> dict[str, Any]:
    requests = [answer for answer, is_reused in results if answer.origin == "reference" and not is_reused]
    parts = {}
    if requests:
        names = ("network_ms", "client_queue_ms", "compute_ms")
        parts = {name: fmean(getattr(each, name) for each in requests) for name in names}
        parts["server_queue_ms"] = 0.0  # A server never has two frames.
    return {
        "seconds": seconds,
        "answers": [int(answer.score > 0.5) for answer, _ in results],  # The likelier label
        "origins": ["reused" if is_reused else answer.origin for answer, is_reused in results],
        **parts,
    }


if __name__ == "__main__":
    if "answers" in (given := child.settings()):
        asyncio.run(serve_reference(**given))
    else:
        child.serve(lambda **settings: NoScope(**settings).play)
