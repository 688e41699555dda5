"""A model card: what a vehicle must know of a model, announced by the worker that serves it."""

from dataclasses import dataclass
from enum import StrEnum

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_MASK_LABELS, Labels, LabelsError

VERSION_NAME = (
    r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"  # No topic carries it, so it may hold dots; a folder is called by it.
)


class Task(StrEnum):
    """What a model answers."""

    SEGMENTATION = "segmentation"  # A class for every pixel.
    CLASSIFICATION = "classification"  # Classes of the whole frame, with scores.
    DETECTION = "detection"  # Boxes with classes and scores.
    TENSORS = "tensors"  # What the model gives, as it is.


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as seen from the vehicle: what to send, and how to read what comes back."""

    name: str
    version: str
    sha256: str  # Of the model's files, hexadecimal.
    task: Task
    height: int  # Pixels of the model's input.
    width: int
    layout: Layout  # The colour order of the model's input: rgb8 or bgr8.
    resize: Resize
    labels: Labels
    trained: bool  # False: the weights are random, and every picture says so.
    outputs: tuple[str, ...] = ()  # The heads of a model of raw tensors.
    engine: str = ""  # What runs it, "tensorflow"; empty where nothing does yet.
    precision: str = ""  # What it computes in, "fp32".
    cold_ms: float | None = None  # Its first inference after it was loaded.
    warm_ms: float | None = None  # The last one of its warm-up.


def labels_of(task: Task, labels: Labels) -> Labels:
    """The labels, where a model of `task` can have them.

    Raises:
        LabelsError: there are more than a mask can tell apart.
    """
    if task is Task.SEGMENTATION and len(labels.names) > MAX_MASK_LABELS:
        raise LabelsError(
            f"{len(labels.names)} classes of a mask: give at most {MAX_MASK_LABELS}, as many as a uint8 class id can "
            "tell apart"
        )
    return labels
