"""Sorts visible objects so that drawing them in order hides the farther ones correctly."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Placed:
    """A visible object: its ground area in camera coordinates, its image columns, and how to draw it."""

    left: float  # Metres to the right of the camera.
    right: float
    near: float  # Metres ahead of it.
    far: float
    columns: tuple[float, float]
    paint: Callable[[], None]


def far_to_near(things: Sequence[Placed]) -> list[Placed]:
    """Returns the objects in drawing order: an object comes after everything that it hides.

    Of two objects that share columns, the one that is completely farther ahead comes first, otherwise the one that is
    completely farther to the side. If objects hide each other in a cycle, the farthest comes first.
    """
    if not things:
        return []
    left, right, near, far = (
        np.array([getattr(thing, name) for thing in things]) for name in ("left", "right", "near", "far")
    )
    first, last = np.array([thing.columns for thing in things]).T
    meet = (first[:, None] < last[None, :]) & (first[None, :] < last[:, None])
    ahead = near[:, None] >= far[None, :]
    beside = ((left[:, None] >= right[None, :]) & (left[:, None] > 0)) | (
        (right[:, None] <= left[None, :]) & (right[:, None] < 0)
    )
    neither = ~ahead & ~ahead.T
    unclear = neither & ~beside & ~beside.T
    centre = near + far
    before = ahead & ~ahead.T | (neither & beside & ~beside.T) | (unclear & (centre[:, None] > centre[None, :]))
    before &= meet
    np.fill_diagonal(before, val=False)
    waiting = before.sum(axis=0).astype(np.int64)
    distance = near.copy()
    order = []
    for _ in range(len(things)):
        free = np.where(waiting == 0, distance, -np.inf)
        at = int(np.argmax(free))
        if free[at] == -np.inf:
            at = int(np.argmax(distance))
        order.append(things[at])
        distance[at] = -np.inf
        waiting[at] = 1 << 40
        waiting -= before[at]
    return order
