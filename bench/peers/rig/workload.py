"""The work of every server: the graph in a file, the images, and the expected masks of a direct call.

For classifiers, the bytes of the scores are used as the mask: four bytes for the 32-bit score of each class, uint8 C×4.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from bench.peers.rig.function import MASK
from cloud.models.loader import ModelLoader
from ops.processes.playback import PlaybackSettings, encoded_frames, model_inputs
from shared.errors import SkylaneError
from shared.imaging.frames import Pixels
from shared.inference.engine import Images
from shared.inference.model import Model
from shared.messages.frame import FrameMessage
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.task import task_named

CODECS = ("jpeg", "raw")


@dataclass(frozen=True, slots=True)
class Job:
    """A frame as a client sends it, and the result of a direct call for the same pixels."""

    frame: FrameMessage
    mask: Pixels  # uint8 H×W, or C×4.

    @property
    def data(self) -> bytes:
        """The bytes of the image: JPEG or raw pixels."""
        return bytes(self.frame.data)

    @property
    def raw_bytes(self) -> int:
        """Size of the raw pixels."""
        return prod(self.frame.shape)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Input shape of the function, H×W×3; differs from the frame's if the server resizes it."""
        return self.frame.geometry.target_height, self.frame.geometry.target_width, 3


def write_graph(models: Path, model: str, path: Path) -> None:
    """Writes the graph of Skylane's engine for one image, from uint8 1×H×W×3 to uint8 1×H×W, for `Function`.

    Raises:
        SkylaneError: the model is missing, is not a frozen graph, or neither segments nor classifies.
    """
    graphs = import_module("cloud.engines.tensorflow.graph_session")  # Imported here because it loads TensorFlow.
    formats = import_module("cloud.engines.tensorflow.graphdef")
    rewriting = import_module("cloud.engines.tensorflow.graph_rewriting")
    tf = import_module("cloud.engines.tensorflow.runtime").tf
    stored = Repository(models).find(model)
    manifest = stored.manifest
    if len(task_named(manifest.task).heads) != 1:
        raise SkylaneError(f"{model} is a model for {manifest.task}: choose one with a single output, such as a mask")
    frozen = formats.read_frozen_graph(stored.file(), manifest)
    joined = replace(frozen, graph=rewriting.defer_widening_layers(frozen.graph, frozen.output_tensors.values()))
    whole = graphs.assemble(joined, manifest, batch_size=1)
    (head,) = whole.heads.values()
    with whole.graph.as_default():
        answer = head if task_named(manifest.task).has_shape else tf.bitcast(head, tf.uint8)
        tf.identity(answer, MASK.partition(":")[0])
    path.write_bytes(whole.graph.as_graph_def().SerializeToString())


def by_codec(plan: PlaybackSettings, codecs: Iterable[str] = CODECS) -> dict[str, PlaybackSettings]:
    """Returns a plan with the same images for each codec."""
    return {codec: replace(plan, codec=codec) for codec in codecs}


def jobs(plans: Mapping[str, PlaybackSettings]) -> dict[str, Sequence[Job]]:
    """Returns the frames of each plan, by name, with the masks of direct calls of Skylane's engine.

    All plans must have the same model.

    Raises:
        SkylaneError: a source or the model cannot be used.
    """
    ((models, name),) = {(plan.models, plan.model) for plan in plans.values()}
    with ModelLoader(Repository(models), Placement(device="cpu"), engine="tensorflow").open(name) as model:
        return {each: _jobs(plan, model) for each, plan in plans.items()}


def _jobs(plan: PlaybackSettings, model: Model) -> list[Job]:
    pairs = zip(encoded_frames(plan, model), model_inputs(plan, model), strict=True)
    return [Job(frame, _truth(model, np.asarray(picture, np.uint8))) for frame, picture in pairs]


def _truth(model: Model, picture: Images) -> Pixels:
    """Returns the mask of a direct call, or the bytes of its scores."""
    task = task_named(model.card.task)
    (head,) = task.heads
    (answer,) = model.infer(picture[None])[head]
    mask: Pixels = answer if task.has_shape else answer.view(np.uint8).reshape(len(answer), -1)
    return mask
