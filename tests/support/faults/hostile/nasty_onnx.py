"""A model for a vehicle that fails on frames with a trigger pixel and computes the others from their pixels; an ONNX file.

`python -m tests.support.faults.hostile.nasty_onnx FOLDER HEIGHT WIDTH TURNS` writes it into a model repository. It needs no
library of custom operations: it raises by an index out of range, and hangs in a loop.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ops.processes.null_worker import LABELS, LEVELS_PER_CLASS
from shared.imaging.labels import read_labels
from tests.support.faults.hostile.trigger_pixels import MODEL, Mark
from tests.support.model_folder import label_keys, write_model

SURE_FROM = 128  # The model is sure of frames whose first pixel has at least this much blue.
_FOREVER = 1 << 60  # Turns of the loop.
_OUT_OF_RANGE = 1 << 20
_OPSET, _IR_VERSION = 18, 10

onnx: Any = import_module("onnx")  # Any: the package has incomplete type hints.
import_module("onnx.numpy_helper")


def graph(height: int, width: int, turns: int) -> Any:
    """Returns a ModelProto from "images" (uint8 N×H×W×3, RGB) to "labels" (int32 N×H×W) and "scores" (float32 N×1×1×C, of C labels).

    `turns` is the number of turns of its loop for a frame without a trigger pixel: the work of an inference.
    """
    helper, types = onnx.helper, onnx.TensorProto
    classes = len(read_labels(LABELS).names)
    constants: dict[str, Any] = {
        "red": np.array(0, np.int64),
        "levels": np.array(LEVELS_PER_CLASS, np.int32),
        "starts": np.array([0, 0], np.int64),
        "ends": np.array([1, 1], np.int64),
        "axes": np.array([1, 2], np.int64),
        "channels": np.array([1, 2, 3], np.int64),
        "batch": np.array([0], np.int64),
        "only": np.array([0.0], np.float32),
        "out_of_range": np.array(_OUT_OF_RANGE, np.int64),
        "forever": np.array(_FOREVER, np.int64),
        "turns": np.array(turns, np.int64),
        "go": np.array([True]).squeeze(),
        "zero": np.array(0.0, np.float32),
        "one": np.array(1.0, np.float32),
        "nan": np.array(np.nan, np.float32),
        "sure_from": np.array(SURE_FROM, np.int32),
        "blue": np.array(2, np.int64),
        "sure": np.eye(1, classes, dtype=np.float32)[0] * 10,
        "unsure": np.zeros(classes, np.float32),
        **{f"pixel_{mark.name}": np.array(mark.pixel, np.int32) for mark in (Mark.RAISE, Mark.NAN, Mark.HANG)},
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["images"], ["levels_of_images"], to=types.INT32),
        node("Slice", ["levels_of_images", "starts", "ends", "axes"], ["first"]),  # N×1×1×3
        *(each for mark in (Mark.RAISE, Mark.NAN, Mark.HANG) for each in _marked(mark)),
        node("Mul", ["marked_RAISE", "out_of_range"], ["index"]),
        node("Gather", ["only", "index"], ["gathered"]),
        node("Mul", ["marked_HANG", "forever"], ["more_turns"]),
        node("Add", ["more_turns", "turns"], ["all_turns"]),
        node("Loop", ["all_turns", "go", "zero"], ["turned"], body=_turn()),
        node("Min", ["turned", "zero"], ["nothing"]),  # The loop counts up from 0, so this is 0; it keeps the loop.
        node("Add", ["gathered", "nothing"], ["nothing_more"]),
        node("Cast", ["nothing_more"], ["no_label"], to=types.INT32),
        node("Gather", ["levels_of_images", "red"], ["reds"], axis=3),
        node("Div", ["reds", "levels"], ["classes"]),
        node("Add", ["classes", "no_label"], ["labels"]),
        node("Gather", ["first", "blue"], ["blues"], axis=3),  # N×1×1
        node("Unsqueeze", ["blues", "last"], ["blues_of_frames"]),
        node("GreaterOrEqual", ["blues_of_frames", "sure_from"], ["is_sure"]),
        node("Where", ["is_sure", "sure", "unsure"], ["certainty"]),
        node("Cast", ["marked_NAN"], ["is_nan"], to=types.BOOL),
        node("Where", ["is_nan", "nan", "zero"], ["poison"]),
        node("Add", ["certainty", "poison"], ["scores"]),
    ]
    constants["last"] = np.array([3], np.int64)
    tensors = [onnx.numpy_helper.from_array(values, name) for name, values in constants.items()]
    images = helper.make_tensor_value_info("images", types.UINT8, ["batch_size", height, width, 3])
    labels = helper.make_tensor_value_info("labels", types.INT32, ["batch_size", height, width])
    scores = helper.make_tensor_value_info("scores", types.FLOAT, ["batch_size", 1, 1, classes])
    built = helper.make_graph(nodes, MODEL, [images], [labels, scores], tensors)
    return helper.make_model(built, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION)


def write(folder: Path, height: int, width: int, turns: int) -> None:
    """Writes the model `nasty` with an input size into a model repository."""
    write_model(
        folder / MODEL,
        "model.onnx",
        graph(height, width, turns).SerializeToString(),
        format="onnx",
        input={"tensor": "images", "height": height, "width": width, "resize": "stretch"},
        output={"tensor": "labels", "kind": "class_ids"},
        confidence="scores",
        labels=label_keys(read_labels(LABELS)),
        warm_up={"runs": 1},
    )


def _marked(mark: Mark) -> list[Any]:
    """Returns the nodes that compute "marked_<mark>": 1 if a frame of the batch has the trigger pixel, else 0."""
    name = mark.name
    return [
        onnx.helper.make_node("Equal", ["first", f"pixel_{name}"], [f"equal_{name}"]),
        onnx.helper.make_node("Cast", [f"equal_{name}"], [f"equals_{name}"], to=onnx.TensorProto.INT64),
        onnx.helper.make_node("ReduceMin", [f"equals_{name}", "channels"], [f"marks_{name}"], keepdims=0),
        onnx.helper.make_node("ReduceMax", [f"marks_{name}", "batch"], [f"marked_{name}"], keepdims=0),
    ]


def _turn() -> Any:
    """Returns the body of the loop, which adds 1 to a number."""
    helper, types = onnx.helper, onnx.TensorProto
    value = helper.make_tensor_value_info
    return helper.make_graph(
        [
            helper.make_node("Identity", ["go_before"], ["go_after"]),
            helper.make_node("Add", ["before", "one"], ["after"]),
        ],
        "turn",
        [value("turn_number", types.INT64, []), value("go_before", types.BOOL, []), value("before", types.FLOAT, [])],
        [value("go_after", types.BOOL, []), value("after", types.FLOAT, [])],
    )


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:5]))
