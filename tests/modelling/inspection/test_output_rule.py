from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cloud.models.loader import ModelLoader
from cloud.models.opening import open_model
from modelling.conversion.conversion import convert
from modelling.inspection.inspection import Inspection, inspect, write
from modelling.inspection.output_rule import Options, UndecidedError
from shared.imaging.geometry import Resize
from shared.imaging.labels import Labels, LabelsError
from shared.inference.engine import EngineError
from shared.inference.model import open_local
from shared.models.manifest import AxisOrder, BoxOrder, NoObject, OutputKind, Placement
from shared.models.repository import Repository
from shared.task import calibrated_softmax
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


def _random(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


_CENTRES = {
    "boxes": np.random.default_rng(0).uniform((0.2, 0.2, 0.01, 0.01), (0.8, 0.8, 0.4, 0.4), (1, 50, 4)).astype("f"),
    "scores": _random(1, 50, 9),
}  # As of DETR: centre and size.


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
        ({"y": _random(1, 1)}, r"no scores of an image \(N×C, C > 1\).*--task tensors serves"),
        (_CENTRES, r"x2 < x1 .*give --box-order xyxy.*--task tensors"),
        ({"boxes": _random(1, 50, 4), "scores": _random(1, 50, 9)}, r"x2 < x1 .*give --box-order xyxy"),
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


def _engines(found: Inspection, root: Path) -> list[Any]:
    """Returns the masks of the written model by ONNX Runtime, by OpenVINO and by OpenVINO's own format."""
    pytest.importorskip("openvino")
    masks = [_masks(found, root, _IMAGES)]
    convert(Repository(root), "foreign", "openvino", _IMAGES, new_name="converted")
    for name in ("foreign", "converted"):
        with ModelLoader(Repository(root), engine="openvino").open(name) as model:
            masks.append(model.predict(_IMAGES))
    return masks


def _labels(*names: str) -> Labels:
    return Labels(names, ((0, 0, 0),) * len(names))


def test_a_pixel_may_have_none_of_several_sigmoids(tmp_path: Path) -> None:
    """Taken for scores, every pixel would have the least improbable label."""
    path = tmp_path / "m.onnx"
    weights = onnx_map(path, (1, 3, 64, 96), 3, after=(_SIGMOID,), bias=-0.5)
    found = inspect(path, labels=_labels("road", "car", "sky"))
    assert any(
        "3 labels have one channel each: a pixel without probabilities above 0.5" in each for each in found.notes
    )
    assert [each.name for each in found.manifest.labels] == ["background", "road", "car", "sky"]
    values = (_IMAGES / 255.0) @ weights.T - 0.5
    expected = np.where(values.max(-1) > 0, values.argmax(-1) + 1, 0)
    assert 0.05 < np.mean(expected == 0) < 0.95
    for mask in _engines(found, tmp_path / "models"):
        assert np.mean(mask == expected) > 0.999


@pytest.mark.parametrize(
    ("names", "kind", "expected"),
    [
        (("background", "a", "b"), None, OutputKind.SCORES),
        (("void", "a", "b", "c"), None, OutputKind.PROBABILITIES),
        (("a", "b", "c"), OutputKind.SCORES, OutputKind.SCORES),
    ],
)
def test_labels_show_whether_sigmoids_leave_a_background(
    tmp_path: Path, names: Sequence[str], kind: OutputKind | None, expected: OutputKind
) -> None:
    """A background among the labels has a channel of its own, and one label more than channels is without one."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 3, after=(_SIGMOID,))
    found = inspect(tmp_path / "m.onnx", labels=_labels(*names), options=Options(output_kind=kind))
    assert found.interface.kind is expected
    assert [each.name for each in found.manifest.labels] == list(names)


def _levels(path: Path, channels: int, dtype: str, factor: float) -> npt.NDArray[np.float64]:
    """Writes sigmoids as integers of 0 to `factor`; returns their true values for the test's images."""
    factors: tuple[tuple[str, dict[str, Any]], ...] = (("Mul", {}), ("Cast", {"to": getattr(onnx.TensorProto, dtype)}))
    weights = onnx_map(path, (1, 3, 64, 96), channels, after=(_SIGMOID, *factors))
    model = onnx.load(path)
    (product,) = [node for node in model.graph.node if node.op_type == "Mul"]
    product.input.append("factor")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(factor), "factor"))
    model.graph.output[0].type.tensor_type.elem_type = getattr(onnx.TensorProto, dtype)
    (kernel,) = [each for each in model.graph.initializer if each.name == "w"]
    steep = 8 * (weights - weights.mean(axis=1, keepdims=True))
    kernel.CopyFrom(onnx.numpy_helper.from_array(steep.reshape(channels, 3, 1, 1), "w"))
    onnx.save(model, path)
    return np.asarray(1 / (1 + np.exp(-(_IMAGES / 255.0) @ steep.T)))


