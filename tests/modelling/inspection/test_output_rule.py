from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.models.loader import ModelLoader
from modelling.conversion.conversion import convert
from modelling.inspection.inspection import Inspection, inspect, write
from modelling.inspection.output_rule import Options, UndecidedError
from shared.imaging.labels import Labels, LabelsError
from shared.inference.engine import EngineError
from shared.models.manifest import AxisOrder, OutputKind
from shared.models.repository import Repository
from tests.support.foreign_models import Side, onnx, onnx_constants, onnx_map

pytest.importorskip("onnxruntime")

_LAST: tuple[str, dict[str, Any]] = ("Transpose", {"perm": [0, 2, 3, 1]})
_SIGMOID: tuple[str, dict[str, Any]] = ("Sigmoid", {})
_IMAGES = np.random.default_rng(1).integers(0, 256, (1, 64, 96, 3), np.uint8)


def _masks(found: Inspection, root: Path, images: Any) -> Any:
    write(found, root / "foreign")
    with ModelLoader(Repository(root)).open("foreign") as model:
        return model.predict(images)


def _averages(images: Any, stride: int) -> Any:
    count, height, width, _ = images.shape
    return (images / 255.0).reshape(count, height // stride, stride, width // stride, stride, 3).mean((2, 4))


@pytest.mark.parametrize(
    ("shape", "network", "axes"),
    [
        ((1, 3, 64, 96), (7, 1, ()), AxisOrder.NCHW),
        ((1, 3, 64, 96), (7, 1, (_LAST,)), AxisOrder.NHWC),
        ((1, 64, 96, 3), (7, 1, ()), AxisOrder.NCHW),
        ((1, 64, 96, 3), (7, 1, (_LAST,)), AxisOrder.NHWC),
        ((1, 3, 64, 96), (150, 8, ()), AxisOrder.NCHW),
        ((1, 64, 96, 3), (150, 8, (_LAST,)), AxisOrder.NHWC),
        (("n", 3, "h", "w"), (12, 8, ()), AxisOrder.NCHW),
        (("n", "h", "w", 3), (8, 8, (_LAST,)), AxisOrder.NHWC),
        ((1, 3, 64, 96), (96, 1, ()), AxisOrder.NCHW),
    ],
)
def test_the_mask_is_the_arg_max_over_the_channels(
    tmp_path: Path,
    shape: Sequence[Side],
    network: tuple[int, int, Sequence[tuple[str, dict[str, Any]]]],
    axes: AxisOrder,
) -> None:
    """The number of channels may be larger than the sides of the map, or equal to one of them."""
    channels, stride, after = network
    weights = onnx_map(tmp_path / "m.onnx", shape, channels, stride=stride, after=after)
    found = inspect(tmp_path / "m.onnx", size=(64, 96) if "h" in shape else None)
    assert (found.interface.classes, found.interface.axes) == (channels, axes)
    expected = np.argmax(_averages(_IMAGES, stride) @ weights.T, axis=-1).repeat(stride, 1).repeat(stride, 2)
    assert np.mean(_masks(found, tmp_path / "models", _IMAGES) == expected) > 0.999


def test_a_cube_of_scores_follows_the_input_and_says_so(tmp_path: Path) -> None:
    """Height, width and classes are equal: the shape shows nothing, and one option decides."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 64), 64)
    found = inspect(tmp_path / "m.onnx")
    assert found.interface.axes is AxisOrder.NCHW
    assert any("may be nhwc or nchw: took nchw" in note for note in found.notes)
    stated = inspect(tmp_path / "m.onnx", options=Options(output_axes=AxisOrder.NHWC))
    assert stated.interface.axes is AxisOrder.NHWC
    assert not any("may be" in note for note in stated.notes)


def test_an_input_of_unknown_axes_is_tried_in_both_orders(tmp_path: Path) -> None:
    """The convolution accepts one of them; the manifest records it, because the file does not show it."""
    path = tmp_path / "m.onnx"
    onnx_map(path, (1, 3, 64, 96), 7)
    model = onnx.load(path)
    for number, side in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        side.dim_param = f"side{number}"
    onnx.save(model, path)
    found = inspect(path, size=(64, 96))
    assert found.manifest.input.axes is AxisOrder.NCHW
    assert any("runs as nchw only" in note for note in found.notes)
    assert _masks(found, tmp_path / "models", _IMAGES).shape == (1, 64, 96)


def test_the_message_counts_the_scores_on_the_axis_of_the_channels(tmp_path: Path) -> None:
    """The width of a planar map is not the number of its classes."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 64), 21)
    labels = Labels(tuple(f"c{number}" for number in range(19)), ((0, 0, 0),) * 19)
    with pytest.raises(LabelsError, match="the labels name 19 classes, and the model has 21: give --labels with 21"):
        inspect(tmp_path / "m.onnx", labels=labels)


@pytest.mark.parametrize(
    ("after", "bias", "kind", "threshold"),
    [
        ((), -0.3, OutputKind.LOGITS, 0.0),
        ((_SIGMOID,), -0.3, OutputKind.PROBABILITIES, 0.5),
        ((_SIGMOID, _LAST), 0.1, OutputKind.PROBABILITIES, 0.5),
        ((("Tanh", {}),), -0.3, OutputKind.LOGITS, 0.0),
    ],
)
def test_one_channel_is_background_and_foreground(
    tmp_path: Path,
    after: Sequence[tuple[str, dict[str, Any]]],
    bias: float,
    kind: OutputKind,
    threshold: float,
) -> None:
    """Arg max over one channel would give zeros for every image."""
    weights = onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 1, after=after, bias=bias)
    found = inspect(tmp_path / "m.onnx")
    assert found.interface.kind is kind
    assert [label.name for label in found.manifest.labels] == ["background", "foreground"]
    values = (_IMAGES / 255.0) @ weights[0] + bias
    values = 1 / (1 + np.exp(-values)) if _SIGMOID in after else values
    expected = values > threshold
    assert 0.05 < expected.mean() < 0.95
    assert np.mean(_masks(found, tmp_path / "models", _IMAGES) == expected) > 0.999
    if kind is OutputKind.PROBABILITIES:
        pytest.importorskip("openvino")
        repository = Repository(tmp_path / "models")
        assert convert(repository, "foreign", "openvino", _IMAGES, new_name="converted").agreement > 0.999
        with ModelLoader(repository, engine="openvino").open("foreign") as model:
            assert np.mean(model.predict(_IMAGES) == expected) > 0.999


