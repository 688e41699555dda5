"""The repository's calls: which models there are, load this one, unload that one."""

from collections.abc import Mapping
from concurrent.futures import Future
from secrets import token_hex
from typing import Any

from cloud.gateway.common.auth import Caller
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from shared.errors import SkylaneError
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb
from shared.messages.topics import checked
from shared.network.endpoint import is_loopback

_STATES = {
    ModelState.CURRENT: "READY",
    ModelState.KEPT: "READY",
    ModelState.LOADING: "LOADING",
    ModelState.AVAILABLE: "UNAVAILABLE",
    ModelState.BROKEN: "UNAVAILABLE",
}
_NOBODY = "a caller without a token"  # No operator can be called so.
_REFUSED = RateLimitedLogger(get_logger("cloud"))


def index(entries: tuple[ModelEntry, ...], *, ready_alone: bool) -> list[dict[str, Any]]:
    """RepositoryIndexResponse's models."""
    return [
        {"name": entry.model, "version": entry.version, "state": _STATES[entry.state], "reason": _reason(entry)}
        for entry in entries
        if not ready_alone or _STATES[entry.state] == "READY"
    ]


def order(parts: WorkerContext, caller: Caller, verb: Verb, model: str = "") -> Future[ControlReply]:
    """Sends a request to the worker's control; `checked_reply` reads its reply.

    Raises:
        RefusedError: the worker takes no requests, or none of this caller, or no model can have that name.
    """
    if parts.control is None:
        raise RefusedError(Kind.FORBIDDEN, "this worker's models are fixed: start it without --no-control")
    if verb is not Verb.LIST:
        if not parts.callers.requires_token and not is_loopback(caller.address):
            _REFUSED.warning(
                caller.address, "control request refused", verb=verb.value, model=model, address=caller.address
            )
            raise RefusedError(
                Kind.FORBIDDEN,
                "models are loaded and unloaded from the worker's own machine, or with a token: start it with --tokens",
            )
        try:
            checked("model", model)
        except SkylaneError as error:
            raise RefusedError(Kind.INVALID, str(error)) from error
        if not parts.control.operators and parts.callers.has_token(caller.name):  # At the broker its ACL says so.
            raise RefusedError(Kind.FORBIDDEN, f"{caller.name} is no operator of this worker: name it with --operator")
    operator = caller.name if parts.callers.requires_token else _NOBODY
    return parts.control.ask(ControlRequest(operator, token_hex(8), verb, model))


def checked_reply(reply: ControlReply) -> ControlReply:
    """A reply that says that it was done.

    Raises:
        RefusedError: it says why not.
    """
    if reply.error:
        raise RefusedError(Kind.INVALID, reply.error)
    return reply


def check_parameters(parameters: Any) -> None:
    """Check that a load brings no model of its own.

    Raises:
        RefusedError: it does, or has another one, or they are no parameters.
    """
    if not isinstance(parameters, Mapping):
        raise RefusedError(Kind.INVALID, f"parameters are {str(parameters)[:40]!r}: send an object, or leave them out")
    if unknown := [name for name in parameters if name != "unload_dependents"]:
        raise RefusedError(
            Kind.INVALID,
            f"parameter {', '.join(sorted(unknown))[:200]}: models are loaded from the worker's repository as they are",
        )


def _reason(entry: ModelEntry) -> str:
    if entry.detail or entry.state in (ModelState.CURRENT, ModelState.KEPT):
        return entry.detail
    return "loading" if entry.state is ModelState.LOADING else "not loaded"
