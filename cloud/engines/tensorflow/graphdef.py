"""TensorFlow's GraphDef: read from a file, walked backwards, cut to what an output needs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError

from cloud.engines.engine import EngineError
from cloud.engines.tensorflow.library import tf
from cloud.models.manifest import Manifest
from shared.errors import suggestion

# A graph is a program. A network needs none of these, which read or write files, or call into Python.
_FOREIGN_OPERATIONS = {
    *("ReadFile", "WriteFile", "MatchingFiles", "PyFunc", "PyFuncStateless", "EagerPyFunc", "MergeV2Checkpoints"),
    *("Save", "SaveV2", "SaveSlices", "Restore", "RestoreV2", "RestoreSlice", "ShardedFilename"),
}

MAX_GRAPH_BYTES = (1 << 31) - 1  # Protobuf's own limit.
MAX_OPERATIONS = 50_000  # With those of its functions: ten times as many as the largest networks of pictures have.


@dataclass(frozen=True, slots=True)
class FrozenModel:
    """A model as one graph with its weights inside, whatever format it came in."""

    graph: Any  # A GraphDef.
    input_tensor: str  # As in the graph, with or without ":0".
    output_tensors: Mapping[str, str]  # By the manifest's head.
    path: Path  # Where it came from, for messages.


def read_graph(path: Path) -> Any:
    """Read a binary frozen GraphDef.

    Raises:
        EngineError: the file is missing, no GraphDef, or not frozen (its variables are not constants).
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
        raise EngineError(path, "is not a TensorFlow GraphDef: give a frozen graph in binary form") from error
    if not graph.node or any(not node.name or not node.op for node in graph.node):
        raise EngineError(path, "is not a TensorFlow GraphDef: it holds no operations")
    check_count(graph, path)
    for node in graph.node:
        # TensorFlow's optimiser ends the whole process over such a constant.
        if node.op == "Const" and node.attr["dtype"].type != node.attr["value"].tensor.dtype:
            raise EngineError(path, f"its constant {node.name!r} is of another type than it says: the file is damaged")
    return graph


def check_count(graph: Any, path: Path) -> None:
    """Refuse a graph of more operations than any network has: TensorFlow takes a millisecond for some ten.

    Raises:
        EngineError: it has.
    """
    count = len(graph.node) + sum(len(function.node_def) for function in graph.library.function)
    if count > MAX_OPERATIONS:
        raise EngineError(path, f"holds {count} operations, which no network does: at most {MAX_OPERATIONS} are read")


def node_of(tensor: str) -> str:
    """The name of the operation that makes `tensor`, or that a NodeDef's input names."""
    return tensor.removeprefix("^").partition(":")[0]


def index_of(tensor: str) -> int:
    """Which output of its operation `tensor` is."""
    index = tensor.partition(":")[2]
    return int(index) if index.isdecimal() else 0


def named(
    graph: Any, inputs: Mapping[str, str], outputs: Mapping[str, str], manifest: Manifest, *, path: Path, has: str
) -> FrozenModel:
    """A model whose tensors are known by other names than the graph's: `inputs` and `outputs` map those to these.

    `has`: the words before "no input …" in messages.

    Raises:
        EngineError: it has not the manifest's; the nearest names are offered.
    """
    wanted = [("input", manifest.input.tensor, inputs)]
    wanted += [("output", section.tensor, outputs) for section in manifest.heads.values()]
    for role, name, names in wanted:
        if name not in names:
            raise EngineError(path, f"{has} no {role} {name!r}{suggestion(name, names)}")
    heads = {head: outputs[section.tensor] for head, section in manifest.heads.items()}
    return FrozenModel(graph, inputs[manifest.input.tensor], heads, path)


def reachable(graph: Any, outputs: Iterable[str]) -> set[str]:
    """The names of the operations that the tensors `outputs` depend on, their own among them."""
    nodes = {node.name: node for node in graph.node}
    found: set[str] = set()
    waiting = [node_of(output) for output in outputs]
    while waiting:
        name = waiting.pop()
        if name in found or name not in nodes:
            continue
        found.add(name)
        waiting.extend(node_of(source) for source in nodes[name].input)
    return found


def dependent(graph: Any, sources: Iterable[str]) -> set[str]:
    """The names of the operations that depend on one of those named `sources`, these among them."""
    users: dict[str, list[str]] = {}
    for node in graph.node:
        for source in node.input:
            users.setdefault(node_of(source), []).append(node.name)
    found: set[str] = set()
    waiting = list(sources)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(users.get(name, ()))
    return found


def cut(graph: Any, outputs: Iterable[str]) -> Any:
    """The part of `graph` that `outputs` depend on: spare placeholders and leftovers of training fall away."""
    needed = reachable(graph, outputs)
    part = tf.compat.v1.GraphDef()
    part.versions.CopyFrom(graph.versions)
    part.library.CopyFrom(graph.library)
    part.node.extend(node for node in graph.node if node.name in needed)
    return part


def refuse_foreign(graph: Any, path: Path) -> None:
    """Check that nothing in `graph`, already cut to what is needed, nor in its functions, reaches out of the network.

    Raises:
        EngineError: it reads or writes files, or calls into Python; names the operation.
    """
    functions = [node for function in graph.library.function for node in function.node_def]
    for node in (*graph.node, *functions):
        if node.op in _FOREIGN_OPERATIONS or node.op.endswith(("Dataset", "DatasetV2", "ReaderV2")):
            raise EngineError(path, f"its operation {node.name!r} ({node.op}) reaches out of the network: not run")


def require(graph: Any, path: Path, role: str, tensor: str) -> Any:
    """The operation (a NodeDef) of `tensor`.

    Raises:
        EngineError: it has none; the nearest names are offered.
    """
    for node in graph.node:
        if node.name == node_of(tensor):
            return node
    names = [node.name for node in graph.node]
    # A graph has hundreds of operations: where no name is near, the placeholders and sinks are what was meant.
    used = {node_of(source) for node in graph.node for source in node.input}
    ends = [node.name for node in graph.node if node.op == "Placeholder" or node.name not in used]
    near = suggestion(node_of(tensor), names)
    told = near if near.startswith(": did") else suggestion(node_of(tensor), ends[:12])
    raise EngineError(path, f"the graph has no {role} tensor {tensor!r}{told}")
