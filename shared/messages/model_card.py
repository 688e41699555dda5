"""The model card: the description of a model that its worker announces to the vehicles."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels, LabelsError
from shared.messages.field_types import Milliseconds, Name, Side, Text
from shared.messages.msgpack_reader import MAX_ITEMS, MessageError
from shared.task import TASKS, task_named


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The input a model expects, the result it computes, and its measured speed."""

    name: Name
    version: Text
    sha256: Text  # Digest of the model's files, hexadecimal.
    task: Text  # A name in shared.task.TASKS.
    height: Side  # Model input, pixels.
    width: Side  # Model input, pixels.
    layout: Layout  # Colour order of the model input: rgb8 or bgr8.
    resize: Resize
    labels: Labels
    trained: bool  # False if the weights are random; images of the results are then marked as such.
    outputs: Annotated[
        tuple[Name, ...], Meta(max_length=MAX_ITEMS)
    ] = ()  # Names of the outputs, if the manifest names them.
    engine: Text = ""  # Name of the engine, such as "tensorflow"; empty if the model is not loaded.
    precision: Text = ""  # Numeric precision, such as "fp32".
    cold_ms: Milliseconds | None = None  # Duration of the first inference after loading.
    warm_ms: Milliseconds | None = None  # Duration of the last warm-up inference.


def check_card(card: ModelCard) -> ModelCard:
    """Returns a received card; raises a MessageError if its task is unknown or cannot have its number of labels."""
    if card.task not in TASKS:
        raise MessageError(f"field 'task': {card.task[:40]!r} is not one of {', '.join(TASKS)}")
    if len(card.labels.names) < task_named(card.task).labels[0]:
        raise MessageError(f"field 'labels': a model of the task {card.task} needs some")
    try:
        labels_of(card.task, card.labels)
    except LabelsError as error:
        raise MessageError(f"field 'labels': {error}") from error
    return card


def labels_of(task: str, labels: Labels) -> Labels:
    """Returns the labels if their number is valid for the task.

    Raises:
        LabelsError: There are more than a result can represent.
    """
    plug_in = task_named(task)
    if len(labels.names) > plug_in.labels[1]:
        raise LabelsError(f"{len(labels.names)} classes of a {plug_in.result_name}: give at most {plug_in.labels[1]}")
    return labels
