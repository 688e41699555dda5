"""The weights of a network as named arrays: folded after training, given to a network, read back from a frozen graph."""

from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from modelling.architectures.blocks import EPSILON
from modelling.architectures.networks import Network
from modelling.frameworks import tf
from shared.errors import SkylaneError

Weights = dict[str, npt.NDArray[np.float32]]  # By "layer.variable", such as "stem.conv.kernel".

SCOPE = "weights/"  # The constants of a frozen graph that are a network's weights are named so.


class WeightsMismatchError(SkylaneError):
    """Weights were given that are not those of the network they were given for."""

    def __init__(self, origin: str, wrong: str) -> None:
        super().__init__(f"the weights of {origin} do not fit the network: {wrong}; build the model again")


def variables(network: Network) -> dict[str, Any]:
    """The network's Keras variables by "layer.variable"."""
    return {f"{layer.name}.{variable.name}": variable for layer in network.layers for variable in layer.weights}


def weights_of(network: Network) -> Weights:
    """A copy of the network's weights, float32."""
    return {name: np.array(variable, np.float32) for name, variable in variables(network).items()}


def fold(weights: Weights) -> Weights:
    """Turn a network's training weights into those of its folded form.

    Normalisation is γ(x − μ)/√(σ² + ε) + β, so a convolution before it takes γ/√(σ² + ε) into its kernel and gains the
    bias β − μγ/√(σ² + ε).
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
        # A depthwise kernel is k×k×C×1, any other k×k×I×O: the scale belongs to C or O.
        depthwise = values.shape[3] == 1 and values.shape[2] == scale.size
        folded[name] = values * (scale[:, np.newaxis] if depthwise else scale)
        folded[f"{layer}.bias"] = weights[f"{norm}.beta"] - weights[f"{norm}.moving_mean"] * scale
    return folded


def unfold(folded: Weights, network: Network) -> Weights:
    """Turn folded weights into those of a network with normalisation, which then answers the same: to train on.

    Each normalisation becomes the addition of the folded bias.
    """
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


def grafted(weights: Weights, donor: Weights) -> Weights:
    """The weights, with the donor's in place of those of the same name and shape: to start from another's learning."""
    return {
        name: donor[name] if name in donor and donor[name].shape == values.shape else values
        for name, values in weights.items()
    }


def assign(network: Network, weights: Weights, origin: str) -> None:
    """Give the network its weights; `origin` is where they came from, for messages.

    Raises:
        WeightsMismatchError: a weight is missing, left over or of another shape.
    """
    wanted = variables(network)
    for name in sorted(wanted.keys() ^ weights.keys()):
        raise WeightsMismatchError(origin, f"{name} is {'missing' if name in wanted else 'unknown'}")
    for name, variable in wanted.items():
        if tuple(variable.shape) != weights[name].shape:
            raise WeightsMismatchError(origin, f"{name} is {weights[name].shape}, not {tuple(variable.shape)}")
        variable.assign(weights[name])


def write_weights(path: Path, weights: Weights) -> None:
    """Write weights as an .npz, whole or not at all."""
    partial = path.with_suffix(".partial.npz")
    np.savez(partial, **weights)  # type: ignore[arg-type]  # Keywords are arrays here, never its flags.
    partial.replace(path)


def read_weights(path: Path) -> Weights:
    """The weights that `write_weights` wrote.

    Raises:
        WeightsMismatchError: the file is not there or is no .npz.
    """
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name], np.float32) for name in arrays.files}
    except (OSError, ValueError, BadZipFile) as error:
        raise WeightsMismatchError(str(path), f"cannot be read ({error})") from error


def weights_in(graph: tf.compat.v1.GraphDef) -> Weights:
    """The weights in a frozen graph that `modelling.export.tensorflow_export` wrote; empty for a graph from elsewhere."""
    return {
        node.name.removeprefix(SCOPE): tf.make_ndarray(node.attr["value"].tensor)
        for node in graph.node
        if node.op == "Const" and node.name.startswith(SCOPE)
    }
