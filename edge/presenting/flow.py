"""The motion in the images of one camera: dense optical flow from tick to tick, composed from a result's frame to now."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

_CV: Any = cv2  # Its type hints lack arguments that may be None and scalars.
_COARSEST_GRID = 4  # Pixels of the model's input between two vectors of a step, at most.
_REFINED_GRID = 2  # Pixels of the model's input between two vectors of a composed motion.
_FEWEST_VECTORS = 32  # Minimum along the shorter side of a grid, so small inputs have finer grids.
_LARGEST_RATIO = 4  # Largest ratio of the durations of two steps between which the speed is assumed to be equal.
_BETTER_BY = 1  # Grey levels by which another motion of a point must fit better.
_SMALL_AREA, _LARGE_AREA = (3, 3), (9, 9)  # Pixels over which the difference of two pictures is averaged.
_MAX_STEPS = 64  # Two seconds at 30 Hz; 57 MB for an input of 968×608.
_MAX_BYTES = 128_000_000  # Memory of all steps: a larger input, or one with flow of its full size, has fewer steps.
_LONGEST_STEP_NS = 1_200_000_000  # Flow over a second still beats a held result; not measured for longer gaps.
_MAX_BUDGET_NS = 50_000_000  # Time limit of the flow at a tick: on a busy machine, late flow is better than none.
_BUDGET_SHARE = 0.65  # Share of the time between two ticks that the flow may take.
_SAMPLES = 5  # Ticks whose median time is compared with the budget.
_LARGER_BELOW = 0.35  # Share of the budget below which a larger size is tried, which takes about three times as long.
_FIRST_WAIT, _LONGEST_WAIT = 30, 960  # Ticks from a change until a larger size is tried.


class FlowSize(StrEnum):
    """The size of the images from which the flow is computed, relative to the model's input."""

    FULL = "full"
    HALF = "half"
    QUARTER = "quarter"
    EIGHTH = "eighth"
    NONE = "none"  # No flow: the result is held.


@dataclass(frozen=True, slots=True)
class Motion:
    """The position of each point of the present picture at the time when the frame of a result was due.

    The arrays cover `picture(image, geometry)` with one grid: each of their pixels stands for a few pixels of the picture.
    """

    displacement: Vectors  # Position then minus position now, in pixels of the grid.
    then: Grey  # The picture of the result's frame; of the next tick if that one was skipped.
    now: Grey
    whole: "WholePictures | None" = None  # None if there is no time to refine the motion.


@dataclass(frozen=True, slots=True)
class Search:
    """The motions that are tried for each point, beside its own; distances in pixels of the grid."""

    neighbours: tuple[int, ...] = ()  # The best motions so far of the points at these distances, one after the other.
    shifts: tuple[float, ...] = ()  # Changes of the best motion so far.
    interpolation: int = cv2.INTER_LINEAR


@dataclass(frozen=True, slots=True)
class WholePictures:
    """Both pictures of a motion with all their pixels, and the search that refines the motion on them."""

    then: Grey
    now: Grey
    search: Search


_STEP_SEARCH = Search(neighbours=(3,))
_REFINED_SEARCH = Search(neighbours=(4,))
_SUBPIXEL_SEARCH = Search(shifts=(0.5,))
# A mask is sampled at whole pixels, so the motions of its pixels are compared at whole pixels, too.
_PIXEL_SEARCH = Search(neighbours=(4,), interpolation=cv2.INTER_NEAREST)
_THOROUGH_PIXEL_SEARCH = Search(neighbours=(2, 4, 8), shifts=(1,), interpolation=cv2.INTER_NEAREST)


@dataclass(frozen=True, slots=True)
class _Method:
    """The parameters of the optical flow at one size."""

    spacing: int  # Pixels of the model's input between two pixels of the images that the flow is computed from.
    patch_px: int
    stride_px: int
    pixel_search: Search | None  # None: the motion is not refined.


_METHODS = {
    FlowSize.FULL: _Method(1, 8, 5, _THOROUGH_PIXEL_SEARCH),
    FlowSize.HALF: _Method(2, 4, 3, _THOROUGH_PIXEL_SEARCH),
    FlowSize.QUARTER: _Method(4, 4, 3, _PIXEL_SEARCH),
    FlowSize.EIGHTH: _Method(8, 3, 2, None),
}


@dataclass(frozen=True, slots=True)
class _Step:
    """A tick, and the flow from it to the tick before."""

    due_ns: int
    grey: Grey
    flow: Vectors | None  # None: not known.
    duration_ns: int

    @property
    def size_bytes(self) -> int:
        """The size of the arrays."""
        return self.grey.nbytes + (0 if self.flow is None else self.flow.nbytes)


