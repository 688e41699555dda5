"""Reads, checks, traverses and prunes TensorFlow GraphDefs."""

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cloud.engines.tensorflow.runtime import tf
from shared.errors import suggestion
from shared.inference.engine import EngineError
from shared.models.manifest import Manifest

# Operations that access files or call Python; a network needs none of them.
_UNSAFE_OPERATIONS = {
    *("ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "MergeV2Checkpoints"),
    *("Save", "SaveV2", "SaveSlices", "Restore", "RestoreV2", "RestoreSlice", "ShardedFilename"),
}

# Operations whose values are not in the graph: a session has to restore or initialise them.
_STATE = re.compile(
    "Variable|VariableV2|AutoReloadVariable|VarHandleOp|(Mutable(Dense)?|Anonymous)*HashTable(OfTensors)?(V2)?"
)
_FREEZE = (
    "restore it in a session, freeze it with tf.compat.v1.graph_util.convert_variables_to_constants, "
    "and give the frozen graph (or a SavedModel's folder)"
)

MAX_GRAPH_BYTES = (1 << 31) - 1  # Protobuf's limit.
MAX_OPERATIONS = 50_000  # Includes functions; ten times as many as the largest vision networks have.


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model of any format as one graph that contains its weights."""

    graph: Any  # A GraphDef.
    input_tensor: str  # The tensor's name in the graph, with or without ":0".
    output_tensors: Mapping[str, str]  # Tensor names by the manifest's head.
    path: Path  # The model file, for messages.


def read_frozen_graph(path: Path, manifest: Manifest) -> FrozenModel:
    """Reads a `.pb`; the manifest's tensors are those of the graph: "input:0", "prediction:0".

    Raises:
        EngineError: see `read_graph`.
    """
    outputs = {head: section.tensor for head, section in manifest.heads.items()}
    return FrozenModel(read_graph(path), manifest.input.tensor, outputs, path)


def read_graph(path: Path) -> Any:
    """Reads a binary frozen GraphDef.

    Raises:
        EngineError: the file is missing, is not a GraphDef, or is damaged.
    """
    try:
        if path.stat().st_size > MAX_GRAPH_BYTES:
            raise EngineError(path, "is larger than a GraphDef can be (2 GiB)")
        data = path.read_bytes()
    except OSError as error:
        raise EngineError(path, f"cannot be read ({error.strerror})") from error
    graph = tf.compat.v1.GraphDef()
    try:
        graph.ParseFromString(data)
    except (DecodeError, RecursionError) as error:
        raise EngineError(path, _other_format(data) or "is not a TensorFlow GraphDef: give a frozen graph") from error
    if not graph.node or any(not node.name or not node.op for node in graph.node):
        raise EngineError(path, _other_format(data) or "is not a TensorFlow GraphDef: it holds no operations")
    check_count(graph, path)
    for node in graph.node:
        # TensorFlow's optimiser crashes the process for such a constant.
        if node.op == "Const" and node.attr["dtype"].type != node.attr["value"].tensor.dtype:
            raise EngineError(path, f"its constant {node.name!r} has contradictory dtypes: the file is damaged")
    return graph


def _other_format(data: bytes) -> str | None:
    """Returns what a file is that is read in place of a GraphDef, and what to do."""
    with suppress(DecodeError, RecursionError):
        if import_module("tensorflow.core.protobuf.saved_model_pb2").SavedModel.FromString(data).meta_graphs:
            return "is a SavedModel: name it saved_model.pb, beside its variables/, and give the folder of both"
    with suppress(DecodeError, RecursionError):
        if tf.compat.v1.MetaGraphDef.FromString(data).graph_def.node:
            return f"is a MetaGraphDef, whose variables are in a checkpoint: {_FREEZE}"
    return None


def check_count(graph: Any, path: Path) -> None:
    """Refuses a graph with more than MAX_OPERATIONS operations; TensorFlow loads about ten per millisecond.

    Raises:
        EngineError: the graph is too large.
    """
    count = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    if count > MAX_OPERATIONS:
        raise EngineError(path, f"holds {count} operations, which no network does: at most {MAX_OPERATIONS} are read")


def node_of(tensor: str) -> str:
    """Returns the name of the operation in a tensor's name or in a NodeDef's input."""
    return tensor.removeprefix("^").partition(":")[0]


def frozen_model(
    graph: Any, inputs: Mapping[str, str], outputs: Mapping[str, str], manifest: Manifest, *, path: Path, owner: str
) -> FrozenModel:
    """Builds a FrozenModel whose manifest names tensors by aliases instead of by the graph's names.

    Args:
        graph: The GraphDef.
        inputs: The graph's input tensors by alias.
        outputs: The graph's output tensors by alias.
        manifest: The manifest, which uses the aliases.
        path: The model file, for messages.
        owner: The thing that defines the aliases, for messages.

    Raises:
        EngineError: an alias of the manifest does not exist; the message suggests the nearest ones.
    """
    aliases = [("input", manifest.input.tensor, inputs)]
    aliases += [("output", section.tensor, outputs) for section in manifest.heads.values()]
    for role, name, names in aliases:
        if name not in names:
            raise EngineError(path, f"{owner} has no {role} {name!r}{suggestion(name, names)}")
    heads = {head: outputs[section.tensor] for head, section in manifest.heads.items()}
    return FrozenModel(graph, inputs[manifest.input.tensor], heads, path)


def reachable(graph: Any, outputs: Iterable[str], ends: Collection[str] = ()) -> set[str]:
    """Returns the names of the operations that compute the tensors `outputs`.

    The operations `ends` are included, those that only compute their inputs are not.
    """
    sources = {node.name: [node_of(each) for each in node.input if node.name not in ends] for node in graph.node}
    return _closure((node_of(output) for output in outputs), sources) & sources.keys()


def readers(graph: Any) -> dict[str, list[str]]:
    """Returns the names of the operations that read each operation's outputs."""
    found: dict[str, list[str]] = {}
    for node in graph.node:
        for source in node.input:
            found.setdefault(node_of(source), []).append(node.name)
    return found


def dependent(graph: Any, sources: Iterable[str]) -> set[str]:
    """Returns the names of the operations that depend on one of the operations `sources`, including these."""
    return _closure(sources, readers(graph))


def _closure(starts: Iterable[str], following: Mapping[str, Iterable[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(following.get(name, ()))
    return found


def prune(graph: Any, outputs: Iterable[str]) -> Any:
    """Returns the part of `graph` that `outputs` depend on, without unused placeholders and training operations."""
    needed = reachable(graph, outputs)
    part = tf.compat.v1.GraphDef()
    part.versions.CopyFrom(graph.versions)
    part.library.CopyFrom(graph.library)
    part.node.extend(node for node in graph.node if node.name in needed)
    return part


def refuse_unsafe(graph: Any, path: Path) -> None:
    """Checks that no operation of a pruned graph and its functions accesses files or calls Python.

    Raises:
        EngineError: an operation does; the message names it.
    """
    functions = [node for function in graph.library.function for node in function.node_def]
    for node in (*graph.node, *functions):
        if node.op in _UNSAFE_OPERATIONS or node.op.endswith(("Dataset", "DatasetV2", "ReaderV2")):
            raise EngineError(path, f"its operation {node.name!r} ({node.op}) accesses files or calls Python: not run")


def refuse_unfrozen(graph: Any, image: str, outputs: Iterable[str], path: Path) -> None:
    """Checks that all values between the input tensor `image` and `outputs` are in the graph.

    Raises:
        EngineError: an operation is a variable or a table; the message names it.
    """
    needed = reachable(graph, outputs, {node_of(image)})
    for node in graph.node:
        if node.name not in needed:
            continue
        is_resource = node.op.startswith("Placeholder") and node.attr["dtype"].type == tf.resource.as_datatype_enum
        if is_resource or _STATE.fullmatch(node.op):
            raise EngineError(
                path, f"is not frozen: the value of {node.name!r} ({node.op}) is not in the graph: {_FREEZE}"
            )


def require(graph: Any, path: Path, role: str, tensor: str) -> Any:
    """Returns the operation (a NodeDef) of `tensor`.

    Raises:
        EngineError: the graph has no such tensor; the message suggests the nearest names.
    """
    for node in graph.node:
        if node.name == node_of(tensor):
            return node
    names = [node.name for node in graph.node]
    # A graph has hundreds of operations: without a similar name, suggest the placeholders and the last operations.
    used = {node_of(source) for node in graph.node for source in node.input}
    ends = [node.name for node in graph.node if node.op == "Placeholder" or node.name not in used]
    hint = suggestion(node_of(tensor), names)
    if not hint.startswith(": did"):
        hint = suggestion(node_of(tensor), ends[:12])
    raise EngineError(path, f"the graph has no {role} tensor {tensor!r}{hint}")
