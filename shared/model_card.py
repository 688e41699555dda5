"""A model card: what a vehicle must know of a model, announced by the worker that serves it."""

from dataclasses import dataclass

from shared.frames import Layout
from shared.geometry import Resize
from shared.labels import Labels


@dataclass(frozen=True, slots=True)
class ModelCard:
    """A model as seen from the vehicle: what to send, and how to read what comes back."""

    name: str
    version: str
    sha256: str  # Of the model's files, hexadecimal.
    task: str  # "segmentation"
    height: int  # Pixels of the model's input.
    width: int
    layout: Layout  # The colour order of the model's input: rgb8 or bgr8.
    resize: Resize
    labels: Labels
    trained: bool  # False: the weights are random, and every picture says so.
