"""MobileNetV3 (Howard et al. 2019, "Searching for MobileNetV3") as the trunk of a segmentation network."""

from collections.abc import Callable
from dataclasses import dataclass

from modelling.architectures.blocks import BatchToSpace, Blocks, RandomPhase, SpaceToBatch, Tensor, rounded
from modelling.frameworks import keras


@dataclass(frozen=True, slots=True)
class Row:
    """One inverted residual: a row of the paper's tables 1 and 2."""

    kernel: int
    expansion: int
    channels: int
    squeeze_excite: bool
    activation: str
    stride: int


@dataclass(frozen=True, slots=True)
class Features:
    """What a trunk gives, from finest to coarsest: maps at a half, a quarter and an eighth of the size, and the last."""

    half: Tensor
    quarter: Tensor
    eighth: Tensor
    last: Tensor


RELU, SWISH = "relu", "hard_silu"

SMALL = (
    Row(3, 16, 16, squeeze_excite=True, activation=RELU, stride=2),
    Row(3, 72, 24, squeeze_excite=False, activation=RELU, stride=2),
    Row(3, 88, 24, squeeze_excite=False, activation=RELU, stride=1),
    Row(5, 96, 40, squeeze_excite=True, activation=SWISH, stride=2),
    Row(5, 240, 40, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 240, 40, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 120, 48, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 144, 48, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 288, 96, squeeze_excite=True, activation=SWISH, stride=2),
    Row(5, 576, 96, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 576, 96, squeeze_excite=True, activation=SWISH, stride=1),
)
LARGE = (
    Row(3, 16, 16, squeeze_excite=False, activation=RELU, stride=1),
    Row(3, 64, 24, squeeze_excite=False, activation=RELU, stride=2),
    Row(3, 72, 24, squeeze_excite=False, activation=RELU, stride=1),
    Row(5, 72, 40, squeeze_excite=True, activation=RELU, stride=2),
    Row(5, 120, 40, squeeze_excite=True, activation=RELU, stride=1),
    Row(5, 120, 40, squeeze_excite=True, activation=RELU, stride=1),
    Row(3, 240, 80, squeeze_excite=False, activation=SWISH, stride=2),
    Row(3, 200, 80, squeeze_excite=False, activation=SWISH, stride=1),
    Row(3, 184, 80, squeeze_excite=False, activation=SWISH, stride=1),
    Row(3, 184, 80, squeeze_excite=False, activation=SWISH, stride=1),
    Row(3, 480, 112, squeeze_excite=True, activation=SWISH, stride=1),
    Row(3, 672, 112, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 672, 160, squeeze_excite=True, activation=SWISH, stride=2),
    Row(5, 960, 160, squeeze_excite=True, activation=SWISH, stride=1),
    Row(5, 960, 160, squeeze_excite=True, activation=SWISH, stride=1),
)


def halved_tail(rows: tuple[Row, ...]) -> tuple[Row, ...]:
    """The rows with the last stage at half width, which the paper finds as good for segmentation (its table 7, RF2)."""
    return rows[:-3] + tuple(
        Row(row.kernel, expansion, row.channels // 2, row.squeeze_excite, row.activation, row.stride)
        for row, expansion in zip(
            rows[-3:], (rows[-3].expansion, rows[-2].expansion // 2, rows[-1].expansion // 2), strict=True
        )
    )


def floored_quarter(channels: int) -> int:
    """A quarter, rounded down to a multiple of eight: what the gates of the networks that ship narrow to."""
    return max(8, channels // 4 // 8 * 8)


def rounded_quarter(channels: int) -> int:
    """A quarter, rounded as the authors' own code does: for the network as it was published."""
    return rounded(channels / 4)


def trunk(
    blocks: Blocks,
    picture: Tensor,
    rows: tuple[Row, ...],
    *,
    output_stride: int,
    last: int,
    thinned: bool = False,
    narrowing: Callable[[int], int] = floored_quarter,
) -> Features:
    """Build the trunk on `picture`, N×H×W×3 about zero, float.

    Beyond `output_stride` (8, 16; with 32 there is none) a stride becomes a dilation of the blocks after it. `last` is the width of the
    closing 1×1 convolution. The last map has the size of an `output_stride`-th of the picture. `thinned`: where the
    first dilation begins only one phase goes on, at random; its result stands for all four. A quarter of the work there
    trains the same weights. `narrowing`: how many channels a gate of so many narrows to.
    """
    features = blocks.convolution(picture, 16, "stem", kernel=3, stride=2, activation=SWISH)
    stride, splits, chosen = 2, 0, None
    finest = {2: features}
    halvings_left = sum(row.stride == 2 for row in rows)  # noqa: PLR2004  # A stride of two.
    for number, row in enumerate(rows, start=1):
        step = row.stride
        if step > 1:
            halvings_left -= 1
            if stride == output_stride:
                step = 1
                if thinned and chosen is None:
                    features = chosen = RandomPhase(name=f"block{number}.choose")(features)
                else:
                    features = SpaceToBatch(2 ** (halvings_left + 1), name=f"block{number}.split")(features)
                    splits += 1
        narrowed = narrowing(row.expansion) if row.squeeze_excite else None
        features = _inverted_residual(
            blocks, features, row, f"block{number}", stride=step, splits=splits, narrowed=narrowed
        )
        stride *= step
        if not splits and chosen is None:
            finest[stride] = features
    features = blocks.convolution(features, last, "last", activation=SWISH)
    if splits:
        features = BatchToSpace(splits, name="join")(features, finest[output_stride] if chosen is None else chosen)
    return Features(finest[2], finest[4], finest[8], features)


def _inverted_residual(
    blocks: Blocks, features: Tensor, row: Row, name: str, *, stride: int, splits: int, narrowed: int | None
) -> Tensor:
    """Widen, filter each channel, narrow; add the input where its shape allows."""
    entering = features
    if row.expansion != entering.shape[-1]:
        features = blocks.convolution(features, row.expansion, f"{name}.widen", activation=row.activation)
    features = blocks.depthwise(
        features, f"{name}.spatial", kernel=row.kernel, stride=stride, activation=row.activation
    )
    if narrowed is not None:
        features = blocks.squeeze_excite(features, f"{name}.gate", narrowed=narrowed, splits=splits)
    features = blocks.convolution(features, row.channels, f"{name}.narrow")
    if stride == 1 and row.stride == 1 and row.channels == entering.shape[-1]:
        features = keras.layers.Add(name=f"{name}.sum")([features, entering])
    return features
