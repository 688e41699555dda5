"""A TensorFlow graph as an engine: whatever the format, it ends as a GraphDef that one session runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import EngineError, Images, InferenceError, Outputs, Placement
from cloud.engines.tensorflow.graph_heads import head_of
from cloud.engines.tensorflow.graph_rewriting import defer_widening_layers
from cloud.engines.tensorflow.graphdef import FrozenModel, cut, index_of, node_of, reachable, refuse_foreign, require
from cloud.engines.tensorflow.library import (
    check_precision,
    choose,
    convert_variables_to_constants,
    instances,
    session_config,
    tf,
)
from cloud.models.manifest import Manifest, OutputKind

_PREAMBLE = ("Graph execution error:", "Detected at node ", "Node: ", "<stack traces unavailable>")


@dataclass(frozen=True, slots=True)
class EndToEndGraph:
    """A tf.Graph from the camera's pixels to what `Engine.infer` gives."""

    graph: Any
    images: Any  # Its placeholder, uint8 N×H×W×3.
    heads: dict[str, Any]  # Its tensors by the manifest's head.
    is_nan: Any | None = None  # A bool: NaN is among the scores of a segmentation, which arg max would hide.


def assemble(frozen: FrozenModel, manifest: Manifest, batch_size: int | None, device: str = "") -> EndToEndGraph:
    """Scaling, the model and what its heads need after it in one graph, for batches of `batch_size`, None for any.

    Raises:
        EngineError: the graph has not the named tensors, or they are not what the manifest says.
    """
    graph = tf.Graph()
    with graph.as_default(), graph.device(device):
        shape = (batch_size, manifest.input.height, manifest.input.width, 3)
        images = tf.compat.v1.placeholder(tf.uint8, shape, "skylane_images")
        found = _import(frozen, manifest, _normalised(images, manifest))
        heads = {name: head_of(name, tensor, images, manifest, frozen.path) for name, tensor in found.items()}
        scores = [found[name] for name, section in manifest.heads.items() if section.kind is OutputKind.SCORES]
        # A sum passes a NaN on, and costs less than a look at each score.
        is_nan = tf.math.is_nan(tf.reduce_sum(tf.cast(scores[0], tf.float32))) if scores else None
    return EndToEndGraph(graph, images, heads, is_nan)


class GraphSession:
    """Scaling, the model and what its heads need after it in one graph: a frame enters and an answer leaves once each.

    `skylane bench tensorflow` compares it with the other ways to run the same graph.
    """

    is_reentrant = True  # A session's threads are its own, and its weights are shared by all who run it.

    def __init__(self, frozen: FrozenModel, manifest: Manifest, placement: Placement) -> None:
        """Build the graph around `frozen` and open a session on it.

        Raises:
            EngineError: the graph has not the named tensors, or they are not what the manifest says.
            DeviceError: the device is not there, or does not compute in the precision.
        """
        self.name = "tensorflow"
        self.device = choose(placement.device)
        self.precision = placement.precision or manifest.precision
        check_precision(self.precision, self.device)
        self.instances = instances(self.device, placement)
        self.batch_size = frozen_batch_size(frozen, manifest)
        rewritten = replace(frozen, graph=defer_widening_layers(frozen.graph, frozen.output_tensors.values()))
        whole = assemble(rewritten, manifest, self.batch_size, f"/{self.device}")
        config = session_config(self.device, placement, self.precision)
        self._session = tf.compat.v1.Session(graph=whole.graph, config=config)
        fetched = [*whole.heads.values(), *([] if whole.is_nan is None else [whole.is_nan])]
        self._run = self._session.make_callable(fetched, feed_list=[whole.images])
        self._heads = tuple(whole.heads)

    def infer(self, batch: Images) -> Outputs:
        """As `cloud.engines.engine.Engine.infer`."""
        try:
            answers = self._run(batch)
        except (tf.errors.OpError, ValueError) as error:
            raise InferenceError(f"the model failed: {first_line(error)}") from error
        outputs = dict(zip(self._heads, answers, strict=False))  # Whether a score was NaN comes last, if at all.
        for head, values in outputs.items():
            if values.dtype.kind == "f" and np.isnan(values).any():
                raise InferenceError(f"the model returned NaN in {head!r}")
        if len(answers) > len(outputs) and answers[-1]:
            raise InferenceError("the model returned NaN among its scores")
        return outputs

    def close(self) -> None:
        """Release the session; the device's memory goes back to TensorFlow's own pool."""
        self._session.close()


