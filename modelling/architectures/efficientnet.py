"""EfficientNet (Tan and Le 2019, "EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks")."""

import math
from dataclasses import dataclass

from modelling.architectures.blocks import BlockBuilder, Tensor, rounded
from modelling.architectures.networks import Network, image_input
from modelling.frameworks import keras

SWISH = "silu"


@dataclass(frozen=True, slots=True)
class EfficientNetStage:
    """A stage of B0, a row of the paper's table 1; only the first of the `repeats` blocks has the stride."""

    expansion: int
    channels: int
    repeats: int
    stride: int
    kernel: int


STAGES = (
    EfficientNetStage(1, 16, 1, 1, 3),
    EfficientNetStage(6, 24, 2, 2, 3),
    EfficientNetStage(6, 40, 2, 2, 5),
    EfficientNetStage(6, 80, 3, 2, 3),
    EfficientNetStage(6, 112, 3, 1, 5),
    EfficientNetStage(6, 192, 4, 2, 5),
    EfficientNetStage(6, 320, 1, 1, 3),
)
_STEM, _LAST = 32, 1280


def efficientnet(classes: int, *, width: float, depth: float, folded: bool) -> Network:
    """EfficientNet-B0 scaled by `width` and `depth`, for images of any size; the output is logits N×classes."""
    blocks, image = BlockBuilder(folded), image_input()
    features = blocks.convolution(image, rounded(_STEM * width), "stem", kernel=3, stride=2, activation=SWISH)
    number = 0
    for stage in STAGES:
        for repeat in range(math.ceil(stage.repeats * depth)):
            number += 1
            stride = 1 if repeat else stage.stride
            features = _block(
                blocks, features, stage, f"block{number}", channels=rounded(stage.channels * width), stride=stride
            )
    features = blocks.convolution(features, rounded(_LAST * width), "last", activation=SWISH)
    means = keras.layers.GlobalAveragePooling2D(name="pool")(features)
    return keras.Model(image, keras.layers.Dense(classes, name="logits")(means), name="network")


def b7(classes: int, *, folded: bool) -> Network:
    """EfficientNet-B7: twice the width and 3.1 times the depth of B0; 66 million weights for 1,000 classes."""
    return efficientnet(classes, width=2.0, depth=3.1, folded=folded)


def _block(
    blocks: BlockBuilder, block_input: Tensor, stage: EfficientNetStage, name: str, *, channels: int, stride: int
) -> Tensor:
    """An inverted residual; its squeeze-and-excitation reduces to a quarter of the block's input channels."""
    features, in_channels = block_input, block_input.shape[-1]
    if stage.expansion > 1:
        features = blocks.convolution(features, in_channels * stage.expansion, f"{name}.widen", activation=SWISH)
    features = blocks.depthwise(features, f"{name}.spatial", kernel=stage.kernel, stride=stride, activation=SWISH)
    features = blocks.squeeze_excite(
        features, f"{name}.gate", squeezed=max(1, in_channels // 4), activation=SWISH, gate="sigmoid"
    )
    features = blocks.convolution(features, channels, f"{name}.narrow")
    if stride > 1 or channels != in_channels:
        return features
    return keras.layers.Add(name=f"{name}.sum")([features, block_input])
