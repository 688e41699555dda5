"""Converts TensorFlow graphs to ONNX files with operations that ONNX Runtime can fuse."""

import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.tensorflow.dilation import with_dilated_convolutions
from modelling.conversion.conversion_graph import ConversionGraph
from modelling.conversion.derived_manifest import IMAGES
from modelling.conversion.onnx_graph import OnnxGraph
from modelling.conversion.targets import ConversionError
from shared.inference.onnx_weights import checked_onnx_file

OPSET = 18  # The first one whose Resize has an `axes` attribute, which any batch size requires.


def onnx_of(conversion: ConversionGraph) -> Any:
    """Returns an onnx.ModelProto from `images`, uint8 N×H×W×3, to the heads.

    Raises:
        ConversionError: an operation has no equivalent in ONNX.
    """
    tf2onnx = import_module("tf2onnx")
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tf2onnx uses deprecated NumPy functions.
            model, _ = tf2onnx.convert.from_graph_def(
                with_dilated_convolutions(conversion.graph, conversion.output_tensors),
                input_names=[conversion.input_tensor],
                output_names=conversion.output_tensors,
                opset=OPSET,
            )
    except Exception as error:  # tf2onnx's errors have no common base class.
        raise ConversionError("onnx", error) from error
    return _optimised(model, conversion)


def read_onnx(path: Path) -> Any:
    """Reads an onnx.ModelProto with its weights from a file, or from a folder with one file and its weights.

    Raises:
        ConversionError: the file is not ONNX.
        EngineError: it keeps weights outside of `path`.
    """
    file = checked_onnx_file(path)
    onnx = import_module("onnx")
    try:
        model = onnx.load_model(file)
        onnx.checker.check_model(model)
    except Exception as error:  # Errors of protobuf and of the checker.
        raise ConversionError("another format", f"{path}: {error}") from error
    return model


def write_onnx(model: Any, path: Path) -> None:
    """Writes a ModelProto together with its weights."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def half_onnx(model: Any) -> Any:
    """Returns the model with weights and arithmetic in float16, and unchanged input and output types."""
    return import_module("onnxruntime.transformers.float16").convert_float_to_float16(model, keep_io_types=True)


def _optimised(model: Any, conversion: ConversionGraph) -> Any:
    del model.graph.value_info[:]  # tf2onnx's shapes are wrong for rounded sizes.
    graph = OnnxGraph(model)
    graph.rename({conversion.input_tensor: IMAGES, **{f"{head}:0": head for head in conversion.heads}})
    graph.set_batch_size(conversion.batch_size)
    _resize_to_sizes(graph)
    _fuse_hard_swish(graph)
    _name_global_means(graph)
    graph.drop_unused()
    return graph.model


def _resize_to_sizes(graph: OnnxGraph) -> None:
    """Replaces fractional scales of Resize by the output size, because 21 times 121 / 21 gives 120 in float32.

    Whole scales stay, because ONNX Runtime has a faster kernel for them.
    """
    while True:
        shapes = graph.shapes()
        for node in graph.nodes("Resize"):
            scales = graph.constant(node.input[2]) if len(node.input) == 3 else None  # noqa: PLR2004 - data, region, scales.
            sides = shapes.get(node.input[0], ())[2:]
            if scales is None or None in sides or len(sides) != len(scales[2:]) or (scales == np.round(scales)).all():
                continue
            sizes = np.array(
                [round(side * float(scale)) for side, scale in zip(sides, scales[2:], strict=True) if side]
            )
            node.input[1:] = ["", "", graph.add_constant(f"{node.name}/sizes", sizes.astype(np.int64))]
            graph.set_attribute(node, "axes", [2, 3])
            break  # The shapes after this node have changed.
        else:
            return


def _fuse_hard_swish(graph: OnnxGraph) -> None:
    """Replaces `Clip(x + 3, 0, 6) / 6` by HardSigmoid: one pass over the map instead of three."""
    for clip in graph.nodes("Clip"):
        add, scaling = graph.producer(clip.input[0]), graph.only_user(clip.output[0])
        limits = [graph.number(name) for name in clip.input[1:]]
        if add is None or add.op_type != "Add" or graph.only_user(clip.input[0]) is None or limits != [0.0, 6.0]:
            continue
        if scaling is None or scaling.op_type not in ("Mul", "Div"):
            continue
        source, three = graph.with_number(add)
        clipped, sixth = graph.with_number(scaling)
        expected = 1 / 6 if scaling.op_type == "Mul" else 6.0
        if three != 3.0 or sixth is None or clipped != clip.output[0] or not np.isclose(sixth, expected, rtol=1e-6):  # noqa: PLR2004
            continue
        graph.replace([add, clip, scaling], "HardSigmoid", [source], scaling.output[0], alpha=1 / 6, beta=0.5)


def _name_global_means(graph: OnnxGraph) -> None:
    """Replaces means over rows and columns by GlobalAveragePool, which ONNX Runtime keeps in its blocked layout."""
    for node in graph.nodes("ReduceMean"):
        axes = graph.constant(node.input[1]) if len(node.input) > 1 else None
        if axes is not None and sorted(axes.tolist()) == [2, 3] and graph.attribute(node, "keepdims", 1) == 1:
            graph.replace([node], "GlobalAveragePool", [node.input[0]], node.output[0])
