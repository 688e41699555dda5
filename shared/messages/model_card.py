"""The model card, by which a worker describes its model to the vehicles, and what a vehicle may ask of that model."""

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels, LabelsError
from shared.messages.frame import RequestOptions
from shared.messages.msgpack_reader import MAX_ITEMS, MessageError, Milliseconds, Name, Side, Text
from shared.task import TASKS, task_named

MAX_TRAINED_ON = 256  # Characters.
SYNTHETIC_DRIVES = "synthetic drives of Skylane"  # The training data of the models that Skylane builds.


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
    # Names of the raw outputs of a model of the task "tensors"; otherwise empty.
    outputs: Annotated[tuple[Name, ...], Meta(max_length=MAX_ITEMS)] = ()
    engine: Text = ""  # Name of the engine, such as "tensorflow"; empty if the model is not loaded.
    precision: Text = ""  # Numeric precision, such as "fp32".
    cold_ms: Milliseconds | None = None  # Duration of the first inference after loading.
    warm_ms: Milliseconds | None = None  # Duration of the last warm-up inference.
    trained_on: Annotated[str, Meta(max_length=MAX_TRAINED_ON)] = ""  # The data of the training; empty if unknown.

    @property
    def is_trained_on_synthetic_drives(self) -> bool:
        """True if the card states that the model was trained on synthetic drives alone."""
        return self.trained_on.strip().casefold() == SYNTHETIC_DRIVES.casefold()


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


def check_request_options(options: RequestOptions, card: ModelCard) -> None:
    """Checks that a model supports the options; a vehicle does so at its start, a worker for every frame.

    Raises:
        MessageError: The model has no such codec, outputs or number of classes; the message lists the valid choices.
    """
    task = task_named(card.task)
    if options.mask_codec not in task.codecs:
        codecs = ", ".join(task.codecs)
        raise MessageError(f"no {task.result_name} codec {options.mask_codec[:40]!r}: ask for {codecs}")
    unknown = [name for name in options.outputs if name not in card.outputs]
    if unknown:
        hint = f"ask for {', '.join(card.outputs)}" if card.outputs else "only models of raw tensors have named outputs"
        raise MessageError(f"model {card.name} has no output {', '.join(unknown)[:200]}: {hint}")
    if options.top_k is None:
        return
    if "top_k" not in task.settings:
        raise MessageError(f"model {card.name} returns no ranked classes, its task is {card.task}: leave top-k out")
    if options.top_k > len(card.labels.names):
        raise MessageError(
            f"model {card.name} has {len(card.labels.names)} classes, not {options.top_k}: ask for fewer"
        )