@dataclass(frozen=True, slots=True)
class _Chain:
    """The steps from the present tick back to the frame of a result, composed."""

    due_ns: int  # Due time of the result's frame.
    last: _Step  # The present tick.
    then: _Step
    displacement: Vectors


class FlowSizeChoice:
    """Chooses the largest flow whose time fits the budget, up to a limit.

    A larger size is tried after a wait, which doubles each time that the larger size was too slow again.
    """

    def __init__(self, largest: FlowSize = FlowSize.QUARTER) -> None:
        self.size = largest
        self._sizes = list(FlowSize)[list(FlowSize).index(largest) :]
        self._shares: deque[float] = deque(maxlen=_SAMPLES)
        self._ticks = 0  # Number of ticks since the latest change.
        self._wait = _FIRST_WAIT

    def took(self, time_ns: int, interval_ns: int) -> None:
        """Adds the time that the flow took at a tick, and the time from this tick to the next one."""
        self._shares.append(time_ns / max(1, min(_MAX_BUDGET_NS, interval_ns * _BUDGET_SHARE)))
        self._ticks += 1
        if len(self._shares) < _SAMPLES:
            return
        share, sizes = median(self._shares), self._sizes
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
    spans the gap. An image of another size, an earlier due time, or a long gap resets the track. Each flow starts
    from the one before, which makes it more accurate at the same cost, because motion changes slowly.
    """

    def __init__(self, clock_ns: Callable[[], int] | None = None, largest: FlowSize = FlowSize.QUARTER) -> None:
        """`clock_ns` measures the time that flow takes, which chooses its size; without it, the size is the largest."""
        self.size = FlowSize.NONE  # Size of the flow to the present tick.
        self._clock_ns = clock_ns or (lambda: 0)
        self._choice = FlowSizeChoice(largest)
        self._took_ns = 0
        self._form: tuple[Any, ...] = ()
        self._sequence = 0
        self._steps: deque[_Step] = deque(maxlen=_MAX_STEPS)
        self._chain: _Chain | None = None  # The latest chain,
        self._motion: Motion | None = None  # and the motion along it.
        self._start: Vectors | None = None  # The latest flow as DIS computed it.
        self._dis = {size: _dis(method) for size, method in _METHODS.items()}

    def add(self, tick: Tick) -> None:
        """Makes a tick the present one, and computes the flow from it to the one before."""
        form = (tick.image.shape, tick.geometry)
        duration_ns = tick.due_ns - self._steps[-1].due_ns if self._steps else 0
        if form != self._form or not 0 <= duration_ns <= _LONGEST_STEP_NS:
            self._steps.clear()
            self._chain = self._start = None
        elif duration_ns:
            self._choice.took(self._took_ns, duration_ns // max(1, tick.sequence - self._sequence))
        self._form, self._sequence = form, tick.sequence
        self._took_ns = 0
        self.size = self._choice.size
        with self.timed():
            grey = _CV.cvtColor(picture(tick.image, tick.geometry), _CV.COLOR_RGB2GRAY)
            flow = self._flow(grey, duration_ns) if self._steps else None
        step = _Step(tick.due_ns, grey, flow, duration_ns)
        while len(self._steps) > 1 and sum(each.size_bytes for each in (*self._steps, step)) > _MAX_BYTES:
            self._steps.popleft()
        self._steps.append(step)

    def motion_since(self, due_ns: int) -> Motion | None:
        """Returns the motion from the frame that was due at `due_ns` to the present tick; None if it is not known.

        If no tick was due at that time, the motion is interpolated between the ticks around it.
        """
        known = self._chain
        if known is None or known.due_ns != due_ns or known.last is not self._steps[-1]:
            with self.timed():
                self._chain = self._extended(due_ns) or self._composed(due_ns)
                self._motion = None if self._chain is None else self._along(self._chain)
        return self._motion

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the time of its block to that of the present tick, which determines the next size."""
        start_ns = self._clock_ns()
        yield
        self._took_ns += self._clock_ns() - start_ns

    def _extended(self, due_ns: int) -> _Chain | None:
        """Continues the latest chain by the present step, if it is of the same result."""
        chain, last = self._chain, self._steps[-1]
        if chain is None or chain.due_ns != due_ns or last.flow is None or chain.last is not self._steps[-2]:
            return None
        return _Chain(due_ns, last, chain.then, composed(last.flow, resized(chain.displacement, last.flow.shape)))

    def _composed(self, due_ns: int) -> _Chain | None:
        """Composes the steps from the present tick back to the result's frame."""
        now = self._steps[-1]
        if due_ns >= now.due_ns:
            return _Chain(due_ns, now, now, np.zeros((*_shape(now.grey, _COARSEST_GRID), 2), np.float32))
        displacement = None
        for step, before in pairwise(reversed(self._steps)):
            if step.flow is None:
                return None
            flow = step.flow
            if before.due_ns < due_ns:
                flow = flow * np.float32((step.due_ns - due_ns) / step.duration_ns)
            displacement = flow if displacement is None else composed(displacement, resized(flow, displacement.shape))
            if before.due_ns <= due_ns:
                return _Chain(due_ns, now, before if before.due_ns == due_ns else step, displacement)
        return None

    def _along(self, chain: _Chain) -> Motion:
        """Returns the motion along a chain, refined if there is time for it."""
        then, now, search = chain.then.grey, chain.last.grey, None
        if chain.then is not chain.last and chain.then.due_ns == chain.due_ns:
            search = _METHODS[self.size].pixel_search
        spacing = _COARSEST_GRID if search is None else min(_METHODS[self.size].spacing, _REFINED_GRID)
        shape = _shape(now, spacing)
        displacement, pictures = resized(chain.displacement, shape), (_shrunk(then, shape), _shrunk(now, shape))
        if search is None:
            return Motion(displacement, *pictures)
        if self.size is not FlowSize.FULL:
            displacement = refined(displacement, *pictures, _REFINED_SEARCH)
        return Motion(held_where_still(displacement, *pictures), *pictures, WholePictures(then, now, search))

    def _flow(self, grey: Grey, duration_ns: int) -> Vectors | None:
        """Computes the flow from the present picture to the one before, at the chosen size."""
        before, start = self._steps[-1], self._start
        self._start = None
        if self.size is FlowSize.NONE or min(_shape(grey, _COARSEST_GRID)) < _FEWEST_VECTORS:
            return None
        if start is not None:
            is_alike = 0 < duration_ns <= _LARGEST_RATIO * before.duration_ns
            start = start * np.float32(duration_ns / before.duration_ns) if is_alike else None
        spacing = _METHODS[self.size].spacing
        if spacing < _COARSEST_GRID:  # Small patches of small images find what large patches miss, at a low cost.
            start = self._start = self._dis_flow(FlowSize.QUARTER, grey, start)
        flow = self._dis_flow(self.size, grey, start)
        if self._start is None:
            self._start = flow
        if self.size is FlowSize.FULL:
            return flow  # The search for each pixel of a mask does the same.
        grid = _shape(grey, min(spacing, _COARSEST_GRID))
        return refined(resized(flow, grid), _shrunk(before.grey, grid), _shrunk(grey, grid), _STEP_SEARCH)

    def _dis_flow(self, size: FlowSize, grey: Grey, start: Vectors | None) -> Vectors:
        """Computes the flow of one size from a known one."""
        shape = _shape(grey, _METHODS[size].spacing)
        images = [_shrunk(image, shape) for image in (grey, self._steps[-1].grey)]
        flow: Vectors = self._dis[size].calc(*images, None if start is None else resized(start, shape))
        return flow


