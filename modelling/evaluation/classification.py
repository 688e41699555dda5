"""How well a classifier does on a bag whose frames are all of one known class, such as a drive's weather."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cloud.models.model import Model
from modelling.evaluation.segmentation import EvaluationError, prepared, subject
from rosbag_tools.reading.frames import BagSource
from shared.errors import UnknownNameError
from shared.imaging.frames import UnreadableFrame
from shared.messages.model_card import ModelCard


@dataclass(frozen=True, slots=True)
class ClassificationEvaluation:
    """The figures of a classifier on a bag."""

    card: ModelCard
    bag_sha256: str
    camera: str
    truth: str
    unreadable: int  # Pictures that could not be judged.
    taken_for: tuple[int, ...]  # How many frames were taken for each class.

    @property
    def frames(self) -> int:
        """How many were judged."""
        return sum(self.taken_for)

    @property
    def accuracy(self) -> float:
        """The share of frames taken for what they are."""
        return self.taken_for[self.card.labels.names.index(self.truth)] / self.frames

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        return {
            **subject(self.card, self.bag_sha256, self.camera),
            "truth": self.truth,
            "frames": self.frames,
            "unreadable": self.unreadable,
            "accuracy": round(self.accuracy, 6),
            "taken_for": dict(zip(self.card.labels.names, self.taken_for, strict=True)),
        }


def evaluate_classification(
    model: Model,
    bag: Path,
    truth: str | None,
    *,
    camera: str | None = None,
    frames: int | None = None,
    demosaic: str = "binning",
    on_frame: Callable[[int, int | None], None] = lambda _done, _of: None,
) -> ClassificationEvaluation:
    """Run a classifier over a bag's pictures, all of which are of the class `truth`.

    The other parameters are those of `modelling.evaluation.segmentation.evaluate`; of several cameras the first is taken.

    Raises:
        SkylaneError: the bag cannot be read, has no such camera or no readable picture, or the model no such class.
    """
    names = model.card.labels.names
    if truth is None:
        raise EvaluationError(
            f"{model.card.name} tells whole frames: say what the bag's are, --truth {'|'.join(names)}"
        )
    if truth not in names:
        raise UnknownNameError("class", truth, names)
    source = BagSource(bag, topics=() if camera is None else (camera,))
    try:
        chosen = str(source.provenance["cameras"][0])  # type: ignore[index]  # A list, which the type does not tell.
        taken = np.zeros(len(names), np.int64)
        unreadable = 0
        for frame in source.frames():
            if frame.camera != chosen:
                continue
            if isinstance(frame, UnreadableFrame):
                unreadable += 1
                continue
            image, _ = prepared(frame.pixels, frame.layout, model.card, demosaic)
            taken[int(model.infer(image[np.newaxis])["scores"][0].argmax())] += 1
            on_frame(int(taken.sum()), frames)
            if taken.sum() == frames:
                break
        sha256 = str(source.provenance["sha256"])
    finally:
        source.close()
    if not taken.any():
        raise EvaluationError(f"{bag}: no picture on {chosen} can be read")
    return ClassificationEvaluation(model.card, sha256, chosen, truth, unreadable, tuple(taken.tolist()))
