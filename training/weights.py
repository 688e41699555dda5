"""Weights in the training and in the folded form, those of a donor, and the file of a checkpoint."""

from pathlib import Path

import numpy as np

from modelling.architectures.blocks import EPSILON
from modelling.architectures.networks import Network
from modelling.architectures.weights import Weights, variables
from shared.files import new_file


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


def write_weights(path: Path, weights: Weights) -> None:
    """Writes weights as an .npz file, atomically."""
    with new_file(path) as file:
        np.savez(file, **weights)  # type: ignore[arg-type]  # All keywords are arrays.
