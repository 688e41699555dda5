"""Model repository calls of the Open Inference Protocol: list the models, load one, unload one."""

from collections.abc import Mapping
from concurrent.futures import Future
from secrets import token_hex
from typing import Any

from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError, converting_errors
from cloud.worker_context import WorkerContext
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb
from shared.messages.topics import validate_name
from shared.network.endpoint import is_loopback

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


def send_request(worker: WorkerContext, caller: str, address: str, verb: Verb, model: str = "") -> Future[ControlReply]:
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
    """Returns the reply of a request that succeeded.

    Raises:
        ApiError: the request failed.
    """
    if reply.error:
        raise InvalidError(reply.error)
    return reply


def check_parameters(parameters: Any) -> None:
    """Checks that a load or unload request has no parameters that the worker does not support.

    Raises:
        ApiError: there is another parameter than `unload_dependents`, or this is neither a mapping nor None.
    """
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