def picture(image: npt.NDArray[Any], geometry: Geometry) -> npt.NDArray[Any]:
    """Returns the part of a model's input, or of a mask of its size, that shows the camera's image: not the padding."""
    return image[
        geometry.paste_top : geometry.paste_top + geometry.paste_height,
        geometry.paste_left : geometry.paste_left + geometry.paste_width,
    ]


def composed(later: Vectors, earlier: Vectors) -> Vectors:
    """Returns the displacement over two steps: from a point back by the later one, from there by the earlier one."""
    moved: Vectors = sampled(earlier, later)
    return later + moved


def pixel_displacement(motion: Motion, shape: tuple[int, ...]) -> Vectors:
    """Returns the displacement of each pixel of a mask that has the picture's size."""
    displacement, whole = motion.displacement, motion.whole
    if whole is None:
        return resized(displacement, shape)
    if motion.now.shape != shape:
        displacement = refined(displacement, motion.then, motion.now, _SUBPIXEL_SEARCH)
    return refined(resized(displacement, shape), whole.then, whole.now, whole.search)


def refined(displacement: Vectors, then: Grey, now: Grey, search: Search) -> Vectors:
    """Gives each point another motion if that one fits the images better: one of a neighbour, or its own with a small change.

    Optical flow blurs the edges of objects. Points beside an edge get the motion of the right side by this.
    """
    height, width = now.shape
    best = displacement.copy()
    least = _misfit(best, then, now, search.interpolation)

    def try_motion(other: Vectors) -> None:
        nonlocal least
        misfit: Grey = _CV.add(_misfit(other, then, now, search.interpolation), _BETTER_BY)
        _CV.copyTo(other, _CV.compare(misfit, least, _CV.CMP_LT), best)
        least = _CV.min(least, misfit)

    for distance in search.neighbours:
        known = _CV.copyMakeBorder(best, *[distance] * 4, _CV.BORDER_REPLICATE)
        for x, y in _around(distance):
            try_motion(known[distance + y : distance + y + height, distance + x : distance + x + width])
    for shift in search.shifts:
        known = best.copy()
        for x, y in _around(shift):
            try_motion(_CV.add(known, (x, y, 0, 0)))
    return best


