"""Models of strangers: each is read rightly, or refused with what is wrong and the option that decides."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.openvino.runtime import ov
from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from modelling.inspection.inspection import inspect, write
from modelling.inspection.output_rule import Options, UndecidedError
from shared.imaging.frames import Layout
from shared.inference.errors import EngineError, InferenceError
from shared.models.manifest import NORMALIZATIONS
from shared.models.repository import Repository
from tests.support.foreign_models import onnx, onnx_map, save_onnx, tflite

pytest.importorskip("onnxruntime")
keras: Any = import_module("keras")

_SHAPE = (1, 3, 64, 96)
_MEANS = np.array([123.675, 116.28, 103.53], np.float32)
_RED = np.full((1, 64, 96, 3), (255, 0, 0), np.uint8)
_GREY = np.full((1, 64, 96, 3), 90, np.uint8)
_Node = tuple[str, list[str], list[str], dict[str, Any]]


def _file(path: Path, nodes: Sequence[_Node], arrays: dict[str, Any], output: tuple[str, Sequence[int]]) -> Path:
    """Writes an ONNX file of `nodes` from the input x to the output y."""
    helper, elements = onnx.helper, onnx.TensorProto
    save_onnx(
        path,
        helper.make_graph(
            [helper.make_node(kind, inputs, outputs, **keys) for kind, inputs, outputs, keys in nodes],
            "network",
            [helper.make_tensor_value_info("x", elements.FLOAT, _SHAPE)],
            [helper.make_tensor_value_info("y", getattr(elements, output[0]), output[1])],
            [onnx.numpy_helper.from_array(np.asarray(values), name) for name, values in arrays.items()],
        ),
    )
    return path


def _kernel(channels: int) -> Any:
    return np.random.default_rng(1).normal(size=(channels, 3, 1, 1)).astype(np.float32)


def _openvino(path: Path) -> Path:
    """Writes the folder of OpenVINO's format of an ONNX file."""
    folder = path.with_suffix("")
    ov.save_model(ov.Core().read_model(path), folder / "model.xml", compress_to_fp16=False)
    return folder


@pytest.mark.parametrize("name", ["m.onnx", "m.tflite"])
def test_a_normalisation_follows_the_channel_order(tmp_path: Path, name: str) -> None:
    """ImageNet's numbers are those of red, green and blue, and channel 0 of a bgr8 input is blue."""
    path = tmp_path / name
    if name == "m.tflite":
        images = keras.Input((32, 32, 3), batch_size=1)
        tflite(path, keras.Model(images, keras.layers.Conv2D(7, 3, padding="same")(images)), dtype="int8", span=(-2, 2))
    else:
        onnx_map(path, _SHAPE, 7)
    keys = NORMALIZATIONS["imagenet"]
    for layout, step in ((Layout.RGB8, 1), (Layout.BGR8, -1)):
        section = inspect(path, options=Options(layout=layout, normalize="imagenet")).manifest.input
        assert (section.mean, section.std) == (keys["mean"][::step], keys["std"][::step])


