"""Writes frozen graphs, SavedModels and TensorFlow Lite files."""

import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.runtime import tf
from modelling.conversion.conversion_graph import ConversionGraph
from modelling.conversion.targets import ConversionError

_flatbuffers: Any = import_module("tensorflow.lite.tools.flatbuffer_utils")


def write_frozen_graph(graph: ConversionGraph, path: Path) -> None:
    """Writes a binary GraphDef with the tensors "images:0" and one per head, such as "mask:0"."""
    path.write_bytes(graph.graph.SerializeToString(deterministic=True))


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
        path.write_bytes(tflite_model(Path(folder), half=half))
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
