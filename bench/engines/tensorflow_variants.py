"""The ways to run one frozen graph in TensorFlow, from the pixels to the class ids. TensorFlow loads with the first."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import ClassIds, Images, Placement, Precision
from cloud.models.manifest import OutputKind
from cloud.models.repository import Repository
from shared.errors import SkylaneError
from shared.runtime import huge_pages

Run = Callable[[Images], ClassIds]
_OFF = 2  # RewriterConfig.OFF


class WayError(SkylaneError):
    """A graph that this bench cannot run."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a graph is run."""

    how: str = "callable"  # The name of a function in _HOW.
    environment: Mapping[str, str] = field(default_factory=dict)  # Read when the library is loaded.
    rewriting: Mapping[str, Any] = field(default_factory=dict)  # Settings of grappler, TensorFlow's graph optimiser.
    intra: int = 0
    inter: int = 0
    executor: str = ""
    jit: int = 0  # 1: XLA compiles what it can (auto-clustering).
    precision: Precision = Precision.FP32

    @property
    def compiles(self) -> bool:
        """Whether XLA compiles it, for a minute or more on every core."""
        return self.jit > 0 or self.how == "xla"


ENGINE = "Skylane's engine"
AGAIN = "the engine again"  # In a second process: how far two that are alike lie apart.

WAYS: dict[str, Way] = {
    ENGINE: Way("engine"),
    AGAIN: Way("engine"),
    "Session.make_callable": Way(),
    "Session.run": Way("run"),
    "wrap_function": Way("wrap_function"),
    "tf.function": Way("function"),
    "optimize_for_inference first": Way("optimised"),
    "arg max by TopK": Way("top_k"),
    "arg max by NumPy": Way("numpy_argmax"),
    "means by AvgPool": Way("pooled"),
    "intra threads 1": Way(intra=1),
    "inter threads 1": Way(inter=1),
    "single-threaded executor": Way(executor="SINGLE_THREADED_EXECUTOR"),
    "grappler off": Way(rewriting={"disable_meta_optimizer": True}),
    "no remapper": Way(rewriting={"remapping": _OFF}),
    "no constant folding": Way(rewriting={"constant_folding": _OFF}),
    "no arithmetic pass": Way(rewriting={"arithmetic_optimization": _OFF}),
    "no layout pass": Way(rewriting={"layout_optimizer": _OFF}),
    "oneDNN off": Way(environment={"TF_ENABLE_ONEDNN_OPTS": "0"}),
    "oneDNN, weights frozen": Way(environment={"TF_ONEDNN_ASSUME_FROZEN_WEIGHTS": "1"}),
    "oneDNN, system allocator": Way(environment={"TF_ONEDNN_USE_SYSTEM_ALLOC": "1"}),
    "pooled CPU memory (BFC)": Way(environment={"TF_CPU_ALLOCATOR_USE_BFC": "1"}),
    "no huge pages": Way(environment={huge_pages.VARIABLE: f"{huge_pages.TUNABLE}=0"}),
    "XLA auto-clustering": Way(jit=1, environment={"TF_XLA_FLAGS": "--tf_xla_cpu_global_jit"}),
    "XLA, the whole graph": Way("xla"),
    "bf16": Way("engine", precision=Precision.BF16),
}


def opened(way: Way, models: Path, model: str) -> Run:
    """A way, ready to be called with uint8 1×H×W×3; gives uint8 1×H×W.

    Raises:
        WayError: the model is no frozen graph from uint8 pixels to class ids.
        SkylaneError: as `Repository.file`.
    """
    repository = Repository(models)
    manifest, path = repository.manifest(model), repository.file(model)
    heads = tuple(manifest.heads.values())
    plain = manifest.format == "frozen_graph" and manifest.input.dtype == "uint8" and not manifest.input.constants
    if not plain or len(heads) != 1 or heads[0].kind is not OutputKind.CLASS_IDS:
        raise WayError(f"model {model}: a frozen graph from uint8 pixels to class ids is wanted")
    if way.how == "engine":
        return repository.load(model, Placement(precision=way.precision), engine="tensorflow").predict
    # Not above: the parent process needs no TensorFlow, and its children set its environment first.
    graph = import_module("cloud.engines.tensorflow.graphdef").read_graph(path)
    run: Run = _HOW[way.how](way, graph, manifest.input.tensor, heads[0].tensor)
    return run


def _tf() -> Any:
    return import_module("cloud.engines.tensorflow.library").tf


def _session(way: Way, graph: Any) -> Any:
    tf = _tf()
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=way.intra, inter_op_parallelism_threads=way.inter)
    config.device_count["GPU"] = 0
    config.experimental.executor_type = way.executor
    config.graph_options.optimizer_options.global_jit_level = way.jit
    for key, value in way.rewriting.items():
        setattr(config.graph_options.rewrite_options, key, value)
    held = tf.Graph()
    with held.as_default():
        tf.import_graph_def(graph, name="")
    return tf.compat.v1.Session(graph=held, config=config)


