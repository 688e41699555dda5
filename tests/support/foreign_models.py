"""Writes small ONNX and TensorFlow Lite files as third-party tools do, in the shapes that users bring."""

import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cloud.engines.tensorflow.runtime import tf

onnx: Any = import_module("onnx")
import_module("onnx.numpy_helper")

Side = int | str | None


def onnx_map(
    path: Path,
    shape: Sequence[Side],
    channels: int,
    *,
    stride: int = 1,
    after: Sequence[tuple[str, dict[str, Any]]] = (),
    declared: Sequence[Side] | None = None,
    bias: float = 0.0,
) -> npt.NDArray[np.float32]:
    """Writes a convolution of a planar or an interleaved image, with operations after it; returns the weights C×3.

    Args:
        path: The file.
        shape: The shape of the input; N×3×H×W, or else the image is transposed first.
        channels: The number of output channels.
        stride: Side of the square that each output pixel averages.
        after: Operations on N×C×H×W after the convolution, with their attributes.
        declared: The declared shape of the output; None for dynamic sides.
        bias: The bias of the convolution.
    """
    helper = onnx.helper
    rng = np.random.default_rng(4)
    weights = rng.normal(size=(channels, 3)).astype(np.float32)
    kernel = np.repeat(weights, stride * stride, axis=1).reshape(channels, 3, stride, stride) / stride**2
    nodes = []
    source = "image"
    if shape[1] != 3:
        nodes.append(helper.make_node("Transpose", ["image"], ["planar"], perm=[0, 3, 1, 2]))
        source = "planar"
    nodes.append(helper.make_node("Conv", [source, "w", "b"], ["map"], kernel_shape=[stride] * 2, strides=[stride] * 2))
    last = "map"
    for number, (operation, attributes) in enumerate(after):
        nodes.append(helper.make_node(operation, [last], [f"after{number}"], **attributes))
        last = f"after{number}"
    nodes.append(helper.make_node("Identity", [last], ["answer"]))
    elements = onnx.TensorProto
    kind = elements.INT64 if any(operation == "ArgMax" for operation, _ in after) else elements.FLOAT
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", elements.FLOAT, list(shape))],
        [helper.make_tensor_value_info("answer", kind, list(declared or (None,) * 4))],
        [
            onnx.numpy_helper.from_array(kernel.astype(np.float32), "w"),
            onnx.numpy_helper.from_array(np.full(channels, bias, np.float32), "b"),
        ],
    )
    save_onnx(path, graph)
    return weights


def save_onnx(path: Path, graph: Any) -> None:
    """Writes a GraphProto as a model."""
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)


def onnx_constants(path: Path, outputs: dict[str, npt.NDArray[Any]]) -> None:
    """Writes a model of a planar 1×3×64×64 image with constant outputs that nevertheless depend on the image."""
    helper, elements = onnx.helper, onnx.TensorProto
    zero = [
        helper.make_node("ReduceMean", ["image"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "nought"], ["zero"]),
    ]
    infos, nodes = [], []
    arrays = [onnx.numpy_helper.from_array(np.array(0, np.float32), "nought")]
    for name, values in outputs.items():
        kind = elements.INT64 if values.dtype.kind == "i" else elements.FLOAT
        arrays.append(onnx.numpy_helper.from_array(values, f"{name}-constant"))
        nodes.append(helper.make_node("Cast", ["zero"], [f"{name}-zero"], to=kind))
        nodes.append(helper.make_node("Add", [f"{name}-constant", f"{name}-zero"], [name]))
        infos.append(helper.make_tensor_value_info(name, kind, list(values.shape)))
    image = helper.make_tensor_value_info("image", elements.FLOAT, [1, 3, 64, 64])
    save_onnx(path, helper.make_graph(zero + nodes, "network", [image], infos, arrays))


def tflite(
    path: Path, network: Any, *, dtype: str | None = None, bits: int = 8, span: tuple[float, float] = (0, 1)
) -> None:
    """Converts a Keras model; with `dtype`, quantises it and its input and output, calibrated on images of `span`."""
    converter = tf.lite.TFLiteConverter.from_keras_model(network)
    if dtype is not None:
        rng = np.random.default_rng(0)
        low, high = span
        sides = network.inputs[0].shape[1:]
        images = [rng.uniform(low, high, (1, *sides)).astype(np.float32) for _ in range(8)]
        for image in images:
            image.flat[0], image.flat[1] = low, high
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
        converter.representative_dataset = lambda: ([image] for image in images)
        built_in = tf.lite.OpsSet.TFLITE_BUILTINS_INT8
        wide = tf.lite.OpsSet.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8
        converter.target_spec.supported_ops = [built_in if bits == 8 else wide]
        converter.inference_input_type = converter.inference_output_type = getattr(tf, dtype)
    path.write_bytes(_converted(converter))


def tflite_detector(path: Path, scores: npt.NDArray[np.float32]) -> None:
    """Writes a detector that ends with TFLite_Detection_PostProcess, for scores A×(1 + C) of anchors in a row.

    Anchor `n` is the square of 0.1 around (0.1 + 0.2 n, 0.5), relative to the image.
    """
    count, classes = scores.shape
    anchors = np.array([[0.5, 0.1 + 0.2 * number, 0.1, 0.1] for number in range(count)], np.float32)
    settings = {
        "max_detections": 10,
        "max_classes_per_detection": 1,
        "detections_per_class": 100,
        "use_regular_nms": False,
        "nms_score_threshold": 0.0,
        "nms_iou_threshold": 0.6,
        "num_classes": classes - 1,
        "y_scale": 10.0,
        "x_scale": 10.0,
        "h_scale": 5.0,
        "w_scale": 5.0,
    }
    names = {bool: "b", int: "i", float: "f"}
    attributes = " ".join(
        f'attr {{ key: "{key}" value {{ {names[type(value)]}: {str(value).lower()} }} }}'
        for key, value in settings.items()
    )

    def select(boxes: Any, scores: Any, _anchors: Any) -> Any:
        total = tf.reduce_sum(scores)  # The converter replaces this body, but would merge equal results.
        found = {
            "boxes": tf.zeros((1, 10, 4)) + tf.reduce_sum(boxes),
            "classes": tf.zeros((1, 10)) + total,
            "scores": tf.ones((1, 10)) + total,
            "count": total[None],
        }
        return tuple(found.values())

    operation = tf.function(select, experimental_implements=f'name: "TFLite_Detection_PostProcess" {attributes}')

    def network(image: Any) -> Any:
        zero = tf.reduce_mean(image) * 0.0
        boxes = tf.zeros((1, count, 4)) + zero
        found = operation(boxes, tf.constant(scores[np.newaxis]) + zero, tf.constant(anchors))
        return {f"output_{number}": tensor for number, tensor in enumerate(found)}

    module = tf.Module()
    module.network = tf.function(network, [tf.TensorSpec((1, 64, 64, 3), tf.float32, name="image")])
    folder = path.with_suffix("")
    tf.saved_model.save(module, str(folder), signatures=module.network)
    converter = tf.lite.TFLiteConverter.from_saved_model(str(folder))
    converter.allow_custom_ops = True
    path.write_bytes(_converted(converter))


def _converted(converter: Any) -> bytes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The converter asks for statistics that it takes from the data set.
        content: bytes = converter.convert()
    return content
