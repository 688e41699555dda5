"""The Open Inference Protocol, independent of its encoding (JSON, JSON with binary data, gRPC).

It has inference requests, metadata of the server and its models, and calls that list, load and unload models.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from math import prod
from secrets import token_hex
from typing import Any, NamedTuple

import numpy as np

from cloud.gateway.common.inference import CallTerms, InferenceCall, InferenceReply
from cloud.gateway.common.tensors import ENCODED, PACKED, Tensor, TensorSpec, output_specs, pixels
from cloud.node import CloudNode
from cloud.serving.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.serving.replies import TRITON_STAGES, ModelStats, part_ns
from cloud.serving.served_models import ServedModel
from shared.clock import Deadline
from shared.compression import Buffer
from shared.imaging.labels import Labels
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState
from shared.messages.open_inference_tensors import BYTES, datatype_name, from_raw, string_header, strings
from shared.messages.topics import validate_name
from shared.network.endpoint import is_loopback
from shared.runtime.machine import package_version

Parameters = Mapping[str, Any]  # Usually strings and numbers; those that are used are checked.

_PIXELS = "UINT8"
_CODEC, _MASK_CODEC, _TIMEOUT = "codec", "mask_codec", "timeout"
_SHARED_MEMORY = "shared_memory_region"


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input with its decoded tensor."""

    name: str
    tensor: Tensor = field(repr=False)
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that the caller requests."""

    name: str
    parameters: Parameters = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InferRequest:
    """An inference request."""

    model: str
    version: str | None
    id: str  # Copied to the response.
    parameters: Parameters
    inputs: tuple[InputTensor, ...]
    outputs: tuple[RequestedOutput, ...]  # Empty: all.

    def to_call(self, terms: CallTerms) -> InferenceCall:
        """Converts the request; its `timeout` parameter may bring the deadline forward."""
        _check_unique("input", [each.name for each in self.inputs])
        _check_unique("output", [each.name for each in self.outputs])
        for each in self.outputs:
            _check_no_shared_memory("output", each.name, each.parameters)
        timeout_us = _parameter(self.parameters, _TIMEOUT, int, "whole microseconds")
        if timeout_us is not None and timeout_us > 0:  # Triton's clients send 0 for no timeout.
            deadline = Deadline.after_ms(timeout_us // 1000, terms.received_ns)
            terms = replace(terms, deadline=min(terms.deadline, deadline))
        tensors: Sequence[InputTensor | RequestedOutput] = (*self.inputs, *self.outputs)
        parameters = [*(each.parameters for each in tensors), self.parameters]
        return InferenceCall(
            terms=terms,
            model=self.model,
            version=self.version,
            inputs={each.name: each.tensor for each in self.inputs},
            outputs=tuple(each.name for each in self.outputs),
            codec=_first(parameters, _CODEC),
            mask_codec=_first(parameters, _MASK_CODEC) or "png",
        )


def read_input(
    name: str,
    datatype: str,
    shape: Sequence[int],
    parameters: Parameters,
    *,
    raw: Buffer | None,
    read_values: Callable[[], Tensor],
) -> InputTensor:
    """Decodes an input from its raw encoding, without copying it, or else with `read_values`."""
    _check_no_shared_memory("input", name, parameters)
    with converting_errors(ErrorCode.INVALID, f"input {name[:40]!r}: "):
        if datatype not in (_PIXELS, BYTES):
            raise InvalidError(f"input {name[:40]!r} is {datatype[:40]}: send {_PIXELS}, or {BYTES} with images")
        if raw is None:
            return InputTensor(name, read_values(), parameters)
        if datatype == BYTES:
            return InputTensor(name, strings(memoryview(raw), _string_count(name, shape)), parameters)
        return InputTensor(name, from_raw(memoryview(raw), datatype, shape), parameters)


def _check_no_shared_memory(kind: str, name: str, parameters: Parameters) -> None:
    if _SHARED_MEMORY in parameters:
        raise InvalidError(
            f"{kind} {name[:40]!r} is in shared memory, which is not supported: send the data in the request"
        )


def _string_count(name: str, shape: Sequence[int]) -> int:
    """The number of strings in a shape [n], or [n, 1] as sent by clients that treat the batch separately."""
    if len(shape) not in (1, 2) or any(side < 0 for side in shape) or shape[1:] not in ([], [1]):
        raise InvalidError(f"input {name[:40]!r}: {BYTES} of shape {list(shape[:8])}: send [n], one string per image")
    return prod(shape)


def _first(parameters: Sequence[Parameters], name: str) -> str | None:
    """The value of the first parameter with a name."""
    values = (_parameter(each, name, str, "a string") for each in parameters)
    return next((value for value in values if value is not None), None)


def _parameter(parameters: Parameters, name: str, kind: type, expected: str) -> Any:
    value = parameters.get(name)
    if value is not None and type(value) is not kind:
        raise InvalidError(f"parameter {name} is {str(value)[:40]!r}: send {expected}")
    return value


def _check_unique(kind: str, names: Sequence[str]) -> None:
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicates:
        raise InvalidError(f"duplicate {kind} {', '.join(duplicates)[:200]}: send each once")


_CLASSIFICATION = "classification"


class OutputTensor(NamedTuple):
    """An output with its values."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: Tensor

    def raw(self) -> list[Buffer]:
        """Returns the raw encoding in parts: little-endian numbers in C order, without a copy, or length-prefixed strings."""
        if isinstance(self.values, np.ndarray):
            little_endian = np.ascontiguousarray(self.values, self.values.dtype.newbyteorder("<"))
            return [little_endian.reshape(-1).view(np.uint8).data]
        return [part for each in self.values for part in (string_header(each), each)]


