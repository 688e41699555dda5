"""Batches of crops with what the detector should answer for them."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from modelling.architectures.detector import STRIDE, cells
from modelling.recipes import OBJECTS
from modelling.training.augmentation import relit
from modelling.training.batch_loader import BatchLoader
from modelling.training.scenes.scene_store import SceneStore
from shared.imaging.opencv import cv2

SMALLEST = 6.0  # Pixels, the root of a box's area; smaller ones are neither taught nor counted.

_KEPT = 0.4  # The share of a box that a crop must show for it to be taught.
_CORE = 0.54  # The share of a box whose cells learn its shape (Liu et al. 2020, "Training-Time-Friendly Network").
_WHOLE = (
    0.5  # The share of crops at the picture's own resolution; the others are taken up to a fifth nearer or farther.
)

Floats = npt.NDArray[np.float32]


class Truth(NamedTuple):
    """What a detector should answer, of one picture or stacked; cells h×w of `STRIDE` pixels."""

    heat: Floats  # h×w×classes: 1 in the cell of a thing's middle, falling off around it.
    judged: Floats  # h×w: 0 where things are too small to be told.
    boxes: Floats  # h×w×4: of the thing whose core the cell is in, x1, y1, x2, y2 in pixels.
    weights: Floats  # h×w: how much the cell's box counts; 0 outside of all cores.


Batch = tuple[npt.NDArray[np.uint8], Truth]


@dataclass(frozen=True, slots=True)
class Crop:
    """A picture H×W×3, its boxes to be taught N×5 and the places M×5 that are not judged."""

    picture: npt.NDArray[np.uint8]
    taught: Floats
    unjudged: Floats


class ObjectLoader(BatchLoader[Batch]):
    """Gives batches of augmented crops; `places`: of the pictures that may be taken."""

    def __init__(
        self, store: SceneStore, places: npt.NDArray[np.intp], *, batch: int, height: int, width: int, seed: int
    ) -> None:
        self._store = store
        self._places = places
        self._batch = batch
        self._height = height
        self._width = width
        self._rng = np.random.default_rng(seed)
        super().__init__("objects")

    def _next(self) -> Batch:
        crops = [self._crop(int(place)) for place in self._rng.choice(self._places, self._batch)]
        truths = [truth(crop.taught, crop.unjudged, self._height, self._width) for crop in crops]
        stacked = Truth(*(np.stack(parts) for parts in zip(*truths, strict=True)))
        return np.stack([crop.picture for crop in crops]), stacked

    def _crop(self, place: int) -> Crop:
        rng = self._rng
        whole = self._store.pictures[place]
        rows = self._store.boxes[place]
        most = min(1.2, whole.shape[0] / self._height, whole.shape[1] / self._width)
        zoom = 1.0 if rng.random() < _WHOLE else rng.uniform(0.8, most)
        height, width = int(self._height * zoom), int(self._width * zoom)
        top, left = rng.integers(whole.shape[0] - height + 1), rng.integers(whole.shape[1] - width + 1)
        picture = whole[top : top + height, left : left + width]
        if zoom != 1.0:
            picture = np.asarray(cv2.resize(picture, (self._width, self._height), interpolation=cv2.INTER_AREA))
        boxes = rows[rows[:, 0] >= 0].copy()
        boxes[:, 1:] = (boxes[:, 1:] - (left, top, left, top)) * np.float32(self._width / width)
        if rng.random() < 0.5:  # noqa: PLR2004  # An even chance.
            picture = picture[:, ::-1]
            boxes[:, [1, 3]] = self._width - boxes[:, [3, 1]]
        taught, unjudged = sifted(boxes, self._height, self._width)
        return Crop(relit(np.ascontiguousarray(picture), rng), taught, unjudged)


def sifted(rows: Floats, height: int, width: int) -> tuple[Floats, Floats]:
    """The boxes N×5 clipped to a picture: those to be taught or counted, and those that are too small or mostly cut."""
    low, high = np.maximum(rows[:, 1:3], 0), np.minimum(rows[:, 3:], (width, height))
    shown = np.prod(np.maximum(high - low, 0), axis=1)
    whole = np.prod(rows[:, 3:] - rows[:, 1:3], axis=1)
    clipped = np.concatenate([rows[:, :1], low, high], axis=1).astype(np.float32)
    is_taught = (shown >= SMALLEST**2) & (shown >= _KEPT * whole)
    return clipped[is_taught], clipped[~is_taught & (shown > 0)]


def truth(taught: Floats, unjudged: Floats, height: int, width: int) -> Truth:
    """What a detector should answer for a picture of height×width with the given boxes."""
    size = cells(height, width)
    made = Truth(
        heat=np.zeros((*size, len(OBJECTS)), np.float32),
        judged=np.ones(size, np.float32),
        boxes=np.zeros((*size, 4), np.float32),
        weights=np.zeros(size, np.float32),
    )
    for row in unjudged:
        left, top = np.floor(row[1:3] / STRIDE).astype(int)
        right, bottom = np.ceil(row[3:] / STRIDE).astype(int)
        made.judged[top:bottom, left:right] = 0
    areas = np.prod(taught[:, 3:] - taught[:, 1:3], axis=1)
    for row in taught[np.argsort(-areas)]:  # The largest first: a small thing in front keeps its cells.
        _add(made, row)
    return made


def _add(made: Truth, row: Floats) -> None:
    box = row[1:]
    size = (box[2:] - box[:2]) / STRIDE
    at = np.floor((box[:2] + box[2:]) / 2 / STRIDE).astype(int)
    reach = np.maximum(_CORE / 2 * size, 0).astype(int)
    sigma = (2 * reach + 1) / 6
    rows, columns = made.weights.shape
    left, right = max(at[0] - reach[0], 0), min(at[0] + reach[0] + 1, columns)
    top, bottom = max(at[1] - reach[1], 0), min(at[1] + reach[1] + 1, rows)
    across = np.exp(-(((np.arange(left, right) - at[0]) / sigma[0]) ** 2) / 2)
    down = np.exp(-(((np.arange(top, bottom) - at[1]) / sigma[1]) ** 2) / 2)
    core = np.outer(down, across).astype(np.float32)
    area = (slice(top, bottom), slice(left, right))
    heat = made.heat[area][..., int(row[0])]
    np.maximum(heat, core, out=heat)
    made.judged[area] = 1
    made.boxes[area] = box
    # By the logarithm of its area, and not by its cells: a bus has a hundred times a person's.
    made.weights[area] = core / core.sum() * np.log(np.prod(box[2:] - box[:2]))
