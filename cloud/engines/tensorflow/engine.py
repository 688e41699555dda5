"""The TensorFlow engine: frozen graphs, SavedModels and Keras files."""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from cloud.engines.tensorflow.graph_rewriting import with_free_batch
from cloud.engines.tensorflow.graph_session import GraphSession, input_preprocessor
from cloud.engines.tensorflow.graphdef import FrozenModel, read_frozen_graph
from cloud.engines.tensorflow.keras_model import read_frozen_keras
from cloud.engines.tensorflow.runtime import choose_device
from cloud.engines.tensorflow.saved_model import read_frozen_signature
from shared.inference.engine import EngineError, Images, InferenceError, Outputs
from shared.inference.model import AgreementError, agreement, warmup_images
from shared.models.manifest import Manifest, Placement

READERS: dict[str, Callable[[Path, Manifest], FrozenModel]] = {
    "frozen_graph": read_frozen_graph,
    "saved_model": read_frozen_signature,
    "keras": read_frozen_keras,
}
_MIN_AGREEMENT = 0.9999  # Share of equal labels; another batch size may change the order of sums, and so the rounding.
_TOLERANCE = 1e-2  # Difference of numbers relative to the head's largest; mixing images causes larger ones.


class TensorFlowEngine(GraphSession):
    """Runs a frozen graph, SavedModel or Keras file.

    The manifest's tensors are those of the graph ("input:0"), the keys of the signature, or the names of the Keras model's
    inputs and outputs. If the manifest allows larger batches than the graph's fixed size, the engine rewrites the graph to
    accept any size, provided that its outputs stay the same.
    """

    def __init__(self, path: Path, manifest: Manifest, placement: Placement) -> None:
        choose_device(placement.device)  # Configures GPU memory, which is impossible after loading a model.
        frozen = READERS[manifest.format](path, manifest)
        fixed_size = input_preprocessor(frozen, manifest).batch_size
        if fixed_size is not None and fixed_size < manifest.batching.max_size:
            frozen = with_any_batch(frozen, manifest, placement)
        super().__init__(frozen, manifest, placement)


def with_any_batch(frozen: FrozenModel, manifest: Manifest, placement: Placement) -> FrozenModel:
    """Returns a model that accepts any batch size, if its outputs for a batch equal those of `frozen` for single images.

    Otherwise, returns `frozen`.
    """
    size = input_preprocessor(frozen, manifest).batch_size
    if size is None:
        return frozen
    images = warmup_images(manifest.input.height, manifest.input.width, size + 1)
    with closing(GraphSession(frozen, manifest, placement)) as session:
        single = [session.infer(np.repeat(image[np.newaxis], size, axis=0)) for image in images]
    expected = {head: np.stack([each[head][0] for each in single]) for head in single[0]}
    for reshapes in (False, True):
        free = replace(frozen, graph=with_free_batch(frozen.graph, frozen.input_tensor, reshapes=reshapes))
        with suppress(EngineError), closing(GraphSession(free, manifest, placement)) as session:
            if _has_outputs(session, images, expected, manifest):
                return free
    return frozen


def _has_outputs(session: GraphSession, images: Images, expected: Outputs, manifest: Manifest) -> bool:
    """Returns whether a session gives the expected outputs for a batch of images."""
    try:
        outputs = session.infer(images)
        if agreement(manifest, expected, outputs) < _MIN_AGREEMENT:
            return False
    except (InferenceError, AgreementError):
        return False
    # Labels alone would not reveal a mean over the batch.
    return all(
        np.allclose(outputs[head], values, rtol=0.0, atol=_TOLERANCE * float(np.max(np.abs(values), initial=0.0)))
        for head, values in expected.items()
        if values.dtype.kind == "f"
    )