def output_tensors(request: InferRequest, reply: InferenceReply) -> tuple[OutputTensor, ...]:
    """Returns the outputs of a reply in the requested order.

    Raises:
        ApiError: the protocol has no type for an output, or classes are requested of an output without scores.
    """
    class_counts = {output.name: output.parameters.get(_CLASSIFICATION) for output in request.outputs}
    return tuple(
        _top_classes(name, values, class_counts[name], reply.card.labels)
        if class_counts.get(name)
        else _output(name, values)
        for name, values in reply.outputs.items()
    )


def _output(name: str, values: Tensor) -> OutputTensor:
    if not isinstance(values, np.ndarray):
        return OutputTensor(name, BYTES, (len(values),), values)
    datatype = datatype_name(values.dtype.name)
    if datatype is None:
        raise ApiError(
            ErrorCode.UNPROCESSABLE,
            f"output {name} has the type {values.dtype.name}, which the protocol does not have: request other outputs",
        )
    return OutputTensor(name, datatype, values.shape, values)


def _top_classes(name: str, values: Tensor, class_count: Any, labels: Labels) -> OutputTensor:
    """The best classes of each image as strings `score:class id:name`, as Triton writes them; shape images×classes."""
    if type(class_count) is not int or class_count < 0:
        raise InvalidError(f"{_CLASSIFICATION} is {str(class_count)[:40]!r}: send the number of classes")
    if not isinstance(values, np.ndarray) or values.ndim != 2 or values.dtype.kind not in "fiu":
        raise InvalidError(f"output {name} has no score per class: request it without {_CLASSIFICATION}")
    best = np.argsort(-values.astype(np.float64), axis=1, kind="stable")[:, :class_count]
    texts = [
        _class_text(scores[class_id], class_id, labels.names)
        for scores, class_ids in zip(values, best, strict=True)
        for class_id in class_ids
    ]
    return OutputTensor(name, BYTES, best.shape, texts)


def _class_text(score: Any, class_id: int, names: Sequence[str]) -> bytes:
    name = f":{names[class_id]}" if class_id < len(names) else ""
    return f"{score:f}:{class_id}{name}".encode()


EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
_VERSION = package_version("skylane") or "0"  # The worker may run from a source tree.

JsonObject = dict[str, Any]


def server_metadata() -> JsonObject:
    """Returns a ServerMetadataResponse."""
    return {"name": "skylane", "version": _VERSION, "extensions": list(EXTENSIONS)}


def is_ready(worker: CloudNode, model: str | None = None, version: str | None = None) -> bool:
    """Returns True if the worker accepts calls, and serves the model if one is given."""
    try:
        if model is not None:
            worker.submission.find(model, version)
    except ApiError:
        return False
    return worker.submission.status.state is NodeState.ONLINE


def metadata(worker: CloudNode, model: str, version: str | None) -> JsonObject:
    """Returns a ModelMetadataResponse."""
    served = worker.submission.find(model, version)
    card = served.card
    return {
        "name": card.name,
        "versions": [each.version for each in worker.submission.cards() if each.name == model],
        "platform": _platform(card),
        "inputs": [_tensor_metadata(spec) for spec in (pixels(card), ENCODED)],
        "outputs": [_tensor_metadata(spec) for spec in _known_outputs(served)],
    }


def config(worker: CloudNode, model: str, version: str | None) -> JsonObject:
    """Returns the parts of Triton's ModelConfig that apply; shapes exclude the batch dimension."""
    served = worker.submission.find(model, version)
    card = served.card
    return {
        "name": card.name,
        "platform": _platform(card),
        "backend": card.engine,
        "max_batch_size": worker.submission.admission.max_frames,
        "input": [_tensor_config(pixels(card)), {**_tensor_config(ENCODED), "optional": True}],
        "output": [_tensor_config(spec) for spec in _known_outputs(served)],
        "dynamic_batching": {},
    }


