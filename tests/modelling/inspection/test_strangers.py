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
from modelling import model_cli
from modelling.inspection.inspection import inspect, write
from modelling.inspection.output_rule import Options, UndecidedError
from shared.errors import SkylaneError
from shared.imaging.frames import Layout
from shared.imaging.labels import labels_from
from shared.inference.engine import EngineError, InferenceError
from shared.models.manifest import NORMALIZATIONS, OutputKind
from shared.models.repository import Repository
from tests.support.foreign_models import onnx, onnx_constants, onnx_map, save_onnx, tflite

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


def _signatures(folder: Path) -> Path:
    class Network(tf.Module):  # type: ignore[misc]  # TensorFlow has no type hints.
        def __init__(self) -> None:
            self.kernel = tf.Variable(_kernel(5).transpose(2, 3, 1, 0))

        @tf.function(input_signature=[tf.TensorSpec([1, 64, 96, 3], tf.float32)])  # type: ignore[untyped-decorator]
        def first(self, x: Any) -> Any:
            return {"scores": tf.nn.conv2d(x, self.kernel, 1, "SAME")}

        @tf.function(input_signature=[tf.TensorSpec([1, 64, 96, 3], tf.float32)])  # type: ignore[untyped-decorator]
        def second(self, x: Any) -> Any:
            return {"scores": -tf.nn.conv2d(x, self.kernel, 1, "SAME")}

        @tf.function(input_signature=[tf.TensorSpec([], tf.string)])  # type: ignore[untyped-decorator]
        def file(self, x: Any) -> Any:
            return {"scores": tf.cast(tf.io.decode_jpeg(x, 3), tf.float32) * tf.reduce_sum(self.kernel)}

    network = Network()
    tf.saved_model.save(network, str(folder / "two"), {"first": network.first, "second": network.second})
    tf.saved_model.save(network, str(folder / "file"), {"serving_default": network.file, "images": network.first})
    return folder


def test_a_signature_is_chosen_or_asked_for(tmp_path: Path) -> None:
    """Of several signatures, none is taken in silence, and an unknown one is an error in each format."""
    folder = _signatures(tmp_path)
    with pytest.raises(UndecidedError, match="has the signatures first and second: give one of them as --signature"):
        inspect(folder / "two")
    assert inspect(folder / "two", signature="second").manifest.signature == "second"
    with pytest.raises(EngineError, match="has no signature 'secnod': did you mean second"):
        inspect(folder / "two", signature="secnod")
    with pytest.raises(EngineError, match=r"takes no image .* took the signature 'serving_default' of images, serving"):
        inspect(folder / "file")
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder / "two"), signature_keys=["first", "second"])
    (tmp_path / "two.tflite").write_bytes(converter.convert())
    with pytest.raises(EngineError, match="has the signatures first, second: convert it with signature_keys"):
        inspect(tmp_path / "two.tflite")
    onnx_map(tmp_path / "m.onnx", _SHAPE, 7)
    with pytest.raises(EngineError, match="is no SavedModel with signatures: leave --signature out"):
        inspect(tmp_path / "m.onnx", signature="first")


def test_tensors_without_names_are_refused(tmp_path: Path) -> None:
    """A manifest names its tensors, and a stripped file has no names."""
    schema: Any = import_module("ai_edge_litert.schema_py_generated")
    builder = import_module("flatbuffers").Builder(1024)
    images = keras.Input((32, 32, 3), batch_size=1)
    tflite(tmp_path / "m.tflite", keras.Model(images, keras.layers.Conv2D(5, 3)(images)))
    model = schema.ModelT.InitFromPackedBuf((tmp_path / "m.tflite").read_bytes(), 0)
    for tensor in model.subgraphs[0].tensors:
        tensor.name = b""
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "m.tflite").write_bytes(bytes(builder.Output()))
    with pytest.raises(EngineError, match="has tensors without names"):
        inspect(tmp_path / "m.tflite")


def test_an_empty_name_of_labels_is_an_error(tmp_path: Path) -> None:
    """`--labels "$LABELS"` with an unset variable."""
    onnx_map(tmp_path / "m.onnx", _SHAPE, 7)
    with pytest.raises(SkylaneError, match="is not a file: give a label file, or a label set"):
        model_cli.inspect.main([str(tmp_path / "m.onnx"), "--labels", ""], standalone_mode=False)


