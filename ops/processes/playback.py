"""Plays a bag through a vehicle node, and feeds the same frames directly to a model."""

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.sources.opening import open_source
from ops.processes.child import BenchError
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Frame, Pixels
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.inference.model import Model
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId
from shared.runlog.latency_log import WITH_RESULT, read_rows
from shared.runlog.latency_table import PARTS

TOTAL = "total"


WARM_UP_FRAMES = 2  # Frames at the start of a round that are not counted, until connections and caches have settled.


@dataclass(frozen=True, slots=True)
class PlaybackSettings:
    """The frames of one round and how a vehicle encodes them."""

    bag: Path
    models: Path
    model: str
    codec: str = "jpeg"
    quality: int = 85
    frames: int = 20
    resize: Resize | None = None  # None: as the model card says.
    resize_at: str = "edge"  # Or "cloud", as `skylane edge play --resize-at`.


def encoded_frames(settings: PlaybackSettings, model: Model) -> list[FrameMessage]:
    """Returns the bag's frames as the vehicle sends them.

    Raises:
        BenchError: the bag has no readable frame.
    """
    keys = {"codec", "quality", "resize", "resize_at"}
    config = EdgeConfig.model_validate({key: getattr(settings, key) for key in keys})
    source = open_source(str(settings.bag))
    messages = []
    for frame in islice((item for item in source.frames() if isinstance(item, Frame)), settings.frames):
        journey = FrameRecord(FrameId("bench", "bench", "bench", frame.index), frame.camera, frame.index, 0, 0, 0, {})
        messages.append(prepare(frame, journey, model.card, config))
    source.close()
    if not messages:
        raise BenchError(f"{settings.bag} has no readable frame: make a bag with 'skylane bag make'")
    return messages


def model_inputs(settings: PlaybackSettings, model: Model) -> list[Pixels]:
    """Returns the bag's frames as the worker's decoder passes them to the engine: H×W×3 uint8."""
    return [_decode(message, model.card) for message in encoded_frames(settings, model)]


def _decode(message: FrameMessage, card: ModelCard) -> Pixels:
    image = image_codecs.decode(message.data, message.codec, message.layout, message.shape, ImageLimits(), card.layout)
    has_input_size = message.shape[:2] == (card.height, card.width)
    return image if has_input_size else geometry.apply(image, message.geometry)


def inference_ms(model: Model, images: Sequence[Pixels], frames: int) -> list[float]:
    """Calls the model directly with one image at a time; returns milliseconds by call, without the warm-up."""
    durations_ms = []
    for number in range(frames + WARM_UP_FRAMES):
        image = np.asarray(images[number % len(images)], np.uint8)[None]
        begin_ns = time.perf_counter_ns()
        model.predict(image)
        durations_ms.append((time.perf_counter_ns() - begin_ns) / 1e6)
    return durations_ms[WARM_UP_FRAMES:]


def inference_hz(model: Model, images: Sequence[Pixels], frames: int) -> float:
    """Frames per second of direct calls, from one thread per model instance, each with `frames` frames."""
    with ThreadPoolExecutor(model.instances) as threads:
        loops = [threads.submit(inference_ms, model, images, frames) for _ in range(model.instances)]
        durations_ms = [each for loop in loops for each in loop.result()]
    return 1e3 * model.instances / float(np.mean(durations_ms))


class BareEngine:
    """The rate of direct calls between the rounds of a load on a worker."""

    def __init__(self, model: Model, images: Sequence[Pixels], frames: int) -> None:
        """Measures the rate before the first round, as `inference_hz` does."""
        self._measure = partial(inference_hz, model, images, frames)
        self.hz = self._measure()  # The latest rate.

    def round_hz(self) -> float:
        """Measures again; returns the mean of the rates before and after the round, which reduces drift of the machine."""
        before_hz, self.hz = self.hz, self._measure()
        return (before_hz + self.hz) / 2


def play(
    settings: PlaybackSettings,
    broker: str | None,
    folder: Path,
    *,
    window: int = 1,
    sinks: Sequence[str] = (),
    flags: Sequence[str] = (),
) -> list[dict[str, str]]:
    """Runs the vehicle node in a child process; returns the rows of its log, without the warm-up.

    `broker`: URL, or None if `flags` contain another address. `window`: maximum number of unanswered frames. `flags`: further
    flags of `skylane edge play`.

    Raises:
        BenchError: the vehicle node failed, or a frame was not answered.
    """
    options = {
        **({} if broker is None else {"--broker": broker}),
        "--model": settings.model,
        "--codec": settings.codec,
        "--quality": settings.quality,
        "--window": window,
        "--frames": settings.frames + WARM_UP_FRAMES,
        "--out": folder,
    }
    command = [sys.executable, "-P", "-m", "skylane", "edge", "play", str(settings.bag), "--closed-loop", "--loop"]
    command += [str(word) for option in options.items() for word in option]
    command += [word for sink in sinks for word in ("--sink", sink)] if sinks else ["--no-sinks"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"the vehicle node failed: {done.stderr.strip() or done.stdout.strip()}")
    rows = list(read_rows(folder))
    failed = [row for row in rows if row["outcome"] not in WITH_RESULT]
    if failed:
        raise BenchError(f"{len(failed)} of {len(rows)} frames got no result: {failed[0]['reason']}")
    return rows[WARM_UP_FRAMES:]


def play_twice(
    settings: PlaybackSettings, broker: str, folder: Path, window: int, *, flags: Sequence[str] = ()
) -> tuple[list[dict[str, str]], float]:
    """Plays with one frame in flight, then with `window`; returns the rows of the first run and the rate of the second.

    Raises:
        BenchError: as `play`.
    """
    rows = play(settings, broker, folder.with_name(f"{folder.name}-latency"), flags=flags)
    crowded = play(settings, broker, folder.with_name(f"{folder.name}-throughput"), window=window, flags=flags)
    return rows, answered_hz(crowded)


def answered_hz(rows: Sequence[Mapping[str, str]]) -> float:
    """Frames with a result per second, from the first result to the last."""
    arrived_ns = sorted(int(row["t_due_ns"]) + round(float(row["total_ms"]) * 1e6) for row in rows)
    return (len(arrived_ns) - 1) * 1e9 / (arrived_ns[-1] - arrived_ns[0])


def frame_parts(row: Mapping[str, str]) -> dict[str, float]:
    """The durations of one frame by part, in milliseconds, and its `bytes_up` and `bytes_down`."""
    times = {str(part): float(row[f"{part}_ms"]) for part in (*PARTS, TOTAL)}
    return {**times, "bytes_up": float(row["bytes_up"]), "bytes_down": float(row["bytes_down"])}
