"""Builds an end-to-end graph from a frozen model and runs it in a TensorFlow session."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

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
from shared.inference.pre_postprocess import (
    MAP_RANK,
    THRESHOLDS,
    Preprocessor,
    Shape,
    axis_of_one,
    box_corners,
    check_output,
    checked_heads,
    class_id_heads,
    has_background,
    has_odds,
    objects_slice,
    preprocessor_for,
    scores_axis,
    threshold,
)
from shared.inference.tensor_binding import check_other_inputs
from shared.messages.tensors import DTYPES
from shared.models.manifest import MASK, Manifest, OutputKind, OutputSection, Placement
from shared.task import CONFIDENCE_HEAD, SMALLEST


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


def preprocess_ops(images: Any, preprocessor: Preprocessor) -> Any:
    """Adds `(pixel * scale - mean) / std` in the model's dtype, for `images`, uint8 N×H×W×3."""
    if preprocessor.levels is not None:
        channels, count = preprocessor.levels.shape
        places = tf.cast(images, tf.int32) + [channel * count for channel in range(channels)]
        images = tf.gather(preprocessor.levels.reshape(-1), places)
    values = tf.transpose(images, (0, 3, 1, 2)) if preprocessor.planar else images
    dtype = preprocessor.section.dtype
    if preprocessor.levels is not None or dtype == "uint8":
        return values
    return preprocessor.scaled(tf.cast(values, dtype))


def postprocess_ops(head: str, output: Any, preprocessor: Preprocessor, manifest: Manifest, path: Path) -> Any:
    """Adds the operations that turn a model's raw output into the head that `Engine.infer` defines.

    Raises:
        EngineError: the output does not match the manifest.
    """
    shape = None if output.shape.rank is None else output.shape.as_list()
    section = manifest.heads[head]
    check_output(head, shape, preprocessor, manifest, path)
    match section.kind:
        case OutputKind.TENSOR if output.dtype.name in DTYPES:
            return output
        case OutputKind.TENSOR:
            problem = (
                f"output {section.tensor!r} is {output.dtype.name}: only numbers can be sent ({', '.join(DTYPES)})"
            )
            raise EngineError(path, problem)
        case _ if head == MASK:
            if shape is None and section.kind in THRESHOLDS:
                raise EngineError(path, f"output {section.tensor!r} has no known shape: kind {section.kind} needs one")
            return _class_ids(output, shape, section, preprocessor, manifest)
        case _ if head == CONFIDENCE_HEAD:
            if shape is None:
                raise EngineError(path, f"output {section.tensor!r} has no known shape: a confidence needs one")
            scores = tf.cast(output, tf.float32)
            if scores_axis(shape, section, preprocessor, manifest) == 1:
                scores = tf.transpose(scores, (0, 2, 3, 1))
            return tf.math.log(tf.maximum(scores, SMALLEST)) if section.kind is OutputKind.PROBABILITIES else scores
        case OutputKind.BOXES:
            return tf.concat(box_corners(tf.split(tf.cast(output, tf.float32), 4, axis=-1), manifest), axis=-1)
        case OutputKind.LOGITS:
            output = (tf.nn.sigmoid if has_odds(manifest) else tf.nn.softmax)(tf.cast(output, tf.float32))
    output = tf.cast(output, tf.float32)
    return output[..., objects_slice(manifest)] if section.kind in THRESHOLDS else output


def _class_ids(
    output: Any, shape: Shape | None, section: OutputSection, preprocessor: Preprocessor, manifest: Manifest
) -> Any:
    """Adds N×H×W class ids of the input's size, int32 if the model's own may exceed uint8; the lowest id wins a tie."""
    size = (manifest.input.height, manifest.input.width)
    if section.kind is OutputKind.CLASS_IDS:
        axis = None if shape is None else axis_of_one(shape)
        if shape is None:
            output = tf.reshape(output, (-1, *size))
        elif axis is not None:
            output = tf.squeeze(output, axis)
        elif len(shape) == 2:  # H×W
            output = output[tf.newaxis]
    elif shape is None:
        output = tf.argmax(output, axis=-1, output_type=tf.int32)
    else:
        axis = scores_axis(shape, section, preprocessor, manifest) if len(shape) == MAP_RANK else None
        if axis is not None and shape[axis] != 1:
            best = tf.argmax(output, axis=axis, output_type=tf.int32)
            if has_background(shape[axis] or 0, section, manifest):
                above = tf.reduce_max(output, axis) > threshold(section.kind, output.dtype.as_numpy_dtype)
                best = tf.where(above, best + 1, 0)
            output = best
        else:
            limit = threshold(section.kind, output.dtype.as_numpy_dtype)
            output = (output if axis is None else tf.squeeze(output, axis)) > limit
    is_checked = section.kind is OutputKind.CLASS_IDS and output.dtype not in (tf.uint8, tf.bool)
    class_ids = tf.cast(output, tf.int32 if is_checked else tf.uint8)  # The engine checks an int32.
    if class_ids.shape.rank is not None and tuple(class_ids.shape[1:]) not in (size, (None, None)):
        # The output is smaller than the input: enlarge it by nearest neighbour.
        class_ids = tf.image.resize(class_ids[..., tf.newaxis], size, method="nearest")[..., 0]
    return class_ids