@pytest.mark.parametrize(("dtype", "factor"), [("UINT8", 255.0), ("UINT16", 65535.0)])
@pytest.mark.parametrize("kind", [None, OutputKind.PROBABILITIES])
def test_a_mask_over_the_range_of_integers_is_halved(
    tmp_path: Path, dtype: str, factor: float, kind: OutputKind | None
) -> None:
    """Of 0 to 255, practically every pixel is above 0.5, and none is a class id."""
    values = _levels(tmp_path / "m.onnx", 1, dtype, factor)[..., 0]
    found = inspect(tmp_path / "m.onnx", options=Options(output_kind=kind))
    assert any(f"probabilities above half of the range of {dtype.lower()}" in note for note in found.notes)
    for mask in _engines(found, tmp_path / "models"):
        assert np.mean(mask == (values > 0.5)) > 0.995


@pytest.mark.parametrize(("dtype", "factor"), [("INT64", 255.0), ("INT8", 127.0), ("FLOAT", 255.0)])
def test_probabilities_without_a_known_half_are_refused(tmp_path: Path, dtype: str, factor: float) -> None:
    """The type does not show that 255, or 127, is a probability of 1."""
    _levels(tmp_path / "m.onnx", 1, dtype, factor)
    with pytest.raises(UndecidedError, match="probabilities are 0 to 1 or over the whole range of uint8"):
        inspect(tmp_path / "m.onnx", options=Options(output_kind=OutputKind.PROBABILITIES))


def test_class_ids_beside_255_are_no_mask_over_the_range(tmp_path: Path) -> None:
    """255 is what segmentation data sets give pixels that do not count."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 5, after=[("ArgMax", {"axis": 1})])
    model = onnx.load(tmp_path / "m.onnx")
    (answer,) = [node for node in model.graph.node if node.output[0] == "answer"]
    (source,) = answer.input
    make, numbers = onnx.helper.make_node, onnx.numpy_helper
    model.graph.node.remove(answer)
    model.graph.node.extend(
        [
            make("Equal", [source, "four"], ["is_four"]),
            make("Where", ["is_four", "ignore", source], ["ids"]),
            make("Cast", ["ids"], ["answer"], to=onnx.TensorProto.UINT8),
        ]
    )
    model.graph.initializer.extend(
        [numbers.from_array(np.int64(4), "four"), numbers.from_array(np.int64(255), "ignore")]
    )
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(UndecidedError, match="give --output-kind class_ids or probabilities"):
        inspect(tmp_path / "m.onnx")


@pytest.mark.parametrize(("operation", "channels"), [("Sigmoid", 5), ("Identity", 1), ("Identity", 16)])
def test_another_map_beside_a_mask_is_not_taken_for_its_scores(tmp_path: Path, operation: str, channels: int) -> None:
    """A depth, an edge or features: without --confidence, nothing must be refused."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 5, after=[("ArgMax", {"axis": 1})])
    model = onnx.load(tmp_path / "m.onnx")
    helper = onnx.helper
    kernel = np.ones((channels, 3, 1, 1), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(kernel, "w2"))
    model.graph.node.append(helper.make_node("Conv", ["image", "w2"], ["map2"], kernel_shape=[1, 1]))
    model.graph.node.append(helper.make_node(operation, ["map2"], ["other"]))
    model.graph.output.append(helper.make_tensor_value_info("other", onnx.TensorProto.FLOAT, (1, channels, 64, 96)))
    onnx.save(model, tmp_path / "m.onnx")
    assert inspect(tmp_path / "m.onnx", options=Options(labels=5)).manifest.confidence is None


