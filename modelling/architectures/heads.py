"""Heads of networks: LR-ASPP with skip connections in two sizes, a part of which the detector uses, and DeepLabV3+."""

from modelling.architectures.blocks import BlockBuilder, ResizeLike, Tensor
from modelling.architectures.mobilenet_v3 import Features
from modelling.frameworks import keras

SCORES = "head.scores"  # The layer with the scores of a LR-ASPP head, before they are enlarged to the image's size.


def lr_aspp(blocks: BlockBuilder, features: Features, classes: int, *, width: int, thinned: bool = False) -> Tensor:
    """Builds lite reduced ASPP (Howard et al. 2019, section 6.4), extended to half the image's size.

    The paper's head ends at an eighth, where poles and persons are a few pixels wide. Here, finer maps of the trunk
    are added to it in three steps: at an eighth, a quarter and half of the size. `width` is the number of its first channels,
    `thinned` the parameter with which the trunk was built. Returns scores N×H/2×W/2×classes.
    """
    quarter = quarter_features(blocks, features, width=width, sixteenth=thinned)
    half = _half_features(blocks, features, quarter, channels=24)
    half = _refine(blocks, half, "2", channels=24)
    return keras.layers.Conv2D(classes, 1, dtype="float32", name=SCORES)(half)


def small_lr_aspp(blocks: BlockBuilder, features: Features, classes: int, *, width: int) -> Tensor:
    """Builds the head of `lr_aspp` for a trunk at output stride 16, with one filter per channel at half the image's size.

    A full convolution there would take as much time as the rest of a small network. Returns scores N×H/2×W/2×classes.
    """
    quarter = quarter_features(blocks, features, width=width, sixteenth=True)
    half = _half_features(blocks, features, quarter, channels=16)
    half = blocks.depthwise(half, "head.filter2", activation="relu")
    return keras.layers.Conv2D(classes, 1, dtype="float32", name=SCORES)(half)


def quarter_features(blocks: BlockBuilder, features: Features, *, width: int, sixteenth: bool) -> Tensor:
    """Builds LR-ASPP with skip connections from the trunk's eighth and quarter, N×H/4×W/4×48.

    `sixteenth` means that the trunk's last map has a sixteenth of the image's size instead of an eighth.
    """
    local = blocks.convolution(features.last, width, "head.local", activation="relu")
    gate = keras.layers.AveragePooling2D(
        7 if sixteenth else 13, strides=(3, 3) if sixteenth else (5, 6), padding="same", name="head.pool"
    )(features.last)
    gate = keras.layers.Conv2D(width, 1, activation="sigmoid", name="head.gate")(gate)
    gate = ResizeLike(name="head.gate_resized")(gate, local)
    context = keras.layers.Multiply(name="head.gated")([local, gate])

    context = blocks.convolution(context, 64, "head.narrow")
    if sixteenth:
        context = ResizeLike(name="head.to_eighth")(context, features.eighth)
    eighth = _refine(blocks, _add_skip(blocks, context, features.eighth, "8", channels=64), "8", channels=48)
    quarter = ResizeLike(name="head.to_quarter")(eighth, features.quarter)
    return _add_skip(blocks, quarter, features.quarter, "4", channels=48)


def _half_features(blocks: BlockBuilder, features: Features, quarter: Tensor, *, channels: int) -> Tensor:
    """Refines the quarter, enlarges it and adds the trunk's half, N×H/2×W/2×channels."""
    quarter = _refine(blocks, quarter, "4", channels=channels)
    half = ResizeLike(name="head.to_half")(quarter, features.half)
    return _add_skip(blocks, half, features.half, "2", channels=channels)


def _add_skip(blocks: BlockBuilder, coarse: Tensor, fine: Tensor, scale: str, *, channels: int) -> Tensor:
    """Adds the trunk's finer map to a coarse one of `channels` channels."""
    fine = blocks.convolution(fine, channels, f"head.skip{scale}")
    both = keras.layers.Add(name=f"head.sum{scale}")([coarse, fine])
    return keras.layers.Activation("relu", name=f"head.relu{scale}")(both)


def _refine(blocks: BlockBuilder, features: Tensor, scale: str, *, channels: int) -> Tensor:
    """Applies one 3×3 convolution."""
    return blocks.convolution(features, channels, f"head.refine{scale}", kernel=3, activation="relu")


def deeplab_v3_plus(
    blocks: BlockBuilder, features: Features, classes: int, *, width: int, rates: tuple[int, int, int]
) -> Tensor:
    """Builds atrous spatial pyramid pooling with image pooling, and the decoder of DeepLabV3+ (Chen et al. 2018).

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
    branches.append(ResizeLike(name="aspp.image_resized")(pooled, last))
    merged = blocks.convolution(
        keras.layers.Concatenate(name="aspp.concat")(branches), width, "aspp.merge", activation="relu"
    )

    fine = blocks.convolution(features.quarter, 48, "decoder.fine", activation="relu")
    merged = ResizeLike(name="decoder.resized")(merged, fine)
    merged = keras.layers.Concatenate(name="decoder.concat")([merged, fine])
    merged = blocks.convolution(merged, width, "decoder.refine1", kernel=3, activation="relu")
    merged = blocks.convolution(merged, width, "decoder.refine2", kernel=3, activation="relu")
    return keras.layers.Conv2D(classes, 1, dtype="float32", name="decoder.scores")(merged)
