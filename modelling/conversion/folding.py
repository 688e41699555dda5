"""A GraphDef made plain for converters: only what the answers need, and everything constant worked out."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from cloud.engines.tensorflow_device import tf

_optimiser: Any = import_module("tensorflow.python.grappler.tf_optimizer")


def folded(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> Any:
    """`graph` (a frozen GraphDef) between `inputs` and `outputs` (tensors, "input:0"), its constant parts worked out.

    Arithmetic on shapes, which sizes pads and crops, ends as numbers wherever the sides of the picture are known.
    """
    whole = tf.Graph()
    with whole.as_default():
        tf.import_graph_def(graph, name="")
        for tensor in (*inputs, *outputs):
            whole.add_to_collection(tf.compat.v1.GraphKeys.TRAIN_OP, whole.get_tensor_by_name(tensor))
        meta = tf.compat.v1.train.export_meta_graph(graph_def=whole.as_graph_def(add_shapes=True), graph=whole)
    config = tf.compat.v1.ConfigProto()
    options = config.graph_options.rewrite_options
    options.optimizers[:] = ["constfold", "function", "constfold"]
    options.meta_optimizer_iterations = 1
    options.min_graph_nodes = -1  # Also graphs of a few operations.
    return _optimiser.OptimizeGraph(config, meta)