def test_one_value_per_pixel_without_a_sign_is_undecided(tmp_path: Path) -> None:
    """After a ReLU nothing shows whether 0.5 or 0 is the limit: inspect asks, and the answer decides."""
    path = tmp_path / "m.onnx"
    onnx_map(path, (1, 3, 64, 96), 1, after=(("Relu", {}),))
    with pytest.raises(UndecidedError, match=r"give --output-kind probabilities .* logits .* class_ids"):
        inspect(path)
    for kind in (OutputKind.PROBABILITIES, OutputKind.LOGITS):
        assert inspect(path, options=Options(output_kind=kind)).interface.kind is kind


def test_one_channel_needs_two_labels(tmp_path: Path) -> None:
    """Labels of a data set cannot name background and foreground."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 1, after=(_SIGMOID,))
    labels = Labels(tuple(f"c{number}" for number in range(19)), ((0, 0, 0),) * 19)
    with pytest.raises(LabelsError, match="the labels name 19 classes, and the model has 2: give --labels with 2"):
        inspect(tmp_path / "m.onnx", labels=labels)


def test_a_quantised_channel_without_a_scale_is_refused(tmp_path: Path) -> None:
    """ONNX does not declare the scale of an output that QuantizeLinear gives: 0.5 is an unknown integer."""
    path = tmp_path / "m.onnx"
    onnx_map(path, (1, 3, 64, 96), 1, after=(_SIGMOID,))
    model = onnx.load(path)
    (last,) = [node for node in model.graph.node if node.op_type == "Identity"]
    last.op_type = "QuantizeLinear"
    last.input.extend(["step", "zero"])
    for name, value in (("step", np.float32(1 / 255)), ("zero", np.uint8(0))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value), name))
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save(model, path)
    with pytest.raises(UndecidedError, match="is quantised, and the file does not show its scale: --task tensors"):
        inspect(path)


def _random(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        ({"y": _random(1, 300, 64, 64)}, "300 classes, and a mask has at most 256"),
        ({"y": np.full((1, 64, 64), 300, np.int64)}, "301 classes, and a mask has at most 256"),
        ({"y": _random(1, 2000)}, "2000 classes, and a model has at most 1024"),
        ({"y": _random(1, 7, 1, 1)}, "its outputs are y float32 1×7×1×1; --task tensors"),
        ({"y": _random(1, 2, 3, 64, 64)}, "its outputs are y float32 1×2×3×64×64; --task tensors"),
        ({"y": np.zeros((1, 7, 0, 64), np.float32)}, "gives no class ids"),
        ({"y": _random(1, 300, 6)}, "--task tensors"),
        ({"y": _random(20, 7)}, "none of them numbers with the batch first"),
        ({"boxes": _random(1, 9, 4), "scores": _random(1, 9), "labels": np.ones((1, 9), np.int64)}, "--task tensors"),
        ({"boxes": _random(9, 4), "scores": _random(9), "labels": np.ones(9, np.int64)}, "none of them numbers"),
        ({"y": _random(1, 116, 84), "z": _random(1, 32, 16, 16)}, "--task segmentation or --task tensors"),
        ({"y": _random(1, 255, 64, 64), "z": _random(1, 255, 32, 32)}, "--task segmentation or --task tensors"),
        ({"y": np.abs(_random(1, 9))}, "give --output-kind probabilities .* or logits"),
    ],
)
def test_outputs_that_are_no_result_of_a_task_are_refused(
    tmp_path: Path, outputs: dict[str, npt.NDArray[Any]], problem: str
) -> None:
    """The message names the outputs and the option that serves them."""
    onnx_constants(tmp_path / "m.onnx", outputs)
    with pytest.raises(UndecidedError, match=problem) as caught:
        inspect(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("unit", "is_relative"), [(1.0, True), (64.0, False)])
def test_boxes_that_stay_in_0_to_1_are_relative(tmp_path: Path, unit: float, *, is_relative: bool) -> None:
    """Taken for pixels, each box would be a point in the corner."""
    corners = np.sort(np.random.default_rng(0).random((1, 50, 2, 2)), axis=2)
    boxes = (corners.reshape(1, 50, 4) * unit).astype(np.float32)
    onnx_constants(tmp_path / "m.onnx", {"boxes": boxes, "scores": _random(1, 50, 9)})
    assert inspect(tmp_path / "m.onnx").manifest.box_format.normalised is is_relative


def test_joined_channels_are_not_the_scores_of_classes(tmp_path: Path) -> None:
    """A detector of one tensor has the shape of a segmentation; --task tensors serves it, --task segmentation insists."""
    path = tmp_path / "m.onnx"
    onnx_map(path, (1, 3, 64, 96), 7)
    model = onnx.load(path)
    (last,) = [node for node in model.graph.node if node.op_type == "Identity"]
    last.op_type, last.input[:] = "Concat", ["map", "map"]
    last.attribute.append(onnx.helper.make_attribute("axis", 1))
    onnx.save(model, path)
    with pytest.raises(UndecidedError, match=r"joined from several parts.*--task tensors.*--task segmentation"):
        inspect(path)
    assert list(inspect(path, options=Options(task="tensors")).manifest.outputs) == ["answer"]
    assert inspect(path, options=Options(task="segmentation")).interface.classes == 14


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (Options(task="classification"), "for task classification: its outputs are"),
        (Options(output_kind=OutputKind.BOXES), "give class_ids or scores or logits or probabilities"),
        (Options(output_kind=OutputKind.CLASS_IDS), "class ids need N×H×W"),
        (Options(task="tensors", output_kind=OutputKind.SCORES), "give tensor"),
        (Options(task="tensors", output_axes=AxisOrder.NCHW), "leave it out"),
        (Options(axes=AxisOrder.NHWC), "leave --axes out"),
    ],
)
def test_an_option_that_does_not_fit_names_what_does(tmp_path: Path, options: Options, problem: str) -> None:
    """A statement of the user that contradicts the model is an error, not a preference."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 7)
    with pytest.raises(EngineError, match=problem):
        inspect(tmp_path / "m.onnx", options=options)


