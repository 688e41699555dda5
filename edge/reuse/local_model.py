"""The vehicle's own model, which answers frames in place of a worker (`LocalAnswers`), or runs for a presenter.

It runs in its own thread with a time limit, so that a hanging model cannot stop the vehicle.
"""

import queue
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from edge.frame_record import FrameRecord
from shared import clock
from shared.errors import SkylaneError
from shared.imaging import geometry
from shared.imaging.frames import Pixels
from shared.imaging.geometry import Resize
from shared.imaging.opencv import cv2
from shared.inference.engine import Images, Outputs
from shared.inference.model import Model
from shared.logs import get_logger
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.reuse.tuning import CascadeThresholds, is_sure
from shared.stages import Stage
from shared.task import ConfidenceError, task_named
from shared.threads import ThreadGroup

RAISED, TIMED_OUT = "raised", "timed_out"  # Reasons of failures.
_MAX_RAISES_IN_A_ROW = 3
_PAUSE_S = 1.0  # Time without the model after it failed; doubled each time that it fails again,
_LONGEST_PAUSE_S = 60.0  # up to this limit.
_JOIN_TIMEOUT_S = 10.0
_OPENING_TIMEOUT_S = 60.0

_LOG = get_logger("edge")


class LocalModelError(SkylaneError):
    """The local model cannot answer in place of the reference model."""


class LocalModel:
    """Infers one image at a time. One thread calls it; the model itself runs in the thread `local model`.

    A model that exceeds the time limit, or raises three times in a row, is paused, and then tried again; a model that
    hangs is not tried before it returns. Each further failure doubles the pause.
    """

    def __init__(
        self,
        open_model: Callable[[], Model],
        timeout_s: float,
        opening_timeout_s: float = _OPENING_TIMEOUT_S,
        pause_s: float = _PAUSE_S,
    ) -> None:
        """Opens the model in the thread that will run it, so that a file that hangs does not hang the command.

        Args:
            open_model: Opens the model and warms it up; `close` closes it.
            timeout_s: Time limit of an inference.
            opening_timeout_s: Time limit of `open_model`.
            pause_s: Length of the first pause.

        Raises:
            LocalModelError: the model was not open in time; errors of `open_model` are raised unchanged.
        """
        self.failures: Counter[str] = Counter()
        self.pauses = 0
        self.pause_reason = ""  # Reason of the last pause; empty if it never was paused.
        self._timeout_s = timeout_s
        self._first_pause_s = self._pause_s = pause_s
        self._paused_until_ns = 0
        self._is_overdue = False  # True while an answer is missing after the time limit.
        self._images: queue.SimpleQueue[Images | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Outputs | Exception] = queue.SimpleQueue()
        self._took_ms: deque[float] = deque(maxlen=1000)
        self._raises_in_a_row = 0
        self._threads = ThreadGroup(lambda: None)
        opened: queue.SimpleQueue[Model | Exception] = queue.SimpleQueue()
        self._threads.start("local model", partial(self._run, open_model, opened))
        try:
            model = opened.get(timeout=opening_timeout_s)
        except queue.Empty:
            self._abandon()
            raise LocalModelError(
                f"the local model did not answer its first images within {opening_timeout_s:g} s: it hangs or is too large "
                "for this machine; choose another one with --local-model"
            ) from None
        except KeyboardInterrupt:
            self._abandon()
            raise
        if isinstance(model, Exception):
            raise model
        self.model = model

    @property
    def is_on(self) -> bool:
        """True if the model may be called: it is not paused, and has returned from its last image."""
        if self._is_overdue and not self._answers.empty():
            self._answers.get()  # Too late to be used.
            self._is_overdue = False
        return not self._is_overdue and clock.now_ns() >= self._paused_until_ns

    @property
    def median_ms(self) -> float | None:
        """The median time of recent inferences; None before the first one."""
        return median(self._took_ms) if self._took_ms else None

    def counts(self) -> dict[str, Any]:
        """Returns the manifest's numbers of answers and failures."""
        return {
            "median_ms": self.median_ms,
            "failures": dict(self.failures),
            "pauses": self.pauses,
            "switched_off": self.pause_reason,  # Kept from earlier releases; the reason of the last pause.
        }

    def infer(self, image: Images) -> Outputs | None:
        """Returns the model's outputs by name for an image of its input size, without the batch axis; None if it fails.

        Must only be called while `is_on`.
        """
        start_ns = clock.now_ns()
        self._images.put(image)
        try:
            answer = self._answers.get(timeout=self._timeout_s)
        except queue.Empty:
            self.failures[TIMED_OUT] += 1
            self._is_overdue = True
            self._pause(f"it did not answer within {self._timeout_s * 1e3:g} ms")
            return None
        if isinstance(answer, Exception):
            self.failures[RAISED] += 1
            self._raises_in_a_row += 1
            if self._raises_in_a_row >= _MAX_RAISES_IN_A_ROW:
                self._pause(f"it failed {self._raises_in_a_row} times in a row: {answer}")
            return None
        self._raises_in_a_row = 0
        self._pause_s = self._first_pause_s
        self._took_ms.append((clock.now_ns() - start_ns) / 1e6)
        return answer

    def close(self) -> None:
        """Ends the thread and closes the model. A model that hangs is left to the end of the process."""
        if self._is_overdue and self._answers.empty():
            self._abandon()
            return
        self._images.put(None)
        self._threads.join(_JOIN_TIMEOUT_S)
        self.model.close()

    def _abandon(self) -> None:
        """Stops waiting for the thread, which ends if the model ever returns."""
        self._images.put(None)
        self._threads.abandon()

    def _pause(self, reason: str) -> None:
        self.pauses += 1
        self.pause_reason = reason
        _LOG.warning("local model paused", model=self.model.card.name, seconds=self._pause_s, reason=reason)
        self._paused_until_ns = clock.now_ns() + round(self._pause_s * 1e9)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _run(self, open_model: Callable[[], Model], opened: "queue.SimpleQueue[Model | Exception]") -> None:
        try:
            model = open_model()
        except Exception as error:  # noqa: BLE001 (the constructor raises it again)
            opened.put(error)
            return
        opened.put(model)
        while (image := self._images.get()) is not None:
            try:
                answer: Outputs | Exception = model.infer_one(image)
            except Exception as error:  # noqa: BLE001 (any failure of a model is counted, and the frame goes to a worker)
                answer = error
            self._answers.put(answer)


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """The outputs of the local model for one frame."""

    outputs: Outputs
    is_sure: bool  # True if the cascade accepts the answer; False without a cascade.


