"""The rule for the channel axis of a map: the axis of N×C×H×W or N×H×W×C that holds the scores of the classes."""

from collections.abc import Collection, Sequence

from shared.models.manifest import AxisOrder, InputSection, OutputSection

Shape = Sequence[int | None]  # None stands for a dimension of any size.

MAP_RANK = 4
CHANNEL_AXES = {AxisOrder.NHWC: 3, AxisOrder.NCHW: 1}
_EXACT, _ROUNDED, _NO_FIT = 2, 1, 0  # How well the sides of a map fit the height and width of the input.


def channel_axis(
    shape: Shape, section: OutputSection, image: InputSection, *, planar: bool, channels: Collection[int]
) -> int:
    """Returns the axis of the channels of a map with four dimensions.

    The manifest decides if it has `axes`. Else the shape does: the other two axes have the aspect ratio of the input. If
    both axes remain, the number of channels decides, and then the axis order of the input.

    Args:
        shape: The shape of the map.
        section: The output in the manifest.
        image: The input in the manifest.
        planar: Whether the input is N×3×H×W.
        channels: The numbers of channels that the manifest allows.
    """
    if section.axes is not None:
        return CHANNEL_AXES[section.axes]
    fitting = fitting_axes(shape, image.height, image.width) or tuple(CHANNEL_AXES.values())
    named = [axis for axis in fitting if shape[axis] in channels]
    if len(named) == 1:
        return named[0]
    own = CHANNEL_AXES[AxisOrder.NCHW if planar else AxisOrder.NHWC]
    return own if own in fitting else fitting[0]


def fitting_axes(shape: Shape, height: int, width: int) -> tuple[int, ...]:
    """Returns the axes, of 1 and 3, without which a map has the aspect ratio of an input of `height` and `width`.

    An exact ratio excludes one that holds only with rounding, as of a network that halves odd sides.
    """
    fits = {axis: fit(shape[rows], shape[rows + 1], height, width) for axis, rows in ((1, 2), (3, 1))}
    best = max(fits.values())
    return tuple(axis for axis, fit in fits.items() if fit == best) if best else ()


def fit(rows: int | None, columns: int | None, height: int, width: int) -> int:
    """Returns whether rows × columns have the ratio height : width: 2 if they may exactly, 1 with rounding, 0 if not."""
    if rows is None or columns is None or rows * width == columns * height:
        return _EXACT
    # The strides of the two axes may differ by the rounding of a row or a column.
    lowest = max(height / (rows + 1), width / (columns + 1))
    highest = min(height / (rows - 1) if rows > 1 else height, width / (columns - 1) if columns > 1 else width)
    return _ROUNDED if rows and columns and lowest < highest else _NO_FIT
