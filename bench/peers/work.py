"""What a run gives every server to do: the graph in a file, the pictures, and the masks that the direct call makes."""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from math import prod
from pathlib import Path

import numpy as np

from bench.overhead import Plan, decoded, prepared
from bench.peers.function import MASK
from cloud.engines.engine import Placement
from cloud.pictures import pictures
from cloud.repository import Repository
from shared.frames import Pixels
from shared.messages import FrameMessage

CODECS = ("jpeg", "raw")


@dataclass(frozen=True, slots=True)
class Job:
    """A frame as a client sends it, and what the direct call answers to the very pixels that the server will see."""

    frame: FrameMessage
    mask: Pixels  # uint8 H×W

    @property
    def data(self) -> bytes:
        """The picture's bytes: a JPEG, or the pixels."""
        return bytes(self.frame.data)

    @property
    def raw_bytes(self) -> int:
        """What its pixels take."""
        return prod(self.frame.shape)


def write_graph(models: Path, model: str, path: Path) -> None:
    """Write the graph of Skylane's engine for one picture, from uint8 1×H×W×3 to uint8 1×H×W, as `Function` reads it.

    Raises:
        SkylaneError: the model is not there, or no frozen graph.
    """
    graphs = import_module("cloud.engines.graph_session")  # Not above: these load TensorFlow.
    formats = import_module("cloud.engines.frozen_graph")
    rewriting = import_module("cloud.engines.graph_rewriting")
    tf = import_module("cloud.engines.tensorflow_device").tf
    repository = Repository(models)
    manifest = repository.manifest(model)
    frozen = formats.read_frozen_graph(repository.file(model), manifest)
    joined = replace(frozen, graph=rewriting.joined_early(frozen.graph, frozen.output_tensors.values()))
    whole = graphs.assemble(joined, manifest, 1)
    (head,) = whole.heads.values()
    with whole.graph.as_default():
        tf.identity(head, MASK.partition(":")[0])
    path.write_bytes(whole.graph.as_graph_def().SerializeToString())


def jobs(plan: Plan) -> dict[str, Sequence[Job]]:
    """The bag's frames by codec, each with the mask of the direct call of Skylane's engine.

    Raises:
        SkylaneError: the bag or the model cannot be used.
    """
    made: dict[str, Sequence[Job]] = {}
    with Repository(plan.models).load(plan.model, Placement(device="cpu"), engine="tensorflow") as model:
        for codec in CODECS:
            coded = replace(plan, codec=codec)
            pairs = zip(prepared(coded, model), decoded(coded, model), strict=True)
            made[codec] = [
                Job(frame, model.predict(np.asarray(picture, np.uint8)[None])[0]) for frame, picture in pairs
            ]
    return made


def write_torchscript(models: Path, model: str, path: Path) -> None:
    """Write the same network as TorchScript, by `skylane model convert`.

    Raises:
        SkylaneError: the model cannot be converted; MissingExtraError where PyTorch is not installed.
    """
    convert = import_module("modelling.conversion.conversion").convert
    with tempfile.TemporaryDirectory(prefix="skylane-peers-") as workplace:
        root = Path(workplace)
        shutil.copytree(Repository(models).folder(model), root / model)
        card = Repository(models).card(model)
        made = convert(Repository(root), model, "torchscript", pictures(card.height, card.width, 1), called="converted")
        shutil.copyfile(made.folder / made.manifest.file, path)