@pytest.mark.parametrize("operation", ["Relu", "Softplus", "Exp", "Sigmoid"])
def test_quantised_real_numbers_are_no_class_ids(tmp_path: Path, operation: str) -> None:
    """A depth or a probability in uint8, although its dtype is that of class ids."""
    nodes: list[_Node] = [
        ("Conv", ["x", "w"], ["c"], {}),
        (operation, ["c"], ["r"], {}),
        ("QuantizeLinear", ["r", "step", "zero"], ["y"], {}),
    ]
    arrays = {"w": _kernel(1), "step": np.float32(1), "zero": np.uint8(0)}
    with pytest.raises(UndecidedError, match="is quantised, and the file does not show its scale: --task tensors"):
        inspect(_file(tmp_path / "m.onnx", nodes, arrays, ("UINT8", (1, 1, 64, 96))))


def test_a_cropped_mask_is_not_stretched(tmp_path: Path) -> None:
    """A U-Net without padding answers the inner part of the image, which may have the same aspect ratio."""
    path = tmp_path / "m.onnx"
    onnx_constants(path, {"y": np.random.default_rng(0).normal(size=(1, 5, 56, 56)).astype(np.float32)})
    with pytest.raises(UndecidedError, match=r"no whole number.*give --task segmentation if it shows the whole image"):
        inspect(path)
    assert inspect(path, options=Options(task="segmentation")).interface.classes == 5
    for side in (64, 33, 8):
        onnx_constants(path, {"y": np.random.default_rng(0).normal(size=(1, 5, side, side)).astype(np.float32)})
        assert inspect(path).interface.classes == 5


def test_one_of_equal_outputs_is_asked_for(tmp_path: Path) -> None:
    """An auxiliary output has the shape and the kind of the main one; torchvision's name of that one shows it."""
    scores = np.random.default_rng(0).normal(size=(1, 5, 64, 64)).astype(np.float32)
    path = tmp_path / "m.onnx"
    for values in (scores, scores[:, :, 0, 0]):
        onnx_constants(path, {"a": values, "b": -values})
        with pytest.raises(UndecidedError, match=r"gives a .*, b .*, and nothing shows which .*: give --output NAME"):
            inspect(path, options=Options(output_kind=None if values.ndim == 4 else OutputKind.LOGITS))
        kind = None if values.ndim == 4 else OutputKind.LOGITS
        assert inspect(path, options=Options(output="b", output_kind=kind)).interface.output.name == "b"
        onnx_constants(path, {"aux": values, "out": -values})
        assert inspect(path, options=Options(output_kind=kind)).interface.output.name == "out"
    with pytest.raises(UndecidedError, match="has no usable output 'uot': did you mean out"):
        inspect(path, options=Options(output="uot"))


def test_equal_values_need_no_choice(tmp_path: Path) -> None:
    """A graph may give its answer by two names."""
    scores = np.random.default_rng(0).normal(size=(1, 5, 64, 64)).astype(np.float32)
    onnx_constants(tmp_path / "m.onnx", {"a": scores, "b": scores})
    assert any("took a float32" in note for note in inspect(tmp_path / "m.onnx").notes)


@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_a_tensor_called_mask_is_served_as_it_is(tmp_path: Path, form: str) -> None:
    """Only class ids are converted, whatever an output of the task tensors is called."""
    path, values = tmp_path / "m.onnx", np.linspace(-3, 300, 5, dtype=np.float32)[np.newaxis]
    onnx_constants(path, {"mask": values})
    found = inspect(_openvino(path) if form == "openvino" else path, options=Options(task="tensors"))
    write(found, tmp_path / "models" / "m")
    with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
        assert np.array_equal(model.infer(np.zeros((1, 64, 64, 3), np.uint8))["mask"], values)


def test_boxes_of_a_background_are_refused(tmp_path: Path) -> None:
    """The first score of an SSD is that no object is there, and it is usually the highest."""
    boxes = np.tile(np.array([4, 4, 20, 20], np.float32), (1, 50, 1))
    scores = np.random.default_rng(0).normal(size=(1, 50, 21)).astype(np.float32)
    onnx_constants(tmp_path / "m.onnx", {"boxes": boxes, "scores": scores})
    with pytest.raises(EngineError, match="scores boxes of the first label, the background"):
        inspect(tmp_path / "m.onnx", labels=labels_from("voc"))


