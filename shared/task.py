"""The contract of a task, a kind of result that a model computes, its outputs, and the table of all tasks."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt

from shared.errors import SkylaneError
from shared.imaging.labels import MAX_LABELS
from shared.registry import Entry, PluginTable, load

Floats = npt.NDArray[np.float32]

# An output beside the mask, added by `Manifest.with_confidence_head`: h×w×C scores before softmax, maybe coarser than the mask.
CONFIDENCE_HEAD = "confidence"

SMALLEST = 1e-12  # Keeps the logarithm of a probability finite.


class Head(NamedTuple):
    """An output of a model, as an engine returns it."""

    kinds: tuple[str, ...]  # The kinds of tensors that an engine converts to it; see a manifest's OutputKind.
    dtype: str
    shape: tuple[int | str, ...]  # Without the batch; "height" and "width" of the input, "labels", or -1 for any size.


class ConfidenceError(SkylaneError):
    """The confidence in a model's answer cannot be computed."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """The confidence in the answer to one frame: calibrated scores, such as one for each object, or the share of certain pixels."""

    scores: Floats  # 0..1; empty if nothing was found that could be uncertain.
    two_sided: bool  # True if a low score is certain too: the probability of "yes", not of the answer.

    @property
    def lowest(self) -> float:
        """The confidence in the least certain part of the answer, 0 to 1; of a two-sided score p it is max(p, 1 - p)."""
        if not len(self.scores):
            return 1.0
        certain = np.maximum(self.scores, 1 - self.scores) if self.two_sided else self.scores
        return float(certain.min())


def calibrated_softmax(scores: npt.NDArray[Any], temperature: float) -> Floats:
    """Returns the softmax over the last axis of scores divided by the temperature."""
    scaled = scores.astype(np.float32) / np.float32(temperature)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True), np.float32)


def calibrated_sigmoid(scores: npt.NDArray[Any], temperature: float) -> Floats:
    """Returns the sigmoid of scores divided by the temperature; computed by tanh, which cannot overflow."""
    scaled = scores.astype(np.float32) / np.float32(temperature)
    return np.asarray(0.5 * np.tanh(0.5 * scaled) + 0.5, np.float32)


def log_probabilities(probabilities: npt.NDArray[Any]) -> Floats:
    """Returns scores whose softmax are the given probabilities."""
    return np.log(np.maximum(probabilities.astype(np.float32), SMALLEST))


def log_odds(probabilities: npt.NDArray[Any]) -> Floats:
    """Returns scores whose sigmoid are the given probabilities."""
    return log_probabilities(probabilities) - log_probabilities(1 - probabilities.astype(np.float32))


TASKS = PluginTable(
    "task",
    "skylane.tasks",
    Entry,
    {  # The keys are the names in messages and manifests.
        "segmentation": Entry("shared.tasks.segmentation:SegmentationTask", "edge"),
        "classification": Entry("shared.tasks.classification:ClassificationTask", "edge"),
        "detection": Entry("shared.tasks.detection:DetectionTask", "edge"),
        "tensors": Entry("shared.tasks.tensors:TensorsTask", "edge"),
    },
)
DEFAULT_TASK = next(iter(TASKS))  # The task of a manifest without this key.


class Task(Protocol):
    """The properties of a task, and the operations on its results; thread-safe."""

    result_name: str  # For example "mask"; used in messages to users, and in names of folders.
    codecs: Collection[str]  # Codecs of an encoded result; all are lossless.
    has_shape: bool  # True if a reply has the H×W of the result.
    sinks: tuple[str, ...]  # Names of the sinks of a run that configures none.
    labels: tuple[int, int]  # Minimum and maximum number of labels of a model.
    heads: Mapping[str, Head]  # The outputs of a model; empty if they are named by its manifest.
    optional_heads: Mapping[str, Head]  # The outputs that a model may have in addition.
    settings: tuple[str, ...]  # Keys of the manifest that only this task uses.
    comparison: str  # The meaning of equal labels, difference and accuracy in a comparison of engines.

    def result(self, outputs: Mapping[str, Any], message: Any, manifest: Any) -> Any:
        """Makes the result that a FrameMessage requests from the outputs of one frame, without the batch dimension."""

    def encode(self, result: Any, codec: str) -> Any:
        """Encodes a result as bytes; raises a SkylaneError if it cannot be encoded."""

    def decode(
        self, data: Any, codec: str, shape: tuple[int, int] | None, geometry: Any = None, labels: int = MAX_LABELS
    ) -> Any:
        """Decodes a result and checks it, also against the Geometry of its frame and the number of its model's labels.

        Raises a SkylaneError if it is invalid.
        """

    def draw(self, rgb: Any, result: Any, labels: Any, geometry: Any, opacity: float) -> Any:
        """Returns a copy of an image, the target of `geometry` at any scale, with the result drawn on it."""

    def json_fields(self, result: Any, geometry: Any, labels: Any) -> dict[str, Any]:
        """Returns the result as the fields of a JSON object."""

    def agreement(self, reference: Mapping[str, Any], given: Mapping[str, Any], manifest: Any) -> float:
        """Returns the share of equal labels in the outputs of two engines for the same N images, 0 to 1."""

    def confidence(self, outputs: Mapping[str, Any], manifest: Any, temperature: float) -> Confidence:
        """Returns the confidence in the answer to one frame; raises a ConfidenceError if the outputs do not contain it."""


@cache
def task_named(name: str) -> Task:
    """Returns the plug-in of a task in the table."""
    return cast("Task", load("task", TASKS, name)())
