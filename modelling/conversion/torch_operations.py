"""ONNX's operations in PyTorch: those of networks that look at a camera's pictures, each as its specification says."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from shared.errors import suggestion

torch: Any = import_module("torch")  # Any: its types take mypy minutes.
functional: Any = import_module("torch.nn.functional")

_TYPES = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
}
_HEIGHT_AND_WIDTH = 2


class UnknownOperationError(Exception):
    """An operation, or a form of it, that is not in the table."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation with what it is given; a tensor left out is None."""

    operation: str
    tensors: Sequence[Any]
    constants: Sequence[Any]  # The same as lists or numbers, where they are constant; else None.
    attributes: Mapping[str, Any]
    outputs: int = 1

    def constant(self, place: int, name: str, default: Any = None) -> Any:
        """What newer versions of an operation take as an input, and older ones as an attribute."""
        if name in self.attributes:
            return self.attributes[name]
        if place < len(self.tensors) and self.tensors[place] is not None:
            if self.constants[place] is None:
                raise UnknownOperationError(f"{self.operation}, whose {name} is not constant")
            return self.constants[place]
        return default


def run(call: Call) -> Any:
    """What the operation gives; several outputs as a tuple.

    Raises:
        UnknownOperationError: it is not in the table.
    """
    if call.operation not in _OPERATIONS:
        raise UnknownOperationError(f"operation {call.operation}{suggestion(call.operation, _OPERATIONS)}")
    return _OPERATIONS[call.operation](call)


