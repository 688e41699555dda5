"""A model of TensorFlow's as one plain graph: pixels in, finished answers out, ready to be written in any format.

Scaling before the model and arg max, probabilities or boxes in pixels after it become part of the file, so that every
engine computes them as TensorFlow does, and none is left with a copy of the scores to go through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import EngineError, Images, Outputs
from cloud.engines.tensorflow.engine import READERS
from cloud.engines.tensorflow.graph_rewriting import freed
from cloud.engines.tensorflow.graph_session import assemble, frozen_batch_size
from cloud.engines.tensorflow.graphdef import FrozenModel
from cloud.engines.tensorflow.library import tf
from cloud.models.agreement import agreement
from cloud.models.manifest import Manifest
from cloud.models.warmup_images import pictures

IMAGES = "images"  # The input of every file that is written.

_optimiser: Any = import_module("tensorflow.python.grappler.tf_optimizer")
_SAME = 0.9999  # Of labels: a library may sum in another order for another batch, and round otherwise.


@dataclass(frozen=True, slots=True)
class ConversionGraph:
    """A GraphDef without variables or arithmetic on constants."""

    graph: Any
    heads: tuple[str, ...]  # Its outputs' names, those of the manifest's heads.
    height: int
    width: int
    batch_size: int | None  # Baked in; None where any will do.

    @property
    def input_tensor(self) -> str:
        """uint8 N×H×W×3."""
        return f"{IMAGES}:0"

    @property
    def output_tensors(self) -> list[str]:
        """In the order of `heads`."""
        return [f"{head}:0" for head in self.heads]

    def function(self) -> Any:
        """The graph as a concrete function from images to a map of heads."""
        specification = tf.TensorSpec([self.batch_size, self.height, self.width, 3], tf.uint8, name=IMAGES)

        def answers(images: Any) -> dict[str, Any]:
            found = tf.graph_util.import_graph_def(
                self.graph, {self.input_tensor: images}, self.output_tensors, name="model"
            )
            return dict(zip(self.heads, found, strict=True))

        return tf.function(answers, autograph=False).get_concrete_function(specification)


def plain_graph(path: Path, manifest: Manifest) -> ConversionGraph:
    """Read a frozen graph, SavedModel or Keras file; a batch baked into it is made free where that is sound.

    Raises:
        EngineError: the file is not what the manifest says.
    """
    frozen = READERS[manifest.format](path, manifest)
    baked = frozen_batch_size(frozen, manifest)
    if baked is None:
        return _assembled(frozen, manifest, None)
    as_it_is = _assembled(frozen, manifest, baked)
    try:
        free = FrozenModel(freed(frozen.graph, frozen.input_tensor), frozen.input_tensor, frozen.output_tensors, path)
        candidate = _assembled(free, manifest, None)
        return candidate if _agree(as_it_is, candidate, manifest) else as_it_is
    except (EngineError, tf.errors.OpError, ValueError):
        return as_it_is


def folded(definition: Any, kept: Sequence[str]) -> Any:
    """A GraphDef with everything constant worked out; `kept`: its operations that must not fall away.

    Arithmetic on shapes, which sizes pads and crops, ends as numbers wherever the sides of the picture are known.
    """
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(definition, name="")
        for name in kept:
            graph.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, graph.get_operation_by_name(name))
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers[:] = ["constfold", "function", "constfold"]
    options.meta_optimizer_iterations = 1
    options.min_graph_nodes = -1  # Also graphs of a few operations.
    return _optimiser.OptimizeGraph(config, meta)


def _assembled(frozen: FrozenModel, manifest: Manifest, batch_size: int | None) -> ConversionGraph:
    whole = assemble(frozen, manifest, batch_size)
    section = manifest.input
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (batch_size, section.height, section.width, 3), IMAGES)
        found = tf.import_graph_def(
            whole.graph.as_graph_def(),
            {whole.images.name: images},
            [tensor.name for tensor in whole.heads.values()],
            name="model",
        )
        for head, tensor in zip(whole.heads, found, strict=True):
            tf.identity(tensor, head)
    heads = tuple(whole.heads)
    definition = folded(graph.as_graph_def(), (IMAGES, *heads))
    return ConversionGraph(definition, heads, section.height, section.width, batch_size)


def _agree(one: ConversionGraph, free: ConversionGraph, manifest: Manifest) -> bool:
    """Whether pictures at once are answered as each alone."""
    batch = one.batch_size or 1
    given = pictures(one.height, one.width, 2 * batch)
    alone = [_run(one, part) for part in np.split(given, 2)]
    wanted = {head: np.concatenate([answers[head] for answers in alone]) for head in one.heads}
    found = _run(free, given)
    fits = all(found[head].shape == values.shape for head, values in wanted.items())
    return fits and agreement(manifest, wanted, found) >= _SAME


def _run(plain: ConversionGraph, images: Images) -> Outputs:
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(plain.graph, name="")
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(plain.output_tensors, {plain.input_tensor: images})
    return dict(zip(plain.heads, found, strict=True))