def test_hdf5_named_keras_is_named(tmp_path: Path) -> None:
    """Keras reads a file by its suffix, and its own message does not say what is wrong."""
    images = keras.Input((32, 32, 3), batch_size=1)
    keras.Model(images, keras.layers.Conv2D(5, 3)(images)).save(tmp_path / "m.h5")
    (tmp_path / "m.h5").rename(tmp_path / "m.keras")
    with pytest.raises(EngineError, match=r"is HDF5, which Keras reads by its name: name it \.h5"):
        inspect(tmp_path / "m.keras")


@pytest.mark.parametrize(
    ("mean", "variance", "scale"),
    [
        (_MEANS, np.square([58.4, 57.1, 57.4]), 1.0),
        ((0.485, 0.456, 0.406), (0.05, 0.05, 0.05), 1 / 255),
        ((0, 0, 0), (1, 1, 1), 1 / 255),
    ],
)
def test_a_first_batch_normalisation_shows_the_range_of_the_input(
    tmp_path: Path, mean: Any, variance: Any, scale: float
) -> None:
    """It holds the mean and the deviation of the images of the training."""
    nodes: list[_Node] = [("BatchNormalization", ["x", "g", "o", "m", "v"], ["n"], {}), ("Conv", ["n", "w"], ["y"], {})]
    statistics = {"m": np.array(mean, np.float32), "v": np.array(variance, np.float32)}
    arrays = {"g": np.ones(3, np.float32), "o": np.zeros(3, np.float32), **statistics, "w": _kernel(5)}
    path = _file(tmp_path / "m.onnx", nodes, arrays, ("FLOAT", (1, 5, 64, 96)))
    with tf.Graph().as_default() as graph:
        images = tf.compat.v1.placeholder("float32", (1, 32, 32, 3), "x")
        constants = [arrays[name] for name in "gomv"]
        normal = tf.compat.v1.nn.fused_batch_norm(images, *constants[:2], *constants[2:], is_training=False)[0]
        tf.nn.conv2d(normal, _kernel(5).transpose(2, 3, 1, 0), 1, "SAME", name="y")
    (tmp_path / "m.pb").write_bytes(graph.as_graph_def().SerializeToString())
    for each in (path, _openvino(path), tmp_path / "m.pb"):
        assert inspect(each).manifest.input.scale == pytest.approx(scale), each


@pytest.mark.parametrize(("sides", "batch"), [((None, None), 1), ((64, None), 1), ((None, 96), None), ((64, 96), None)])
def test_a_tensorflow_lite_file_of_any_size_takes_the_stated_one(
    tmp_path: Path, sides: tuple[int | None, int | None], batch: int | None
) -> None:
    """The mask is TensorFlow Lite's own, bit for bit."""
    images = keras.Input((*sides, 3), batch_size=batch)
    path = tmp_path / "m.tflite"
    tflite(path, keras.Model(images, keras.layers.Conv2D(5, 3, padding="same")(images)))
    frame = np.random.default_rng(0).integers(0, 256, (1, 64, 96, 3), np.uint8)
    found = inspect(path, size=None if None not in sides else (64, 96), options=Options(normalize="0..1"))
    write(found, tmp_path / "models" / "m")
    interpreter = import_module("ai_edge_litert.interpreter").Interpreter(str(path))
    (place,) = [each["index"] for each in interpreter.get_input_details()]
    interpreter.resize_tensor_input(place, frame.shape)
    interpreter.allocate_tensors()
    interpreter.set_tensor(place, frame.astype(np.float32) * np.float32(1 / 255))
    interpreter.invoke()
    expected = interpreter.get_tensor(interpreter.get_output_details()[0]["index"]).argmax(-1)
    with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
        np.testing.assert_array_equal(model.predict(frame), expected)


def test_the_classes_of_an_arg_max_in_tensorflow_lite_are_counted(tmp_path: Path) -> None:
    """Labels of another number are refused, although noise shows few of the classes."""
    images = keras.Input((32, 32, 3), batch_size=1)
    scores = keras.layers.Conv2D(40, 3, padding="same")(images)
    ids = keras.layers.Lambda(lambda each: tf.argmax(each, -1))(scores)
    tflite(tmp_path / "m.tflite", keras.Model(images, ids))
    assert len(inspect(tmp_path / "m.tflite").manifest.labels) == 40
    with pytest.raises(SkylaneError, match="the labels name 150 classes, and the model has 40"):
        inspect(tmp_path / "m.tflite", labels=labels_from("ade20k"))
