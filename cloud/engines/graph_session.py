"""A TensorFlow graph as a segmentation engine: whatever the format, it ends as a GraphDef that one session runs."""

from pathlib import Path
from typing import Any

from cloud.engines.engine import ClassIds, EngineError, Images, InferenceError, Placement
from cloud.engines.graph import FrozenModel, cut, index_of, node_of, reachable, refuse_foreign, require
from cloud.engines.tensorflow_device import choose, convert_variables_to_constants, tf
from cloud.manifest import Manifest, OutputKind

_IMAGE_RANK = 4  # N×H×W×C


class GraphSession:
    """Scaling, the model, arg max and the cast to uint8 in one graph: a frame enters and a mask leaves once each.

    A session on a frozen graph beats a `tf.function` around the same graph by about 7 % on a CPU.
    """

    def __init__(self, frozen: FrozenModel, manifest: Manifest, placement: Placement) -> None:
        """Build the graph around `frozen` and open a session on it.

        Raises:
            EngineError: the graph has not the named tensors, or they are not what the manifest says.
            DeviceError: the device is not there.
        """
        self.device = choose(placement.device)
        self.batch_size = _baked_batch(frozen, manifest)
        graph = tf.Graph()
        with graph.as_default(), graph.device(f"/{self.device}"):
            shape = (self.batch_size, manifest.input.height, manifest.input.width, 3)
            images = tf.compat.v1.placeholder(tf.uint8, shape, "skylane_images")
            output = _import(frozen, manifest, _normalised(images, manifest))
            class_ids = _class_ids(output, images, manifest, frozen.path)
        self._session = tf.compat.v1.Session(graph=graph, config=_session_config(self.device, placement))
        self._run = self._session.make_callable(class_ids, feed_list=[images])
        self._path = frozen.path

    def infer(self, batch: Images) -> ClassIds:
        """As `cloud.engines.engine.Engine.infer`."""
        try:
            class_ids: ClassIds = self._run(batch)
        except (tf.errors.OpError, ValueError) as error:
            raise InferenceError(f"{self._path}: the model failed: {first_line(error)}") from error
        return class_ids

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
    """What TensorFlow says of an error, without the pages that follow."""
    text = str(getattr(error, "message", None) or error).strip()
    return text.splitlines()[0][:300] if text else type(error).__name__


def _baked_batch(frozen: FrozenModel, manifest: Manifest) -> int | None:
    """The batch size in the input placeholder's shape; checks its other sides and its type against the manifest."""
    name = frozen.input_tensor
    node = require(frozen.graph, frozen.path, "input", name)
    require(frozen.graph, frozen.path, "output", frozen.output_tensor)
    if node.name not in reachable(frozen.graph, frozen.output_tensor):
        raise EngineError(
            frozen.path, f"output {frozen.output_tensor!r} does not depend on input {name!r}: name others"
        )
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


def _import(frozen: FrozenModel, manifest: Manifest, values: Any) -> Any:
    """Bring the model into the current graph with `values` as its input; returns its output tensor."""
    graph = cut(frozen.graph, frozen.output_tensor)
    refuse_foreign(graph, frozen.path)
    fed = {_full(frozen.input_tensor): values}
    for tensor, constant in manifest.input.constants.items():
        node = require(frozen.graph, frozen.path, "constant", tensor)
        if "dtype" not in node.attr:
            raise EngineError(frozen.path, f"input.constants: {tensor!r} is a {node.op}: name a placeholder")
        if node.name in reachable(frozen.graph, frozen.output_tensor):
            fed[_full(tensor)] = tf.constant(constant, tf.dtypes.as_dtype(node.attr["dtype"].type))
    unfed = sorted(node.name for node in graph.node if node.op == "Placeholder" and f"{node.name}:0" not in fed)
    if unfed:
        raise EngineError(frozen.path, f"also wants {', '.join(unfed[:5])}: give each a value in input.constants")
    try:
        (output,) = tf.import_graph_def(
            graph, input_map=fed, return_elements=[_full(frozen.output_tensor)], name="model"
        )
    except (ValueError, TypeError, tf.errors.OpError) as error:
        raise EngineError(frozen.path, f"TensorFlow cannot load this graph: {first_line(error)}") from error
    return output


def _full(tensor: str) -> str:
    return f"{node_of(tensor)}:{index_of(tensor)}"


def _class_ids(output: Any, images: Any, manifest: Manifest, path: Path) -> Any:
    """uint8 N×H×W class ids of the input's size from what the model gives."""
    rank = output.shape.rank
    if manifest.output.kind is OutputKind.SCORES:
        if rank not in (None, _IMAGE_RANK):
            raise EngineError(path, f"output {manifest.output.tensor!r} is {output.shape}: scores need N×H×W×C")
        _check_channels(output, manifest, path)
        class_ids = tf.argmax(output, axis=-1, output_type=tf.int32)
    else:
        class_ids = _without_channel(output, images, manifest, path)
    class_ids = tf.cast(class_ids, tf.uint8)
    size = (manifest.input.height, manifest.input.width)
    if class_ids.shape.rank is not None and tuple(class_ids.shape[1:]) not in (size, (None, None)):
        # A model that answers at a fraction of its input's size: each of its pixels stands for a block.
        class_ids = tf.image.resize(class_ids[..., tf.newaxis], size, method="nearest")[..., 0]
    return class_ids


def _without_channel(output: Any, images: Any, manifest: Manifest, path: Path) -> Any:
    """Class ids as N×H×W, whether they come so, with one channel, without a batch, or with no shape at all."""
    match output.shape.rank:
        case 2:
            return output[tf.newaxis]
        case 3:
            return output
        case 4 if output.shape[-1] == 1:
            return output[..., 0]
        case None:
            return tf.reshape(output, tf.shape(images)[:3])
    raise EngineError(
        path, f"output {manifest.output.tensor!r} is {output.shape}: class ids need N×H×W; for scores set output.kind"
    )


def _check_channels(output: Any, manifest: Manifest, path: Path) -> None:
    channels = output.shape[-1] if output.shape.rank else None
    labels = len(manifest.labels)  # 0 where they are in a file.
    if channels is not None and labels and channels != labels:
        raise EngineError(path, f"gives {channels} scores a pixel where the manifest has {labels} labels: name all")


def _session_config(device: str, placement: Placement) -> Any:
    config = tf.compat.v1.ConfigProto(
        # Foreign graphs hold operations that have no GPU form.
        allow_soft_placement=True,
        intra_op_parallelism_threads=placement.intra_threads,
        inter_op_parallelism_threads=placement.inter_threads,
    )
    if device == "cpu":
        config.device_count["GPU"] = 0
    else:
        config.gpu_options.allow_growth = True
    return config
