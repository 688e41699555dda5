"""The model card: the description of a model that its worker announces to the vehicles."""

from dataclasses import dataclass
from enum import StrEnum

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import MAX_MASK_LABELS, Labels, LabelsError

# Pattern of a version, which is also a folder name. Dots are allowed: it is never part of a topic.
VERSION_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"


class Task(StrEnum):
    """The kind of result a model computes."""

    SEGMENTATION = "segmentation"  # A class id per pixel.
    CLASSIFICATION = "classification"  # The classes of a frame, with scores.
    DETECTION = "detection"  # Boxes with classes and scores.
    TENSORS = "tensors"  # The raw output tensors of the model.


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The input a model expects, the result it computes, and its measured speed."""

    name: str
    version: str
    sha256: str  # Digest of the model's files, hexadecimal.
    task: Task
    height: int  # Model input, pixels.
    width: int  # Model input, pixels.
    layout: Layout  # Colour order of the model input: rgb8 or bgr8.
    resize: Resize
    labels: Labels
    trained: bool  # False if the weights are random; images of the results are then marked as such.
    outputs: tuple[str, ...] = ()  # Names of the outputs, for the task TENSORS.
    engine: str = ""  # Name of the engine, such as "tensorflow"; empty if the model is not loaded.
    precision: str = ""  # Numeric precision, such as "fp32".
    cold_ms: float | None = None  # Duration of the first inference after loading.
    warm_ms: float | None = None  # Duration of the last warm-up inference.


def labels_of(task: Task, labels: Labels) -> Labels:
    """Returns the labels if their number is valid for the task.

    Raises:
        LabelsError: There are more than a uint8 mask can represent.
    """
    if task is Task.SEGMENTATION and len(labels.names) > MAX_MASK_LABELS:
        raise LabelsError(
            f"{len(labels.names)} classes of a mask: give at most {MAX_MASK_LABELS}, because class ids are uint8"
        )
    return labels
