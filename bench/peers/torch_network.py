"""`road-small` in PyTorch with the shipped weights, for servers that cannot run TensorFlow graphs.

The network is that of `modelling.architectures.networks.road_small`, with dilated convolutions on the whole map.
"""

import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from modelling.architectures.mobilenet_v3 import RELU, SMALL, BlockSpec
from modelling.building import shipped_weights
from modelling.recipes import recipe
from shared.errors import SkylaneError

torch: Any = import_module("torch")  # Any: its types take mypy minutes.
functional: Any = import_module("torch.nn.functional")

NAME = "road-small"

_OUTPUT_STRIDE = 8
_PADDED = 4  # The dilated map is padded to a multiple of this and cropped afterwards.


class UnknownNetworkError(SkylaneError):
    """The network is not implemented in PyTorch."""


class RoadSmall(torch.nn.Module):  # type: ignore[misc]  # PyTorch ships no types that are read here.
    """Computes class ids, uint8 N×H×W, from images, uint8 N×H×W×3, RGB."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        """Creates the network; `weights` are folded and named by the layers in TensorFlow."""
        super().__init__()
        self._names = {name: f"weight_{place}" for place, name in enumerate(sorted(weights))}
        for name, buffer in self._names.items():
            values = torch.from_numpy(weights[name].copy())
            if values.ndim == 4:  # k×k×I×O, or k×k×C×1 of one filter a channel.
                is_depthwise = ".spatial." in name
                values = values.permute(2, 3, 0, 1) if is_depthwise else values.permute(3, 2, 0, 1)
            self.register_buffer(buffer, values.contiguous())

    def forward(self, pictures: Any) -> Any:
        """Returns the class ids of the images."""
        given = pictures.permute(0, 3, 1, 2).to(torch.float32) * (1 / 127.5) - 1.0
        half = functional.hardswish(self._conv(given, "stem.conv", stride=2))
        quarter, eighth, last = self._trunk(half)
        scores = self._head(half, quarter, eighth, last)
        return _resized(scores, given).argmax(1).to(torch.uint8)

    def _trunk(self, features: Any) -> tuple[Any, Any, Any]:
        """Returns the maps at a quarter and an eighth of the size, and the last one."""
        finest, stride, dilation = {}, 2, 1
        for number, row in enumerate(SMALL, 1):
            step = row.stride
            if step > 1 and stride == _OUTPUT_STRIDE:
                if dilation == 1:
                    rows, columns = (-side % _PADDED for side in features.shape[2:])
                    features = functional.pad(features, (0, columns, 0, rows))
                step, dilation = 1, dilation * 2
            features = self._block(features, row, f"block{number}", step, dilation)
            stride *= step
            if dilation == 1:
                finest[stride] = features
        last = functional.hardswish(self._conv(features, "last.conv"))
        height, width = finest[_OUTPUT_STRIDE].shape[2:]
        return finest[4], finest[_OUTPUT_STRIDE], last[:, :, :height, :width]

    def _block(self, entering: Any, row: BlockSpec, name: str, stride: int, dilation: int) -> Any:
        activation = functional.relu if row.activation == RELU else functional.hardswish
        features = entering
        if row.expansion != entering.shape[1]:
            features = activation(self._conv(features, f"{name}.widen.conv"))
        features = activation(self._conv(features, f"{name}.spatial.conv", stride=stride, dilation=dilation))
        if row.squeeze_excite:
            means = features.mean((2, 3), keepdim=True)
            few = functional.relu(self._conv(means, f"{name}.gate.squeeze"))
            features = features * functional.hardsigmoid(self._conv(few, f"{name}.gate.excite"))
        features = self._conv(features, f"{name}.narrow.conv")
        return features + entering if row.stride == 1 and features.shape == entering.shape else features

    def _head(self, half: Any, quarter: Any, eighth: Any, last: Any) -> Any:
        local = functional.relu(self._conv(last, "head.local.conv"))
        gate = torch.sigmoid(self._conv(_pooled(last, 13, (5, 6)), "head.gate"))
        context = self._conv(local * _resized(gate, local), "head.narrow.conv")
        for fine, place in ((eighth, 8), (quarter, 4), (half, 2)):
            context = _resized(context, fine) + self._conv(fine, f"head.skip{place}.conv")
            context = functional.relu(self._conv(functional.relu(context), f"head.refine{place}.conv"))
        return self._conv(context, "head.scores")

    def _conv(self, features: Any, layer: str, *, stride: int = 1, dilation: int = 1) -> Any:
        kernel, bias = (getattr(self, self._names[f"{layer}.{part}"]) for part in ("kernel", "bias"))
        spread = dilation * (kernel.shape[2] - 1) + 1
        groups = features.shape[1] // kernel.shape[1]
        padded = functional.pad(features, _same(features, spread, (stride, stride)))
        return functional.conv2d(padded, kernel, bias, stride, 0, dilation, groups)


def write_torchscript(models: Path, model: str, path: Path, sides: tuple[int, int]) -> None:
    """Writes the network of the repository `models` as TorchScript; `sides` are height and width.

    Raises:
        SkylaneError: the model is another one, or its weights are missing.
    """
    if model != NAME:
        raise UnknownNetworkError(f"{model} is not written in PyTorch: compare TorchServe with {NAME}")
    network = RoadSmall(shipped_weights(recipe(NAME), models)).eval()
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated, and sizes become constants intentionally.
        traced = torch.jit.trace(network, torch.zeros((1, *sides, 3), dtype=torch.uint8), check_trace=False)
        torch.jit.save(traced, str(path))


def _same(features: Any, spread: int, strides: tuple[int, int]) -> tuple[int, int, int, int]:
    """Returns TensorFlow's SAME padding: left, right, top, bottom."""
    totals = [
        max((-(-side // stride) - 1) * stride + spread - side, 0)
        for side, stride in zip(features.shape[2:], strides, strict=True)
    ]
    (rows, columns) = totals
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


def _pooled(features: Any, size: int, strides: tuple[int, int]) -> Any:
    """Returns the mean of the part of each window inside the map."""
    padding = _same(features, size, strides)
    sums = functional.avg_pool2d(functional.pad(features, padding), size, strides)
    return sums / functional.avg_pool2d(functional.pad(torch.ones_like(features[:1, :1]), padding), size, strides)


def _resized(features: Any, like: Any) -> Any:
    if features.shape[2:] == like.shape[2:]:
        return features
    return functional.interpolate(features, like.shape[2:], mode="bilinear", align_corners=False)
