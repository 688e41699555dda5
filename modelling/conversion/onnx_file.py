"""Writing ONNX files from TensorFlow's graphs, tidied so that ONNX Runtime can fuse them."""

import logging
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from modelling.conversion.conversion_graph import IMAGES, ConversionGraph
from modelling.conversion.dilation import undilated
from modelling.conversion.errors import ConversionError
from modelling.conversion.onnx_graph import OnnxGraph

OPSET = 18  # The first in which a Resize tells the sides it is of, which leaves the batch free.


def onnx_of(plain: ConversionGraph) -> Any:
    """An onnx.ModelProto from `images`, uint8 N×H×W×3, to the heads.

    Raises:
        ConversionError: an operation has no form in ONNX.
    """
    tf2onnx = import_module("tf2onnx")
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Its NumPy is an old one's.
            model, _ = tf2onnx.convert.from_graph_def(
                undilated(plain.graph),
                input_names=[plain.input_tensor],
                output_names=plain.output_tensors,
                opset=OPSET,
            )
    except Exception as error:  # Its converters raise whatever they meet.
        raise ConversionError("onnx", error) from error
    return _tidied(model, plain)


def read_onnx(path: Path) -> Any:
    """An onnx.ModelProto of a file with its weights inside.

    Raises:
        ConversionError: it is none, or its weights lie elsewhere.
    """
    onnx = import_module("onnx")
    try:
        model = onnx.load_model(path, load_external_data=False)
        onnx.checker.check_model(model)
    except Exception as error:  # Protobuf's own errors, and the checker's.
        raise ConversionError("another format", f"{path}: {error}") from error
    return model


def write_onnx(model: Any, path: Path) -> None:
    """Write a ModelProto, weights inside."""
    path.write_bytes(model.SerializeToString(deterministic=True))


def half_onnx(model: Any) -> Any:
    """The same model with its weights and arithmetic in float16; its inputs and outputs stay as they are."""
    return import_module("onnxruntime.transformers.float16").convert_float_to_float16(model, keep_io_types=True)


def _tidied(model: Any, plain: ConversionGraph) -> Any:
    del model.graph.value_info[:]  # tf2onnx's own, which are wrong where a size was rounded.
    graph = OnnxGraph(model)
    graph.rename({plain.input_tensor: IMAGES, **{f"{head}:0": head for head in plain.heads}})
    graph.open_batch(plain.batch_size)
    _size_resizes(graph)
    _fuse_hard_swish(graph)
    _name_global_means(graph)
    graph.drop_unused()
    return graph.model


def _size_resizes(graph: OnnxGraph) -> None:
    """A scale such as 121 / 21 gives 120 when multiplied in float32: where it is no whole number, tell the size.

    Whole scales stay: ONNX Runtime has a faster kernel for those.
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
            break  # What follows it is of another size now.
        else:
            return


def _fuse_hard_swish(graph: OnnxGraph) -> None:
    """`Clip(x + 3, 0, 6) / 6`: HardSigmoid, one pass over the map instead of three."""
    for clip in graph.nodes("Clip"):
        add, scaling = graph.maker(clip.input[0]), graph.only_user(clip.output[0])
        bounds = [graph.number(name) for name in clip.input[1:]]
        if add is None or add.op_type != "Add" or graph.only_user(clip.input[0]) is None or bounds != [0.0, 6.0]:
            continue
        if scaling is None or scaling.op_type not in ("Mul", "Div"):
            continue
        source, three = graph.with_number(add)
        of_clip, sixth = graph.with_number(scaling)
        wanted = 1 / 6 if scaling.op_type == "Mul" else 6.0
        if three != 3.0 or sixth is None or of_clip != clip.output[0] or not np.isclose(sixth, wanted, rtol=1e-6):  # noqa: PLR2004
            continue
        graph.replace([add, clip, scaling], "HardSigmoid", [source], scaling.output[0], alpha=1 / 6, beta=0.5)


def _name_global_means(graph: OnnxGraph) -> None:
    """A mean over rows and columns under the name that ONNX Runtime keeps in its blocked layout."""
    for node in graph.nodes("ReduceMean"):
        axes = graph.constant(node.input[1]) if len(node.input) > 1 else None
        if axes is not None and sorted(axes.tolist()) == [2, 3] and graph.attribute(node, "keepdims", 1) == 1:
            graph.replace([node], "GlobalAveragePool", [node.input[0]], node.output[0])
