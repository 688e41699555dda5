"""Runs the presenters beside the pipeline: every due frame is a tick, which gets an output or a reason."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.pipeline import PreparedImage, PreparedImages, colour_image
from edge.presenting.presenter import ArrivedResult, Output, Presenter, Tick
from edge.sinks.sink import PresentedTick
from shared import clock
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout, UnreadableFrame
from shared.imaging.geometry import Geometry, rgb_input
from shared.imaging.image_files import ImageArray
from shared.logs import get_logger
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.runlog.latency_log import Outcome
from shared.runlog.presented_log import HOLD, OutputOrigin
from shared.stages import Stage
from shared.task import task_named
from shared.threads import lower_priority

# Reasons why a tick has no output.
NO_RESULT, TOO_OLD, CAMERA_CHANGED = "no_result", "too_old", "camera_changed"
SKIPPED, STOPPED, NO_OUTPUT = "skipped", "stopped", "no_output"  # The last one: the presenter gave no reason.
HUNG = "hung"
_LONGEST_GAP_NS = 2_000_000_000  # Longest time between the stamps of two frames of one scene.
_SLOW_CAMERA_FACTOR = 3  # A gap may also be this many times as long as the previous one.
_NICENESS = 5  # Sending comes first on a busy core; with the lowest priority, outputs would be 100 ms late there.
_HEAD_START_NS = 10_000_000  # Longest wait of a tick for the sending of its frame.
_HANG_S = 10.0  # Time on one tick after which a presenter counts as hanging.
_MAX_LEFT_OUT = 1024  # Ticks that wait for a presenter that hangs.

_LOG = get_logger("edge")


OnPresented = Callable[[PresentedTick], None]


@dataclass(frozen=True, slots=True)
class _DueFrame:
    """A tick that waits for the presenter."""

    record: FrameRecord
    frame: Frame | UnreadableFrame
    scene: int
    newest: ArrivedResult | None = None  # The newest result when the tick was taken; not of a later frame.

    @property
    def sequence(self) -> int:
        """The number of the tick."""
        return self.record.id.sequence

    @property
    def due_ns(self) -> int:
        """The time of the tick."""
        return self.record.times[Stage.DUE]


@dataclass(slots=True)
class _Camera:
    """The state of a camera: its scene, its waiting tick and its results."""

    scene: int = 0  # First tick of the present scene; results of earlier frames do not fit.
    form: tuple[tuple[int, ...], Layout] | None = None  # Shape and layout of its latest readable frame.
    stamp_ns: int = 0
    gap_ns: int = 0
    sequence: int = -1  # The number of its latest tick.
    waiting: _DueFrame | None = None
    newest: ArrivedResult | None = None
    early: ArrivedResult | None = None  # A result that arrived before the tick of its frame.
    presenter: Presenter | None = None
    presenter_scene: int = 0


class Presentation:
    """Runs one presenter per camera, all in one thread; no caller of `offer` or `ended` waits for it.

    A tick that is not taken before the next one of its camera is due is skipped.
    """

    def __init__(
        self,
        build: Callable[[], Presenter],
        card: ModelCard,
        config: EdgeConfig,
        *,
        runs_local: bool = False,
        hang_s: float = _HANG_S,
    ) -> None:
        """`build` makes a presenter. `runs_local`: it runs the local model itself, and uses workers' results only."""
        self.listeners: list[OnPresented] = []  # Called with one tick at a time; not changed during a run.
        self.describe_parts: Callable[[], Mapping[str, Any]] = dict  # Returns the manifest's entries on the parts.
        self.images = PreparedImages()  # The pipeline adds to them.
        self.first_ready_ns: dict[str, int] = {}  # Time of the first output of each camera.
        self.restarts = 0  # Number of times that a presenter was replaced because its camera changed.
        self._build = build
        self._card = card
        self._config = config
        self._runs_local = runs_local
        self._max_age_ns = round(config.present_max_age_ms * 1e6)
        self._condition = threading.Condition()
        self._cameras: dict[str, _Camera] = {}
        self._left_out: deque[PresentedTick] = deque()
        self._taken: PresentedTick | _DueFrame | None = None  # The tick that `run` works on.
        self._taken_ns = 0
        self._hang_ns = round(hang_s * 1e9)
        self._has_ended = False
        self._has_failed = False
        self._delivery = threading.Lock()
        self._is_closed = False

    def offer(self, record: FrameRecord, frame: Frame | UnreadableFrame) -> None:
        """Adds a tick: a frame that is due now. It replaces a tick of its camera that still waits."""
        excess = None
        with self._condition:
            camera = self._cameras.setdefault(record.row.camera, _Camera())
            if isinstance(frame, Frame) and _has_changed(camera, frame):
                camera.scene = record.id.sequence
                self.restarts += 1
            if camera.waiting is not None:
                self._left_out.append(_without_output(camera.waiting, SKIPPED))
            if len(self._left_out) > _MAX_LEFT_OUT:
                excess = self._left_out.popleft()
            camera.sequence = record.id.sequence
            if camera.early is not None and camera.early.sequence <= camera.sequence:
                camera.newest, camera.early = camera.early, None
            camera.waiting = _DueFrame(record, frame, camera.scene)
            self._condition.notify()
        if excess is not None:
            self._deliver(self._left(excess))

    def ended(self, record: FrameRecord, result: ModelResult | None) -> None:
        """Adds the result of a frame, unless a later frame of its camera has one already. See FrameListener."""
        row = record.row
        is_local = row.outcome is Outcome.ANSWERED_LOCALLY
        if result is None or (is_local and self._runs_local):
            return
        origin = OutputOrigin.LOCAL if is_local else OutputOrigin.REMOTE
        if self._config.present == HOLD:
            self._add_ready(row.camera, max(record.times.values()))
        arrived = ArrivedResult(row.sequence, record.times[Stage.DUE], result.result, origin)
        with self._condition:
            camera = self._cameras.setdefault(row.camera, _Camera())
            if arrived.sequence > camera.sequence:
                camera.early = arrived
            elif camera.newest is None or camera.newest.sequence < arrived.sequence:
                camera.newest = arrived

    def _add_ready(self, camera: str, ready_ns: int) -> None:
        self.first_ready_ns[camera] = min(ready_ns, self.first_ready_ns.get(camera, ready_ns))

    def run(self) -> None:
        """Presents until `end` was called and no tick waits; the body of a thread."""
        lower_priority(niceness=_NICENESS)
        while (taken := self._take()) is not None:
            self._deliver(taken if isinstance(taken, PresentedTick) else self._presented(taken), is_taken=True)

    def end(self) -> None:
        """Ends `run` after the ticks that wait."""
        with self._condition:
            self._has_ended = True
            self._condition.notify()

    @property
    def hangs(self) -> bool:
        """True while the presenter works on one tick for too long."""
        return self._taken is not None and clock.now_ns() - self._taken_ns >= self._hang_ns

    def close(self) -> None:
        """Delivers the ticks that a hanging presenter or a failed run has left; no tick is delivered later."""
        with self._delivery, self._condition:
            left = [*self._left_out, *(each.waiting for each in self._cameras.values()), self._taken]
            ticks = [self._left(each) for each in left if each is not None]
            for tick in sorted(ticks, key=attrgetter("sequence")):
                self._notify(tick)
            self._is_closed = True

    def _left(self, tick: PresentedTick | _DueFrame) -> PresentedTick:
        """Returns a tick that was not presented, with the reason."""
        due = tick if isinstance(tick, PresentedTick) else _without_output(tick, STOPPED)
        return replace(due, reason=HUNG) if self.hangs else due

    def _take(self) -> PresentedTick | _DueFrame | None:
        """Waits for the next tick; returns None at the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._left_out or self._has_ended or self._due())
            self._taken_ns = clock.now_ns()
            if self._left_out:
                self._taken = self._left_out.popleft()
            elif due := self._due():
                first = min(due, key=attrgetter("sequence"))
                camera = self._cameras[first.frame.camera]
                camera.waiting = None
                self._taken = replace(first, newest=camera.newest)
            return self._taken

    def _due(self) -> list[_DueFrame]:
        return [camera.waiting for camera in self._cameras.values() if camera.waiting is not None]

    def _presented(self, due: _DueFrame) -> PresentedTick:
        """Runs the presenter of a tick's camera, and returns the tick with its output or the reason for its absence."""
        # The frame is sent first, so that both do not need the same core at once.
        prepared = self.images.wait_for(due.frame.camera, due.sequence, due.due_ns + _HEAD_START_NS)
        taken_ns = clock.now_ns()
        if isinstance(due.frame, UnreadableFrame):
            return _without_output(due, f"undecodable: {due.frame.reason}")
        try:
            image, plan = self._input(due.frame, prepared)
        except SkylaneError as error:
            return _without_output(due, f"undecodable: {error}")
        output, source = self._output(due, Tick(due.sequence, due.due_ns, image, plan))
        age_ns = 0 if output.origin is OutputOrigin.LOCAL else None
        if source is not None:
            age_ns = due.due_ns - source.due_ns
        presented_ns = clock.now_ns()
        if output.origin is not OutputOrigin.NONE and self._config.present != HOLD:
            self._add_ready(due.frame.camera, presented_ns)
        return replace(
            _without_output(due, ""),
            presented_ns=presented_ns,
            origin=output.origin,
            reason=output.reason,
            flow=output.flow,
            result=None if output.origin is OutputOrigin.NONE else output.result,
            source_sequence=None if source is None else source.sequence,
            age_ns=age_ns,
            processing_ns=presented_ns - taken_ns,
            image=image,
            geometry=plan,
        )

    def _output(self, due: _DueFrame, tick: Tick) -> tuple[Output, ArrivedResult | None]:
        """Returns the presenter's output for a tick, and the result that it was made from, if any."""
        camera = self._cameras[due.frame.camera]
        try:
            return self._made_by(self._presenter(camera, due.scene), due, tick)
        except Exception as error:  # noqa: BLE001 (any failure of a presenter is counted, and the run goes on)
            camera.presenter = None
            self._report(error)
            return Output(OutputOrigin.NONE, reason=f"failed: {error}"), None

    def _made_by(self, presenter: Presenter, due: _DueFrame, tick: Tick) -> tuple[Output, ArrivedResult | None]:
        newest, missing = self._usable(due)
        output: object = presenter.present(tick, newest)
        if not isinstance(output, Output):
            raise TypeError(f"{type(output).__name__} is no Output")
        if not isinstance(output.origin, OutputOrigin) or not isinstance(output.reason, str):
            raise TypeError(
                f"Output has origin {output.origin!r} and reason {output.reason!r}: give an OutputOrigin and text"
            )
        if output.origin is OutputOrigin.NONE:
            return replace(output, reason="; ".join(filter(None, (missing, output.reason))) or NO_OUTPUT), None
        kind = getattr(output.result, "dtype", None), getattr(output.result, "ndim", None)
        if task_named(self._card.task).has_shape and kind != (np.uint8, 2):
            raise TypeError(f"Output has the result {output.result!r:.60}: give a mask, H×W uint8")
        if newest is None and output.origin is not OutputOrigin.LOCAL:
            raise ValueError(f"it presents a {output.origin} result without having one")
        is_newest = newest is not None and output.result is newest.result
        return output, newest if is_newest or output.origin is not OutputOrigin.LOCAL else None

    def _input(self, frame: Frame, prepared: PreparedImage | None) -> tuple[ImageArray, Geometry]:
        """Returns the model's input as RGB; `prepared`: the pipeline's image of this frame, if any."""
        if prepared is not None:
            image, plan = prepared.image, prepared.geometry
        else:
            image, plan = colour_image(frame, self._card, self._config)
        return rgb_input(image, plan, self._card.layout), plan

    def _usable(self, due: _DueFrame) -> tuple[ArrivedResult | None, str]:
        """Returns the newest result if it can be used for a tick, else None and the reason."""
        if due.newest is None:
            return None, NO_RESULT
        if due.newest.sequence < due.scene:
            return None, CAMERA_CHANGED
        if due.due_ns - due.newest.due_ns > self._max_age_ns:
            return None, TOO_OLD
        return due.newest, ""

    def _presenter(self, camera: _Camera, scene: int) -> Presenter:
        if camera.presenter is None or camera.presenter_scene != scene:
            camera.presenter, camera.presenter_scene = self._build(), scene
        return camera.presenter

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _LOG.warning("presenter failed; further failures are counted only", reason=str(error))

    def _deliver(self, tick: PresentedTick, *, is_taken: bool = False) -> None:
        with self._delivery:
            if not self._is_closed:
                self._notify(tick)
            if is_taken:
                self._taken = None

    def _notify(self, tick: PresentedTick) -> None:
        for listener in self.listeners:
            listener(tick)


def _has_changed(camera: _Camera, frame: Frame) -> bool:
    """Updates a camera by its next frame; returns whether the frame shows another scene or has another form."""
    form, known, gap_ns, usual_ns = (
        (frame.pixels.shape, frame.layout),
        camera.form,
        frame.stamp_ns - camera.stamp_ns,
        camera.gap_ns,
    )
    camera.form, camera.stamp_ns, camera.gap_ns = form, frame.stamp_ns, gap_ns
    if known is None:
        camera.gap_ns = 0
        return False
    return form != known or gap_ns < 0 or gap_ns > max(_LONGEST_GAP_NS, _SLOW_CAMERA_FACTOR * usual_ns)


def _without_output(due: _DueFrame, reason: str) -> PresentedTick:
    row = due.record.row
    return PresentedTick(
        camera=row.camera,
        session=row.session,
        tick=row.sequence,
        origin=OutputOrigin.NONE,
        reason=reason,
        frame_index=row.frame_index,
        frame_stamp_ns=row.frame_stamp_ns,
        source_ns=row.source_ns,
        due_ns=due.due_ns,
        presented_ns=clock.now_ns(),
        camera_id=row.camera_id,
    )
