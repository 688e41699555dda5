"""Models of any format that OpenVINO reads, each as one ov.Model from the camera's pixels to what `Engine.infer` gives."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import EngineError
from cloud.engines.openvino.dilation import join_phases
from cloud.engines.openvino.heads import fed, head_of, shape_of
from cloud.engines.openvino.library import ops, ov, passes
from cloud.engines.openvino.transposes import sink_transposes
from cloud.engines.pre_postprocess import check_other_inputs, preprocessor_for
from cloud.models.manifest import Manifest
from shared.errors import suggestion

IMAGES = "images"  # The whole model's one input, uint8 N×H×W×3; its outputs are named by the manifest's heads.
IR_NAME = "model.xml"  # In a folder of format `openvino`, its weights beside it in model.bin.

_TENSORFLOW_FORMATS = ("frozen_graph", "saved_model")


def read_end_to_end(core: Any, path: Path, manifest: Manifest) -> Any:
    """An ov.Model whose one input is uint8 N×H×W×3 and whose outputs are the manifest's heads in their order.

    N is what is baked into the file, otherwise open. TensorFlow's formats are read by TensorFlow, which also knows what
    must not be run.

    Raises:
        EngineError: the file is missing or no such model, or it is not what the manifest says.
    """
    if manifest.format in _TENSORFLOW_FORMATS:
        return _from_tensorflow(core, path, manifest)
    return _from_file(core, path, manifest)


def model_batch_size(model: Any) -> int | None:
    """The batch size baked into a whole model; None where any will do."""
    side = model.inputs[0].get_partial_shape()[0]
    return int(side.get_length()) if side.is_static else None


def rewritten(model: Any, batch: int) -> Any:
    """A copy of a whole model for batches of `batch`, written so that it runs fast; its answers stay the same."""
    copy = model.clone()
    shape = copy.inputs[0].get_partial_shape()
    shape[0] = batch
    copy.reshape(shape)
    folding = passes.Manager()
    folding.register_pass(passes.ConstantFolding())
    folding.run_passes(copy)
    join_phases(copy)
    sink_transposes(copy)
    return copy


def told(error: Exception) -> str:
    """What OpenVINO says of an error, without where in its sources it was found."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from", "Check ", "While validating"))]
    return (said or [type(error).__name__])[0][:300]


def _from_tensorflow(core: Any, path: Path, manifest: Manifest) -> Any:
    """By way of the graph that TensorFlow's engine would run: scaling and heads are in it already."""
    # Here alone, as TensorFlow takes seconds to import, and the other formats need none.
    from cloud.engines.tensorflow.frozen_graph import read_frozen_graph  # noqa: PLC0415
    from cloud.engines.tensorflow.graph_session import assemble, frozen_batch_size  # noqa: PLC0415
    from cloud.engines.tensorflow.graphdef import cut  # noqa: PLC0415
    from cloud.engines.tensorflow.saved_model import read_frozen_signature  # noqa: PLC0415

    read = read_frozen_graph if manifest.format == "frozen_graph" else read_frozen_signature
    frozen = read(path, manifest)
    whole = assemble(frozen, manifest, frozen_batch_size(frozen, manifest))
    tensors = {head: tensor.name for head, tensor in whole.heads.items()}
    with tempfile.TemporaryDirectory(prefix="skylane-openvino-") as folder:
        file = Path(folder) / "model.pb"
        file.write_bytes(cut(whole.graph.as_graph_def(), tensors.values()).SerializeToString())
        try:
            model = core.read_model(file)
        except RuntimeError as error:
            raise EngineError(path, f"OpenVINO cannot load this graph: {told(error)}") from error
    outputs = _by_name(model.outputs)
    sources = {head: outputs[name].get_node().input_value(0) for head, name in tensors.items()}
    return _named(sources, model.inputs[0].get_node())


def _from_file(core: Any, path: Path, manifest: Manifest) -> Any:
    file = path / IR_NAME if manifest.format == "openvino" else path
    if not file.is_file():
        raise EngineError(file, "is not there")
    try:
        model = core.read_model(file)
    except RuntimeError as error:
        raise EngineError(path, f"OpenVINO cannot load this file: {told(error)}") from error
    inputs, outputs = _by_name(model.inputs), _by_name(model.outputs)
    picture = _require(inputs, manifest.input.tensor, "input", path)
    answers = {
        head: _require(outputs, section.tensor, "output", path).get_node().input_value(0)
        for head, section in manifest.heads.items()
    }
    feed = preprocessor_for(shape_of(picture), picture.get_element_type().to_dtype().name, manifest, path)
    others = [each for each in model.inputs if each != picture]
    check_other_inputs([each.get_any_name() for each in others], list(manifest.input.constants), path)
    for each in others:
        value = manifest.input.constants[each.get_any_name()]
        shape = [side or 1 for side in shape_of(each) or ()]
        each.replace(ops.constant(np.full(shape, value, each.get_element_type().to_dtype())).output(0))
    sides = [feed.batch_size or -1, manifest.input.height, manifest.input.width, 3]
    images = ops.parameter(sides, np.uint8)
    picture.replace(fed(images, feed).output(0))
    heads = {head: head_of(head, output, feed, manifest, path) for head, output in answers.items()}
    return _named(heads, images)


def _named(heads: Mapping[str, Any], images: Any) -> Any:
    """The whole model of an input and its heads, by the names that it is saved with."""
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


def _require(ports: Mapping[str, Any], name: str, role: str, path: Path) -> Any:
    if name not in ports:
        raise EngineError(path, f"the model has no {role} {name!r}{suggestion(name, ports)}")
    return ports[name]
