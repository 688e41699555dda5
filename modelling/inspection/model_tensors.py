"""The tensors of a third-party model, and what its graph shows about them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from shared.inference.pre_postprocess import CHANNEL_AXES, MAP_RANK
from shared.models.manifest import AxisOrder, ImageDtype
from shared.sanitize import printable

IMAGE_DTYPES = get_args(ImageDtype)
_RGB = 3
_MIN_SIDE = 8  # Pixels; a smaller side of a tensor with unknown channels is not that of an image.
_MAX_STEPS = 64  # Operations in a row that do not change the meaning of a tensor.

# The operations that show the meaning of an output, by their names in lower case in each format.
_OPERATIONS = {
    **dict.fromkeys(("sigmoid", "logistic", "hardsigmoid"), "sigmoid"),
    **dict.fromkeys(("softmax",), "softmax"),
    **dict.fromkeys(("argmax", "arg_max", "topk"), "argmax"),
    **dict.fromkeys(("concat", "concatv2", "concatenation"), "concatenation"),
    # Their results have no limits.
    **dict.fromkeys(("conv", "conv2d", "conv_2d", "convolution", "groupconvolution", "convtranspose"), "linear"),
    **dict.fromkeys(("conv2dbackpropinput", "transpose_conv", "convolutionbackpropdata", "matmul"), "linear"),
    **dict.fromkeys(("depthwiseconv2dnative", "depthwise_conv_2d", "gemm", "fully_connected"), "linear"),
}
_ADDITIONS = ("add", "addv2", "biasadd")  # They add a bias if a linear operation comes before.
# Operations that keep the meaning of the values.
_PASS_THROUGH = {
    *("identity", "cast", "convert", "squeeze", "expanddims", "expand_dims", "unsqueeze", "reshape", "flatten"),
    *("stopgradient", "snapshot", "transpose", "quantize", "quantizelinear", "dequantize", "dequantizelinear"),
    *("fakequantize", "resizebilinear", "resize_bilinear", "resizenearestneighbor", "resize_nearest_neighbor"),
    *("resize", "upsample", "interpolate"),
}
_KEEPS_NUMBERS = _PASS_THROUGH | {  # Operations that keep the range of an image.
    *("slice", "stridedslice", "strided_slice", "gather", "gatherv2", "pad", "padv2", "mirrorpad"),
    *("reverse", "reversev2", "reverse_v2"),
}
ARITHMETIC = {  # The operations that scale or shift an image.
    **dict.fromkeys(("mul", "multiply"), "multiplies"),
    **dict.fromkeys(("div", "realdiv", "divide"), "divides"),
    **dict.fromkeys((*_ADDITIONS, "sub", "subtract"), "shifts"),
}
BYTE_RANGE = 16.0  # A subtracted mean or a divisor above this is meant for pixels of 0..255.


@dataclass(frozen=True, slots=True)
class Step:
    """An operation of a graph."""

    operation: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    constant: npt.NDArray[Any] | None = None  # Of arithmetic: operand; batch normalisation: mean, variance.
    classes: int | None = None  # See `Tensor.classes`.


@dataclass(frozen=True, slots=True)
class Tensor:
    """An input or output of a model."""

    name: str  # The name in the manifest, such as a SavedModel signature's key.
    node: str  # The tensor in the graph, with its ":0".
    dtype: str
    shape: tuple[int | None, ...] | None  # None if the rank is unknown.
    quantization: tuple[float, int] | None = None  # Scale and zero point.
    operation: str = ""  # The last operation that changes the meaning; empty if unknown.
    classes: int | None = None  # The number of scores from which an arg max chose.
    arithmetic: tuple[str, float] | None = None  # See `first_arithmetic`.

    def __str__(self) -> str:
        sides = "any shape" if self.shape is None else "×".join("?" if s is None else str(s) for s in self.shape)
        return f"{printable(self.name)} {self.dtype} {sides or 'scalar'}"

    @property
    def sides(self) -> tuple[int | None, ...]:
        """The shape; empty if the rank is unknown."""
        return self.shape or ()

    @property
    def is_float(self) -> bool:
        """True if the values are real numbers, perhaps quantised."""
        return self.dtype.startswith("float") or self.quantization not in (None, (1.0, 0))


def format_tensors(tensors: Iterable[Tensor]) -> str:
    """Returns a list of tensors as text."""
    return "; ".join(str(tensor) for tensor in tensors) or "none"


def is_image(tensor: Tensor, channels: int = _RGB) -> bool:
    """Returns whether a tensor has the dtype and, as far as it is known, the shape of an image."""
    return tensor.dtype in IMAGE_DTYPES and bool(possible_axes(tensor, channels))


def possible_axes(tensor: Tensor, channels: int = _RGB) -> tuple[AxisOrder, ...]:
    """Returns the axis orders in which a tensor may be an image of so many channels."""
    shape = tensor.shape
    if shape is None:
        return tuple(AxisOrder)
    if len(shape) != MAP_RANK:
        return ()
    proven = tuple(axes for axes in AxisOrder if shape[CHANNEL_AXES[axes]] == channels)
    return proven or tuple(
        axes
        for axes in AxisOrder
        if shape[CHANNEL_AXES[axes]] is None
        and all(side is None or side >= _MIN_SIDE for side in image_sides(shape, axes))
    )


def image_sides(shape: tuple[int | None, ...], axes: AxisOrder) -> tuple[int | None, int | None]:
    """Returns the height and width in the shape of an image or a map."""
    rows = 2 if axes is AxisOrder.NCHW else 1
    return shape[rows], shape[rows + 1]


def last_operation(output: str, producer: Callable[[str], tuple[str, str] | None]) -> tuple[str, str]:
    """Returns the operation that gives an output its meaning (empty if unknown), and the tensor that it computes.

    Args:
        output: The name of a tensor.
        producer: Returns the operation that computes a tensor and its first input; None at an input of the model.
    """
    is_quantised = False
    for _ in range(_MAX_STEPS):
        step = producer(output)
        if step is None:
            break
        operation = step[0].lower()
        if operation in _ADDITIONS:
            before = producer(step[1])
            return ("linear" if before and _OPERATIONS.get(before[0].lower()) == "linear" else operation), output
        if operation not in _PASS_THROUGH:
            return _OPERATIONS.get(operation, "real numbers" if is_quantised else operation), output
        is_quantised |= operation in ("quantize", "quantizelinear")
        output = step[1]
    return "", output


def first_arithmetic(image: str, uses: Callable[[str], Sequence[Step]]) -> tuple[str, float] | None:
    """Returns the first arithmetic with a constant after an input, and its largest constant; None if none was found.

    The arithmetic is "multiplies", "divides" or "shifts", or of a batch normalisation "shifts and divides".
    """
    for _ in range(_MAX_STEPS):
        used = [step for step in uses(image) if step.operation.lower() not in ("shape", "shapeof", "noop")]
        if len(used) != 1 or not used[0].outputs:
            break
        operation, constant, image = used[0].operation.lower(), used[0].constant, used[0].outputs[0]
        if operation.startswith(("batchnorm", "fusedbatchnorm")) and constant is not None:
            mean, variance = np.split(np.abs(constant), 2)
            if mean.any() or not np.allclose(variance, 1):
                return "shifts and divides", float(max(mean.max(), np.sqrt(variance).max()))
        elif verb := ARITHMETIC.get(operation):
            if constant is None or not constant.size:
                break
            if not np.all(constant == (0 if verb == "shifts" else 1)):
                return verb, float(np.abs(constant).max())
        elif operation not in _KEEPS_NUMBERS:
            break
    return None


def input_scale(arithmetic: tuple[str, float] | None) -> tuple[float, str]:
    """Returns the factor from pixels 0..255 to the range of a float input, and the reason."""
    if arithmetic is None:
        return 1 / 255, "nothing in the graph shows the range of its input: 0..1 is guessed (--normalize)"
    verb, value = arithmetic
    takes_bytes = value <= 1 / BYTE_RANGE if verb == "multiplies" else value >= BYTE_RANGE
    fed = "it is fed 0..255" if takes_bytes else "0..1 is guessed"
    return 1.0 if takes_bytes else 1 / 255, f"the graph {verb} its input by {value:g}: {fed} (--normalize)"
