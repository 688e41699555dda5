"""The weights of a network as named arrays, and their conversion between the training and the folded form."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelling.architectures.blocks import EPSILON
from modelling.architectures.networks import Network
from modelling.frameworks import tf
from shared.errors import SkylaneError
from shared.files import new_file

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


def fold(weights: Weights) -> Weights:
    """Converts training weights to folded ones, by merging each batch normalisation into the convolution before it.

    Batch normalisation is γ(x − μ)/√(σ² + ε) + β. The kernel is therefore multiplied by γ/√(σ² + ε), and the bias becomes
    β − μγ/√(σ² + ε).
    """
    folded: Weights = {}
    for name, values in weights.items():
        layer = name.rpartition(".")[0]
        block, _, part = layer.rpartition(".")
        norm = f"{block}.norm"
        if part == "norm":
            continue
        if part != "conv" or f"{norm}.gamma" not in weights:
            folded[name] = values
            continue
        scale = weights[f"{norm}.gamma"] / np.sqrt(weights[f"{norm}.moving_variance"] + EPSILON)
        # The scale applies to the channels C of a depthwise kernel k×k×C×1, and to the outputs O of any other k×k×I×O.
        depthwise = values.shape[3] == 1 and values.shape[2] == scale.size
        folded[name] = values * (scale[:, np.newaxis] if depthwise else scale)
        folded[f"{layer}.bias"] = weights[f"{norm}.beta"] - weights[f"{norm}.moving_mean"] * scale
    return folded


def unfold(folded: Weights, network: Network) -> Weights:
    """Converts folded weights to training weights with the same results, by making each normalisation add the bias."""
    neutral = {"gamma": 1.0, "moving_mean": 0.0, "moving_variance": 1.0 - EPSILON}
    weights: Weights = {}
    for name, variable in variables(network).items():
        block, _, part = name.rpartition(".norm.")
        if not block:
            weights[name] = folded[name]
        elif part == "beta":
            weights[name] = folded[f"{block}.conv.bias"]
        else:
            weights[name] = np.full(variable.shape, neutral[part], np.float32)
    return weights


def with_donor_weights(weights: Weights, donor: Weights) -> Weights:
    """Returns the weights with those of equal name and shape taken from the donor."""
    return {
        name: donor[name] if name in donor and donor[name].shape == values.shape else values
        for name, values in weights.items()
    }


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


def write_weights(path: Path, weights: Weights) -> None:
    """Writes weights as an .npz file, atomically."""
    with new_file(path) as file:
        np.savez(file, **weights)  # type: ignore[arg-type]  # All keywords are arrays.


def weights_in(graph: tf.compat.v1.GraphDef) -> Weights:
    """Returns the weights in a frozen graph that `modelling.export` wrote; empty for another graph."""
    return {
        node.name.removeprefix(SCOPE): tf.make_ndarray(node.attr["value"].tensor)
        for node in graph.node
        if node.op == "Const" and node.name.startswith(SCOPE)
    }
