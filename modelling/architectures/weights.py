"""The weights of a network as named arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.architectures.networks import Network
from modelling.frameworks import tf
from shared.errors import SkylaneError

Weights = dict[str, npt.NDArray[np.float32]]  # Arrays by "layer.variable", such as "stem.conv.kernel".

SCOPE = "weights/"  # The name prefix of the weights in a frozen graph.


class WeightsMismatchError(SkylaneError):
    """Weights do not belong to the network."""

    def __init__(self, origin: str, problem: str) -> None:
        super().__init__(f"the weights of {origin} do not fit the network: {problem}; build the model again")


def variables(network: Network) -> dict[str, Any]:
    """Returns the network's Keras variables by "layer.variable"."""
    return {f"{layer.name}.{variable.name}": variable for layer in network.layers for variable in layer.weights}


def weights_of(network: Network) -> Weights:
    """Returns a float32 copy of the network's weights."""
    return {name: np.array(variable, np.float32) for name, variable in variables(network).items()}


def assign(network: Network, weights: Weights, origin: str) -> None:
    """Assigns weights to the network's variables; `origin` names their source in messages.

    Raises:
        WeightsMismatchError: a weight is missing, unknown or of another shape.
    """
    expected = variables(network)
    for name in sorted(expected.keys() ^ weights.keys()):
        raise WeightsMismatchError(origin, f"{name} is {'missing' if name in expected else 'unknown'}")
    for name, variable in expected.items():
        if tuple(variable.shape) != weights[name].shape:
            raise WeightsMismatchError(origin, f"{name} is {weights[name].shape}, not {tuple(variable.shape)}")
        variable.assign(weights[name])


def weights_in(graph: tf.compat.v1.GraphDef) -> Weights:
    """Returns the weights in a frozen graph that `modelling.export` wrote; empty for another graph."""
    return {
        node.name.removeprefix(SCOPE): tf.make_ndarray(node.attr["value"].tensor)
        for node in graph.node
        if node.op == "Const" and node.name.startswith(SCOPE)
    }
