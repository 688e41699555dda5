"""Builds the graph that converters read, and writes it as frozen graph, SavedModel or TensorFlow Lite file.

The graph is a TensorFlow model from camera pixels to final outputs, with folded constants.
The file then contains preprocessing and postprocessing, so every engine computes them as TensorFlow does and none has to
process a copy of the scores.
"""

import tempfile
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.dilation import fold_constants
from cloud.engines.tensorflow.engine import READERS, with_any_batch
from cloud.engines.tensorflow.graph_session import assemble
from cloud.engines.tensorflow.runtime import tf
from modelling.conversion.derived_model import IMAGES, ConversionError
from shared.files import write_file
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


_flatbuffers: Any = import_module("tensorflow.lite.tools.flatbuffer_utils")


def write_frozen_graph(graph: ConversionGraph, path: Path) -> None:
    """Writes a binary GraphDef with the tensors "images:0" and one per head, such as "mask:0"."""
    write_file(path, graph.graph.SerializeToString(deterministic=True))


def write_saved_model(graph: ConversionGraph, folder: Path) -> None:
    """Writes a SavedModel; the keys of `serving_default` are "images" and the heads."""
    module = tf.Module()
    module.infer = graph.function()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.infer})


def write_tflite(graph: ConversionGraph, path: Path, *, half: bool) -> int:
    """Writes a TensorFlow Lite model with the signature of `write_saved_model`; returns its fixed batch size.

    The size is 1 if the graph accepts any: TensorFlow Lite allocates for one size, a batch is not faster per frame, and
    each change of size costs more than an inference. `half` stores float16 weights, which are expanded to float32 on load.

    Raises:
        ConversionError: an operation is not a TensorFlow Lite built-in.
    """
    fixed = replace(graph, batch_size=graph.batch_size or 1)
    with tempfile.TemporaryDirectory(prefix="skylane-tflite-") as folder:
        write_saved_model(fixed, Path(folder))
        write_file(path, tflite_model(Path(folder), half=half))
    return fixed.batch_size or 1


def tflite_model(folder: Path, *, half: bool) -> bytes:
    """Converts a SavedModel with one signature; see `write_tflite`."""
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
    if half:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.target_spec.supported_types = [tf.float16]
    try:
        content = converter.convert()
    except Exception as error:  # The converter's errors have no common base class.
        raise ConversionError("tflite", error) from error
    return _with_signature_names(content)


def _with_signature_names(content: bytes) -> bytes:
    """Returns the model with its tensors named after the signature's keys, for readers without signature support."""
    model = _flatbuffers.convert_bytearray_to_object(bytearray(content))
    (signature,) = model.signatureDefs
    tensors = model.subgraphs[signature.subgraphIndex].tensors
    for end in (*signature.inputs, *signature.outputs):
        tensors[end.tensorIndex].name = end.name
    return bytes(_flatbuffers.convert_object_to_bytearray(model))
