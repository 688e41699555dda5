"""Pictures with their weather and true boxes in a folder of memory-mapped arrays, filled by several processes at once."""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from modelling.recipes import OBJECTS
from modelling.training.dataset import TrainingView, generator, seen
from rosbag_tools.drive.scene import WEATHERS, Box

HEIGHT, WIDTH = 304, 484  # A quarter of the sensor's, and half of what road-small takes.

_OBJECT_OF = {name: class_id for class_id, names in enumerate(OBJECTS.values()) for name in names}
_MAX_BOXES = 192  # A canvas counts no more than 244 things of all kinds.


@dataclass(frozen=True, slots=True)
class SceneStore:
    """`pictures` N×H×W×3 uint8 RGB; `weathers` N uint8, places in WEATHERS; `boxes` N×192×5 float32.

    A box is its place in OBJECTS and x1, y1, x2, y2 in pixels of the picture; rows of -1 fill up. A box is the visible
    part of a thing, as small as a pixel: what learns from it or is judged by it says which are too small.
    """

    pictures: npt.NDArray[np.uint8]
    weathers: npt.NDArray[np.uint8]
    boxes: npt.NDArray[np.float32]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The store in `folder`, to read and to fill."""
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r+") for name in ("pictures", "weathers", "boxes")
        }
        return cls(**arrays)

    @classmethod
    def render(cls, views: Sequence[TrainingView], folder: Path, processes: int = 2) -> Self:
        """Render the views into `folder`, in processes of their own; what was there is lost."""
        folder.mkdir(parents=True, exist_ok=True)
        count = len(views)
        for name, dtype, shape in (
            ("pictures", np.uint8, (count, HEIGHT, WIDTH, 3)),
            ("weathers", np.uint8, (count,)),
            ("boxes", np.float32, (count, _MAX_BOXES, 5)),
        ):
            np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=dtype, shape=shape)
        # Spawned, not forked: a fork would carry TensorFlow's threads' locks along.
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            for _ in pool.map(partial(_render, folder), range(count), views, chunksize=6):
                pass  # Raises what rendering one of them raised.
        return cls.open(folder)


def box_rows(boxes: Sequence[Box], scale: float) -> npt.NDArray[np.float32]:
    """The true boxes as N×5 float32, as a store holds them; `scale`: pixels of the picture for one of the sensor."""
    rows = [
        (_OBJECT_OF[box.name], *(scale * edge for edge in (box.x, box.y, box.x + box.width, box.y + box.height)))
        for box in boxes
        if box.name in _OBJECT_OF
    ]
    return np.array(rows, np.float32).reshape(-1, 5)


def _render(folder: Path, index: int, view: TrainingView) -> None:
    frame, picture = seen(view, HEIGHT, WIDTH, generator(view))
    store = SceneStore.open(folder)
    store.pictures[index] = picture
    store.weathers[index] = WEATHERS.index(view.weather)
    rows = box_rows(frame.boxes, WIDTH / frame.rgb.shape[1])[-_MAX_BOXES:]  # The nearest.
    store.boxes[index] = -1
    store.boxes[index, : len(rows)] = rows
