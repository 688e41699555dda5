"""A network and its weights to files that an engine serves: frozen graph and SavedModel.

Both take the same function of the network, so that one model in two files gives the same labels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

from modelling.architectures.networks import Network
from modelling.weights import SCOPE, variables

INPUT, CLASS_IDS, SCORES = "input", "prediction", "scores"


def class_id_function(network: Network, height: int, width: int) -> Callable[..., Any]:
    """Pictures uint8 1×H×W×3, RGB 0..255, to class ids uint8 1×H×W: scaling and arg max are inside."""
    specification = tf.TensorSpec([1, height, width, 3], tf.uint8, name=INPUT)

    @tf.function(input_signature=[specification], autograph=False)
    def predict(pictures: tf.Tensor) -> tf.Tensor:
        scores = network(tf.cast(pictures, tf.float32) * (1 / 127.5) - 1.0, training=False)
        return tf.cast(tf.argmax(scores, axis=-1, output_type=tf.int32), tf.uint8, name=CLASS_IDS)

    return predict


def score_function(network: Network, height: int, width: int) -> Callable[..., Any]:
    """Pictures float32 1×H×W×3, RGB 0..1, to scores float32 1×H×W×classes."""
    specification = tf.TensorSpec([1, height, width, 3], tf.float32, name=INPUT)

    @tf.function(input_signature=[specification], autograph=False)
    def predict(pictures: tf.Tensor) -> tf.Tensor:
        return tf.identity(network(pictures * 2.0 - 1.0, training=False), name=SCORES)

    return predict


def frozen_graph(network: Network, function: Callable[..., Any]) -> tf.compat.v1.GraphDef:
    """The function as one graph with its weights inside, each a constant named "weights/<layer>.<variable>".

    The input is `input:0`, the output `prediction:0`.
    """
    concrete = function.get_concrete_function()  # type: ignore[attr-defined]  # tf.function ships no types.
    names = {id(variable.value.handle): name for name, variable in variables(network).items()}
    renamed = {
        placeholder.op.name: SCOPE + names[id(handle)]
        for handle, placeholder in concrete.graph.captures
        if id(handle) in names
    }
    frozen = convert_variables_to_constants_v2(concrete).graph.as_graph_def()
    graph = tf.compat.v1.graph_util.extract_sub_graph(frozen, [CLASS_IDS])
    for node in graph.node:
        node.name = renamed.get(node.name, node.name)
        for place, source in enumerate(node.input):
            node.input[place] = renamed.get(source, source)
    return graph