def test_normalisation_and_channel_order_are_stated(tmp_path: Path) -> None:
    """They are the manifest's input.scale, mean, std and layout."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 7)
    section = inspect(tmp_path / "m.onnx", options=Options(normalize="imagenet")).manifest.input
    assert (section.mean, section.std) == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    section = inspect(tmp_path / "m.onnx", options=Options(normalize="-1..1")).manifest.input
    assert np.subtract(np.multiply([0, 255], section.scale), section.mean[:2] if section.mean else 0).tolist() == [
        -1,
        1,
    ]


def test_raw_tensors_get_valid_names(tmp_path: Path) -> None:
    """Names of tensors may hold slashes, repeat, or hold escape sequences for a terminal."""
    onnx_constants(tmp_path / "m.onnx", {"a/b c": _random(1, 4), "a_b_c": _random(1, 4), "\x1b[1m": _random(1, 9, 4)})
    found = inspect(tmp_path / "m.onnx", options=Options(task="tensors"))
    assert list(found.manifest.outputs) == ["a_b_c", "output-1", "1m"]
    write(found, tmp_path / "models" / "m")


def test_every_pixel_of_one_class_is_noted(tmp_path: Path) -> None:
    """A mask of one class may be right, but is more often a wrong range of the input."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 1, after=(_SIGMOID,), bias=-20.0)
    assert any("every pixel of noise is class 0" in note for note in inspect(tmp_path / "m.onnx").notes)