def held_where_still(displacement: Vectors, then: Grey, now: Grey) -> Vectors:
    """Removes the motion of points around which the images fit better without any, such as the vehicle's own bonnet."""
    still = np.zeros_like(displacement)
    misfit = _CV.add(_misfit(still, then, now, area=_LARGE_AREA), _BETTER_BY)
    is_still = _CV.compare(misfit, _misfit(displacement, then, now, area=_LARGE_AREA), _CV.CMP_LT)
    held: Vectors = _CV.copyTo(still, is_still, displacement.copy())
    return held


def sampled(image: npt.NDArray[Any], displacement: Vectors, interpolation: int = cv2.INTER_LINEAR) -> Any:
    """Returns the values of an image at each point's position after displacement; beyond the border, its nearest value."""
    positions = _CV.add(pixel_positions(*displacement.shape[:2]), displacement)
    return _CV.remap(image, positions, None, interpolation, borderMode=_CV.BORDER_REPLICATE)


def resized(displacement: Vectors, shape: tuple[int, ...]) -> Vectors:
    """Returns a displacement on a grid of another size, in pixels of that grid."""
    (rows, columns), (height, width) = displacement.shape[:2], shape[:2]
    if (rows, columns) == (height, width):
        return displacement
    shrinks = width < columns
    result = _CV.resize(displacement, (width, height), interpolation=_CV.INTER_AREA if shrinks else _CV.INTER_LINEAR)
    scaled: Vectors = _CV.multiply(result, (width / columns, height / rows, 0, 0))
    return scaled


@lru_cache(maxsize=8)
def pixel_positions(height: int, width: int) -> Vectors:
    """Returns the x and y of each pixel; cached, so do not change it."""
    positions = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1).astype(np.float32)
    positions.flags.writeable = False
    return positions


def _around(distance: Any) -> tuple[tuple[Any, Any], ...]:
    """Returns the offsets to the right, left, bottom and top."""
    return (distance, 0), (-distance, 0), (0, distance), (0, -distance)


def _misfit(
    displacement: Vectors,
    then: Grey,
    now: Grey,
    interpolation: int = cv2.INTER_LINEAR,
    area: tuple[int, int] = _SMALL_AREA,
) -> Grey:
    """Returns the difference in brightness around each point and around the one that it comes from."""
    difference: Grey = _CV.blur(_CV.absdiff(sampled(then, displacement, interpolation), now), area)
    return difference


def _shape(picture: Grey, spacing: int) -> tuple[int, int]:
    """Returns the shape of a grid with points `spacing` pixels apart, or less in a small picture."""
    height, width = picture.shape
    largest = spacing * (min(height, width) // _FEWEST_VECTORS) // _COARSEST_GRID
    spacing = max(1, min(spacing, largest))
    return height // spacing, width // spacing


def _shrunk(image: Any, shape: tuple[int, int]) -> Any:
    return image if image.shape[:2] == shape else _CV.resize(image, shape[::-1], interpolation=_CV.INTER_AREA)


def _dis(method: _Method) -> Any:
    """Returns a DIS flow that works at the size of the given images, without a finer pyramid level."""
    dis = _CV.DISOpticalFlow_create(_CV.DISOPTICAL_FLOW_PRESET_ULTRAFAST)
    dis.setFinestScale(0)
    dis.setPatchSize(method.patch_px)
    dis.setPatchStride(method.stride_px)
    # Comparing grey values themselves is more exact; the flow of small images, which comes first, bears a flicker.
    dis.setUseMeanNormalization(method.spacing > 1)
    return dis