def _padded(call: Call, sides: Sequence[int], kernel: Sequence[int], value: float = 0.0) -> tuple[Any, list[int]]:
    """The map, padded where its pads differ, and the pads that the operation itself can do."""
    x = call.tensors[0]
    strides = call.attributes.get("strides", [1, 1])
    dilations = call.attributes.get("dilations", [1, 1])
    automatic = call.attributes.get("auto_pad", b"NOTSET").decode()
    if len(kernel) != _HEIGHT_AND_WIDTH:
        raise UnknownOperationError(f"{call.operation} of {len(kernel)} dimensions")
    before, after = list(sides[:2]), list(sides[2:])
    if automatic in ("SAME_UPPER", "SAME_LOWER"):
        for place in range(_HEIGHT_AND_WIDTH):
            length, stride = x.shape[2 + place], strides[place]
            reach = (kernel[place] - 1) * dilations[place] + 1
            total = max((-(-length // stride) - 1) * stride + reach - length, 0)
            small, large = total // 2, total - total // 2
            before[place], after[place] = (small, large) if automatic == "SAME_UPPER" else (large, small)
    if before == after:
        return x, before
    return functional.pad(x, (before[1], after[1], before[0], after[0]), value=value), [0, 0]


def _conv(call: Call) -> Any:
    weights = call.tensors[1]
    x, pads = _padded(call, call.attributes.get("pads", [0] * 4), weights.shape[2:])
    strides, dilations = call.attributes.get("strides", [1, 1]), call.attributes.get("dilations", [1, 1])
    bias = call.tensors[2] if len(call.tensors) > 2 else None  # noqa: PLR2004 - map, weights, bias.
    return functional.conv2d(x, weights, bias, strides, pads, dilations, call.attributes.get("group", 1))


def _average_pool(call: Call) -> Any:
    kernel, strides = call.attributes["kernel_shape"], call.attributes.get("strides", [1, 1])
    x, pads = _padded(call, call.attributes.get("pads", [0] * 4), kernel)
    counts_pads = bool(call.attributes.get("count_include_pad", 0))
    if not counts_pads and x is not call.tensors[0]:
        # What was padded counts in neither the sum nor the number.
        ones, _ = _padded(Call(call.operation, [torch.ones_like(call.tensors[0][:1, :1])], [None], call.attributes),
                          call.attributes.get("pads", [0] * 4), kernel)  # fmt: skip
        share = functional.avg_pool2d(ones, kernel, strides)
        return functional.avg_pool2d(x, kernel, strides) / share
    return functional.avg_pool2d(x, kernel, strides, pads, bool(call.attributes.get("ceil_mode", 0)), counts_pads)


def _max_pool(call: Call) -> Any:
    kernel, strides = call.attributes["kernel_shape"], call.attributes.get("strides", [1, 1])
    x, pads = _padded(call, call.attributes.get("pads", [0] * 4), kernel, float("-inf"))
    return functional.max_pool2d(x, kernel, strides, pads, ceil_mode=bool(call.attributes.get("ceil_mode", 0)))


def _resize(call: Call) -> Any:
    x = call.tensors[0]
    scales, sizes = call.constant(2, "scales"), call.constant(3, "sizes")
    axes = call.attributes.get("axes", [0, 1, 2, 3])
    told = dict(zip(axes, sizes or scales, strict=True))
    size = [int(told[axis]) if sizes else int(x.shape[axis] * told[axis]) for axis in (2, 3)]
    mode = call.attributes.get("mode", b"nearest").decode()
    coordinates = call.attributes.get("coordinate_transformation_mode", b"half_pixel").decode()
    rounding = call.attributes.get("nearest_mode", b"round_prefer_floor").decode()
    if mode == "linear" and coordinates in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return functional.interpolate(x, size, mode="bilinear", align_corners=coordinates == "align_corners")
    if mode == "nearest" and coordinates == "asymmetric" and rounding == "floor":
        return functional.interpolate(x, size, mode="nearest")
    if mode == "nearest" and coordinates in ("half_pixel", "tf_half_pixel_for_nn"):
        return functional.interpolate(x, size, mode="nearest-exact")
    raise UnknownOperationError(f"Resize by {mode}, {coordinates}, {rounding}")


def _slice(call: Call) -> Any:
    x = call.tensors[0]
    starts, ends = call.constant(1, "starts"), call.constant(2, "ends")
    axes, steps = call.constant(3, "axes", list(range(len(starts)))), call.constant(4, "steps", [1] * len(starts))
    cut = [slice(None)] * x.dim()
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 1:
            raise UnknownOperationError("Slice backwards")
        cut[axis] = slice(start, end, step)
    return x[tuple(cut)]


def _pad(call: Call) -> Any:
    if call.attributes.get("mode", b"constant") != b"constant":
        raise UnknownOperationError("Pad by reflection or edge")
    pads = call.constant(1, "pads")
    half = len(pads) // 2
    pairs = [side for axis in reversed(range(half)) for side in (pads[axis], pads[half + axis])]
    value = call.constant(2, "value", 0.0)
    return functional.pad(call.tensors[0], pairs, value=value[0] if isinstance(value, list) else value)


def _clip(call: Call) -> Any:
    bounds = [call.constant(place, name) for place, name in ((1, "min"), (2, "max"))]
    low, high = (bound[0] if isinstance(bound, list) else bound for bound in bounds)
    return torch.clamp(call.tensors[0], low, high)


def _reduce(by: str) -> Callable[[Call], Any]:
    def reduce(call: Call) -> Any:
        axes = call.constant(1, "axes", list(range(call.tensors[0].dim())))
        return getattr(torch, by)(call.tensors[0], axes, keepdim=bool(call.attributes.get("keepdims", 1)))

    return reduce


def _arg_max(call: Call) -> Any:
    if call.attributes.get("select_last_index", 0):
        raise UnknownOperationError("ArgMax that takes the last of equals")
    keeps = bool(call.attributes.get("keepdims", 1))
    return torch.argmax(call.tensors[0], call.attributes.get("axis", 0), keepdim=keeps)


def _reshape(call: Call) -> Any:
    shape = call.constant(1, "shape")
    given = call.tensors[0].shape
    return call.tensors[0].reshape([given[place] if side == 0 else side for place, side in enumerate(shape)])


def _flatten(call: Call) -> Any:
    axis = call.attributes.get("axis", 1)
    return call.tensors[0].flatten(axis) if axis == 1 else call.tensors[0].flatten(axis).flatten(0, axis - 1)


def _squeeze(call: Call) -> Any:
    x = call.tensors[0]
    axes = call.constant(1, "axes")
    return x.squeeze() if axes is None else x.squeeze(tuple(axes))


def _unsqueeze(call: Call) -> Any:
    x, axes = call.tensors[0], call.constant(1, "axes")
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _split(call: Call) -> Any:
    axis = call.attributes.get("axis", 0)
    parts = call.constant(1, "split", -(-call.tensors[0].shape[axis] // call.outputs))
    return torch.split(call.tensors[0], parts, axis)


def _gemm(call: Call) -> Any:
    a, b = call.tensors[:2]
    a = a.T if call.attributes.get("transA", 0) else a
    b = b.T if call.attributes.get("transB", 0) else b
    product = call.attributes.get("alpha", 1.0) * (a @ b)
    return product + call.attributes.get("beta", 1.0) * call.tensors[2] if len(call.tensors) > 2 else product  # noqa: PLR2004


def _batch_normalisation(call: Call) -> Any:
    x, scale, offset, mean, variance = call.tensors
    return functional.batch_norm(x, mean, variance, scale, offset, eps=call.attributes.get("epsilon", 1e-5))


def _by_depth(call: Call) -> Any:
    """DepthToSpace in ONNX's own order, DCR: the block comes before the channel."""
    if call.attributes.get("mode", b"DCR") != b"DCR":
        return functional.pixel_shuffle(call.tensors[0], call.attributes["blocksize"])
    _, channels, height, width = call.tensors[0].shape
    block = call.attributes["blocksize"]
    x = call.tensors[0].reshape(-1, block, block, channels // block**2, height, width)
    return x.permute(0, 3, 4, 1, 5, 2).reshape(-1, channels // block**2, height * block, width * block)


def _by_space(call: Call) -> Any:
    _, channels, height, width = call.tensors[0].shape
    block = call.attributes["blocksize"]
    x = call.tensors[0].reshape(-1, channels, height // block, block, width // block, block)
    return x.permute(0, 3, 5, 1, 2, 4).reshape(-1, channels * block**2, height // block, width // block)


def _of(function: Callable[..., Any]) -> Callable[[Call], Any]:
    return lambda call: function(*call.tensors)


_OPERATIONS: dict[str, Callable[[Call], Any]] = {
    "Add": _of(torch.add),
    "ArgMax": _arg_max,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_normalisation,
    "Cast": lambda call: call.tensors[0].to(_TYPES[call.attributes["to"]]),
    "Clip": _clip,
    "Concat": lambda call: torch.cat(list(call.tensors), call.attributes["axis"]),
    "Conv": _conv,
    "DepthToSpace": _by_depth,
    "Div": _of(torch.div),
    "Elu": lambda call: functional.elu(call.tensors[0], call.attributes.get("alpha", 1.0)),
    "Erf": _of(torch.erf),
    "Exp": _of(torch.exp),
    "Flatten": _flatten,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda call: call.tensors[0].mean((2, 3), keepdim=True),
    "GlobalMaxPool": lambda call: call.tensors[0].amax((2, 3), keepdim=True),
    "Greater": _of(torch.gt),
    "HardSigmoid": lambda call: torch.clamp(
        call.tensors[0] * call.attributes.get("alpha", 0.2) + call.attributes.get("beta", 0.5), 0.0, 1.0
    ),
    "HardSwish": _of(functional.hardswish),
    "Identity": lambda call: call.tensors[0],
    "LeakyRelu": lambda call: functional.leaky_relu(call.tensors[0], call.attributes.get("alpha", 0.01)),
    "MatMul": _of(torch.matmul),
    "Max": _of(torch.maximum),
    "MaxPool": _max_pool,
    "Min": _of(torch.minimum),
    "Mul": _of(torch.mul),
    "Neg": _of(torch.neg),
    "Pad": _pad,
    "Pow": _of(torch.pow),
    "ReduceMax": _reduce("amax"),
    "ReduceMean": _reduce("mean"),
    "ReduceSum": _reduce("sum"),
    "Relu": _of(torch.relu),
    "Reshape": _reshape,
    "Resize": _resize,
    "Sigmoid": _of(torch.sigmoid),
    "Slice": _slice,
    "Softmax": lambda call: torch.softmax(call.tensors[0], call.attributes.get("axis", -1)),
    "SpaceToDepth": _by_space,
    "Split": _split,
    "Sqrt": _of(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _of(torch.sub),
    "Tanh": _of(torch.tanh),
    "Tile": lambda call: call.tensors[0].repeat(*call.constant(1, "repeats")),
    "Transpose": lambda call: call.tensors[0].permute(*call.attributes["perm"]),
    "Unsqueeze": _unsqueeze,
    "Where": _of(torch.where),
}
