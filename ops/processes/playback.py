"""The frames of a bag as a vehicle encodes them, and the same frames directly into a model."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import prepare
from edge.sources.source import open_source
from ops.processes.child import BenchError
from shared import clock
from shared.imaging import geometry, image_codecs
from shared.imaging.frames import Frame, Pixels
from shared.imaging.geometry import Resize
from shared.imaging.image_codecs import ImageLimits
from shared.inference.model import Model
from shared.messages.frame import FrameMessage
from shared.messages.model_card import ModelCard
from shared.messages.topics import FrameId

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


def first_frames(source: Path, count: int) -> Iterator[Frame]:
    """Yields the first readable frames of a source.

    Raises:
        BenchError: it has none.
    """
    frame: Frame | None = None
    with closing(open_source(str(source))) as opened:
        for frame in islice((item for item in opened.frames() if isinstance(item, Frame)), count):
            yield frame
    if frame is None:
        raise BenchError(f"{source} has no readable frame: make a bag with 'skylane bag make'")


def encoded_frames(settings: PlaybackSettings, model: Model) -> list[FrameMessage]:
    """Returns the bag's frames as the vehicle sends them.

    Raises:
        BenchError: the bag has no readable frame.
    """
    keys = {"codec", "quality", "resize", "resize_at"}
    config = EdgeConfig.model_validate({key: getattr(settings, key) for key in keys})
    messages = []
    for frame in first_frames(settings.bag, settings.frames):
        journey = FrameRecord.of(FrameId("bench", "bench", "bench", frame.index), frame.camera)
        messages.append(prepare(frame, journey, model.card, config))
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
        begin_ns = clock.now_ns()
        model.predict(image)
        durations_ms.append((clock.now_ns() - begin_ns) / 1e6)
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
