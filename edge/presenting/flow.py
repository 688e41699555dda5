"""The motion in the images of one camera: dense optical flow from tick to tick, composed from a result's frame to now."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from edge.presenting.presenter import Tick
from shared.imaging.geometry import Geometry
from shared.imaging.opencv import cv2

Vectors = npt.NDArray[np.float32]  # H×W×2: x, y.
Grey = npt.NDArray[np.uint8]  # H×W.

_SPACING = 4  # Pixels of the model's input between two vectors.
_FEWEST_VECTORS = 32  # Along the shorter side: a small input has a finer grid.
_SMALLEST_PX = 16  # Shorter side of the smallest picture that DIS can work on.
_LARGEST_RATIO = 4.0  # Of the durations of two steps between which the speed is assumed to be equal.
_MAX_STEPS = 64  # Two seconds at 30 Hz; 20 MB for an input of 968×608.
_LONGEST_STEP_NS = 600_000_000  # After a longer gap between two ticks, their images have too little in common.
_MAX_BUDGET_NS = 20_000_000  # Time limit of the flow at a tick; 5 of 25 ms are left to move the result.
_BUDGET_SHARE = 0.5  # Share of the time between two ticks that the flow may take.
_SAMPLES = 5  # Ticks whose median time is compared with the budget.
_LARGER_BELOW = 0.2  # Share of the budget below which a larger size is tried; the next size takes 4 times as long.
_FIRST_WAIT, _LONGEST_WAIT = 30, 960  # Ticks from a change until a larger size is tried.


class FlowSize(StrEnum):
    """The size of the images that the flow is computed from, relative to the model's input."""

    QUARTER = "quarter"
    EIGHTH = "eighth"
    NONE = "none"  # No flow: the result is held.


@dataclass(frozen=True, slots=True)
class Motion:
    """Where each point of the present picture was when the frame of a result was due.

    The arrays cover `picture(image, geometry)` with one grid: each of their pixels stands for a few pixels of the picture.
    """

    displacement: Vectors  # Position then minus position now, in pixels of the grid.
    then: Grey  # The picture of the result's frame; of the next tick if that one was skipped.
    now: Grey


@dataclass(frozen=True, slots=True)
class _Step:
    """A tick, and the flow from it to the tick before."""

    due_ns: int
    grey: Grey
    flow: Vectors | None = None  # None: not known.
    duration_ns: int = 0


@dataclass(frozen=True, slots=True)
class _Composed:
    """The latest motion that was asked for."""

    due_ns: int  # Of the result's frame.
    last: _Step  # The tick that was present.
    motion: Motion


class FlowSizeChoice:
    """Chooses the largest flow whose time fits the budget.

    A larger size is tried after a wait, which doubles each time that the larger size was too slow again.
    """

    def __init__(self) -> None:
        self.size = FlowSize.QUARTER
        self._shares: deque[float] = deque(maxlen=_SAMPLES)
        self._ticks = 0  # Since the latest change.
        self._wait = _FIRST_WAIT

    def took(self, time_ns: int, interval_ns: int) -> None:
        """Adds the time that the flow took at a tick, and the time from this tick to the next one."""
        self._shares.append(time_ns / max(1, min(_MAX_BUDGET_NS, interval_ns * _BUDGET_SHARE)))
        self._ticks += 1
        if len(self._shares) < _SAMPLES:
            return
        share, sizes = median(self._shares), list(FlowSize)
        at = sizes.index(self.size)
        if share > 1 and self.size is not sizes[-1]:
            self._wait = min(2 * self._wait, _LONGEST_WAIT) if self._ticks < self._wait else _FIRST_WAIT
            self._change(sizes[at + 1])
        elif share < _LARGER_BELOW and self._ticks >= self._wait and self.size is not sizes[0]:
            self._change(sizes[at - 1])

    def _change(self, size: FlowSize) -> None:
        self.size = size
        self._ticks = 0
        self._shares.clear()


