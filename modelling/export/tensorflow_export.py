"""A network with its weights as a file that an engine serves: a frozen graph or a SavedModel.

Both hold the same function of the network, so that one model in two files gives the same labels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.library import convert_variables_to_constants
from modelling.architectures import detector
from modelling.frameworks import tf
from modelling.recipes import Output
from modelling.training.weights import SCOPE, variables

INPUT = "input"
TENSORS = {  # What each output's tensors are called, the graph's and the signature's.
    Output.CLASS_IDS: ("prediction",),
    Output.SCORES: ("scores",),
    Output.PROBABILITIES: ("scores",),
    Output.OBJECTS: ("boxes", "scores"),
}

# Pictures in, the tensors of the output by name out.
Function = Callable[[Any], dict[str, Any]]


def function_of(network: Any, output: Output, height: int, width: int) -> Function:
    """What a model computes of pictures N×height×width×3, RGB.

    Class ids: of uint8 pictures, uint8 N×H×W; scaling and arg max are inside.
    Scores: of float32 pictures 0..1, float32 N×H×W×classes.
    Probabilities: of uint8 pictures, float32 N×classes; scaling and softmax are inside.
    Objects: of uint8 pictures, boxes float32 N×A×4 (x1, y1, x2, y2 in pixels) and scores N×A×classes, the
    probabilities; scaling and sigmoid are inside. A is the number of cells, and which of the boxes are told is left to
    whoever reads them.
    """

    def given(pictures: Any) -> Any:
        if output is Output.SCORES:
            return network(pictures * 2.0 - 1.0, training=False)
        return network(tf.cast(pictures, tf.float32) * (1 / 127.5) - 1.0, training=False)

    def class_ids(pictures: Any) -> dict[str, Any]:
        best = tf.argmax(given(pictures), axis=-1, output_type=tf.int32)
        return {"prediction": tf.cast(best, tf.uint8, name="prediction")}

    def scores(pictures: Any) -> dict[str, Any]:
        return {"scores": tf.identity(given(pictures), name="scores")}

    def probabilities(pictures: Any) -> dict[str, Any]:
        return {"scores": tf.nn.softmax(given(pictures), name="scores")}

    def objects(pictures: Any) -> dict[str, Any]:
        logits, shapes = given(pictures)
        rows, columns = detector.cells(height, width)
        found = detector.boxes(shapes, rows, columns)
        return {
            "boxes": tf.reshape(found, (-1, rows * columns, 4), name="boxes"),
            "scores": tf.sigmoid(tf.reshape(logits, (-1, rows * columns, logits.shape[-1])), name="scores"),
        }

    functions: dict[Output, Function] = {
        Output.CLASS_IDS: class_ids,
        Output.SCORES: scores,
        Output.PROBABILITIES: probabilities,
        Output.OBJECTS: objects,
    }
    return functions[output]


def frozen_graph(network: Any, output: Output, height: int, width: int, *, batch: int | None = 1) -> Any:
    """The GraphDef of `function_of` for `batch` pictures, None for any number; from `input:0` to those of TENSORS.

    Each weight is a constant named "weights/<layer>.<variable>", from which `modelling.training.weights.weights_in` reads it.
    """
    concrete = tf.function(function_of(network, output, height, width), autograph=False).get_concrete_function(
        _specification(output, height, width, batch)
    )
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
    network: Any, output: Output, height: int, width: int, folder: Path, *, batch: int | None = 1
) -> None:
    """Write a SavedModel of `function_of`; signature `serving_default`, from `input` to the outputs; `batch` as above."""
    module = tf.Module()
    module.weights = [variable.value for variable in network.variables]  # Saved are only variables that it owns.
    serving = tf.function(function_of(network, output, height, width), autograph=False)
    signature = serving.get_concrete_function(_specification(output, height, width, batch))
    tf.saved_model.save(module, str(folder), signatures={"serving_default": signature})


def _specification(output: Output, height: int, width: int, batch: int | None) -> Any:
    dtype = tf.float32 if output is Output.SCORES else tf.uint8
    return tf.TensorSpec([batch, height, width, 3], dtype, name=INPUT)


def _needed(graph: Any, outputs: tuple[str, ...]) -> list[Any]:
    """The nodes that the outputs are computed from, each after what it needs itself.

    A single output's are in the graph's order. TensorFlow puts the branches of several now one first, now the other,
    and the same weights must give the same bytes: theirs follow the outputs.
    """
    nodes = {node.name: node for node in graph.node}
    found: dict[str, Any] = {}
    waiting = list(reversed(outputs))
    while waiting:
        name = waiting[-1]
        missing = [each for each in _sources(nodes[name]) if each not in found]
        if name in found or not missing:
            found.setdefault(name, nodes[name])
            waiting.pop()
        else:
            waiting += reversed(missing)
    return list(found.values()) if len(outputs) > 1 else [node for node in graph.node if node.name in found]


def _sources(node: Any) -> list[str]:
    return [name.partition(":")[0].removeprefix("^") for name in node.input]