def test_few_levels_may_be_class_ids(tmp_path: Path) -> None:
    """A mask of 0 to 100 in uint8 is neither over the whole range nor surely class ids."""
    _levels(tmp_path / "m.onnx", 1, "UINT8", 100.0)
    with pytest.raises(UndecidedError, match="give --output-kind class_ids or probabilities"):
        inspect(tmp_path / "m.onnx")


@pytest.mark.parametrize("box", [(0.5, 0.5, 0.95, 0.95), (0.5, 0.5, 0.6, 0.6), (0.5, 0.5, 0.1, 0.1)])
@pytest.mark.parametrize("unit", [1, 64])
def test_boxes_that_may_be_centre_and_size_are_asked_for(tmp_path: Path, box: Sequence[float], unit: int) -> None:
    """Large boxes are valid corners too; the answer is in the manifest."""
    boxes = np.tile(np.array(box, np.float32) * unit, (1, 50, 1))
    onnx_constants(tmp_path / "m.onnx", {"boxes": boxes, "scores": _random(1, 50, 9)})
    with pytest.raises(UndecidedError, match=r"give --box-order xyxy, yxyx or cxcywh .*--task tensors"):
        inspect(tmp_path / "m.onnx")
    found = inspect(tmp_path / "m.onnx", options=Options(box_order=BoxOrder.CXCYWH))
    assert (found.manifest.box_format.order, found.manifest.box_format.normalised) == (BoxOrder.CXCYWH, unit == 1)
    assert any('if one is "no object", as of DETR, give --no-object' in note for note in found.notes)


@pytest.mark.parametrize(("place", "names"), [("last", "abcd"), ("first", "abcd"), (None, "abcd")])
def test_no_object_is_part_of_the_softmax_and_no_class(tmp_path: Path, place: NoObject | None, names: str) -> None:
    """DETR scores one class more than it has labels; with a name for all but one, the last is taken for it."""
    scores = _random(1, 50, 5)
    boxes = np.tile(np.array([0.5, 0.5, 0.2, 0.2], np.float32), (1, 50, 1))
    onnx_constants(tmp_path / "m.onnx", {"boxes": boxes, "scores": scores})
    options = Options(box_order=BoxOrder.CXCYWH, no_object=place)
    write(inspect(tmp_path / "m.onnx", labels=_labels(*names), options=options), tmp_path / "models" / "m")
    shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    expected = shares[..., 1:] if place == "first" else shares[..., :-1]
    pytest.importorskip("openvino")
    for engine in ("onnxruntime", "openvino"):
        with ModelLoader(Repository(tmp_path / "models"), engine=engine).open("m") as model:
            outputs = model.infer(np.zeros((1, 64, 64, 3), np.uint8))
        np.testing.assert_allclose(outputs["scores"], expected, atol=1e-5)
        np.testing.assert_allclose(outputs["boxes"][0, 0], [25.6, 25.6, 38.4, 38.4], rtol=1e-5)