class FlowTrack:
    """The optical flow between the latest ticks of one camera. One thread uses it.

    Call `add` once a tick, then `motion_since` with the due time of the result to be moved. Ticks may be left out: the flow
    spans the gap. An image of another size, a due time before the last one, or a long gap starts anew. Each flow starts
    from the one before, which makes it more accurate at the same cost, because motion changes slowly.
    """

    def __init__(self, clock_ns: Callable[[], int] | None = None) -> None:
        """`clock_ns` measures the time that flow takes, which chooses its size; without it, the size is the largest."""
        self.size = FlowSize.NONE  # Of the flow to the present tick.
        self._clock_ns = clock_ns or (lambda: 0)
        self._choice = FlowSizeChoice()
        self._took_ns = 0
        self._form: tuple[Any, ...] = ()
        self._sequence = 0
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS)
        self._composed: _Composed | None = None
        self._dis = cv2.DISOpticalFlow_create(cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
        self._dis.setFinestScale(0)
        self._dis.setPatchSize(5)
        self._dis.setPatchStride(3)

    def add(self, tick: Tick) -> None:
        """Makes a tick the present one, and computes the flow from it to the one before."""
        form = (tick.image.shape, tick.geometry)
        duration_ns = tick.due_ns - self._steps[-1].due_ns if self._steps else 0
        if form != self._form or not 0 <= duration_ns <= _LONGEST_STEP_NS:
            self._steps.clear()
            self._composed = None
        elif duration_ns:
            self._choice.took(self._took_ns, duration_ns // max(1, tick.sequence - self._sequence))
        self._form, self._sequence = form, tick.sequence
        start_ns = self._clock_ns()
        self.size = self._choice.size
        grey = _grey(picture(tick.image, tick.geometry))
        flow = self._flow(grey, duration_ns) if self._steps else None
        self._steps.append(_Step(tick.due_ns, grey, flow, duration_ns))
        self._took_ns = self._clock_ns() - start_ns

    def motion_since(self, due_ns: int) -> Motion | None:
        """Returns the motion from the frame that was due at `due_ns` to the present tick; None if it is not known.

        If no tick was due at that time, the motion is interpolated between the ticks around it.
        """
        start_ns = self._clock_ns()
        known, last = self._composed, self._steps[-1]
        if known is None or known.due_ns != due_ns or known.last is not last:
            motion = self._extended(due_ns) or self._chained(due_ns)
            self._composed = motion and _Composed(due_ns, last, motion)
        self._took_ns += self._clock_ns() - start_ns
        return self._composed and self._composed.motion

    def _extended(self, due_ns: int) -> Motion | None:
        """Continues the latest motion by the present step, if it is of the same result."""
        known, last = self._composed, self._steps[-1]
        if known is None or known.due_ns != due_ns or last.flow is None or known.last is not self._steps[-2]:
            return None
        return Motion(composed(last.flow, known.motion.displacement), known.motion.then, last.grey)

    def _chained(self, due_ns: int) -> Motion | None:
        """Composes the steps from the present tick back to the result's frame."""
        now = self._steps[-1]
        if due_ns >= now.due_ns:
            return Motion(np.zeros((*now.grey.shape, 2), np.float32), now.grey, now.grey)
        displacement = None
        for step, before in pairwise(reversed(self._steps)):
            if step.flow is None:
                return None
            flow = step.flow
            if before.due_ns < due_ns:
                flow = flow * np.float32((step.due_ns - due_ns) / step.duration_ns)
            displacement = flow if displacement is None else composed(displacement, flow)
            if before.due_ns <= due_ns:
                then = before if before.due_ns == due_ns else step
                return Motion(displacement, then.grey, now.grey)
        return None

    def _flow(self, grey: Grey, duration_ns: int) -> Vectors | None:
        """Computes the flow from the present picture to the one before, at the chosen size."""
        before = self._steps[-1]
        if self.size is FlowSize.NONE or min(grey.shape) < _SMALLEST_PX:
            return None
        start = None
        if before.flow is not None and 0 < duration_ns <= _LARGEST_RATIO * before.duration_ns:
            start = before.flow * np.float32(duration_ns / before.duration_ns)
        if self.size is FlowSize.QUARTER:
            return self._dis.calc(grey, before.grey, start)
        height, width = grey.shape
        half = (width // 2, height // 2)
        smaller = [cv2.resize(each, half, interpolation=cv2.INTER_AREA) for each in (grey, before.grey)]
        start = None if start is None else cv2.resize(start, half, interpolation=cv2.INTER_AREA) * np.float32(0.5)
        return cv2.resize(self._dis.calc(*smaller, start), (width, height)) * np.float32(2)


def picture(image: npt.NDArray[Any], geometry: Geometry) -> npt.NDArray[Any]:
    """Returns the part of a model's input, or of a mask of its size, that shows the camera's image: not the padding."""
    return image[
        geometry.paste_top : geometry.paste_top + geometry.paste_height,
        geometry.paste_left : geometry.paste_left + geometry.paste_width,
    ]


def composed(later: Vectors, earlier: Vectors) -> Vectors:
    """Returns the displacement over two steps: from a point back by the later one, from there by the earlier one."""
    positions = pixel_positions(*later.shape[:2]) + later
    return later + cv2.remap(earlier, positions, None, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)


@lru_cache(maxsize=4)
def pixel_positions(height: int, width: int) -> Vectors:
    """Returns the x and y of each pixel; cached, so do not change it."""
    positions = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    positions.flags.writeable = False
    return positions


def _grey(image: npt.NDArray[Any]) -> Grey:
    """Returns the brightness of an RGB image at the resolution of the grid."""
    height, width = image.shape[:2]
    spacing = max(1, min(_SPACING, min(height, width) // _FEWEST_VECTORS))
    if spacing > 1:
        image = cv2.resize(image, (width // spacing, height // spacing), interpolation=cv2.INTER_AREA)
    return cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
