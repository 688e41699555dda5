"""Writing TensorFlow's own formats and TensorFlow Lite from a plain graph."""

import tempfile
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.library import tf
from modelling.conversion.conversion_graph import ConversionGraph
from modelling.conversion.errors import ConversionError

_flatbuffers: Any = import_module("tensorflow.lite.tools.flatbuffer_utils")


def write_frozen_graph(plain: ConversionGraph, path: Path) -> None:
    """Write a binary GraphDef; its tensors are "images:0" and the heads, "mask:0"."""
    path.write_bytes(plain.graph.SerializeToString(deterministic=True))


def write_saved_model(plain: ConversionGraph, folder: Path) -> None:
    """Write a SavedModel; the keys of `serving_default` are "images" and the heads."""
    module = tf.Module()
    module.answer = plain.function()
    tf.saved_model.save(module, str(folder), signatures={"serving_default": module.answer})


def write_tflite(plain: ConversionGraph, path: Path, *, half: bool) -> int:
    """Write a TensorFlow Lite model of its built-in operations; the keys of its signature as above.

    Returns the batch that is baked in: 1 where any would do, as TensorFlow Lite lays its memory out for one size, a
    frame in a batch takes as long as alone, and each change of size costs more than an inference. `half`: its weights
    are float16, and made float32 again when it is opened.

    Raises:
        ConversionError: an operation has no built-in form.
    """
    baked = replace(plain, batch_size=plain.batch_size or 1)
    with tempfile.TemporaryDirectory(prefix="skylane-tflite-") as folder:
        write_saved_model(baked, Path(folder))
        converter = tf.lite.TFLiteConverter.from_saved_model(folder)
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS]
        if half:
            converter.optimizations = [tf.lite.Optimize.DEFAULT]
            converter.target_spec.supported_types = [tf.float16]
        try:
            content = converter.convert()
        except Exception as error:  # Its compiler raises whatever it meets.
            raise ConversionError("tflite", error) from error
    path.write_bytes(_named_by_keys(content))
    return baked.batch_size or 1


def _named_by_keys(content: bytes) -> bytes:
    """The same model, its tensors named as the keys of its signature: other readers know no signatures."""
    model = _flatbuffers.convert_bytearray_to_object(bytearray(content))
    (signature,) = model.signatureDefs
    tensors = model.subgraphs[signature.subgraphIndex].tensors
    for end in (*signature.inputs, *signature.outputs):
        tensors[end.tensorIndex].name = end.name
    return bytes(_flatbuffers.convert_object_to_bytearray(model))
