"""What turns a trunk's features into class scores: LR-ASPP with fine skips, and DeepLabV3+."""

from modelling.architectures.blocks import Blocks, ResizeLike, Tensor
from modelling.architectures.mobilenet_v3 import Features
from modelling.frameworks import keras


def lr_aspp(blocks: Blocks, features: Features, classes: int, *, width: int, thinned: bool = False) -> Tensor:
    """Lite reduced ASPP (Howard et al. 2019, section 6.4), carried on to half the picture's size.

    The paper's head ends at an eighth. Poles and persons are a few pixels wide there, so three steps follow, each
    adding the trunk's finer map. `thinned`: as the trunk is. Returns scores N×H/2×W/2×classes.
    """
    quarter = quartered(blocks, features, width=width, sixteenth=thinned)
    quarter = _refined(blocks, quarter, "4", narrowed=24)
    half = ResizeLike(name="head.to_half")(quarter, features.half)
    half = _refined(blocks, _summed(blocks, half, features.half, "2", width=24), "2", narrowed=24)
    return keras.layers.Conv2D(classes, 1, dtype="float32", name="head.scores")(half)


def quartered(blocks: Blocks, features: Features, *, width: int, sixteenth: bool) -> Tensor:
    """LR-ASPP with the trunk's eighth and quarter added, N×H/4×W/4×48.

    `sixteenth`: the trunk's last map has a sixteenth of the picture's size, else an eighth.
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
    eighth = _refined(blocks, _summed(blocks, context, features.eighth, "8", width=64), "8", narrowed=48)
    quarter = ResizeLike(name="head.to_quarter")(eighth, features.quarter)
    return _summed(blocks, quarter, features.quarter, "4", width=48)


def _summed(blocks: Blocks, coarse: Tensor, fine: Tensor, place: str, *, width: int) -> Tensor:
    """Add the trunk's finer map to a coarse one of `width` channels."""
    fine = blocks.convolution(fine, width, f"head.skip{place}")
    both = keras.layers.Add(name=f"head.sum{place}")([coarse, fine])
    return keras.layers.Activation("relu", name=f"head.relu{place}")(both)


def _refined(blocks: Blocks, both: Tensor, place: str, *, narrowed: int) -> Tensor:
    """Look at a sum with one 3×3 convolution."""
    return blocks.convolution(both, narrowed, f"head.refine{place}", kernel=3, activation="relu")


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