def freeze(function: Any, path: Path) -> tuple[Any, list[str], list[str]]:
    """Freeze a concrete function: its GraphDef, and the names of its input and output tensors in order.

    Raises:
        EngineError: TensorFlow cannot turn its variables into constants.
    """
    try:
        frozen = convert_variables_to_constants(function, lower_control_flow=False)
    except (tf.errors.OpError, ValueError, TypeError) as error:
        raise EngineError(path, f"cannot be frozen: {first_line(error)}") from error
    graph = frozen.graph.as_graph_def()
    return graph, [tensor.name for tensor in frozen.inputs], [tensor.name for tensor in frozen.outputs]


def first_line(error: Exception) -> str:
    """What TensorFlow says of an error, without what it always says before, and the pages that follow."""
    lines = str(getattr(error, "message", None) or error).splitlines()
    said = (line.strip() for line in lines if line.strip() and not line.startswith(_PREAMBLE))
    return next(said, type(error).__name__)[:300]


def frozen_batch_size(frozen: FrozenModel, manifest: Manifest) -> int | None:
    """The batch size in the input placeholder's shape; checks its other sides and its type against the manifest."""
    name = frozen.input_tensor
    node = require(frozen.graph, frozen.path, "input", name)
    for output in frozen.output_tensors.values():
        require(frozen.graph, frozen.path, "output", output)
        if node.name not in reachable(frozen.graph, [output]):
            raise EngineError(frozen.path, f"output {output!r} does not depend on input {name!r}: name others")
    if "dtype" in node.attr:
        dtype = tf.dtypes.as_dtype(node.attr["dtype"].type).name
        if dtype != manifest.input.dtype:
            raise EngineError(frozen.path, f"input {name!r} is {dtype}, the manifest's dtype {manifest.input.dtype}")
    if "shape" not in node.attr or node.attr["shape"].shape.unknown_rank:
        return None
    sides = [dim.size if dim.size > 0 else None for dim in node.attr["shape"].shape.dim]
    wanted = (None, manifest.input.height, manifest.input.width, 3)
    if len(sides) != len(wanted) or any(a not in (None, b) for a, b in zip(sides[1:], wanted[1:], strict=True)):
        given = "×".join("?" if side is None else str(side) for side in sides)
        raise EngineError(
            frozen.path,
            f"input {name!r} is {given}, the manifest's N×{manifest.input.height}×{manifest.input.width}×3: correct it",
        )
    return sides[0]


def _normalised(images: Any, manifest: Manifest) -> Any:
    """The model's input from uint8 pixels: `(pixel * scale - mean) / std` in the model's own type."""
    section = manifest.input
    if section.dtype == "uint8":
        return images
    values = tf.cast(images, section.dtype)
    if section.scale != 1.0:
        values *= tf.constant(section.scale, section.dtype)
    if section.mean:
        values -= tf.constant(section.mean, section.dtype)
    if section.std:
        values /= tf.constant(section.std, section.dtype)
    return values


def _import(frozen: FrozenModel, manifest: Manifest, values: Any) -> dict[str, Any]:
    """Bring the model into the current graph with `values` as its input; returns its output tensors by head."""
    outputs = frozen.output_tensors
    graph = cut(frozen.graph, outputs.values())
    refuse_foreign(graph, frozen.path)
    fed = {_full(frozen.input_tensor): values}
    for tensor, constant in manifest.input.constants.items():
        node = require(frozen.graph, frozen.path, "constant", tensor)
        if "dtype" not in node.attr:
            raise EngineError(frozen.path, f"input.constants: {tensor!r} is a {node.op}: name a placeholder")
        if node.name in reachable(frozen.graph, outputs.values()):
            fed[_full(tensor)] = tf.constant(constant, tf.dtypes.as_dtype(node.attr["dtype"].type))
    unfed = sorted(node.name for node in graph.node if node.op == "Placeholder" and f"{node.name}:0" not in fed)
    if unfed:
        raise EngineError(frozen.path, f"also wants {', '.join(unfed[:5])}: give each a value in input.constants")
    try:
        found = tf.import_graph_def(
            graph, input_map=fed, return_elements=[_full(output) for output in outputs.values()], name="model"
        )
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise EngineError(frozen.path, f"TensorFlow cannot load this graph: {first_line(error)}") from error
    return dict(zip(outputs, found, strict=True))


def _full(tensor: str) -> str:
    return f"{node_of(tensor)}:{index_of(tensor)}"
