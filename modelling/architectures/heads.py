"""What turns a trunk's features into class scores: LR-ASPP with fine skips, and DeepLabV3+."""

import keras

from modelling.architectures.blocks import Blocks, ResizedLike, Tensor
from modelling.architectures.mobilenet_v3 import Features


def lr_aspp(blocks: Blocks, features: Features, classes: int, *, width: int) -> Tensor:
    """Lite reduced ASPP (Howard et al. 2019, section 6.4), carried on to half the picture's size.

    The paper's head ends at an eighth. Poles and persons are a few pixels wide there, so two separable steps follow,
    each adding the trunk's finer map. Returns scores N×H/2×W/2×classes.
    """
    local = blocks.convolution(features.last, width, "head.local", activation="relu")
    gate = keras.layers.AveragePooling2D(13, strides=(5, 6), padding="same", name="head.pool")(features.last)
    gate = keras.layers.Conv2D(width, 1, activation="sigmoid", name="head.gate")(gate)
    gate = ResizedLike(name="head.gate_resized")(gate, local)
    context = keras.layers.Multiply(name="head.gated")([local, gate])

    context = blocks.convolution(context, 64, "head.narrow")
    eighth = context + blocks.convolution(features.eighth, 64, "head.eighth")
    eighth = blocks.convolution(
        keras.layers.Activation("relu", name="head.eighth_relu")(eighth),
        48,
        "head.refine8",
        kernel=3,
        activation="relu",
    )
    quarter = ResizedLike(name="head.to_quarter")(eighth, features.quarter)
    quarter = quarter + blocks.convolution(features.quarter, 48, "head.quarter")
    quarter = blocks.convolution(
        keras.layers.Activation("relu", name="head.quarter_relu")(quarter),
        24,
        "head.refine4",
        kernel=3,
        activation="relu",
    )
    half = ResizedLike(name="head.to_half")(quarter, features.half)
    half = half + blocks.convolution(features.half, 24, "head.half")
    half = blocks.convolution(
        keras.layers.Activation("relu", name="head.half_relu")(half), 24, "head.refine2", kernel=3, activation="relu"
    )
    return keras.layers.Conv2D(classes, 1, dtype="float32", name="head.scores")(half)


def deeplab_v3_plus(
    blocks: Blocks, features: Features, classes: int, *, width: int, rates: tuple[int, int, int]
) -> Tensor:
    """Atrous spatial pyramid pooling with image pooling, then the decoder of DeepLabV3+ (Chen et al. 2018).

    Returns scores N×H/4×W/4×classes.
    """
    last = features.last
    branches = [blocks.convolution(last, width, "aspp.point", activation="relu")]
    branches += [
        blocks.convolution(last, width, f"aspp.rate{rate}", kernel=3, dilation=rate, activation="relu")
        for rate in rates
    ]
    pooled = keras.layers.GlobalAveragePooling2D(keepdims=True, name="aspp.pool")(last)
    pooled = blocks.convolution(pooled, width, "aspp.image", activation="relu")
    branches.append(ResizedLike(name="aspp.image_resized")(pooled, last))
    merged = blocks.convolution(
        keras.layers.Concatenate(name="aspp.concat")(branches), width, "aspp.merge", activation="relu"
    )

    fine = blocks.convolution(features.quarter, 48, "decoder.fine", activation="relu")
    merged = ResizedLike(name="decoder.resized")(merged, fine)
    merged = keras.layers.Concatenate(name="decoder.concat")([merged, fine])
    merged = blocks.convolution(merged, width, "decoder.refine1", kernel=3, activation="relu")
    merged = blocks.convolution(merged, width, "decoder.refine2", kernel=3, activation="relu")
    return keras.layers.Conv2D(classes, 1, dtype="float32", name="decoder.scores")(merged)
