from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cloud.engines.tensorflow.runtime import tf
from cloud.models.loader import ModelLoader
from modelling.inspection.inspection import inspect, write
from modelling.inspection.output_rule import Options, UndecidedError
from shared.inference import tflite as engine
from shared.inference.engine import EngineError
from shared.inference.pre_postprocess import quantised_levels
from shared.models.manifest import InputSection, OutputKind
from shared.models.repository import Repository
from tests.support.foreign_models import onnx, tflite

keras: Any = import_module("keras")
assert tf is not None  # Imported before Keras, because `runtime` silences TensorFlow's log output.

_SIDE = 32
_IMAGES = np.random.default_rng(2).integers(0, 256, (1, _SIDE, _SIDE, 3), np.uint8)
_EDGETPU = "deeplab_mobilenet_edgetpu_slim_cityscapes_quant.tflite"


def _network(last: Callable[[Any], Any]) -> Any:
    keras.utils.set_random_seed(1)
    images = keras.Input((_SIDE, _SIDE, 3), batch_size=1)
    return keras.Model(images, last(images))


def _scores(images: Any) -> Any:
    return keras.layers.Conv2D(7, 3, padding="same")(images)


def _raw(path: Path, fed: Any) -> Any:
    """Returns the raw output of a file for a raw input."""
    model = engine.open_model(path)
    model.allocate_tensors()
    model.set_tensor(model.get_input_details()[0]["index"], fed)
    model.invoke()
    return model.get_tensor(model.get_output_details()[0]["index"])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantised_scores_of_pixels(tmp_path: Path, dtype: str) -> None:
    """Pixels are fed unchanged, or less 128, and the arg max is that of the integers, on each engine."""
    path = tmp_path / "m.tflite"
    tflite(path, _network(_scores), dtype=dtype)
    found = inspect(path)
    assert (found.manifest.task, found.interface.kind, found.interface.classes) == (
        "segmentation",
        OutputKind.SCORES,
        7,
    )
    fed = (_IMAGES.astype(np.int16) - (128 if dtype == "int8" else 0)).astype(dtype)
    expected = _raw(path, fed).argmax(-1)
    write(found, tmp_path / "models" / "m")
    for name in ("tflite", "openvino"):
        if name == "openvino":
            pytest.importorskip("openvino")
        with ModelLoader(Repository(tmp_path / "models"), engine=name).open("m") as model:
            np.testing.assert_array_equal(model.predict(_IMAGES), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activation", ["softmax", None])
def test_quantised_scores_of_an_image(tmp_path: Path, dtype: str, activation: str | None) -> None:
    """The numbers become probabilities by the file's scale, which OpenVINO does not show: it refuses them."""
    path = tmp_path / "m.tflite"
    pooled = keras.layers.GlobalAveragePooling2D()
    tflite(path, _network(lambda x: keras.layers.Dense(11, activation=activation)(pooled(_scores(x)))), dtype=dtype)
    found = inspect(path)
    kind = OutputKind.PROBABILITIES if activation else OutputKind.LOGITS
    assert (found.manifest.task, found.interface.kind, found.interface.classes) == ("classification", kind, 11)
    write(found, tmp_path / "models" / "m")
    with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
        assert model.infer(_IMAGES)["scores"].sum() == pytest.approx(1, abs=0.03)
    pytest.importorskip("openvino")
    with pytest.raises(EngineError, match=r"does not show the quantisation.*use engine tflite"):
        ModelLoader(Repository(tmp_path / "models"), engine="openvino").open("m")


@pytest.mark.parametrize(("activation", "zero"), [("sigmoid", 0.5), (None, 0.0)])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_a_quantised_channel_is_background_and_foreground(
    tmp_path: Path, dtype: str, activation: str | None, zero: float
) -> None:
    """The threshold applies to the real values, not to the integers."""
    path = tmp_path / "m.tflite"
    tflite(path, _network(keras.layers.Conv2D(1, 3, padding="same", activation=activation)), dtype=dtype)
    found = inspect(path)
    assert found.interface.classes == 2
    fed = (_IMAGES.astype(np.int16) - (128 if dtype == "int8" else 0)).astype(dtype)
    detail = engine.open_model(path).get_output_details()[0]["quantization"]
    expected = (_raw(path, fed)[..., 0].astype(np.float64) - detail[1]) * detail[0] > zero
    write(found, tmp_path / "models" / "m")
    with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
        np.testing.assert_array_equal(model.predict(_IMAGES), expected)


def test_quantised_class_ids_stay_ids(tmp_path: Path) -> None:
    """An arg max gives integers without a quantisation."""
    path = tmp_path / "m.tflite"
    arg_max = keras.layers.Lambda(lambda scores: tf.argmax(scores, -1, output_type=tf.int32))
    tflite(path, _network(lambda x: arg_max(_scores(x))), dtype="int8")
    assert inspect(path).interface.kind is OutputKind.CLASS_IDS


@pytest.mark.parametrize(
    ("span", "name"), [((-1, 1), "-1..1"), ((0, 255), "0..255"), ((0, 1), "0..1"), ((-2.118, 2.64), "imagenet")]
)
def test_the_range_of_the_quantisation_shows_the_normalisation(
    tmp_path: Path, span: tuple[float, float], name: str
) -> None:
    """A converter calibrates the input on prepared images."""
    path = tmp_path / "m.tflite"
    tflite(path, _network(_scores), dtype="int8", span=span)
    assert any(f"is quantised for images of {name}: " in note for note in inspect(path).notes)


def test_a_range_that_no_normalisation_has_is_undecided(tmp_path: Path) -> None:
    """The answer of the user is quantised by the file's numbers."""
    path = tmp_path / "m.tflite"
    tflite(path, _network(_scores), dtype="int8", span=(0, 3))
    with pytest.raises(UndecidedError, match=r"is quantised from 0 to 3.*give --normalize"):
        inspect(path)
    levels = quantised_levels(inspect(path, options=Options(normalize="0..1")).manifest.input)
    assert levels is not None
    assert (levels[0, 0], levels[0, 255]) == (-128, -43)


def test_sixteen_bits_are_undecided_because_they_are_symmetric(tmp_path: Path) -> None:
    """A range of -1..1 fits images of 0..1 too."""
    path = tmp_path / "m.tflite"
    tflite(path, _network(_scores), dtype="int16", bits=16)
    with pytest.raises(UndecidedError, match="give --normalize"):
        inspect(path)
    found = inspect(path, options=Options(normalize="0..1"))
    fed = np.rint(_IMAGES / 255 * 32767).astype(np.int16)
    write(found, tmp_path / "models" / "m")
    with ModelLoader(Repository(tmp_path / "models")).open("m") as model:
        assert np.mean(model.predict(_IMAGES) == _raw(path, fed).argmax(-1)) > 0.99


def test_an_integer_input_without_quantisation_is_refused(tmp_path: Path) -> None:
    """An ONNX file does not declare the scale of an int8 input."""
    helper, elements = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("Cast", ["image"], ["map"], to=elements.FLOAT)],
        "network",
        [helper.make_tensor_value_info("image", elements.INT8, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("map", elements.FLOAT, [1, 3, 8, 8])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(EngineError, match=r"does not show its quantisation: .* input\.quantization"):
        inspect(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("dtype", "keys", "fed"),
    [
        ("int8", {"scale": 1 / 255, "quantization": {"scale": 1 / 255, "zero_point": -128}}, (-128, 0, 127)),
        (
            "int8",
            {"scale": 1 / 127.5, "mean": [1, 1, 1], "quantization": {"scale": 1 / 128, "zero_point": 0}},
            (-128, 0, 127),
        ),
        ("int8", {"scale": 1 / 255, "quantization": {"scale": 0.5, "zero_point": 3}}, (3, 4, 5)),
        ("int16", {"scale": 1 / 255, "quantization": {"scale": 1 / 32768, "zero_point": 0}}, (0, 16448, 32767)),
    ],
)
def test_pixels_are_fed_by_the_quantisation(dtype: str, keys: dict[str, Any], fed: tuple[int, int, int]) -> None:
    """The numbers of black, of 128 and of white; a range that covers all numbers keeps each pixel distinct."""
    levels = quantised_levels(
        InputSection.model_validate({"tensor": "x", "dtype": dtype, "height": 8, "width": 8, **keys})
    )
    assert levels is not None
    assert (levels[1, 0], levels[1, 128], levels[1, 255]) == fed


@pytest.mark.parametrize(("step", "zero_point"), [(1 / 127.5, 128), (1 / 128, 128), (1 / 127.5, 127)])
def test_bytes_that_cover_the_range_are_fed_unchanged(step: float, zero_point: int) -> None:
    """The rounding of these files moves each number by half a step, in either direction."""
    keys = {"tensor": "x", "height": 8, "width": 8, "scale": 1 / 127.5, "mean": [1, 1, 1]}
    section = InputSection.model_validate(keys | {"quantization": {"scale": step, "zero_point": zero_point}})
    assert quantised_levels(section) is None


def test_a_published_quantised_segmentation() -> None:
    """Its input is uint8 with scale 1/128 and zero point 128, its output int64 class ids."""
    path = Path(__file__).resolve().parents[4] / "shared" / "data" / "real" / "models" / _EDGETPU
    if not path.exists():
        pytest.skip("the published models are not here")
    found = inspect(path)
    assert (found.manifest.input.dtype, found.manifest.input.quantization) == ("uint8", None)
    assert (found.manifest.task, found.interface.kind) == ("segmentation", OutputKind.CLASS_IDS)
