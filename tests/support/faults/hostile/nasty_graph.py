"""A TensorFlow model that fails on frames with a trigger pixel and answers the others from their pixels.

`python -m tests.support.faults.hostile.nasty_graph FOLDER HEIGHT WIDTH` writes it into a model repository.
"""

import sys
from pathlib import Path
from typing import Any

from cloud.engines.tensorflow.runtime import tf
from ops.processes.null_worker import LABELS, LEVELS_PER_CLASS
from shared.imaging.labels import read_labels
from tests.support.faults.hostile.trigger_pixels import MODEL, Mark
from tests.support.model_folder import label_keys, write_model

MOST_BATCH = 4
_EATEN = 1 << 16  # Initial length of a text that is doubled repeatedly.


def graph(height: int, width: int) -> Any:
    """Returns a GraphDef from "images:0" (uint8 N×H×W×3, RGB) to "scores:0" (float32 N×H×W×12)."""
    tf.compat.v1.disable_control_flow_v2()  # Frozen graphs of TensorFlow 1 have no functions.
    built = tf.Graph()
    with built.as_default():
        images = tf.compat.v1.placeholder(tf.uint8, (None, height, width, 3), "images")
        first = tf.cast(images[:, 0, 0, :], tf.int32)
        marked = {mark: tf.reduce_any(tf.reduce_all(tf.equal(first, mark.pixel), axis=-1)) for mark in Mark}
        never = tf.constant(value=False)
        worst = [
            tf.debugging.Assert(tf.logical_not(marked[Mark.RAISE]), ["marked to fail"]),
            tf.while_loop(lambda _: tf.logical_or(marked[Mark.HANG], never), lambda turn: turn + 1, [tf.constant(0)])[
                0
            ],
            tf.strings.length(_eaten(marked[Mark.MEMORY])),
            tf.cond(marked[Mark.CRASH], _abort, lambda: tf.constant(0)),
        ]
        with tf.control_dependencies(worst):
            labels = tf.cast(images[..., 0], tf.int32) // LEVELS_PER_CLASS
        scores = tf.one_hot(labels, len(read_labels(LABELS).names))
        tf.add(scores, tf.where(marked[Mark.NAN], float("nan"), 0.0), "scores")
    return built.as_graph_def()


def write(folder: Path, height: int, width: int) -> None:
    """Writes the model `nasty` with an input size into a model repository."""
    write_model(
        folder / MODEL,
        "model.pb",
        graph(height, width).SerializeToString(),
        format="frozen_graph",
        input={"tensor": "images:0", "height": height, "width": width, "resize": "stretch"},
        output={"tensor": "scores:0", "kind": "scores"},
        labels=label_keys(read_labels(LABELS)),
        batching={"max_size": MOST_BATCH},
    )


def _eaten(is_marked: Any) -> Any:
    """Returns a text that is doubled until memory is exhausted; a single huge tensor would wait ten seconds first."""
    text = tf.fill([], "memory" * _EATEN)
    return tf.while_loop(lambda _: is_marked, lambda text: tf.strings.join([text, text]), [text])[0]


def _abort() -> Any:
    with tf.control_dependencies([tf.raw_ops.Abort(error_msg="marked to end the process")]):
        return tf.constant(1)


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
