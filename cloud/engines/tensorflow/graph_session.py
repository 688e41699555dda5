"""Builds an end-to-end graph from a frozen model and runs it in a TensorFlow session."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.graph_heads import postprocess_ops, preprocess_ops
from cloud.engines.tensorflow.graph_rewriting import defer_widening_layers
from cloud.engines.tensorflow.graphdef import (
    FrozenModel,
    node_of,
    prune,
    reachable,
    refuse_unfrozen,
    refuse_unsafe,
    require,
)
from cloud.engines.tensorflow.runtime import (
    check_precision,
    choose_device,
    convert_variables_to_constants,
    instances,
    session_config,
    tf,
)
from shared.errors import error_reason
from shared.inference.engine import EngineError, Images, InferenceError, Outputs
from shared.inference.pre_postprocess import Preprocessor, checked_heads, class_id_heads, preprocessor_for
from shared.inference.tensor_binding import check_other_inputs
from shared.models.manifest import MASK, Manifest, OutputKind, Placement


@dataclass(frozen=True, slots=True)
class EndToEndGraph:
    """A tf.Graph from camera pixels to the outputs of `Engine.infer`."""

    graph: Any
    images: Any  # The placeholder, uint8 N×H×W×3.
    heads: dict[str, Any]  # The output tensors by the manifest's head.
    batch_size: int | None  # The fixed batch size; None for any.
    is_nan: Any | None  # A bool tensor: a segmentation's scores contain NaN, which arg max would hide.


def assemble(frozen: FrozenModel, manifest: Manifest, device: str = "", batch_size: int | None = None) -> EndToEndGraph:
    """Builds one graph of preprocessing, model and postprocessing.

    `batch_size` replaces a variable batch size.

    Raises:
        EngineError: the graph lacks a tensor of the manifest, or a tensor does not match it.
    """
    preprocessor = input_preprocessor(frozen, manifest)
    batch_size = preprocessor.batch_size or batch_size
    graph = tf.Graph()
    with graph.as_default(), graph.device(device):
        shape = (batch_size, manifest.input.height, manifest.input.width, 3)
        images = tf.compat.v1.placeholder(tf.uint8, shape, "skylane_images")
        outputs = _import(frozen, manifest, preprocess_ops(images, preprocessor))
        heads = {
            name: postprocess_ops(name, tensor, preprocessor, manifest, frozen.path) for name, tensor in outputs.items()
        }
        scores = [
            outputs[name]
            for name, section in manifest.heads.items()
            if name == MASK and section.kind is not OutputKind.CLASS_IDS
        ]
        # NaN propagates through the sum, which costs less than checking each score.
        is_nan = tf.math.is_nan(tf.reduce_sum(tf.cast(scores[0], tf.float32))) if scores else None
    return EndToEndGraph(graph, images, heads, batch_size, is_nan)


class GraphSession:
    """Runs an end-to-end graph with one session call per batch.

    `python -m bench tensorflow` compares this with other ways to run the same graph.
    """

    is_reentrant = True  # A session is thread-safe, and its callers share the weights.

    def __init__(self, frozen: FrozenModel, manifest: Manifest, placement: Placement) -> None:
        """Builds the graph around `frozen` and opens a session on it.

        Raises:
            EngineError: the graph lacks a tensor of the manifest, or a tensor does not match it.
            DeviceError: the device is missing, or cannot compute in the precision.
        """
        self.name = "tensorflow"
        self.device = choose_device(placement.device)
        self.precision = placement.precision or manifest.precision
        check_precision(self.precision, self.device)
        self.instances = instances(self.device, placement)
        optimised = replace(frozen, graph=defer_widening_layers(frozen.graph, frozen.output_tensors.values()))
        whole = assemble(optimised, manifest, f"/{self.device}")
        self.batch_size = whole.batch_size
        config = session_config(self.device, placement, self.precision)
        self._session = tf.compat.v1.Session(graph=whole.graph, config=config)
        fetched = [*whole.heads.values(), *([] if whole.is_nan is None else [whole.is_nan])]
        self._run = self._session.make_callable(fetched, feed_list=[whole.images])
        self._heads = tuple(whole.heads)
        self._manifest = manifest
        self._class_ids = class_id_heads(manifest)

    def infer(self, batch: Images) -> Outputs:
        """See `shared.inference.engine.Engine.infer`."""
        try:
            fetched = self._run(batch)
        except (tf.errors.OpError, ValueError) as error:
            raise InferenceError(f"the model failed: {error_reason(error)}") from error
        # `is_nan` may follow the heads.
        outputs = checked_heads(dict(zip(self._heads, fetched, strict=False)), self._class_ids, self._manifest)
        if len(fetched) > len(outputs) and fetched[-1]:
            raise InferenceError("the model returned NaN among its scores")
        return outputs

    def close(self) -> None:
        """Releases the session; the device's memory returns to TensorFlow's pool."""
        self._session.close()


def freeze(function: Any, path: Path) -> tuple[Any, list[str], list[str]]:
    """Freezes a concrete function; returns its GraphDef and the names of its input and output tensors in order.

    Raises:
        EngineError: TensorFlow cannot convert its variables to constants, or it uses other resources, such as tables.
    """
    try:
        frozen = convert_variables_to_constants(function, lower_control_flow=False)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise EngineError(path, f"cannot be frozen: {error_reason(error)}") from error
    resources = [tensor.name for tensor in frozen.inputs if tensor.dtype == tf.resource]
    if resources:
        raise EngineError(
            path, f"cannot be frozen: it uses a table ({resources[0]}): replace the lookup by tf.gather of a constant"
        )
    graph = frozen.graph.as_graph_def()
    return graph, [tensor.name for tensor in frozen.inputs], [tensor.name for tensor in frozen.outputs]


def input_preprocessor(frozen: FrozenModel, manifest: Manifest) -> Preprocessor:
    """Returns the preprocessor for the input placeholder.

    Raises:
        EngineError: the placeholder does not match the manifest, or an output does not depend on it.
    """
    name = frozen.input_tensor
    node = require(frozen.graph, frozen.path, "input", name)
    for output in frozen.output_tensors.values():
        require(frozen.graph, frozen.path, "output", output)
        if node.name not in reachable(frozen.graph, [output]):
            raise EngineError(frozen.path, f"output {output!r} does not depend on input {name!r}: name others")
    dtype = tf.dtypes.as_dtype(node.attr["dtype"].type).name if "dtype" in node.attr else None
    is_known = "shape" in node.attr and not node.attr["shape"].shape.unknown_rank
    sides = [dim.size if dim.size > 0 else None for dim in node.attr["shape"].shape.dim] if is_known else None
    return preprocessor_for(sides, dtype, manifest, frozen.path)


def _import(frozen: FrozenModel, manifest: Manifest, values: Any) -> dict[str, Any]:
    """Imports the model into the current graph with `values` as its input; returns its output tensors by head."""
    outputs = frozen.output_tensors
    graph = prune(frozen.graph, outputs.values())
    refuse_unsafe(graph, frozen.path)
    refuse_unfrozen(graph, frozen.input_tensor, outputs.values(), frozen.path)
    inputs = {_full(frozen.input_tensor): values}
    for tensor, constant in manifest.input.constants.items():
        node = require(frozen.graph, frozen.path, "constant", tensor)
        if "dtype" not in node.attr:
            raise EngineError(frozen.path, f"input.constants: {tensor!r} is a {node.op}: name a placeholder")
        if node.name in reachable(frozen.graph, outputs.values()):
            inputs[_full(tensor)] = tf.constant(constant, tf.dtypes.as_dtype(node.attr["dtype"].type))
    placeholders = [node.name for node in graph.node if node.op == "Placeholder" and f"{node.name}:0" not in inputs]
    check_other_inputs(placeholders, manifest, frozen.path)
    try:
        tensors = tf.import_graph_def(
            graph, input_map=inputs, return_elements=[_full(output) for output in outputs.values()], name="model"
        )
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise EngineError(frozen.path, f"TensorFlow cannot load this graph: {error_reason(error)}") from error
    return dict(zip(outputs, tensors, strict=True))


def _full(tensor: str) -> str:
    """Returns a tensor's name with its output index."""
    index = tensor.partition(":")[2]
    return f"{node_of(tensor)}:{index if index.isdecimal() else 0}"
