"""Training and validation frames of the synthetic drive, seen as the vehicle's preprocessing would see them."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt

from modelling.training.frame_store import FrameStore
from rosbag_tools.drive.scene import Drive, SceneFrame
from rosbag_tools.drive.sensor import Sensor
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, apply, plan

HEIGHT, WIDTH = 608, 968  # Half the sensor's.
HELD_OUT_WEATHER = "overcast"  # No training frame has it: what a model reaches in it is what it reaches in new light.
TRAINING_WEATHERS = ("clear", "dusk", "fog", "rain")
FIRST_VALIDATION_SEED = 900_000  # Training seeds stay below.

_SECONDS_APART = 7.0  # Far enough that the street has changed.


@dataclass(frozen=True, slots=True)
class TrainingView:
    """One frame of one drive."""

    seed: int
    weather: str
    time_s: float


def training_views(
    count: int, views_a_drive: int = 4, weathers: tuple[str, ...] = TRAINING_WEATHERS
) -> list[TrainingView]:
    """`count` views of as many drives as that takes, the weathers in turn."""
    return _views(count, views_a_drive, 1, weathers)


def validation_views(count: int, weathers: tuple[str, ...], views_a_drive: int = 2) -> list[TrainingView]:
    """`count` views of drives that no training frame comes from."""
    return _views(count, views_a_drive, FIRST_VALIDATION_SEED, weathers)


@contextmanager
def rendering(views: Sequence[TrainingView], folder: Path, processes: int = 2) -> Iterator["Rendering"]:
    """Render the views into a frame store in `folder`, in processes of their own, while the caller goes on."""
    store = FrameStore.create(folder, len(views), HEIGHT, WIDTH)
    # Spawned, not forked: a fork would carry TensorFlow's threads' locks along.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(_render, folder, index, view) for index, view in enumerate(views)]
        try:
            yield Rendering(store, jobs)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class Rendering:
    """A frame store that is being filled."""

    store: FrameStore
    jobs: list["Future[None]"]

    def wait(self, count: int) -> None:
        """Until the first `count` views are rendered; raises what rendering one of them raised."""
        for job in self.jobs[:count]:
            job.result()


def generator(view: TrainingView) -> Random:
    """What draws all that chance decides about a view's picture: the same view gives the same bytes."""
    return Random(f"training/{view.seed}/{view.time_s}")


def seen(view: TrainingView, height: int, width: int, rng: Random) -> tuple[SceneFrame, npt.NDArray[np.uint8]]:
    """The true scene of a view, and its picture height×width×3 RGB as the vehicle's preprocessing gives it to a model.

    `rng` draws the camera's noise and the demosaicing.
    """
    drive, sensor = _drive(view.seed, view.weather)
    frame = drive.render(view.time_s)
    mosaic = sensor.capture(frame.rgb, rng.randrange(10_000))
    method = rng.choice(("binning", "binning", "bilinear", "edge-aware"))
    picture = to_colour(mosaic, Layout.BAYER_RGGB8, Layout.RGB8, method)
    rows, columns = mosaic.shape
    return frame, apply(picture, plan(Resize.CROP, rows, columns, height, width))


def _render(folder: Path, index: int, view: TrainingView) -> None:
    rng = generator(view)
    frame, picture = seen(view, HEIGHT, WIDTH, rng)
    # One of the four pixels that a smaller one stands for, at random: always the same would shift all edges by a half.
    row, column = rng.randrange(2), rng.randrange(2)
    FrameStore.open(folder).put(index, picture, frame.class_ids[row::2, column::2])


@lru_cache(maxsize=4)
def _drive(seed: int, weather: str) -> tuple[Drive, Sensor]:
    """A drive and its camera; cameras differ in noise, vignetting and drift."""
    rng = Random(f"camera/{seed}")
    sensor = Sensor(
        seed,
        Layout.BAYER_RGGB8,
        noise=rng.uniform(0.6, 1.4),
        vignetting=rng.uniform(0.1, 0.35),
        drift=rng.uniform(0.04, 0.12),
    )
    return Drive(seed, weather=weather), sensor


def _views(count: int, views_a_drive: int, first_seed: int, weathers: tuple[str, ...]) -> list[TrainingView]:
    views = []
    for index in range(count):
        drive, place = divmod(index, views_a_drive)
        seed = first_seed + drive
        # The offset by seed keeps one weather's drives from always being seen at the same times.
        views.append(TrainingView(seed, weathers[drive % len(weathers)], place * _SECONDS_APART + seed % 13 * 0.5))
    return views
