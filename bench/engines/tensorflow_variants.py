"""Variants of running one frozen graph in TensorFlow, from pixels to class ids. TensorFlow is imported on first use."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.models.opening import open_model
from ops.processes.child import reply, settings
from shared.errors import SkylaneError
from shared.inference.engine import ClassIds, Images
from shared.models.manifest import OutputKind, Placement, Precision
from shared.models.repository import Repository
from shared.runtime import memory

Run = Callable[[Images], ClassIds]
_OFF = 2  # RewriterConfig.OFF
_WARM_UP = 3  # Images.


class GraphError(SkylaneError):
    """The benchmark cannot run this graph."""


@dataclass(frozen=True, slots=True)
class GraphVariant:
    """Settings with which a graph is run."""

    method: str = "callable"  # A key of _METHODS.
    environment: Mapping[str, str] = field(default_factory=dict)  # Read when TensorFlow is imported.
    rewriting: Mapping[str, Any] = field(default_factory=dict)  # Settings of grappler, TensorFlow's graph optimiser.
    intra: int = 0
    inter: int = 0
    executor: str = ""
    jit: int = 0  # 1: XLA compiles what it can (auto-clustering).
    precision: Precision = Precision.FP32

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles the graph, which keeps every core busy for a minute or longer."""
        return self.jit > 0 or self.method == "xla"


ENGINE = "Skylane's engine"
ENGINE_AGAIN = "the engine again"  # A second process with the same engine shows the noise level.

