"""Renders training and validation frames of the synthetic drive, preprocessed as on a vehicle, into folders of arrays.

The arrays are memory-mapped and filled by several processes; loaders prepare batches from them in a thread.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from modelling.recipes import OBJECTS
from rosbag_tools.drive.scene import WEATHERS, Box, Drive, SceneFrame
from rosbag_tools.drive.sensor import Sensor
from shared.imaging.bayer import to_colour
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, apply, plan

_AHEAD = 4  # Batches that are prepared in advance.

View = TypeVar("View")


@dataclass(frozen=True, slots=True)
class ArrayStore:
    """The base of records whose fields are arrays in one folder, each in a file of its name."""

    pictures: npt.NDArray[np.uint8]  # N×H×W×3 RGB.

    @classmethod
    def create(cls, folder: Path, **arrays: tuple[type[np.generic], tuple[int, ...]]) -> Self:
        """Creates a store of zeros in `folder`, replacing an existing one; `arrays` are dtype and shape by field."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, (dtype, shape) in arrays.items():
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the store in `folder` for reading and writing."""
        arrays: dict[str, Any] = {
            field.name: np.load(folder / f"{field.name}.npy", mmap_mode="r+") for field in fields(cls)
        }
        return cls(**arrays)


@dataclass(frozen=True, slots=True)
class FrameStore(ArrayStore):
    """Images and their true class ids."""

    labels: npt.NDArray[np.uint8]  # N×H×W class ids.


def render_all(
    render: Callable[[Path, int, View], None], folder: Path, views: Sequence[View], processes: int = 2
) -> None:
    """Calls `render(folder, index, view)` for every view, in several processes."""
    # A forked process would inherit locks held by TensorFlow's threads.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for _ in pool.map(partial(render, folder), range(len(views)), views, chunksize=6):
            pass  # Raises the error of a failed view.


Store = TypeVar("Store", bound=ArrayStore)
T = TypeVar("T")


class BatchLoader(ABC, Generic[Store, T]):
    """A context manager whose `next` returns an endless series of batches, which a thread prepares in advance.

    Args:
        store: The images.
        batch: Images per batch.
        height: Height of an image of a batch in pixels.
        width: Width of an image of a batch in pixels.
        seed: Seed of the random choices.
    """

    def __init__(self, store: Store, *, batch: int, height: int, width: int, seed: int) -> None:
        self._store = store
        self._batch = batch
        self._height = height
        self._width = width
        self._rng = np.random.default_rng(seed)
        self._pool = ThreadPoolExecutor(1, "batches")
        self._waiting: deque[Future[T]] = deque()

    def __enter__(self) -> Self:
        self._waiting.extend(self._pool.submit(self._next) for _ in range(_AHEAD))
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __next__(self) -> T:
        self._waiting.append(self._pool.submit(self._next))
        return self._waiting.popleft().result()

    @abstractmethod
    def _next(self) -> T:
        """Prepares a batch; runs in the loader's thread."""


SIZES = ((608, 968), (304, 484))  # Height and width: a half and a quarter of the sensor's resolution.
HELD_OUT_WEATHER = (
    "overcast"  # Held out for segmentation and detection: validation shows the accuracy in unknown light.
)
TRAINING_WEATHERS = ("clear", "dusk", "fog", "rain")
FIRST_VALIDATION_SEED = 900_000  # All training seeds are smaller.
FIRST_TEST_SEED = 960_000  # Test drives select neither weights nor settings.

_VIEW_SPACING_S = 7.0  # Time between two views of a drive, enough for a different scene.


@dataclass(frozen=True, slots=True)
class TrainingView:
    """One frame of one drive."""

    seed: int
    weather: str
    time_s: float
    static_camera: bool = False


def training_views(
    count: int, views_per_drive: int = 4, weathers: tuple[str, ...] = TRAINING_WEATHERS
) -> list[TrainingView]:
    """Returns `count` views for training, with the weathers in turn by drive."""
    return _views(count, views_per_drive, 1, weathers)


def validation_views(count: int, weathers: tuple[str, ...], views_per_drive: int = 2) -> list[TrainingView]:
    """Returns `count` views of drives that are not used for training."""
    return _views(count, views_per_drive, FIRST_VALIDATION_SEED, weathers)


def unseen_views(count: int, views_per_drive: int = 4) -> list[TrainingView]:
    """Returns `count` views of drives that are used for neither training nor validation, in all weathers."""
    return _views(count, views_per_drive, FIRST_TEST_SEED, WEATHERS)


def fixed_camera_views(count: int, *, validation: bool, views_per_drive: int = 8) -> list[TrainingView]:
    """Returns `count` views of cameras that stand at the kerb, in all weathers.

    Validation uses other cameras than training. A drive shows only one place, so its views differ in the traffic alone.
    """
    first_seed = FIRST_VALIDATION_SEED if validation else 1
    return [replace(view, static_camera=True) for view in _views(count, views_per_drive, first_seed, WEATHERS)]


def render_frames(
    views: Sequence[TrainingView], folder: Path, processes: int = 2, *, height: int, width: int
) -> FrameStore:
    """Renders the views into a frame store in `folder`, in several processes; the size is one of SIZES."""
    size = (len(views), height, width)
    store = FrameStore.create(folder, pictures=(np.uint8, (*size, 3)), labels=(np.uint8, size))
    render_all(_render, folder, views, processes)
    return store


