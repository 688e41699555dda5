"""A network with its weights as a file that an engine serves: a frozen graph or a SavedModel.

Both hold the same function of the network, so that one model in two files gives the same labels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow_device import convert_variables_to_constants
from modelling.frameworks import tf
from modelling.recipes import Output
from modelling.weights import SCOPE, variables

INPUT = "input"
OUTPUT = {Output.CLASS_IDS: "prediction", Output.SCORES: "scores"}

# Pictures in, class ids or scores out, both tensors.
Function = Callable[[Any], Any]


def function_of(network: Any, output: Output) -> Function:
    """What a model computes.

    Class ids: pictures uint8 N×H×W×3, RGB, to uint8 N×H×W; scaling and arg max are inside.
    Scores: pictures float32 N×H×W×3, RGB 0..1, to float32 N×H×W×classes.
    """

    def class_ids(pictures: Any) -> Any:
        scores = network(tf.cast(pictures, tf.float32) * (1 / 127.5) - 1.0, training=False)
        return tf.cast(tf.argmax(scores, axis=-1, output_type=tf.int32), tf.uint8, name=OUTPUT[Output.CLASS_IDS])

    def scores(pictures: Any) -> Any:
        return tf.identity(network(pictures * 2.0 - 1.0, training=False), name=OUTPUT[Output.SCORES])

    return class_ids if output is Output.CLASS_IDS else scores


def frozen_graph(network: Any, output: Output, height: int, width: int, *, batch: int | None = 1) -> Any:
    """The GraphDef of `function_of` for `batch` pictures, None for any number; `input:0` to `prediction:0` or `scores:0`.

    Each weight is a constant named "weights/<layer>.<variable>", from which `modelling.weights.weights_in` reads it.
    """
    concrete = tf.function(function_of(network, output), autograph=False).get_concrete_function(
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
    for node in _needed(frozen, OUTPUT[output]):
        node.name = constants.get(node.name, node.name)
        for place, source in enumerate(node.input):
            node.input[place] = constants.get(source, source)
        graph.node.append(node)
    return graph


def write_saved_model(
    network: Any, output: Output, height: int, width: int, folder: Path, *, batch: int | None = 1
) -> None:
    """Write a SavedModel of `function_of`; signature `serving_default`, from `input` to the output; `batch` as above."""
    function = function_of(network, output)
    module = tf.Module()
    module.weights = [variable.value for variable in network.variables]  # Saved are only variables that it owns.
    serving = tf.function(lambda pictures: {OUTPUT[output]: function(pictures)}, autograph=False)
    signature = serving.get_concrete_function(_specification(output, height, width, batch))
    tf.saved_model.save(module, str(folder), signatures={"serving_default": signature})


def _specification(output: Output, height: int, width: int, batch: int | None) -> Any:
    dtype = tf.uint8 if output is Output.CLASS_IDS else tf.float32
    return tf.TensorSpec([batch, height, width, 3], dtype, name=INPUT)


def _needed(graph: Any, output: str) -> list[Any]:
    """The nodes that the output is computed from, in the graph's order."""
    sources = {node.name: [name.partition(":")[0].removeprefix("^") for name in node.input] for node in graph.node}
    needed: set[str] = set()
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += sources[name]
    return [node for node in graph.node if node.name in needed]