class Pace:
    """Measures the mean time between due frames, from the frames that the local model gets."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []  # Sequence number and due time of the first frame and the latest one.

    def add(self, record: FrameRecord) -> None:
        """Adds a frame; frames come in the order of their due times."""
        self._due = [*self._due[:1], (record.id.sequence, record.times[Stage.DUE])]

    @property
    def period_ms(self) -> float | None:
        """The mean time between two due frames; None before the second frame."""
        if len(self._due) < 2:  # The first and the latest
            return None
        (first, first_ns), (last, last_ns) = self._due
        return (last_ns - first_ns) / 1e6 / (last - first)


@dataclass(frozen=True, slots=True)
class LocalAnswers:
    """Runs the local model on frames and makes results of its outputs."""

    model: LocalModel
    reference: ModelCard
    resize: Resize | None  # The configured one; None: that of the reference.
    options: RequestOptions
    thresholds: CascadeThresholds | None = None  # None: the model is a fallback only.
    temperature: float = 1.0
    pace: Pace = field(default_factory=Pace)

    @property
    def engine(self) -> str:
        """The engine and its precision, as a worker reports them."""
        return f"{self.model.model.card.engine} {self.model.model.card.precision}"

    @property
    def version(self) -> str:
        """The version of the local model."""
        return self.model.model.card.version

    def answer(self, record: FrameRecord, colour: Pixels) -> LocalAnswer | None:
        """Runs the model on a frame; stores the time and the confidence in `record`. Returns None if the model fails.

        `colour`: the demosaiced frame in the colour order of the reference model.
        """
        self.pace.add(record)
        card = self.model.model.card
        image: Any = geometry.apply(colour, self._plan(record))
        if card.layout is not self.reference.layout:
            image = image[..., ::-1]
        outputs = self.model.infer(image)
        if outputs is None:
            return None
        certain = False
        try:
            confidence = task_named(card.task).confidence(outputs, self.model.model.manifest, self.temperature)
        except ConfidenceError:  # A cascade checks before the first frame that answers have a confidence.
            pass
        else:
            record.row.local_confidence = confidence.lowest
            certain = self.thresholds is not None and is_sure(confidence, self.thresholds)
        record.times[Stage.INFERRED_LOCALLY] = clock.now_ns()
        return LocalAnswer(outputs, certain)

    def result(self, record: FrameRecord, answer: LocalAnswer) -> ModelResult:
        """Returns the result of a frame as a worker would have made it."""
        outputs, plan = dict(answer.outputs), record.geometry
        assert plan is not None
        if "mask" in outputs:
            outputs["mask"] = scaled_mask(outputs["mask"], plan.target_height, plan.target_width)
        else:
            plan = self._plan(record)  # Boxes are in pixels of the local model's input.
        request = FrameMessage(
            id=record.id,
            model=self.model.model.card.name,
            layout=self.reference.layout,
            shape=(),
            codec="",
            geometry=plan,
            stamp_ns=record.row.frame_stamp_ns,
            data=b"",
            options=self.options,
        )
        result = task_named(self.reference.task).result(outputs, request, self.model.model.manifest)
        return ModelResult(result, self.version, self.engine, self.model.model.card.name)

    def _plan(self, record: FrameRecord) -> geometry.Geometry:
        """Returns the geometry of the local model's input, which shows what the reference model would see."""
        seen = record.geometry
        assert seen is not None
        card = self.model.model.card
        resize = self.resize or self.reference.resize
        return geometry.plan(resize, seen.source_height, seen.source_width, card.height, card.width)


def scaled_mask(mask: Any, height: int, width: int) -> Any:
    """Returns a mask in another size, with nearest-neighbour sampling; the mask itself if it has that size."""
    if mask.shape == (height, width):
        return mask
    return np.asarray(cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST_EXACT), np.uint8)