@pytest.mark.parametrize("after", [(), (("Softmax", {"axis": 1}),), (_LAST,)], ids=str)
def test_the_confidence_is_read_along_the_classes(tmp_path: Path, after: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Planar, interleaved, before and after softmax: the same scores, up to a constant of each pixel."""
    path = tmp_path / "m.onnx"
    weights = onnx_map(path, (1, 3, 64, 96), 5, after=after)
    found = inspect(path, options=Options(confidence="answer"))
    write(found, tmp_path / "models" / "m")
    stored = Repository(tmp_path / "models").find("m")
    expected = calibrated_softmax((_IMAGES / 255.0) @ weights.T, 1.0)
    stored = replace(stored, manifest=stored.manifest.with_confidence_head())
    for engine in ("onnxruntime", "openvino"):
        with open_model(stored, engine, Placement(device="cpu")) as model:
            scores = model.infer(_IMAGES)["confidence"]
        np.testing.assert_allclose(calibrated_softmax(scores, 1.0), expected, atol=1e-4)


def test_a_confidence_with_other_classes_is_refused(tmp_path: Path) -> None:
    """The axes of the manifest count, not the axis that happens to have as many entries as there are labels."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 5)
    write(inspect(tmp_path / "m.onnx", options=Options(confidence="answer")), tmp_path / "models" / "m")
    path = tmp_path / "models" / "m" / "model.yaml"
    path.write_text(
        path.read_text().replace(
            "confidence: {tensor: answer, kind: scores, axes: nchw}",
            "confidence: {tensor: answer, kind: scores, axes: nhwc}",
        )
    )
    stored = Repository(tmp_path / "models").find("m")
    with pytest.raises(
        EngineError, match="gives 96 scores in confidence, along its axes, where the manifest has 5 labels"
    ):
        open_local(replace(stored, manifest=stored.manifest.with_confidence_head()), Placement(device="cpu"))
    with pytest.raises(EngineError, match="no output 'answre'"):
        inspect(tmp_path / "m.onnx", options=Options(confidence="answre"))


@pytest.mark.parametrize(
    ("key", "text", "first"),
    [
        ("names", "{0: 'road', 1: 'car', 2: 'sky'}", "road"),
        ("id2label", '{"1": "car", "0": "road", "2": "sky"}', "road"),
        ("classes", '["road", "car", "sky"]', "road"),
        ("names", "{0: 'road', 1: 'car'}", "class-0"),
        ("names", "{0: 'road', 1: 'road', 2: 'sky'}", "class-0"),
        ("names", "__import__('os').abort()", "class-0"),
        ("names", "[" * 9000, "class-0"),
    ],
)
def test_class_names_in_the_metadata_are_used_if_they_fit(tmp_path: Path, key: str, text: str, first: str) -> None:
    """Exporters such as that of Ultralytics write the names into the file; nothing in them is run."""
    path = tmp_path / "m.onnx"
    onnx_map(path, (1, 3, 64, 96), 3)
    model = onnx.load(path)
    onnx.helper.set_model_props(model, {key: text})
    onnx.save(model, path)
    assert inspect(path).manifest.labels[0].name == first
    assert inspect(path, labels=_labels("x", "y", "z")).manifest.labels[0].name == "x"


def test_an_input_of_one_channel_names_the_way_out(tmp_path: Path) -> None:
    """Frames have three channels."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 5)
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 1
    (kernel,) = [each for each in model.graph.initializer if each.name == "w"]
    kernel.CopyFrom(onnx.numpy_helper.from_array(np.ones((5, 1, 1, 1), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(EngineError, match=r"an image of one channel, .* weights 0\.299, 0\.587 and 0\.114"):
        inspect(tmp_path / "m.onnx")


def test_the_resize_is_stated(tmp_path: Path) -> None:
    """A network trained on letterboxed images needs them."""
    onnx_map(tmp_path / "m.onnx", (1, 3, 64, 96), 5)
    assert inspect(tmp_path / "m.onnx", options=Options(resize=Resize.LETTERBOX)).manifest.input.resize == "letterbox"
