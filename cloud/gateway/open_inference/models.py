"""Metadata of the server and its models in the Open Inference Protocol; REST and gRPC share these messages."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cloud.gateway.common.errors import ApiError
from cloud.gateway.common.tensors import ENCODED, PACKED, TensorSpec, output_specs, pixels
from cloud.serving.model_stats import TRITON_STAGES, ModelStats
from cloud.serving.served_models import ServedModel
from cloud.worker_context import WorkerContext
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState
from shared.messages.open_inference_tensors import BYTES, datatype_name

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)

JsonObject = dict[str, Any]


def server_metadata() -> JsonObject:
    """Returns a ServerMetadataResponse."""
    return {"name": "skylane", "version": _package_version(), "extensions": list(EXTENSIONS)}


@cache
def _package_version() -> str:
    """The version of the installed package; cached because the lookup reads folders."""
    try:
        return version("skylane")
    except PackageNotFoundError:
        return "0"  # The worker runs from a source tree.


def is_ready(worker: WorkerContext, model: str | None = None, version: str | None = None) -> bool:
    """Returns True if the worker accepts calls, and serves the model if one is given."""
    try:
        if model is not None:
            worker.submission.find(model, version)
    except ApiError:
        return False
    return worker.submission.status.state is NodeState.ONLINE


def metadata(worker: WorkerContext, model: str, version: str | None) -> JsonObject:
    """Returns a ModelMetadataResponse.

    Raises:
        ApiError: the worker does not serve the model.
    """
    served = worker.submission.find(model, version)
    card = served.card
    return {
        "name": card.name,
        "versions": [each.version for each in worker.submission.cards() if each.name == model],
        "platform": _platform(card),
        "inputs": [_tensor_metadata(spec) for spec in (pixels(card), ENCODED)],
        "outputs": [_tensor_metadata(spec) for spec in _known_outputs(served)],
    }


def config(worker: WorkerContext, model: str, version: str | None) -> JsonObject:
    """Returns the parts of Triton's ModelConfig that apply; shapes exclude the batch dimension. Raises as `metadata`."""
    served = worker.submission.find(model, version)
    card = served.card
    return {
        "name": card.name,
        "platform": _platform(card),
        "backend": card.engine,
        "max_batch_size": worker.submission.max_images,
        "input": [_tensor_config(pixels(card)), {**_tensor_config(ENCODED), "optional": True}],
        "output": [_tensor_config(spec) for spec in _known_outputs(served)],
        "dynamic_batching": {},
    }


def statistics(worker: WorkerContext, model: str, version: str | None) -> JsonObject:
    """Returns a ModelStatisticsResponse for a model, one of its versions, or (empty name) all models.

    The counts include frames of all frontends. Raises as `metadata`.
    """
    if model:
        worker.submission.find(model, version)
    stats_by_version = worker.model_stats.models
    refused = worker.model_stats.refused
    models: list[JsonObject] = []
    # The current version of a model is first; refused frames are attributed to it.
    for card in worker.submission.cards():
        if model not in ("", card.name) or version not in (None, card.version):
            continue
        stats = stats_by_version.get((card.name, card.version), ModelStats())
        is_first = card.name not in (each["name"] for each in models)
        failed = sum(count for (name, _), count in refused.items() if name == card.name) if is_first else 0
        times = {part: {"count": stats.answered, "ns": stats.stage_ns(part)} for part in TRITON_STAGES}
        success = {"count": stats.answered, "ns": stats.stages_ns.total()}
        models.append(
            {
                "name": card.name,
                "version": card.version,
                "inference_count": stats.answered,
                "execution_count": round(stats.executions),
                "inference_stats": {"success": success, "fail": {"count": failed, "ns": 0}, **times},
            }
        )
    return {"model_stats": models}


def _platform(card: ModelCard) -> str:
    return f"{card.engine}_{card.precision}"


def _known_outputs(served: ServedModel) -> Iterable[TensorSpec]:
    """The outputs whose type is known and exists in the protocol."""
    model = served.model
    specs = (*output_specs(served.card, tuple(model.manifest.heads), model.output_types), PACKED)
    return (spec for spec in specs if spec.dtype is not None and datatype_name(spec.dtype) is not None)


def _tensor_metadata(spec: TensorSpec) -> JsonObject:
    assert spec.dtype is not None
    return {"name": spec.name, "datatype": datatype_name(spec.dtype), "shape": list(spec.shape or ())}


def _tensor_config(spec: TensorSpec) -> JsonObject:
    tensor = _tensor_metadata(spec)
    dims = tensor["shape"][1:] or [1]  # A tensor with only the batch dimension has one string per image.
    data_type = "TYPE_STRING" if tensor["datatype"] == BYTES else f"TYPE_{tensor['datatype']}"
    return {"name": spec.name, "data_type": data_type, "dims": dims}
