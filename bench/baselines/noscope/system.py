"""Child process that reproduces the client of Distributed NoScope, which plays a bag as fast as it can.

1. The difference detector compares a frame of 50×50 pixels with the latest frame that was not reused. If the mean squared
   error is at most a threshold, that frame's answer is reused, even if it has not arrived yet.
2. The specialised network answers where it is confident.
3. Otherwise the reference network answers, on a server chosen uniformly at random. A server receives the next frame when it
   has answered the previous one; until then frames wait in the client's queue for this server.

Steps 1 and 2 run in the event loop. Without them and with one server, this is the undistributed system.
"""

import asyncio
import random
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import fmean, median
from time import perf_counter_ns
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.baselines.noscope.messages import RawImage, read_reply, write_request
from ops.processes.child import BenchError, serve
from rosbag_tools.reading.frames import BagSource
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Frame
from shared.imaging.geometry import apply, plan
from shared.imaging.opencv import cv2
from shared.inference.model import Model
from shared.inference.opening import open_local
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement
from shared.models.repository import Repository

_SMALL_SIDE = 50
_ONE_THREAD = Placement("cpu", intra_threads=1)
_LABELS = 2


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of the detector and of the specialised network; None: the step is left out."""

    gate: float | None = None  # Mean squared difference of grey levels, 0 to 255 squared.
    reuse_frames: int = 1  # Longest reuse, in frames.
    c_low: float | None = None
    c_high: float | None = None
    temperature: float = 1.0  # Divides the logits of the specialised network.


@dataclass(slots=True)
class ReferenceConnection:
    """A connection to a server, with one frame in flight."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_free: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def ask(self, request: RawImage) -> "ScoredAnswer":
        """Waits until the server is free, sends an image and returns the answer."""
        begin_ns = perf_counter_ns()
        async with self.is_free:
            sent_ns = perf_counter_ns()
            write_request(self.writer, request)
            score, inferred_ms = await read_reply(self.reader)
        round_trip_ms = (perf_counter_ns() - sent_ns) / 1e6
        return ScoredAnswer("reference", score, (sent_ns - begin_ns) / 1e6, round_trip_ms - inferred_ms, inferred_ms)


@dataclass(frozen=True, slots=True)
class ScoredAnswer:
    """The score of the second label, its origin, and what a request's time consisted of."""

    origin: str  # "reference" or "local".
    score: float
    client_queue_ms: float = 0.0
    network_ms: float = 0.0
    compute_ms: float = 0.0


class NoScope:
    """The reproduced client."""

    def __init__(
        self, *, bag: str, frames: int, models: str, model: str, local_model: str, thresholds: Mapping[str, Any]
    ) -> None:
        repository = Repository(Path(models))
        self._bag = Path(bag)
        self._frames = frames
        self._card = repository.find(model).card()
        if len(self._card.labels.names) != _LABELS:
            raise BenchError(f"{model} does not answer yes or no: choose a classifier with two labels")
        self._local = open_local(repository.find(local_model), _ONE_THREAD)
        self._local.warm_up()
        self._thresholds = Thresholds(**thresholds)

    def play(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Plays the bag once with the servers at the `ports`; `reuse`: with detector and specialised network.

        Returns the seconds, and for every frame the label id and the origin; the median times of the two steps, and the
        mean of each part of a request's latency, in milliseconds.
        """
        thresholds = self._thresholds if request["reuse"] else Thresholds()
        player = _Player(self._card, self._local, thresholds, random.Random(request["seed"]))
        return asyncio.run(player.play(self._bag, self._frames, request["ports"]))


@dataclass(frozen=True, slots=True)
class _Reference:
    """The frame whose answer may be reused."""

    index: int
    small: npt.NDArray[np.float32]
    answer: Awaitable[ScoredAnswer]


class _Player:
    """Plays a bag once."""

    def __init__(self, card: ModelCard, local: Model, thresholds: Thresholds, generator: random.Random) -> None:
        self._card = card
        self._local = local
        self._thresholds = thresholds
        self._random = generator
        self._reference: _Reference | None = None
        self._detector_ms: list[float] = []
        self._specialised_ms: list[float] = []

    async def play(self, bag: Path, frames: int, ports: Sequence[int]) -> Mapping[str, Any]:
        servers = [ReferenceConnection(*await asyncio.open_connection("127.0.0.1", port)) for port in ports]
        source = BagSource(bag)
        begin_ns = perf_counter_ns()
        answers: list[tuple[Awaitable[ScoredAnswer], bool]] = []
        try:
            for frame in islice((item for item in source.frames() if isinstance(item, Frame)), frames):
                answers.append(self._answer(frame, servers))
                await asyncio.sleep(0)  # Lets requests and replies through.
            results = [(await answer, is_reused) for answer, is_reused in answers]
        finally:
            source.close()
        seconds = (perf_counter_ns() - begin_ns) / 1e9
        for server in servers:
            server.writer.close()
        steps_ms = {"detector_ms": self._detector_ms, "specialised_ms": self._specialised_ms}
        return _record(results, seconds) | {step: median(each) for step, each in steps_ms.items() if each}

    def _answer(self, frame: Frame, servers: Sequence[ReferenceConnection]) -> tuple[Awaitable[ScoredAnswer], bool]:
        """Returns a frame's answer, which may still be on its way, and whether it is that of an earlier frame."""
        image = self._prepared(frame, self._card)
        begin_ns = perf_counter_ns()
        small = _small(image)
        reference = self._reference_near(frame, small)
        self._detector_ms.append((perf_counter_ns() - begin_ns) / 1e6)
        if reference is not None:
            return reference.answer, True
        answer = self._locally(frame)
        if answer is None:
            request = RawImage(image.shape, image.tobytes())
            answer = asyncio.ensure_future(self._random.choice(servers).ask(request))
        self._reference = _Reference(frame.index, small, answer)
        return answer, False

    def _reference_near(self, frame: Frame, small: npt.NDArray[np.float32]) -> _Reference | None:
        """Returns the frame whose answer fits this frame; None if there is none."""
        limits, reference = self._thresholds, self._reference
        if limits.gate is None or reference is None or frame.index - reference.index > limits.reuse_frames:
            return None
        return reference if np.mean((small - reference.small) ** 2) <= limits.gate else None

    def _locally(self, frame: Frame) -> asyncio.Future[ScoredAnswer] | None:
        """Returns the specialised network's answer; None if it is not confident."""
        limits = self._thresholds
        if limits.c_low is None or limits.c_high is None:
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

    def _prepared(self, frame: Frame, card: ModelCard) -> npt.NDArray[np.uint8]:
        """Converts a frame to colour, and crops and resizes it with the reference's rule to the input of a network."""
        height, width = frame.pixels.shape[:2]
        is_large = height >= 2 * card.height and width >= 2 * card.width
        colour = to_colour(frame.pixels, frame.layout, card.layout, "binning" if is_large else "bilinear")
        fitted = apply(colour, plan(self._card.resize, height, width, card.height, card.width))
        return np.ascontiguousarray(fitted, np.uint8)


def _small(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
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
        "answers": [int(answer.score > 0.5) for answer, _ in results],  # noqa: PLR2004 (the likelier label)
        "origins": ["reused" if is_reused else answer.origin for answer, is_reused in results],
        **parts,
    }


if __name__ == "__main__":
    serve(lambda **settings: NoScope(**settings).play)
