"""Writes a network with its weights as a frozen graph, a SavedModel, a Keras or a TensorFlow Lite file.

All formats contain the same function of the network. The others give the same labels; a TensorFlow Lite file has float16
weights, which change a few of them.

A Keras file names the classes of its layers, and a worker must not load custom classes. For a fixed image size, each custom
layer is therefore replaced by built-in operations of Keras with the same results.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.runtime import convert_variables_to_constants
from modelling.architectures import networks
from modelling.architectures.blocks import BatchToSpace, PooledPhases, ResizeLike, SpaceToBatch, Tensor
from modelling.architectures.heads import SCORES
from modelling.architectures.weights import SCOPE, assign, variables, weights_of
from modelling.conversion.conversion_graph import tflite_model
from modelling.frameworks import keras, tf
from modelling.recipes import NetworkOutput
from shared.files import write_file

INPUT = "input"
TENSORS = {  # The names of the output tensors in the graph, which are also the signature's keys.
    NetworkOutput.CLASS_IDS: ("prediction",),
    NetworkOutput.SCORES: ("scores",),
    NetworkOutput.PROBABILITIES: ("scores",),
    NetworkOutput.OBJECTS: ("boxes", "scores"),
}

CONFIDENCE = "scores"  # The second output of a segmentation in a TensorFlow Lite file.

_CONFIDENCE_STEP = 4  # Rows and columns of the network's scores per row and column of that output.


def serving_function(network: Any, output: NetworkOutput, height: int, width: int) -> Callable[[Any], dict[str, Any]]:
    """Returns the function of a model file, from RGB images N×height×width×3 to the output tensors by name.

    - CLASS_IDS: uint8 images to uint8 N×H×W; includes scaling and arg max.
    - SCORES: float32 images 0..1 to float32 N×H×W×classes.
    - PROBABILITIES: uint8 images to float32 N×classes; includes scaling and softmax.
    - OBJECTS: uint8 images to boxes, float32 N×A×4 (x1, y1, x2, y2 in pixels), and scores, the probabilities N×A×classes;
      includes scaling and sigmoid. A is the number of cells; the reader selects the boxes.
    """

    def infer(images: Any) -> dict[str, Any]:
        if output is NetworkOutput.SCORES:
            return {"scores": tf.identity(network(images * 2.0 - 1.0, training=False), name="scores")}
        result = network(_centred(images), training=False)
        if output is NetworkOutput.CLASS_IDS:
            return {"prediction": _class_ids(result)}
        if output is NetworkOutput.PROBABILITIES:
            return {"scores": tf.nn.softmax(result, name="scores")}
        logits, shapes = result
        rows, columns = networks.grid_size(height, width)
        boxes = networks.decode_boxes(shapes, rows, columns)
        return {
            "boxes": tf.reshape(boxes, (-1, rows * columns, 4), name="boxes"),
            "scores": tf.sigmoid(tf.reshape(logits, (-1, rows * columns, logits.shape[-1])), name="scores"),
        }

    return infer


def frozen_graph(network: Any, output: NetworkOutput, height: int, width: int, *, batch: int | None = 1) -> Any:
    """Returns the GraphDef of `serving_function`, from `input:0` to the tensors in TENSORS; a `batch` of None is any size.

    Each weight is a constant "weights/<layer>.<variable>", which `modelling.architectures.weights.weights_in` reads.
    """
    function = tf.function(serving_function(network, output, height, width), autograph=False)
    concrete = function.get_concrete_function(_specification(output, height, width, batch))
    names = {id(variable.value.handle): name for name, variable in variables(network).items()}
    constants = {
        placeholder.op.name: SCOPE + names[id(handle)]
        for handle, placeholder in concrete.graph.captures
        if id(handle) in names
    }
    frozen = convert_variables_to_constants(concrete).graph.as_graph_def()
    graph = tf.compat.v1.GraphDef()
    graph.CopyFrom(frozen)
    del graph.node[:]
    graph.ClearField("library")
    for node in _needed(frozen, TENSORS[output]):
        node.name = constants.get(node.name, node.name)
        for place, source in enumerate(node.input):
            node.input[place] = constants.get(source, source)
        graph.node.append(node)
    return graph


def write_saved_model(
    network: Any, output: NetworkOutput, height: int, width: int, folder: Path, *, batch: int | None = 1
) -> None:
    """Writes a SavedModel of `serving_function` with the signature `serving_default`; a `batch` of None is any size."""
    infer = serving_function(network, output, height, width)
    _save(network, infer, _specification(output, height, width, batch), folder)


def write_tflite(network: Any, output: NetworkOutput, height: int, width: int, path: Path) -> None:
    """Writes a TensorFlow Lite file of `serving_function` for one image, with float16 weights.

    A segmentation gets a second output, CONFIDENCE: the scores float32 N×h×w×classes of one pixel in 64, before softmax.
    """
    infer = serving_function(network, output, height, width)
    if output is NetworkOutput.CLASS_IDS:
        infer = _with_confidence(network)
    with tempfile.TemporaryDirectory(prefix="skylane-tflite-") as folder:
        _save(network, infer, _specification(output, height, width, 1), Path(folder))
        write_file(path, tflite_model(Path(folder), half=True))


def _with_confidence(network: Any) -> Callable[[Any], dict[str, Any]]:
    both = keras.Model(network.input, [network.output, network.get_layer(SCORES).output])

    def infer(images: Any) -> dict[str, Any]:
        scores, coarse = both(_centred(images), training=False)
        middle = slice(_CONFIDENCE_STEP // 2 - 1, None, _CONFIDENCE_STEP)
        return {"prediction": _class_ids(scores), CONFIDENCE: coarse[:, middle, middle]}

    return infer


def _save(network: Any, infer: Callable[[Any], dict[str, Any]], specification: Any, folder: Path) -> None:
    module = tf.Module()
    module.weights = [variable.value for variable in network.variables]  # Only variables of the module are saved.
    signature = tf.function(infer, autograph=False).get_concrete_function(specification)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": signature})


def _centred(images: Any) -> Any:
    return tf.cast(images, tf.float32) * (1 / 127.5) - 1.0


def _class_ids(scores: Any) -> Any:
    return tf.cast(tf.argmax(scores, axis=-1, output_type=tf.int32), tf.uint8, name="prediction")


def _specification(output: NetworkOutput, height: int, width: int, batch: int | None) -> Any:
    dtype = tf.float32 if output is NetworkOutput.SCORES else tf.uint8
    return tf.TensorSpec([batch, height, width, 3], dtype, name=INPUT)


def _needed(graph: Any, outputs: tuple[str, ...]) -> list[Any]:
    """Returns the nodes that compute the outputs, in topological order.

    For one output, this is the order of the graph. For several, TensorFlow's order of the branches varies from run to run,
    and the same weights must give the same bytes, so the branches follow the order of the outputs.
    """
    nodes = {node.name: node for node in graph.node}
    ordered: dict[str, Any] = {}
    stack = list(reversed(outputs))
    while stack:
        name = stack[-1]
        missing = [each for each in _sources(nodes[name]) if each not in ordered]
        if name in ordered or not missing:
            ordered.setdefault(name, nodes[name])
            stack.pop()
        else:
            stack += reversed(missing)
    return list(ordered.values()) if len(outputs) > 1 else [node for node in graph.node if node.name in ordered]


def _sources(node: Any) -> list[str]:
    return [name.partition(":")[0].removeprefix("^") for name in node.input]


Call = Callable[..., Tensor]


def write_keras(network: Any, output: NetworkOutput, height: int, width: int, path: Path) -> None:
    """Writes the function of `modelling.export.serving_function` for any batch size; segmentation only.

    The input and output have the same names as in the other formats.
    """
    dtype = "uint8" if output is NetworkOutput.CLASS_IDS else "float32"
    images = keras.Input((height, width, 3), dtype=dtype, name=INPUT)
    scaled = images * 2.0 - 1.0
    if output is NetworkOutput.CLASS_IDS:
        scaled = keras.ops.cast(images, "float32") * (1 / 127.5) - 1.0
    result = _with_builtin_layers(network, height, width)(scaled)
    if output is NetworkOutput.CLASS_IDS:
        result = keras.ops.cast(keras.ops.argmax(result, axis=-1), "uint8")
    (name,) = TENSORS[output]
    named = keras.layers.Identity(name=name, dtype=result.dtype)(result)
    keras.Model(images, named, name="model").save(path)


def _with_builtin_layers(network: Any, height: int, width: int) -> Any:
    """Returns the network for one image size, with built-in layers and the same weights."""
    clone = keras.models.clone_model(
        network,
        input_tensors=keras.Input((height, width, 3), name="picture"),
        clone_function=_clone,
        call_function=_call,
    )
    assign(clone, weights_of(network), network.name)
    return clone


def _clone(layer: Any) -> Any:
    return layer if type(layer) in _OPERATIONS else layer.from_config(layer.get_config())


def _call(layer: Any, *inputs: Tensor, **options: Any) -> Tensor:
    operation = _OPERATIONS.get(type(layer))
    return layer(*inputs, **options) if operation is None else operation(layer, *inputs)


def _split(layer: SpaceToBatch, features: Tensor) -> Tensor:
    _, height, width, channels = features.shape
    rows, columns = -height % layer.multiple, -width % layer.multiple
    if rows or columns:
        features = keras.layers.ZeroPadding2D(((0, rows), (0, columns)))(features)
    half_height, half_width = (height + rows) // 2, (width + columns) // 2
    features = keras.ops.reshape(features, (-1, half_height, 2, half_width, 2, channels))
    features = keras.ops.transpose(features, (2, 4, 0, 1, 3, 5))  # The phase first: four smaller maps per image.
    return keras.ops.reshape(features, (-1, half_height, half_width, channels))


def _join(layer: BatchToSpace, features: Tensor, like: Tensor) -> Tensor:
    for _ in range(layer.splits):
        _, height, width, channels = features.shape
        features = keras.ops.reshape(features, (2, 2, -1, height, width, channels))
        features = keras.ops.transpose(features, (2, 3, 0, 4, 1, 5))
        features = keras.ops.reshape(features, (-1, 2 * height, 2 * width, channels))
    rows, columns = features.shape[1] - like.shape[1], features.shape[2] - like.shape[2]
    return keras.layers.Cropping2D(((0, rows), (0, columns)))(features)


def _pool(layer: PooledPhases, features: Tensor) -> Tensor:
    means = keras.ops.mean(features, axis=(1, 2), keepdims=True)
    if not layer.splits:
        return means
    phases = 4**layer.splits
    whole = keras.ops.mean(keras.ops.reshape(means, (phases, -1, 1, 1, features.shape[3])), axis=0)
    return keras.ops.tile(whole, (phases, 1, 1, 1))


def _resize(_: ResizeLike, features: Tensor, like: Tensor) -> Tensor:
    return keras.ops.image.resize(features, like.shape[1:3], interpolation="bilinear")


_OPERATIONS: dict[type, Call] = {SpaceToBatch: _split, BatchToSpace: _join, PooledPhases: _pool, ResizeLike: _resize}