def _callable(way: Way, graph: Any, given: str, wanted: str) -> Run:
    run: Run = _session(way, graph).make_callable(wanted, feed_list=[given])
    return run


def _run(way: Way, graph: Any, given: str, wanted: str) -> Run:
    session = _session(way, graph)
    return lambda images: np.asarray(session.run(wanted, {given: images}))


def _wrap_function(_way: Way, graph: Any, given: str, wanted: str) -> Run:
    tf = _tf()
    wrapped = tf.compat.v1.wrap_function(lambda: tf.compat.v1.import_graph_def(graph, name=""), [])
    function = wrapped.prune(given, wanted)
    return lambda images: np.asarray(function(tf.constant(images)))


def _function(_way: Way, graph: Any, given: str, wanted: str, *, jit: bool = False) -> Run:
    tf = _tf()
    body = tf.compat.v1.GraphDef()
    # XLA compiles all of a function, and knows no placeholder, not even one that nothing reads any more.
    body.node.extend(node for node in graph.node if node.name != given.partition(":")[0])
    body.versions.CopyFrom(graph.versions)
    body.library.CopyFrom(graph.library)

    def answer(images: Any) -> Any:
        return tf.graph_util.import_graph_def(body, input_map={given: images}, return_elements=[wanted], name="")[0]

    function = tf.function(answer, autograph=False, jit_compile=jit)
    return lambda images: np.asarray(function(tf.constant(images)))


def _xla(way: Way, graph: Any, given: str, wanted: str) -> Run:
    return _function(way, graph, given, wanted, jit=True)


def _optimised(way: Way, graph: Any, given: str, wanted: str) -> Run:
    """Constants folded, and what only training needs taken out, by TensorFlow's own tool, ahead of the session."""
    library = import_module("tensorflow.python.tools.optimize_for_inference_lib")
    ends = [given.partition(":")[0]], [wanted.partition(":")[0]]
    better = library.optimize_for_inference(graph, *ends, _tf().uint8.as_datatype_enum)
    return _callable(way, better, given, wanted)


def _without_argmax(graph: Any, wanted: str) -> str:
    """The tensor that the last arg max reads."""
    nodes = {node.name: node for node in graph.node}
    node = nodes[wanted.partition(":")[0]]
    while node.op != "ArgMax":
        if node.op not in ("Cast", "Identity", "Squeeze"):
            raise WayError(f"{wanted}: its graph ends with no arg max, but with {node.op}")
        node = nodes[node.input[0].partition(":")[0]]
    source = node.input[0]
    return source if ":" in source else f"{source}:0"


def _numpy_argmax(way: Way, graph: Any, given: str, wanted: str) -> Run:
    scores = _callable(way, graph, given, _without_argmax(graph, wanted))
    return lambda images: np.argmax(scores(images), axis=-1).astype(np.uint8)


def _top_k(way: Way, graph: Any, given: str, wanted: str) -> Run:
    """The best of one: TensorFlow finds the largest score by its vector units, and then its place."""
    tf = _tf()
    held = tf.Graph()
    with held.as_default():
        (scores,) = tf.import_graph_def(graph, return_elements=[_without_argmax(graph, wanted)], name="")
        tf.cast(tf.math.top_k(scores, 1, sorted=False).indices[..., 0], tf.uint8, name="skylane_top")
    return _callable(way, held.as_graph_def(), given, "skylane_top:0")


def _pooled(way: Way, graph: Any, given: str, wanted: str) -> Run:
    """Means over rows and columns by oneDNN's pooling instead of TensorFlow's own reduction; sums in another order."""
    tf = _tf()
    held = tf.Graph()
    with held.as_default():
        tf.import_graph_def(graph, name="")
    for node in graph.node:
        if node.op != "Mean" or held.get_operation_by_name(node.name).inputs[0].shape.rank != 4:  # noqa: PLR2004  N, H, W, C.
            continue
        taken = held.get_operation_by_name(node.name).inputs[0].shape
        if held.get_operation_by_name(node.name).outputs[0].shape.as_list() != [taken[0], 1, 1, taken[3]]:
            continue
        window = [1, taken[1], taken[2], 1]
        del node.input[1:]
        node.op = "AvgPool"
        for key in [key for key in node.attr if key != "T"]:
            del node.attr[key]
        node.attr["ksize"].list.i.extend(window)
        node.attr["strides"].list.i.extend(window)
        node.attr["padding"].s, node.attr["data_format"].s = b"VALID", b"NHWC"
    return _callable(way, graph, given, wanted)


_HOW: dict[str, Callable[[Way, Any, str, str], Run]] = {
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
