"""Reads every format that OpenVINO accepts as one ov.Model from camera pixels to final outputs, and optimises it."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.heads import postprocess_ops, preprocess_ops, shape_of
from cloud.engines.openvino.runtime import ops, ov, passes
from shared.errors import error_reason
from shared.inference.engine import EngineError
from shared.inference.onnx_weights import checked_onnx_file
from shared.inference.pre_postprocess import preprocessor_for
from shared.inference.tensor_binding import check_other_inputs, find_tensor
from shared.models.manifest import Manifest

IMAGES = "images"  # The one input of an end-to-end model, uint8 N×H×W×3; its outputs are named after the heads.
IR_NAME = "model.xml"  # The graph in a folder of format `openvino`; model.bin next to it contains the weights.

_TENSORFLOW_FORMATS = ("frozen_graph", "saved_model")
Order = list[int]  # A transpose's order: axis `i` of its output is axis `order[i]` of its input.
_UNSUPPORTED_MASKS = ("new_axis_mask", "shrink_axis_mask", "ellipsis_mask")
_INTERPOLATE_INPUTS = 3  # The current Interpolate takes the map, the sizes or scales, and the axes.


def read_end_to_end(core: Any, path: Path, manifest: Manifest) -> Any:
    """Reads a file as an ov.Model from uint8 N×H×W×3 to the manifest's heads, in their order.

    N is the batch size that the file fixes, or dynamic. Formats of TensorFlow are first read by TensorFlow, whose reader
    refuses graphs with unsafe operations.

    Raises:
        EngineError: the file is missing, is not a model, or does not match the manifest.
    """
    if manifest.format in _TENSORFLOW_FORMATS:
        return _from_tensorflow(core, path, manifest)
    return _from_file(core, path, manifest)


def model_batch_size(model: Any) -> int | None:
    """Returns the fixed batch size of an end-to-end model; None if it accepts any."""
    side = model.inputs[0].get_partial_shape()[0]
    return int(side.get_length()) if side.is_static else None


def optimised(model: Any, batch: int) -> Any:
    """Returns a copy of an end-to-end model for one batch size, rewritten to run faster with the same outputs."""
    copy = model.clone()
    shape = copy.inputs[0].get_partial_shape()
    shape[0] = batch
    copy.reshape(shape)
    folding = passes.Manager()
    folding.register_pass(passes.ConstantFolding())
    folding.run_passes(copy)
    sink_transposes(copy)
    return copy


def _from_tensorflow(core: Any, path: Path, manifest: Manifest) -> Any:
    """Converts the graph of the TensorFlow engine, which includes preprocessing and postprocessing."""
    # Imported here, because TensorFlow takes seconds to import and the other formats do not need it.
    from cloud.engines.tensorflow.dilation import fold_constants, has_phases, with_dilated_convolutions  # noqa: PLC0415  They import TensorFlow.
    from cloud.engines.tensorflow.graph_session import assemble  # noqa: PLC0415  The same.
    from cloud.engines.tensorflow.graphdef import node_of, prune, read_frozen_graph  # noqa: PLC0415  The same.
    from cloud.engines.tensorflow.saved_model import read_frozen_signature  # noqa: PLC0415  The same.

    read = read_frozen_graph if manifest.format == "frozen_graph" else read_frozen_signature
    frozen = read(path, manifest)
    whole = assemble(frozen, manifest)
    tensors = {head: tensor.name for head, tensor in whole.heads.items()}
    graph = prune(whole.graph.as_graph_def(), tensors.values())
    if has_phases(graph):
        folded = fold_constants(graph, [node_of(name) for name in (whole.images.name, *tensors.values())])
        dilated = with_dilated_convolutions(folded, tensors.values())
        graph = graph if dilated is folded else dilated
    with tempfile.TemporaryDirectory(prefix="skylane-openvino-") as folder:
        file = Path(folder) / "model.pb"
        file.write_bytes(graph.SerializeToString())
        try:
            model = core.read_model(file)
        except RuntimeError as error:
            raise EngineError(path, f"OpenVINO cannot load this graph: {error_reason(error)}") from error
    outputs = _by_name(model.outputs)
    sources = {head: outputs[name].get_node().input_value(0) for head, name in tensors.items()}
    return _model_of(sources, model.inputs[0].get_node())


def _from_file(core: Any, path: Path, manifest: Manifest) -> Any:
    file = path / IR_NAME if manifest.format == "openvino" else path
    if manifest.format == "onnx":
        file = checked_onnx_file(path)
    if not file.is_file():
        raise EngineError(file, "does not exist")
    try:
        model = core.read_model(file)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {error_reason(error)}") from error
    inputs, outputs = _by_name(model.inputs), _by_name(model.outputs)
    image_input = find_tensor(inputs, manifest.input.tensor, "input", path)
    raw_outputs = {
        head: find_tensor(outputs, section.tensor, "output", path).get_node().input_value(0)
        for head, section in manifest.heads.items()
    }
    dtype = image_input.get_element_type().to_dtype().name
    preprocessor = preprocessor_for(shape_of(image_input), dtype, manifest, path)
    others = [each for each in model.inputs if each != image_input]
    check_other_inputs([each.get_any_name() for each in others], manifest, path)
    for each in others:
        value = manifest.input.constants[each.get_any_name()]
        shape = [side or 1 for side in shape_of(each) or ()]
        each.replace(ops.constant(np.full(shape, value, each.get_element_type().to_dtype())).output(0))
    sides = [preprocessor.batch_size or -1, manifest.input.height, manifest.input.width, 3]
    images = ops.parameter(sides, np.uint8)
    image_input.replace(preprocess_ops(images, preprocessor).output(0))
    heads = {head: postprocess_ops(head, output, preprocessor, manifest, path) for head, output in raw_outputs.items()}
    return _model_of(heads, images)


def _model_of(heads: Mapping[str, Any], images: Any) -> Any:
    """Builds the ov.Model from an input to its heads, with the tensor names that it is saved with."""
    results = []
    for head, source in heads.items():
        output = source if hasattr(source, "get_target_inputs") else source.output(0)
        result = ops.result(output)
        result.output(0).get_tensor().set_names({head})
        results.append(result)
    images.output(0).get_tensor().set_names({IMAGES})
    return ov.Model(results, [images])


def _by_name(ports: Any) -> dict[str, Any]:
    return {name: port for port in ports for name in port.get_names()}


def sink_transposes(model: Any) -> int:
    """Rewrites an ov.Model in place, with identical outputs; returns the number of moved operations."""
    moved = 0
    for node in model.get_ordered_ops():
        sink = _SINKS.get(node.get_type_name())
        order = _order(node.input_value(0)) if sink is not None else None
        if sink is None or order is None:
            continue
        outputs = sink(node, node.input_value(0).get_node().input_value(0), order)
        if outputs is None:
            continue
        for place, output in enumerate(outputs):
            node.output(place).replace(output)
        moved += 1
    if moved:
        model.validate_nodes_and_infer_types()
    return moved


def _constant_of(output: Any) -> Any | None:
    """Returns the values of a constant output as an array; None for any other output."""
    node = output.get_node()
    return np.asarray(node.get_data()) if node.get_type_name() == "Constant" else None


def _order(output: Any) -> Order | None:
    """Returns the order of the transpose that produces `output`; None if another operation does."""
    node = output.get_node()
    if node.get_type_name() != "Transpose" or (order := _constant_of(node.input_value(1))) is None:
        return None
    return [int(axis) for axis in order]


def _transposed(outputs: Sequence[Any], order: Order) -> list[Any]:
    return [ops.transpose(output, np.array(order, np.int64)).output(0) for output in outputs]


def _through_transpose(node: Any, source: Any, order: Order) -> list[Any] | None:
    own = _order(node.output(0))
    if own is None:
        return None
    both = [order[axis] for axis in own]
    return [source] if both == sorted(both) else _transposed([source], both)


def _through_interpolate(node: Any, source: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() != _INTERPOLATE_INPUTS or (axes := _constant_of(node.input_value(2))) is None:
        return None
    attributes = node.get_attributes()
    if any(attributes["pads_begin"]) or any(attributes["pads_end"]):
        return None
    resized = ops.interpolate(
        source,
        node.input_value(1),
        attributes["mode"],
        attributes["shape_calculation_mode"],
        coordinate_transformation_mode=attributes["coordinate_transformation_mode"],
        nearest_mode=attributes["nearest_mode"],
        antialias=attributes["antialias"],
        cube_coeff=attributes["cube_coeff"],
        axes=np.array([order[axis] for axis in axes], np.int64),
    )
    resized.set_friendly_name(node.get_friendly_name())
    return _transposed([resized.output(0)], order)


def _through_strided_slice(node: Any, source: Any, order: Order) -> list[Any] | None:
    attributes = node.get_attributes()
    limits = [_constant_of(node.input_value(place)) for place in (1, 2, 3)]
    if any(any(attributes[mask]) for mask in _UNSUPPORTED_MASKS):
        return None
    if any(limit is None or len(limit) != len(order) for limit in limits):
        return None
    axes = np.argsort(order)  # The axis of the transposed map for each axis of the source.
    begin, end, step = (np.asarray(limit)[axes].astype(np.int64) for limit in limits)
    masks = [
        [(list(attributes[mask]) + [0] * len(order))[axis] for axis in axes] for mask in ("begin_mask", "end_mask")
    ]
    return _transposed([ops.strided_slice(source, begin, end, step, *masks).output(0)], order)


def _through_top_k(node: Any, source: Any, order: Order) -> list[Any]:
    attributes = node.get_attributes()
    top = ops.topk(
        source,
        node.input_value(1),
        order[int(attributes["axis"])],
        attributes["mode"],
        attributes["sort"],
        attributes["index_element_type"],
        attributes.get("stable", False),
    )
    return _transposed([top.output(0), top.output(1)], order)


def _through_squeeze(node: Any, source: Any, order: Order) -> list[Any] | None:
    if node.get_input_size() == 1 or (axes := _constant_of(node.input_value(1))) is None:
        return None
    removed = [order[int(axis)] for axis in np.atleast_1d(axes)]
    kept = [axis for axis in order if axis not in removed]
    if kept != sorted(kept):
        return None
    return [ops.squeeze(source, np.array(removed, np.int64)).output(0)]


_SINKS: dict[str, Callable[[Any, Any, Order], list[Any] | None]] = {
    "Interpolate": _through_interpolate,
    "Squeeze": _through_squeeze,
    "StridedSlice": _through_strided_slice,
    "TopK": _through_top_k,
    "Transpose": _through_transpose,
}
