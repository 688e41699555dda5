"""What a run gives every server to do: the graph in a file, the pictures, and the masks that the direct call makes.

A classifier's scores take a mask's place as their bytes: of each class the four of its 32-bit number, uint8 C×4.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from bench.load.playback import PlaybackSettings, encoded_frames, model_inputs
from bench.peers.rig.function import MASK
from cloud.engines.engine import Images, Placement
from cloud.models.model import Model
from cloud.models.repository import Repository
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from shared.messages.frame import FrameMessage
from shared.messages.model_card import Task

CODECS = ("jpeg", "raw")

_HEADS = {Task.SEGMENTATION: "mask", Task.CLASSIFICATION: "scores"}


@dataclass(frozen=True, slots=True)
class Job:
    """A frame as a client sends it, and what the direct call answers to the very pixels that the server will see."""

    frame: FrameMessage
    mask: Pixels  # uint8 H×W, or C×4.

    @property
    def data(self) -> bytes:
        """The picture's bytes: a JPEG, or the pixels."""
        return bytes(self.frame.data)

    @property
    def raw_bytes(self) -> int:
        """What its pixels take."""
        return prod(self.frame.shape)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """What the function takes, H×W×3: another shape than the frame's where the server resizes it."""
        return self.frame.geometry.target_height, self.frame.geometry.target_width, 3


def write_graph(models: Path, model: str, path: Path) -> None:
    """Write the graph of Skylane's engine for one picture, from uint8 1×H×W×3 to uint8 1×H×W, as `Function` reads it.

    Raises:
        SkylaneError: the model is not there, no frozen graph, or for neither segmentation nor classification.
    """
    graphs = import_module("cloud.engines.tensorflow.graph_session")  # Not above: these load TensorFlow.
    formats = import_module("cloud.engines.tensorflow.graphdef")
    rewriting = import_module("cloud.engines.tensorflow.graph_rewriting")
    tf = import_module("cloud.engines.tensorflow.library").tf
    repository = Repository(models)
    manifest = repository.manifest(model)
    if manifest.task not in _HEADS:
        raise SkylaneError(f"{model} is a model for {manifest.task}: choose one for {' or '.join(_HEADS)}")
    frozen = formats.read_frozen_graph(repository.file(model), manifest)
    joined = replace(frozen, graph=rewriting.defer_widening_layers(frozen.graph, frozen.output_tensors.values()))
    whole = graphs.assemble(joined, manifest, 1)
    (head,) = whole.heads.values()
    with whole.graph.as_default():
        answer = head if manifest.task is Task.SEGMENTATION else tf.bitcast(head, tf.uint8)
        tf.identity(answer, MASK.partition(":")[0])
    path.write_bytes(whole.graph.as_graph_def().SerializeToString())


def by_codec(plan: PlaybackSettings, codecs: Iterable[str] = CODECS) -> dict[str, PlaybackSettings]:
    """The same pictures in each codec."""
    return {codec: replace(plan, codec=codec) for codec in codecs}


def jobs(plans: Mapping[str, PlaybackSettings]) -> dict[str, Sequence[Job]]:
    """The frames of each plan, by its name, with the masks of the direct calls of Skylane's engine.

    `plans`: all of one model.

    Raises:
        SkylaneError: a source or the model cannot be used.
    """
    ((models, name),) = {(plan.models, plan.model) for plan in plans.values()}
    with Repository(models).load(name, Placement(device="cpu"), engine="tensorflow") as model:
        return {each: _jobs(plan, model) for each, plan in plans.items()}


def _jobs(plan: PlaybackSettings, model: Model) -> list[Job]:
    pairs = zip(encoded_frames(plan, model), model_inputs(plan, model), strict=True)
    return [Job(frame, _truth(model, np.asarray(picture, np.uint8))) for frame, picture in pairs]


def _truth(model: Model, picture: Images) -> Pixels:
    """The mask of the direct call, or the bytes of its scores."""
    (answer,) = model.infer(picture[None])[_HEADS[model.card.task]]
    mask: Pixels = answer if model.card.task is Task.SEGMENTATION else answer.view(np.uint8).reshape(len(answer), -1)
    return mask