def statistics(worker: CloudNode, model: str, version: str | None) -> JsonObject:
    """Returns a ModelStatisticsResponse for a model, one of its versions, or (empty name) all models.

    The counts include frames of all frontends.
    """
    if model:
        worker.submission.find(model, version)
    stats_by_version = worker.replier.stats.models
    refused = worker.replier.stats.refused
    models: list[JsonObject] = []
    # The current version of a model is first; refused frames are attributed to it.
    for card in worker.submission.cards():
        if model not in ("", card.name) or version not in (None, card.version):
            continue
        stats = stats_by_version.get((card.name, card.version), ModelStats())
        is_first = card.name not in (each["name"] for each in models)
        failed = sum(count for (name, *_), count in refused.items() if name == card.name) if is_first else 0
        times = {part: {"count": stats.answered, "ns": part_ns(stats.stages_ns, part)} for part in TRITON_STAGES}
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
    specs = (*output_specs(served.model), PACKED)
    return (spec for spec in specs if spec.dtype is not None and datatype_name(spec.dtype) is not None)


def _tensor_metadata(spec: TensorSpec) -> JsonObject:
    assert spec.dtype is not None
    return {"name": spec.name, "datatype": datatype_name(spec.dtype), "shape": list(spec.shape or ())}


def _tensor_config(spec: TensorSpec) -> JsonObject:
    tensor = _tensor_metadata(spec)
    dims = tensor["shape"][1:] or [1]  # A tensor with only the batch dimension has one string per image.
    data_type = "TYPE_STRING" if tensor["datatype"] == BYTES else f"TYPE_{tensor['datatype']}"
    return {"name": spec.name, "data_type": data_type, "dims": dims}


_STATES = {
    ModelState.CURRENT: "READY",
    ModelState.KEPT: "READY",
    ModelState.LOADING: "LOADING",
    ModelState.AVAILABLE: "UNAVAILABLE",
    ModelState.BROKEN: "UNAVAILABLE",
}
_NO_OPERATOR = "a caller without a token"  # The spaces make it an impossible operator name.
_LOG = RateLimitedLogger(get_logger("cloud"))


def index(entries: tuple[ModelEntry, ...], *, only_ready: bool) -> list[dict[str, Any]]:
    """Returns the models of a RepositoryIndexResponse."""
    return [
        {"name": entry.model, "version": entry.version, "state": _STATES[entry.state], "reason": _reason(entry)}
        for entry in entries
        if not only_ready or _STATES[entry.state] == "READY"
    ]


def send_request(worker: CloudNode, caller: str, address: str, verb: Verb, model: str = "") -> Future[ControlReply]:
    """Sends a request of `caller` at `address` to the worker's control; `check_reply` reads the reply.

    Raises:
        ApiError: the worker accepts no control requests, or none of this caller, or the model's name is invalid.
    """
    if worker.control is None:
        raise ApiError(ErrorCode.FORBIDDEN, "this worker's models are fixed: start it without --no-control")
    authenticator = worker.authenticator
    if verb is not Verb.LIST:
        if not authenticator.requires_token and not is_loopback(address):
            _LOG.warning(address, "control request refused", verb=verb.value, model=model, address=address)
            raise ApiError(
                ErrorCode.FORBIDDEN,
                "models can be loaded and unloaded from the worker's own machine only, or with a token: "
                "start the worker with --tokens",
            )
        with converting_errors(ErrorCode.INVALID):
            validate_name("model", model)
        # Without --operator, MQTT leaves the decision to the broker's access list. The gateway has no such list and
        # refuses tokens of vehicles.
        if not worker.control.operators and authenticator.owns_token(caller):
            raise ApiError(ErrorCode.FORBIDDEN, f"{caller} is not an operator of this worker: add it with --operator")
    operator = caller if authenticator.requires_token else _NO_OPERATOR
    return worker.control.ask(ControlRequest(operator, token_hex(8), verb, model))


def check_reply(reply: ControlReply) -> ControlReply:
    """Returns the reply, unless it has an error."""
    if reply.error:
        raise InvalidError(reply.error)
    return reply


def check_parameters(parameters: Any) -> None:
    """Checks that a load or unload request has no other parameter than `unload_dependents`."""
    if parameters is None:
        return
    if not isinstance(parameters, Mapping):
        raise InvalidError(f"parameters are {str(parameters)[:40]!r}: send an object, or omit them")
    if unknown := [name for name in parameters if name != "unload_dependents"]:
        raise InvalidError(
            f"parameter {', '.join(sorted(unknown))[:200]} is not supported: omit it; the worker loads models from its "
            "own repository, unchanged"
        )


def _reason(entry: ModelEntry) -> str:
    if entry.detail or entry.state in (ModelState.CURRENT, ModelState.KEPT):
        return entry.detail
    return "loading" if entry.state is ModelState.LOADING else "not loaded"
