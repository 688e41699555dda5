"""Answers of the local model, in the form in which a worker would have answered."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge.frame_record import FrameRecord
from edge.reuse.local_model import LocalModel
from shared import clock
from shared.imaging import geometry
from shared.imaging.frames import Pixels
from shared.imaging.geometry import Resize
from shared.imaging.opencv import cv2
from shared.inference.engine import Outputs
from shared.messages.frame import FrameMessage, RequestOptions
from shared.messages.model_card import ModelCard
from shared.messages.results import ModelResult
from shared.reuse.cascade import CascadeThresholds, is_sure
from shared.stages import Stage
from shared.task import ConfidenceError, task_named


@dataclass(frozen=True, slots=True)
class LocalAnswer:
    """The outputs of the local model for one frame."""

    outputs: Outputs
    is_sure: bool  # Whether the cascade accepts the answer; False without a cascade.


class Pace:
    """Measures how often frames are due, from those that the local model gets."""

    def __init__(self) -> None:
        self._due: list[tuple[int, int]] = []  # Sequence number and due time of the first frame and the latest one.

    def add(self, record: FrameRecord) -> None:
        """Adds a frame that was due later than those before."""
        self._due = [*self._due[:1], (record.id.sequence, record.times[Stage.DUE])]

    @property
    def period_ms(self) -> float | None:
        """The mean time between two due frames; None if it is unknown."""
        if len(self._due) < 2:  # noqa: PLR2004 (the first and the latest)
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
        except ConfidenceError:  # A cascade checks before the first frame that there is one.
            pass
        else:
            record.local_confidence = confidence.lowest
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
            stamp_ns=record.stamp_ns,
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
