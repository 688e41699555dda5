"""Writes a network as a Keras file that opens without this package.

A `.keras` file names the classes of its layers, and a worker must not load custom classes. For a fixed image size, each
custom layer is therefore replaced by built-in operations of Keras with the same results.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelling.architectures.blocks import BatchToSpace, PooledPhases, ResizeLike, SpaceToBatch, Tensor
from modelling.export.tensorflow_export import INPUT, TENSORS
from modelling.frameworks import keras
from modelling.recipes import NetworkOutput
from modelling.training.weights import assign, weights_of

Call = Callable[..., Tensor]


def write_keras(network: Any, output: NetworkOutput, height: int, width: int, path: Path) -> None:
    """Writes the function of `modelling.export.tensorflow_export.serving_function` for any batch size; segmentation only.

    The input and output have the same names as in the other formats.
    """
    dtype = "uint8" if output is NetworkOutput.CLASS_IDS else "float32"
    images = keras.Input((height, width, 3), dtype=dtype, name=INPUT)
    scaled = images * 2.0 - 1.0
    if output is NetworkOutput.CLASS_IDS:
        scaled = keras.ops.cast(images, "float32") * (1 / 127.5) - 1.0
    result = _with_builtin_layers(network, height, width)(scaled)
    if output is NetworkOutput.CLASS_IDS:
        result = keras.ops.cast(keras.ops.argmax(result, axis=-1), "uint8")
    (name,) = TENSORS[output]
    named = keras.layers.Identity(name=name, dtype=result.dtype)(result)
    keras.Model(images, named, name="model").save(path)


def _with_builtin_layers(network: Any, height: int, width: int) -> Any:
    """Returns the network for one image size, with built-in layers and the same weights."""
    clone = keras.models.clone_model(
        network,
        input_tensors=keras.Input((height, width, 3), name="picture"),
        clone_function=_clone,
        call_function=_call,
    )
    assign(clone, weights_of(network), network.name)
    return clone


def _clone(layer: Any) -> Any:
    return layer if type(layer) in _OPERATIONS else layer.from_config(layer.get_config())


def _call(layer: Any, *inputs: Tensor, **options: Any) -> Tensor:
    operation = _OPERATIONS.get(type(layer))
    return layer(*inputs, **options) if operation is None else operation(layer, *inputs)


def _split(layer: SpaceToBatch, features: Tensor) -> Tensor:
    _, height, width, channels = features.shape
    rows, columns = -height % layer.multiple, -width % layer.multiple
    if rows or columns:
        features = keras.layers.ZeroPadding2D(((0, rows), (0, columns)))(features)
    half_height, half_width = (height + rows) // 2, (width + columns) // 2
    features = keras.ops.reshape(features, (-1, half_height, 2, half_width, 2, channels))
    features = keras.ops.transpose(features, (2, 4, 0, 1, 3, 5))  # The phase first: four smaller maps per image.
    return keras.ops.reshape(features, (-1, half_height, half_width, channels))


def _join(layer: BatchToSpace, features: Tensor, like: Tensor) -> Tensor:
    for _ in range(layer.splits):
        _, height, width, channels = features.shape
        features = keras.ops.reshape(features, (2, 2, -1, height, width, channels))
        features = keras.ops.transpose(features, (2, 3, 0, 4, 1, 5))
        features = keras.ops.reshape(features, (-1, 2 * height, 2 * width, channels))
    rows, columns = features.shape[1] - like.shape[1], features.shape[2] - like.shape[2]
    return keras.layers.Cropping2D(((0, rows), (0, columns)))(features)


def _pool(layer: PooledPhases, features: Tensor) -> Tensor:
    means = keras.ops.mean(features, axis=(1, 2), keepdims=True)
    if not layer.splits:
        return means
    phases = 4**layer.splits
    whole = keras.ops.mean(keras.ops.reshape(means, (phases, -1, 1, 1, features.shape[3])), axis=0)
    return keras.ops.tile(whole, (phases, 1, 1, 1))


def _resize(_: ResizeLike, features: Tensor, like: Tensor) -> Tensor:
    return keras.ops.image.resize(features, like.shape[1:3], interpolation="bilinear")


_OPERATIONS: dict[type, Call] = {SpaceToBatch: _split, BatchToSpace: _join, PooledPhases: _pool, ResizeLike: _resize}
