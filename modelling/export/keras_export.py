"""A network as a Keras file that opens without this package: our own layers become operations of Keras itself.

A `.keras` file names the classes of its layers, and a worker must load none of ours. With the size of the picture fixed
each of our layers is a few plain operations on the same numbers.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from modelling.architectures.blocks import BatchToSpace, PooledPhases, ResizeLike, SpaceToBatch, Tensor
from modelling.export.tensorflow_export import INPUT, TENSORS
from modelling.frameworks import keras
from modelling.recipes import Output
from modelling.training.weights import assign, weights_of

Call = Callable[..., Tensor]


def write_keras(network: Any, output: Output, height: int, width: int, path: Path) -> None:
    """Write the function of `modelling.export.tensorflow_export.function_of` for pictures of a size, any number of them at once; segmentation only.

    Its input is called `input`, its output as in the other formats.
    """
    dtype = "uint8" if output is Output.CLASS_IDS else "float32"
    pictures = keras.Input((height, width, 3), dtype=dtype, name=INPUT)
    scaled = pictures * 2.0 - 1.0
    if output is Output.CLASS_IDS:
        scaled = keras.ops.cast(pictures, "float32") * (1 / 127.5) - 1.0
    answer = _plain(network, height, width)(scaled)
    if output is Output.CLASS_IDS:
        answer = keras.ops.cast(keras.ops.argmax(answer, axis=-1), "uint8")
    (name,) = TENSORS[output]
    named = keras.layers.Identity(name=name, dtype=answer.dtype)(answer)
    keras.Model(pictures, named, name="model").save(path)


def _plain(network: Any, height: int, width: int) -> Any:
    """The network for one size of picture, with layers of Keras only and the same weights."""
    plain = keras.models.clone_model(
        network,
        input_tensors=keras.Input((height, width, 3), name="picture"),
        clone_function=_copied,
        call_function=_called,
    )
    assign(plain, weights_of(network), network.name)
    return plain


def _copied(layer: Any) -> Any:
    return layer if type(layer) in _OPERATIONS else layer.from_config(layer.get_config())


def _called(layer: Any, *given: Tensor, **options: Any) -> Tensor:
    operation = _OPERATIONS.get(type(layer))
    return layer(*given, **options) if operation is None else operation(layer, *given)


def _split(layer: SpaceToBatch, features: Tensor) -> Tensor:
    _, height, width, channels = features.shape
    rows, columns = -height % layer.multiple, -width % layer.multiple
    if rows or columns:
        features = keras.layers.ZeroPadding2D(((0, rows), (0, columns)))(features)
    half_height, half_width = (height + rows) // 2, (width + columns) // 2
    features = keras.ops.reshape(features, (-1, half_height, 2, half_width, 2, channels))
    features = keras.ops.transpose(features, (2, 4, 0, 1, 3, 5))  # The phase first: four smaller maps of each picture.
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
