"""What the Open Inference Protocol tells of the server and its models: for REST as it is, for gRPC as messages."""

from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from cloud.gateway.common.errors import RefusedError
from cloud.gateway.common.tensor_specs import ENCODED, PACKED, TensorSpec, outputs, pixels
from cloud.gateway.context import WorkerContext
from cloud.gateway.submission import Door
from cloud.serving.model_stats import SPENT, ModelStats
from shared.encoding.open_inference_tensors import BYTES, datatype_name
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
_STRING = "TYPE_STRING"

Told = dict[str, Any]


def server() -> Told:
    """ServerMetadataResponse."""
    return {"name": "skylane", "version": _own_version(), "extensions": list(EXTENSIONS)}


@cache
def _own_version() -> str:
    """Looked up once: it reads folders, and takes longer than all else of a call that asks for it."""
    try:
        return version("skylane")
    except PackageNotFoundError:
        return "0"  # It runs from its sources, not installed.


def is_ready(door: Door, model: str | None = None, version: str | None = None) -> bool:
    """Whether calls are taken, of a model where one is named."""
    if door.status.state is not NodeState.ONLINE:
        return False
    if model is None:
        return True
    try:
        door.card(model, version)
    except RefusedError:
        return False
    return True


def metadata(door: Door, model: str, version: str | None) -> Told:
    """ModelMetadataResponse.

    Raises:
        RefusedError: it is not served.
    """
    card = door.card(model, version)
    return {
        "name": card.name,
        "versions": [each.version for each in door.cards() if each.name == model],
        "platform": platform(card),
        "inputs": [_tensor(spec) for spec in (pixels(card), ENCODED)],
        "outputs": [_tensor(spec) for spec in _outputs(door, card)],
    }


def config(door: Door, model: str, version: str | None) -> Told:
    """Triton's ModelConfig, as far as it is told here; the sides are without the batch.

    Raises:
        RefusedError: it is not served.
    """
    card = door.card(model, version)
    return {
        "name": card.name,
        "platform": platform(card),
        "backend": card.engine,
        "max_batch_size": door.max_images,
        "input": [_configured(pixels(card)), {**_configured(ENCODED), "optional": True}],
        "output": [_configured(spec) for spec in _outputs(door, card)],
        "dynamic_batching": {},
    }


def statistics(parts: WorkerContext, model: str, version: str | None) -> Told:
    """ModelStatisticsResponse: of all that is served, of a model, or of its version; frames of all doors count.

    Raises:
        RefusedError: it is not served.
    """
    if model:
        parts.door.card(model, version)
    tallies = parts.tally.models
    refused = parts.tally.refused
    told: list[Told] = []
    for card in parts.door.cards():  # Of each model the current version first: what was refused is told of that one.
        if model not in ("", card.name) or version not in (None, card.version):
            continue
        tally = tallies.get((card.name, card.version), ModelStats())
        is_first = card.name not in (each["name"] for each in told)
        failed = sum(count for (name, _), count in refused.items() if name == card.name) if is_first else 0
        spent = {part: {"count": tally.answered, "ns": tally.stage_ns(part)} for part in SPENT}
        success = {"count": tally.answered, "ns": tally.stages_ns.total()}
        told.append(
            {
                "name": card.name,
                "version": card.version,
                "inference_count": tally.answered,
                "execution_count": round(tally.executions),
                "inference_stats": {"success": success, "fail": {"count": failed, "ns": 0}, **spent},
            }
        )
    return {"model_stats": told}


def platform(card: ModelCard) -> str:
    """What runs a model."""
    return f"{card.engine}_{card.precision}"


def _outputs(door: Door, card: ModelCard) -> Iterable[TensorSpec]:
    """Those of which the type is known, and has a name in the protocol."""
    specs = (*outputs(card, door.heads(card), door.given(card)), PACKED)
    return (spec for spec in specs if spec.dtype is not None and datatype_name(spec.dtype) is not None)


def _tensor(spec: TensorSpec) -> Told:
    assert spec.dtype is not None
    return {"name": spec.name, "datatype": datatype_name(spec.dtype), "shape": list(spec.shape or ())}


def _configured(spec: TensorSpec) -> Told:
    told = _tensor(spec)
    sides = told["shape"][1:] or [1]  # A tensor of the batch alone has one string a picture.
    data_type = _STRING if told["datatype"] == BYTES else f"TYPE_{told['datatype']}"
    return {"name": spec.name, "data_type": data_type, "dims": sides}