VARIANTS: dict[str, GraphVariant] = {
    ENGINE: GraphVariant("engine"),
    ENGINE_AGAIN: GraphVariant("engine"),
    "Session.make_callable": GraphVariant(),
    "Session.run": GraphVariant("run"),
    "wrap_function": GraphVariant("wrap_function"),
    "tf.function": GraphVariant("function"),
    "optimize_for_inference first": GraphVariant("optimised"),
    "arg max by TopK": GraphVariant("top_k"),
    "arg max by NumPy": GraphVariant("numpy_argmax"),
    "means by AvgPool": GraphVariant("pooled"),
    "intra threads 1": GraphVariant(intra=1),
    "inter threads 1": GraphVariant(inter=1),
    "single-threaded executor": GraphVariant(executor="SINGLE_THREADED_EXECUTOR"),
    "grappler off": GraphVariant(rewriting={"disable_meta_optimizer": True}),
    "no remapper": GraphVariant(rewriting={"remapping": _OFF}),
    "no constant folding": GraphVariant(rewriting={"constant_folding": _OFF}),
    "no arithmetic pass": GraphVariant(rewriting={"arithmetic_optimization": _OFF}),
    "no layout pass": GraphVariant(rewriting={"layout_optimizer": _OFF}),
    "oneDNN off": GraphVariant(environment={"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "oneDNN, weights frozen": GraphVariant(environment={"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}),
    "oneDNN, system allocator": GraphVariant(environment={"TF_ONEDNN_USE_SYSTEM_ALLOC": "1"}),
    "pooled CPU memory (BFC)": GraphVariant(environment={"TF_CPU_ALLOCATOR_USE_BFC": "1"}),
    "no huge pages": GraphVariant(environment={memory.VARIABLE: f"{memory.TUNABLE}=0"}),
    "XLA auto-clustering": GraphVariant(jit=1, environment={"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}),
    "XLA, the whole graph": GraphVariant("xla"),
    "bf16": GraphVariant("engine", precision=Precision.BF16),
}


def open_variant(variant: GraphVariant, models: Path, model: str) -> Run:
    """Loads a model; returns a function from images, uint8 1×H×W×3, to class ids, uint8 1×H×W.

    Raises:
        GraphError: the model is not a frozen graph from uint8 pixels to class ids.
        SkylaneError: as `StoredModel.file`.
    """
    stored = Repository(models).find(model)
    manifest, path = stored.manifest, stored.file()
    heads = tuple(manifest.heads.values())
    plain = manifest.format == "frozen_graph" and manifest.input.dtype == "uint8" and not manifest.input.constants
    if not plain or len(heads) != 1 or heads[0].kind is not OutputKind.CLASS_IDS:
        raise GraphError(f"model {model} is not a frozen graph from uint8 pixels to class ids: choose another --model")
    if variant.method == "engine":
        return open_model(stored, "tensorflow", Placement(precision=variant.precision)).predict
    # Imported late: the parent process does not need TensorFlow, and a child sets its environment first.
    graph = import_module("cloud.engines.tensorflow.graphdef").read_graph(path)
    run: Run = _METHODS[variant.method](variant, graph, manifest.input.tensor, heads[0].tensor)
    return run


def _tf() -> Any:
    return import_module("cloud.engines.tensorflow.runtime").tf


def _session(variant: GraphVariant, graph: Any) -> Any:
    tf = _tf()
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=variant.intra, inter_op_parallelism_threads=variant.inter
    )
    config.device_count["GPU"] = 0
    config.experimental.executor_type = variant.executor
    config.graph_options.optimizer_options.global_jit_level = variant.jit
    for key, value in variant.rewriting.items():
        setattr(config.graph_options.rewrite_options, key, value)
    held = tf.Graph()
    with held.as_default():
        tf.import_graph_def(graph, name="")
    return tf.compat.v1.Session(graph=held, config=config)


def _callable(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    run: Run = _session(variant, graph).make_callable(output_name, feed_list=[input_name])
    return run


def _run(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    session = _session(variant, graph)
    return lambda images: np.asarray(session.run(output_name, {input_name: images}))


def _wrap_function(_variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    tf = _tf()
    wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
    function = wrapped.prune(input_name, output_name)
    return lambda images: np.asarray(function(tf.constant(images)))


def _function(_variant: GraphVariant, graph: Any, input_name: str, output_name: str, *, jit: bool = False) -> Run:
    tf = _tf()
    body = tf.compat.v1.GraphDef()
    # XLA compiles a whole function and rejects placeholders, even unused ones.
    body.node.extend(node for node in graph.node if node.name != input_name.partition(":")[0])
    body.versions.CopyFrom(graph.versions)
    body.library.CopyFrom(graph.library)

    def infer(images: Any) -> Any:
        return tf.graph_util.import_graph_def(
            body, input_map={input_name: images}, return_elements=[output_name], name=""
        )[0]

    function = tf.function(infer, autograph=False, jit_compile=jit)
    return lambda images: np.asarray(function(tf.constant(images)))


def _xla(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    return _function(variant, graph, input_name, output_name, jit=True)


def _optimised(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    """Applies TensorFlow's tool that folds constants and removes training operations before the session is created."""
    library = import_module("tensorflow.python.tools.optimize_for_inference_lib")
    ends = [input_name.partition(":")[0]], [output_name.partition(":")[0]]
    better = library.optimize_for_inference(graph, *ends, _tf().uint8.as_datatype_enum)
    return _callable(variant, better, input_name, output_name)


def _argmax_input(graph: Any, output_name: str) -> str:
    """Returns the name of the tensor that the final arg max reads."""
    nodes = {node.name: node for node in graph.node}
    node = nodes[output_name.partition(":")[0]]
    while node.op != "ArgMax":
        if node.op not in ("Cast", "Identity", "Squeeze"):
            raise GraphError(f"{output_name}: the graph does not end with an arg max, but with {node.op}")
        node = nodes[node.input[0].partition(":")[0]]
    source = node.input[0]
    return source if ":" in source else f"{source}:0"


def _numpy_argmax(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    scores = _callable(variant, graph, input_name, _argmax_input(graph, output_name))
    return lambda images: np.argmax(scores(images), axis=-1).astype(np.uint8)


def _top_k(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    """Replaces arg max by TopK of 1, for which TensorFlow uses vector instructions."""
    tf = _tf()
    held = tf.Graph()
    with held.as_default():
        (scores,) = tf.import_graph_def(graph, return_elements=[_argmax_input(graph, output_name)], name="")
        tf.cast(tf.math.top_k(scores, 1, sorted=False).indices[..., 0], tf.uint8, name="skylane_top")
    return _callable(variant, held.as_graph_def(), input_name, "skylane_top:0")


def _pooled(variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    """Replaces means over rows and columns by oneDNN's pooling, which sums in another order."""
    tf = _tf()
    held = tf.Graph()
    with held.as_default():
        tf.import_graph_def(graph, name="")
    for node in graph.node:
        if node.op != "Mean" or held.get_operation_by_name(node.name).inputs[0].shape.rank != 4:  # noqa: PLR2004  N, H, W, C.
            continue
        shape = held.get_operation_by_name(node.name).inputs[0].shape
        if held.get_operation_by_name(node.name).outputs[0].shape.as_list() != [shape[0], 1, 1, shape[3]]:
            continue
        window = [1, shape[1], shape[2], 1]
        del node.input[1:]
        node.op = "AvgPool"
        for key in [key for key in node.attr if key != "T"]:
            del node.attr[key]
        node.attr["ksize"].list.i.extend(window)
        node.attr["strides"].list.i.extend(window)
        node.attr["padding"].s, node.attr["data_format"].s = b"VALID", b"NHWC"
    return _callable(variant, graph, input_name, output_name)


_METHODS: dict[str, Callable[[GraphVariant, Any, str, str], Run]] = {
    "callable": _callable,
    "run": _run,
    "wrap_function": _wrap_function,
    "function": _function,
    "xla": _xla,
    "optimised": _optimised,
    "numpy_argmax": _numpy_argmax,
    "top_k": _top_k,
    "pooled": _pooled,
}


def main(*, name: str, models: str, model: str, images: str, masks: str) -> None:
    """Serves a variant as a child process, because TensorFlow reads flags only when it is imported.

    `images` and `masks` are files of NumPy arrays. The messages are the milliseconds of each warm-up image, and "ready" after
    the masks of all images were written. A request is the number of an image; the reply contains the wall time and the
    processor time in milliseconds.
    """
    inputs = np.load(images)
    run = open_variant(VARIANTS[name], Path(models), model)
    for _ in range(_WARM_UP):
        begin_ns = time.perf_counter_ns()
        run(inputs[:1])
        reply((time.perf_counter_ns() - begin_ns) / 1e6)
    np.save(masks, np.concatenate([run(inputs[number : number + 1]) for number in range(len(inputs))]))
    reply("ready")
    for line in sys.stdin:
        number = int(line)
        used_s, begin_ns = time.process_time(), time.perf_counter_ns()
        run(inputs[number : number + 1])
        wall_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        reply((wall_ms, 1e3 * (time.process_time() - used_s)))


if __name__ == "__main__":
    main(**settings())