@pytest.mark.parametrize("form", ["onnx", "openvino", "pb"])
def test_class_ids_outside_of_a_mask_are_an_error(tmp_path: Path, form: str) -> None:
    """A void of -250 that only some images have must not become class 6."""
    path = tmp_path / "m.onnx"
    if form == "pb":
        path = tmp_path / "m.pb"
        with tf.Graph().as_default() as graph:
            images = tf.compat.v1.placeholder("float32", (1, 64, 96, 3), "x")
            tf.where(images[..., 0] - images[..., 1] > 0.99, -250, tf.cast(images[..., 0] * 6, tf.int32), name="y")
        path.write_bytes(graph.as_graph_def().SerializeToString())
    else:
        nodes: list[_Node] = [
            ("Conv", ["x", "w"], ["c"], {}),
            ("ArgMax", ["c"], ["a"], {"axis": 1, "keepdims": 0}),
            ("Equal", ["a", "one"], ["e"], {}),
            ("Where", ["e", "void", "a"], ["y"], {}),
        ]
        kernel = np.array([[0, 0, 0.01], [1, -1, -1]], np.float32).reshape(2, 3, 1, 1)
        _file(path, nodes, {"w": kernel, "one": np.int64(1), "void": np.int64(-250)}, ("INT64", (1, 64, 96)))
        path = _openvino(path) if form == "openvino" else path
    if form == "pb":
        write(inspect(path), tmp_path / "models" / "m")
        with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
            assert model.predict(_GREY).max() == 2
            with pytest.raises(InferenceError, match="class ids from -250 to -250, and a mask holds 0 to 255"):
                model.predict(_RED)
    else:
        with pytest.raises(EngineError, match="class ids from -250 to 0, and a mask holds 0 to 255"):
            inspect(path)


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_the_classes_of_an_arg_max_are_counted(tmp_path: Path, form: str) -> None:
    """40 are named, although noise may not show all of them; 300 do not fit into a mask."""
    for channels in (40, 300):
        path = tmp_path / f"m{channels}.onnx"
        nodes: list[_Node] = [
            ("Conv", ["x", "w"], ["c"], {}),
            ("ArgMax", ["c"], ["y"], {"axis": 1, "keepdims": 0}),
        ]
        _file(path, nodes, {"w": _kernel(channels)}, ("INT64", (1, 64, 96)))
        path = _openvino(path) if form == "openvino" else path
        if channels == 40:
            assert len(inspect(path).manifest.labels) == 40
        else:
            with pytest.raises(UndecidedError, match="has 300 classes, and a mask has at most 256"):
                inspect(path)


@pytest.mark.parametrize(
    ("operation", "constant", "scale"),
    [
        ("Sub", _MEANS.reshape(3, 1, 1), 1.0),
        ("Div", np.float32(255), 1.0),
        ("Mul", np.float32(1 / 127.5), 1.0),
        ("Mul", np.float32(2), 1 / 255),
        ("Sub", np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1), 1 / 255),
    ],
)
def test_arithmetic_shows_the_range_of_the_input(tmp_path: Path, operation: str, constant: Any, scale: float) -> None:
    """A mean of 123 or a divisor of 255 is for pixels of 0..255, in each format that shows its operations."""
    nodes: list[_Node] = [
        ("Mul", ["x", "neutral"], ["n"], {}),
        (operation, ["n", "k"], ["s"], {}),
        ("Conv", ["s", "w"], ["y"], {}),
    ]
    path = _file(
        tmp_path / "m.onnx",
        nodes,
        {"neutral": np.float32(1), "k": constant, "w": _kernel(5)},
        ("FLOAT", (1, 5, 64, 96)),
    )
    for each in (path, _openvino(path)):
        found = inspect(each)
        assert found.manifest.input.scale == pytest.approx(scale)
        assert any("the graph" in note and "its input by" in note for note in found.notes)


def test_a_mean_after_a_flip_of_the_channels_shows_the_range(tmp_path: Path) -> None:
    """Caffe's preprocessing inside a frozen graph and in TensorFlow Lite."""
    images = keras.Input((32, 32, 3), batch_size=1)
    shifted = keras.layers.Rescaling(1.0, offset=-127.5)(images)
    tflite(tmp_path / "m.tflite", keras.Model(images, keras.layers.Conv2D(5, 3, padding="same")(shifted)))
    with tf.Graph().as_default() as graph:
        flipped = tf.compat.v1.placeholder("float32", (1, 32, 32, 3), "x")[..., ::-1] * 1.0
        tf.nn.conv2d(flipped - _MEANS[::-1], _kernel(5).transpose(2, 3, 1, 0), 1, "SAME", name="y")
    (tmp_path / "m.pb").write_bytes(graph.as_graph_def().SerializeToString())
    for name in ("m.tflite", "m.pb"):
        assert inspect(tmp_path / name).manifest.input.scale == 1.0
