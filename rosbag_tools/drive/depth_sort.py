"""Which of the things in view hides which: the order to paint them in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Placed:
    """A thing in view: the ground it stands on as seen from the camera, the columns it covers, and how to paint it."""

    left: float  # Metres to the right of the camera.
    right: float
    near: float  # Metres ahead of it.
    far: float
    columns: tuple[float, float]
    paint: Callable[[], None]


def far_to_near(things: Sequence[Placed]) -> list[Placed]:
    """The things in an order in which none is painted before what it hides.

    Of two that share columns, the one wholly farther ahead comes first, else the one wholly farther to the side. In
    a ring of things that each hide the next, which convex things can form, the farthest comes first.
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
