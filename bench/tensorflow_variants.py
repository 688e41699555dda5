"""`python -m bench tensorflow`: compares variants of running one frozen graph in TensorFlow with Skylane's engine.

Each variant runs in a child process, because TensorFlow reads flags only when it is imported. The engine and the variants
of a group infer the same images in turn, from pixels to class ids.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench import harness
from bench.harness import BenchRun, Comparison, Samples
from cloud.models.opening import open_model
from ops.processes.child import BenchError, Child, serve
from shared.errors import SkylaneError
from shared.inference.engine import ClassIds, Images
from shared.inference.model import warmup_images
from shared.models.manifest import OutputKind, Placement, Precision
from shared.models.repository import Repository
from shared.runtime import memory
from shared.terminal_table import Table, result_table

_IMAGES, _IMAGES_NAME = 4, "images.npy"
_GROUP_SIZE = 4  # Processes besides the engine's; each uses some hundred megabytes.
_WARM_UP = 3  # Images.
_WALL, _PROCESSOR = "wall_ms", "processor_ms"
_OFF = 2  # RewriterConfig.OFF

Run = Callable[[Images], ClassIds]


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
    precision: Precision = Precision.FP32


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
    "bf16": GraphVariant("engine", precision=Precision.BF16),
}


@dataclass(frozen=True, slots=True)
class TensorFlowPlan:
    """Settings of the comparison."""

    models: Path = harness.models()
    model: str = harness.model()
    rounds: int = harness.rounds(11)
    variants: tuple[str, ...] = harness.choices(VARIANTS, (), "Variant to measure (repeatable). [all]", "--variant")


def measure(plan: TensorFlowPlan, run: BenchRun) -> dict[str, Any]:
    """Compare variants of running a frozen graph in TensorFlow with Skylane's engine."""
    card = Repository(plan.models).find(plan.model).card()
    names = [name for name in plan.variants or VARIANTS if name != ENGINE]
    rows: dict[str, Any] = {}
    failed: dict[str, str] = {}
    images = run.folder / _IMAGES_NAME
    np.save(images, warmup_images(card.height, card.width, _IMAGES))
    for first in range(0, len(names), _GROUP_SIZE):
        group = names[first : first + _GROUP_SIZE]
        run.step(f"starting {', '.join(group)} (of {len(names)} variants)")
        with ExitStack() as stack:
            # The engine restarts with each group, in its middle: its speed depends by a third on the memory it gets, and
            # the first process gets other memory than later ones.
            order = [*group[: len(group) // 2], ENGINE, *group[len(group) // 2 :]]
            started = {name: stack.enter_context(variant_process(name, plan, images)) for name in order}
            rows |= _compare_group(plan, started, failed, run)
    return {
        "model": plan.model,
        "sha256": card.sha256,
        "rounds": plan.rounds,
        "variants": rows,
        "failed": failed,
    }


def variant_process(name: str, plan: TensorFlowPlan, images: Path) -> Child:
    """Starts a variant in a child process, see `start`; several may warm up at once."""
    settings = {
        "name": name,
        "models": plan.models,
        "model": plan.model,
        "images": images,
        "masks": _masks(images, name),
    }
    return Child(__name__, settings, title=name, environment=VARIANTS[name].environment)


def _masks(images: Path, name: str) -> Path:
    """Returns the file of a variant's masks, uint8 N×H×W."""
    return images.with_name(f"{list(VARIANTS).index(name)}.npy")


def _turn(child: Child, number: int) -> Samples:
    """Infers one image, by the number of the round; returns wall time and processor time."""
    wall_ms, processor_ms = child.ask(number % _IMAGES)
    return {_WALL: [wall_ms], _PROCESSOR: [processor_ms]}


def _compare_group(
    plan: TensorFlowPlan, started: Mapping[str, Child], failed: dict[str, str], run: BenchRun
) -> dict[str, dict[str, Any]]:
    """Returns the rows of the variants that completed; the reasons of the others are added to `failed`."""
    warm = {}
    for name, process in started.items():
        try:
            process.wait()
        except BenchError as error:
            if name == ENGINE:
                raise
            failed[name] = str(error)
        else:
            warm[name] = process
    candidates = {name: partial(_turn, process) for name, process in warm.items()}
    comparison = harness.compare(candidates, plan.rounds, run.step, may_fail=warm.keys() - {ENGINE})
    failed.update(comparison.failed)
    masks = {name: np.load(_masks(run.folder / _IMAGES_NAME, name)) for name in comparison.names}
    return {
        name: _record(comparison, name, float(np.mean(masks[name] == masks[ENGINE])))
        for name in comparison.names
        if name != ENGINE
    }


def _record(comparison: Comparison, name: str, agreement: float) -> dict[str, Any]:
    return {
        "ms": comparison.spread(name, _WALL),
        "engine_ms": comparison.spread(ENGINE, _WALL),
        "ratio": comparison.ratio(name, ENGINE, _WALL).value,
        "ratio_of_least": comparison.ratio(name, ENGINE, _WALL, min).value,
        "processor_ratio": comparison.ratio(name, ENGINE, _PROCESSOR).value,
        "agreement": agreement,
    }


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    ratios = {"median": "ratio", "least": "ratio_of_least", "processor": "processor_ratio"}
    rows = sorted(result["variants"].items(), key=lambda item: float(item[1]["ratio"]))
    yield result_table(
        f"{result['model']}: time ÷ the engine's, {result['rounds']} rounds in turn",
        {"variant": "<", **dict.fromkeys(ratios, ".2f"), "labels": ".5%"},
        [(name, *(row[key] for key in ratios.values()), row["agreement"]) for name, row in rows],
        f"below 1: faster than the engine; labels: share equal to the engine's; {ENGINE_AGAIN}: the noise level",
    )
    for reason in result["failed"].values():
        yield f"left out: {reason}"


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


def _function(_variant: GraphVariant, graph: Any, input_name: str, output_name: str) -> Run:
    tf = _tf()
    body = tf.compat.v1.GraphDef()
    body.node.extend(node for node in graph.node if node.name != input_name.partition(":")[0])
    body.versions.CopyFrom(graph.versions)
    body.library.CopyFrom(graph.library)

    def infer(images: Any) -> Any:
        return tf.graph_util.import_graph_def(
            body, input_map={input_name: images}, return_elements=[output_name], name=""
        )[0]

    function = tf.function(infer, autograph=False)
    return lambda images: np.asarray(function(tf.constant(images)))


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
        if node.op != "Mean" or held.get_operation_by_name(node.name).inputs[0].shape.rank != 4:  # N, H, W, C.
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
    "optimised": _optimised,
    "numpy_argmax": _numpy_argmax,
    "top_k": _top_k,
    "pooled": _pooled,
}


def start(*, name: str, models: str, model: str, images: str, masks: str) -> Callable[[int], tuple[float, float]]:
    """Loads a variant in a child process, because TensorFlow reads flags only when it is imported, and warms it up.

    `images` and `masks` are files of NumPy arrays; the second one is written. Returns the function that infers an image by its
    number, and returns the wall time and the processor time in milliseconds.
    """
    inputs = np.load(images)
    run = open_variant(VARIANTS[name], Path(models), model)
    for _ in range(_WARM_UP):
        run(inputs[:1])
    np.save(masks, np.concatenate([run(inputs[number : number + 1]) for number in range(len(inputs))]))

    def infer(number: int) -> tuple[float, float]:
        used_s, begin_ns = time.process_time(), time.perf_counter_ns()
        run(inputs[number : number + 1])
        wall_ms = (time.perf_counter_ns() - begin_ns) / 1e6
        return wall_ms, 1e3 * (time.process_time() - used_s)

    return infer


tensorflow = harness.bench_command("tensorflow", TensorFlowPlan, measure, _tables)

if __name__ == "__main__":
    serve(start)
