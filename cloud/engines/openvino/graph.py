"""Reads every format that OpenVINO accepts as one ov.Model from camera pixels to final outputs, and optimises it."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.openvino.heads import postprocess_ops, preprocess_ops, shape_of
from cloud.engines.openvino.runtime import ops, ov, passes
from cloud.engines.openvino.transposes import sink_transposes
from shared.errors import error_reason
from shared.inference.engine import EngineError
from shared.inference.onnx_weights import checked_onnx_file
from shared.inference.pre_postprocess import preprocessor_for
from shared.inference.tensor_binding import check_other_inputs, find_tensor
from shared.models.manifest import Manifest

IMAGES = "images"  # The one input of an end-to-end model, uint8 N×H×W×3; its outputs are named after the heads.
IR_NAME = "model.xml"  # The graph in a folder of format `openvino`; model.bin next to it contains the weights.

_TENSORFLOW_FORMATS = ("frozen_graph", "saved_model")


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