def generator(view: TrainingView) -> Random:
    """Returns the random generator of a view, so that the same view gives the same bytes."""
    return Random(f"training/{view.seed}/{view.time_s}")


def rendered_view(view: TrainingView, height: int, width: int, rng: Random) -> tuple[SceneFrame, npt.NDArray[np.uint8]]:
    """Returns the scene of a view, and its preprocessed image height×width×3 RGB; see `photographed_view`."""
    frame, image = photographed_view(view, rng)
    rows, columns = frame.class_ids.shape
    return frame, apply(image, plan(Resize.CROP, rows, columns, height, width))


def photographed_view(view: TrainingView, rng: Random) -> tuple[SceneFrame, npt.NDArray[np.uint8]]:
    """Returns the scene of a view, and the image of the camera in RGB, at full or half the sensor's resolution.

    `rng` determines the camera's noise and the demosaicing method.
    """
    drive, sensor = _drive(view.seed, view.weather, static_camera=view.static_camera)
    frame = drive.render(view.time_s)
    mosaic = sensor.capture(frame.rgb, rng.randrange(10_000))
    method = rng.choice(("binning", "binning", "bilinear", "edge-aware"))
    return frame, to_colour(mosaic, Layout.BAYER_RGGB8, Layout.RGB8, method)


def _render(folder: Path, index: int, view: TrainingView) -> None:
    rng = generator(view)
    store = FrameStore.open(folder)
    _, height, width = store.labels.shape
    frame, image = rendered_view(view, height, width, rng)
    # One of the labels under each pixel, at random: a fixed choice would shift all edges by half a pixel.
    step = len(frame.class_ids) // height
    row, column = rng.randrange(step), rng.randrange(step)
    store.pictures[index], store.labels[index] = image, frame.class_ids[row::step, column::step]


@lru_cache(maxsize=4)
def _drive(seed: int, weather: str, *, static_camera: bool) -> tuple[Drive, Sensor]:
    """Returns a drive and its camera; cameras differ in noise, vignetting and drift."""
    rng = Random(f"camera/{seed}")
    sensor = Sensor(
        seed,
        Layout.BAYER_RGGB8,
        noise=rng.uniform(0.6, 1.4),
        vignetting=rng.uniform(0.1, 0.35),
        drift=rng.uniform(0.04, 0.12),
    )
    return Drive(seed, weather=weather, static_camera=static_camera), sensor


def _views(count: int, views_per_drive: int, first_seed: int, weathers: tuple[str, ...]) -> list[TrainingView]:
    views = []
    for index in range(count):
        drive, position = divmod(index, views_per_drive)
        seed = first_seed + drive
        # The offset by seed varies the times of the views within one weather.
        time_s = position * _VIEW_SPACING_S + seed % 13 * 0.5
        views.append(TrainingView(seed, weathers[drive % len(weathers)], time_s))
    return views


HEIGHT, WIDTH = 304, 484  # A quarter of the sensor's resolution, half of road-small's.

_OBJECT_OF = {name: class_id for class_id, names in enumerate(OBJECTS.values()) for name in names}
_MAX_BOXES = 192  # A rendered scene has at most 244 objects of all kinds.


@dataclass(frozen=True, slots=True)
class SceneStore(ArrayStore):
    """Images, weathers and boxes.

    A box is its index in OBJECTS and x1, y1, x2, y2 in pixels of the image; unused rows are -1. Boxes cover the visible
    part of an object and may be as small as a pixel; the users of the store decide which are too small.
    """

    weathers: npt.NDArray[np.uint8]  # N indices in WEATHERS.
    boxes: npt.NDArray[np.float32]  # N×192×5.

    @classmethod
    def render(cls, views: Sequence[TrainingView], folder: Path, processes: int = 2) -> Self:
        """Renders the views into `folder` in several processes, replacing an existing store."""
        count = len(views)
        store = cls.create(
            folder,
            pictures=(np.uint8, (count, HEIGHT, WIDTH, 3)),
            weathers=(np.uint8, (count,)),
            boxes=(np.float32, (count, _MAX_BOXES, 5)),
        )
        render_all(_render_scene, folder, views, processes)
        return store


def box_rows(boxes: Sequence[Box], scale: float) -> npt.NDArray[np.float32]:
    """Returns boxes as N×5 float32 rows of a store; `scale` converts the sensor's pixels to those of the image."""
    rows = [
        (_OBJECT_OF[box.name], *(scale * edge for edge in (box.x, box.y, box.x + box.width, box.y + box.height)))
        for box in boxes
        if box.name in _OBJECT_OF
    ]
    return np.array(rows, np.float32).reshape(-1, 5)


def _render_scene(folder: Path, index: int, view: TrainingView) -> None:
    frame, image = rendered_view(view, HEIGHT, WIDTH, generator(view))
    store = SceneStore.open(folder)
    store.pictures[index] = image
    store.weathers[index] = WEATHERS.index(view.weather)
    rows = box_rows(frame.boxes, WIDTH / frame.rgb.shape[1])[-_MAX_BOXES:]  # The last boxes are the nearest.
    store.boxes[index] = -1
    store.boxes[index, : len(rows)] = rows
