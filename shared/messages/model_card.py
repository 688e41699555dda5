"""The model card: the description of a model that its worker announces to the vehicles."""

from dataclasses import dataclass

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels, LabelsError
from shared.tasks.task import task_named

# Pattern of a version, which is also a folder name. Dots are allowed: it is never part of a topic.
VERSION_NAME = r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The input a model expects, the result it computes, and its measured speed."""

    name: str
    version: str
    sha256: str  # Digest of the model's files, hexadecimal.
    task: str  # A name in shared.tasks.task.TASKS.
    height: int  # Model input, pixels.
    width: int  # Model input, pixels.
    layout: Layout  # Colour order of the model input: rgb8 or bgr8.
    resize: Resize
    labels: Labels
    trained: bool  # False if the weights are random; images of the results are then marked as such.
    outputs: tuple[str, ...] = ()  # Names of the outputs, if the manifest names them.
    engine: str = ""  # Name of the engine, such as "tensorflow"; empty if the model is not loaded.
    precision: str = ""  # Numeric precision, such as "fp32".
    cold_ms: float | None = None  # Duration of the first inference after loading.
    warm_ms: float | None = None  # Duration of the last warm-up inference.


def labels_of(task: str, labels: Labels) -> Labels:
    """Returns the labels if their number is valid for the task.

    Raises:
        LabelsError: There are more than a result can represent.
    """
    plug_in = task_named(task)
    if len(labels.names) > plug_in.labels[1]:
        raise LabelsError(f"{len(labels.names)} classes of a {plug_in.result_name}: give at most {plug_in.labels[1]}")
    return labels
