"""Renders training and validation frames of the synthetic drive, preprocessed as on a vehicle, into folders of arrays.

The arrays are memory-mapped and filled by several processes; loaders prepare batches from them in a thread.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from rosbag_tools.drive.drive_views import DriveView, generator, rendered_view
from rosbag_tools.drive.scene import OBJECTS, WEATHERS, Box

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


def render_frames(
    views: Sequence[DriveView], folder: Path, processes: int = 2, *, height: int, width: int
) -> FrameStore:
    """Renders the views into a frame store in `folder`, in several processes; the size is one of SIZES."""
    size = (len(views), height, width)
    store = FrameStore.create(folder, pictures=(np.uint8, (*size, 3)), labels=(np.uint8, size))
    render_all(_render, folder, views, processes)
    return store


def _render(folder: Path, index: int, view: DriveView) -> None:
    rng = generator(view)
    store = FrameStore.open(folder)
    _, height, width = store.labels.shape
    frame, image = rendered_view(view, height, width, rng)
    # One of the labels under each pixel, at random: a fixed choice would shift all edges by half a pixel.
    step = len(frame.class_ids) // height
    row, column = rng.randrange(step), rng.randrange(step)
    store.pictures[index], store.labels[index] = image, frame.class_ids[row::step, column::step]


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
    def render(cls, views: Sequence[DriveView], folder: Path, processes: int = 2) -> Self:
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


def _render_scene(folder: Path, index: int, view: DriveView) -> None:
    frame, image = rendered_view(view, HEIGHT, WIDTH, generator(view))
    store = SceneStore.open(folder)
    store.pictures[index] = image
    store.weathers[index] = WEATHERS.index(view.weather)
    rows = box_rows(frame.boxes, WIDTH / frame.rgb.shape[1])[-_MAX_BOXES:]  # The last boxes are the nearest.
    store.boxes[index] = -1
    store.boxes[index, : len(rows)] = rows
