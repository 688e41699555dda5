"""MobileNetV3 (Howard et al. 2019, "Searching for MobileNetV3") as the trunk of other networks."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from modelling.architectures.blocks import BatchToSpace, BlockBuilder, RandomPhase, SpaceToBatch, Tensor, rounded
from modelling.frameworks import keras


@dataclass(frozen=True, slots=True)
class BlockSpec:
    """One inverted residual: a row of the paper's tables 1 and 2."""

    kernel: int
    expansion: int
    channels: int
    squeeze_excite: bool
    activation: str
    stride: int


@dataclass(frozen=True, slots=True)
class Features:
    """The feature maps of a trunk: at a half, a quarter and an eighth of the image's size, and the last one."""

    half: Tensor
    quarter: Tensor
    eighth: Tensor
    last: Tensor


RELU, SWISH = "relu", "hard_silu"

SMALL = (
    BlockSpec(3, 16, 16, squeeze_excite=True, activation=RELU, stride=2),
    BlockSpec(3, 72, 24, squeeze_excite=False, activation=RELU, stride=2),
    BlockSpec(3, 88, 24, squeeze_excite=False, activation=RELU, stride=1),
    BlockSpec(5, 96, 40, squeeze_excite=True, activation=SWISH, stride=2),
    BlockSpec(5, 240, 40, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 240, 40, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 120, 48, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 144, 48, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 288, 96, squeeze_excite=True, activation=SWISH, stride=2),
    BlockSpec(5, 576, 96, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 576, 96, squeeze_excite=True, activation=SWISH, stride=1),
)
LARGE = (
    BlockSpec(3, 16, 16, squeeze_excite=False, activation=RELU, stride=1),
    BlockSpec(3, 64, 24, squeeze_excite=False, activation=RELU, stride=2),
    BlockSpec(3, 72, 24, squeeze_excite=False, activation=RELU, stride=1),
    BlockSpec(5, 72, 40, squeeze_excite=True, activation=RELU, stride=2),
    BlockSpec(5, 120, 40, squeeze_excite=True, activation=RELU, stride=1),
    BlockSpec(5, 120, 40, squeeze_excite=True, activation=RELU, stride=1),
    BlockSpec(3, 240, 80, squeeze_excite=False, activation=SWISH, stride=2),
    BlockSpec(3, 200, 80, squeeze_excite=False, activation=SWISH, stride=1),
    BlockSpec(3, 184, 80, squeeze_excite=False, activation=SWISH, stride=1),
    BlockSpec(3, 184, 80, squeeze_excite=False, activation=SWISH, stride=1),
    BlockSpec(3, 480, 112, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(3, 672, 112, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 672, 160, squeeze_excite=True, activation=SWISH, stride=2),
    BlockSpec(5, 960, 160, squeeze_excite=True, activation=SWISH, stride=1),
    BlockSpec(5, 960, 160, squeeze_excite=True, activation=SWISH, stride=1),
)


def with_halved_tail(specs: tuple[BlockSpec, ...]) -> tuple[BlockSpec, ...]:
    """Halves the width of the last stage, which loses no accuracy in segmentation (the paper's table 7, RF2)."""
    *others, first, second, third = specs
    return (
        *others,
        replace(first, channels=first.channels // 2),
        replace(second, expansion=second.expansion // 2, channels=second.channels // 2),
        replace(third, expansion=third.expansion // 2, channels=third.channels // 2),
    )


def floored_quarter(channels: int) -> int:
    """Returns a quarter, rounded down to a multiple of 8: the gate width of the built-in networks."""
    return max(8, channels // 4 // 8 * 8)


def rounded_quarter(channels: int) -> int:
    """Returns a quarter, rounded as in the authors' code: the gate width of the published network."""
    return rounded(channels / 4)


def trunk(
    blocks: BlockBuilder,
    image: Tensor,
    specs: tuple[BlockSpec, ...],
    *,
    output_stride: int,
    last: int,
    thinned: bool = False,
    gate_width: Callable[[int], int] = floored_quarter,
) -> Features:
    """Builds the trunk.

    Args:
        blocks: The block builder.
        image: float N×H×W×3, centred on zero.
        specs: The blocks, such as SMALL or LARGE.
        output_stride: The size of the image divided by that of the last map: 8, 16 or 32. After it is reached, a stride
            becomes a dilation of the following blocks; 32 has no dilation.
        last: The number of channels of the closing 1×1 convolution.
        thinned: For training, keep only one random phase at the first dilation, which represents all four. This trains
            the same weights with a quarter of the work.
        gate_width: The number of hidden channels of a gate, for its number of channels.
    """
    features = blocks.convolution(image, 16, "stem", kernel=3, stride=2, activation=SWISH)
    stride, splits, chosen = 2, 0, None
    by_stride = {2: features}
    halvings_left = sum(spec.stride == 2 for spec in specs)
    for number, spec in enumerate(specs, start=1):
        step = spec.stride
        if step > 1:
            halvings_left -= 1
            if stride == output_stride:
                step = 1
                if thinned and chosen is None:
                    features = chosen = RandomPhase(name=f"block{number}.choose")(features)
                else:
                    features = SpaceToBatch(2 ** (halvings_left + 1), name=f"block{number}.split")(features)
                    splits += 1
        squeezed = gate_width(spec.expansion) if spec.squeeze_excite else None
        features = _inverted_residual(
            blocks, features, spec, f"block{number}", stride=step, splits=splits, squeezed=squeezed
        )
        stride *= step
        if not splits and chosen is None:
            by_stride[stride] = features
    features = blocks.convolution(features, last, "last", activation=SWISH)
    if splits:
        features = BatchToSpace(splits, name="join")(features, by_stride[output_stride] if chosen is None else chosen)
    return Features(by_stride[2], by_stride[4], by_stride[8], features)


def _inverted_residual(
    blocks: BlockBuilder, inputs: Tensor, spec: BlockSpec, name: str, *, stride: int, splits: int, squeezed: int | None
) -> Tensor:
    """Widens, filters each channel and narrows; adds the input if its shape allows."""
    features = inputs
    if spec.expansion != inputs.shape[-1]:
        features = blocks.convolution(features, spec.expansion, f"{name}.widen", activation=spec.activation)
    features = blocks.depthwise(
        features, f"{name}.spatial", kernel=spec.kernel, stride=stride, activation=spec.activation
    )
    if squeezed is not None:
        features = blocks.squeeze_excite(features, f"{name}.gate", squeezed=squeezed, splits=splits)
    features = blocks.convolution(features, spec.channels, f"{name}.narrow")
    if stride == 1 and spec.stride == 1 and spec.channels == inputs.shape[-1]:
        features = keras.layers.Add(name=f"{name}.sum")([features, inputs])
    return features
