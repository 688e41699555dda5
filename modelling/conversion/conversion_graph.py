"""Builds the graph that converters read: a TensorFlow model from camera pixels to final outputs, with folded constants.

The file then contains preprocessing and postprocessing, so every engine computes them as TensorFlow does and none has to
process a copy of the scores.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.dilation import fold_constants
from cloud.engines.tensorflow.engine import READERS, with_any_batch
from cloud.engines.tensorflow.graph_session import assemble
from cloud.engines.tensorflow.runtime import tf
from modelling.conversion.derived_manifest import IMAGES
from shared.models.manifest import Manifest, Placement, Precision


@dataclass(frozen=True, slots=True)
class ConversionGraph:
    """A GraphDef without variables or arithmetic on constants."""

    graph: Any
    heads: tuple[str, ...]  # The names of the outputs, which are those of the manifest's heads.
    height: int
    width: int
    batch_size: int | None  # The fixed batch size; None if the graph accepts any.

    @property
    def input_tensor(self) -> str:
        """The name of the input tensor, uint8 N×H×W×3."""
        return f"{IMAGES}:0"

    @property
    def output_tensors(self) -> list[str]:
        """The names of the output tensors, in the order of `heads`."""
        return [f"{head}:0" for head in self.heads]

    def function(self) -> Any:
        """Returns the graph as a concrete function from images to a dict of heads."""
        specification = tf.TensorSpec([self.batch_size, self.height, self.width, 3], tf.uint8, name=IMAGES)

        def call(images: Any) -> dict[str, Any]:
            outputs = tf.graph_util.import_graph_def(
                self.graph, {self.input_tensor: images}, self.output_tensors, name="model"
            )
            return dict(zip(self.heads, outputs, strict=True))

        return tf.function(call, autograph=False).get_concrete_function(specification)


def conversion_graph(path: Path, manifest: Manifest) -> ConversionGraph:
    """Reads a frozen graph, SavedModel or Keras file.

    A fixed batch size is replaced by any size if the outputs stay the same.

    Raises:
        EngineError: the file does not match the manifest.
    """
    placement = Placement(device="cpu", precision=Precision.FP32)
    whole = assemble(with_any_batch(READERS[manifest.format](path, manifest), manifest, placement), manifest)
    section = manifest.input
    graph = tf.Graph()
    with graph.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (whole.batch_size, section.height, section.width, 3), IMAGES)
        outputs = tf.import_graph_def(
            whole.graph.as_graph_def(),
            {whole.images.name: images},
            [tensor.name for tensor in whole.heads.values()],
            name="model",
        )
        for head, tensor in zip(whole.heads, outputs, strict=True):
            tf.identity(tensor, head)
    heads = tuple(whole.heads)
    definition = fold_constants(graph.as_graph_def(), (IMAGES, *heads))
    return ConversionGraph(definition, heads, section.height, section.width, whole.batch_size)
