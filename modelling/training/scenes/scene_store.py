"""A folder of memory-mapped arrays with images, their weather and their true boxes, filled by several processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from modelling.recipes import OBJECTS
from modelling.training.dataset import TrainingView, generator, rendered_view
from modelling.training.frame_store import ArrayStore, render_all
from rosbag_tools.drive.scene import WEATHERS, Box

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
        render_all(_render, folder, views, processes)
        return store


def box_rows(boxes: Sequence[Box], scale: float) -> npt.NDArray[np.float32]:
    """Returns boxes as N×5 float32 rows of a store; `scale` converts the sensor's pixels to those of the image."""
    rows = [
        (_OBJECT_OF[box.name], *(scale * edge for edge in (box.x, box.y, box.x + box.width, box.y + box.height)))
        for box in boxes
        if box.name in _OBJECT_OF
    ]
    return np.array(rows, np.float32).reshape(-1, 5)


def _render(folder: Path, index: int, view: TrainingView) -> None:
    frame, image = rendered_view(view, HEIGHT, WIDTH, generator(view))
    store = SceneStore.open(folder)
    store.pictures[index] = image
    store.weathers[index] = WEATHERS.index(view.weather)
    rows = box_rows(frame.boxes, WIDTH / frame.rgb.shape[1])[-_MAX_BOXES:]  # The last boxes are the nearest.
    store.boxes[index] = -1
    store.boxes[index, : len(rows)] = rows
