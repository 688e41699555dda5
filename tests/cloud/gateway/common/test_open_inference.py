"""Repository calls: who may load and unload models, and how states and errors are reported."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from cloud.gateway.common.auth import ANYONE, Authenticator
from cloud.gateway.common.open_inference import check_parameters, check_reply, index, send_request
from cloud.serving.errors import ApiError, ErrorCode
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb

LOCAL = "127.0.0.1"
TOKEN = "sixteen-letters!"
CHANGES_FORBIDDEN = {Verb.LOAD: ErrorCode.FORBIDDEN, Verb.UNLOAD: ErrorCode.FORBIDDEN}


@dataclass
class FakeControl:
    """Records every request."""

    requests: list[ControlRequest] = field(default_factory=list)
    operators: frozenset[str] = frozenset()

    def ask(self, request: ControlRequest) -> Future[ControlReply]:
        """See cloud.frontends.control.Control."""
        self.requests.append(request)
        return Future()


@dataclass
class FakeWorker:
    """The parts of a CloudNode that a request needs."""

    control: Any
    authenticator: Authenticator


def worker_with(control: FakeControl | None, tokens: dict[str, str]) -> Any:
    """A fake worker."""
    return FakeWorker(control, Authenticator(tokens))


def refused(worker: Any, caller: str, address: str = LOCAL) -> dict[Verb, ApiError]:
    """The errors of the verbs that a caller may not send."""
    errors: dict[Verb, ApiError] = {}
    for verb in Verb.LIST, Verb.LOAD, Verb.UNLOAD:
        try:
            send_request(worker, caller, address, verb, "net")
        except ApiError as error:
            errors[verb] = error
    return errors


@pytest.mark.parametrize(("tokens", "operator"), [({}, "a caller without a token"), ({TOKEN: ANYONE}, "alice")])
def test_a_claimed_name_is_an_operator_only_with_a_token(tokens: dict[str, str], operator: str) -> None:
    """Without tokens anyone can claim any name, so no operator's rights may follow from it."""
    control = FakeControl()
    send_request(worker_with(control, tokens), "alice", LOCAL, Verb.LOAD, "net")
    (request,) = control.requests
    assert (request.operator, request.verb, request.model) == (operator, Verb.LOAD, "net")


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "unknown"])
def test_a_remote_caller_needs_a_token_to_change_models(address: str) -> None:
    """Otherwise anyone who reaches the port could unload the models of all other callers."""
    errors = refused(worker_with(FakeControl(), {}), "alice", address)
    assert {verb: error.code for verb, error in errors.items()} == CHANGES_FORBIDDEN
    assert "from the worker's own machine only, or with a token" in str(errors[Verb.LOAD])
    assert not refused(worker_with(FakeControl(), {TOKEN: ANYONE}), "alice", address)


@pytest.mark.parametrize("operators", [frozenset(), frozenset({"car-1"})])
def test_a_vehicles_token_changes_models_only_if_it_is_an_operator(operators: frozenset[str]) -> None:
    """A vehicle could otherwise unload the models of all others; listing models is always allowed."""
    errors = refused(worker_with(FakeControl(operators=operators), {TOKEN: "car-1"}), "car-1")
    assert {verb: error.code for verb, error in errors.items()} == ({} if operators else CHANGES_FORBIDDEN)


@pytest.mark.parametrize(
    ("control", "model", "code"), [(None, "net", ErrorCode.FORBIDDEN), (FakeControl(), "../x", ErrorCode.INVALID)]
)
def test_a_request_fails_without_control_or_with_an_invalid_name(control: Any, model: str, code: ErrorCode) -> None:
    """A worker may have fixed models, and a model's name must never be a path."""
    with pytest.raises(ApiError) as raised:
        send_request(worker_with(control, {}), "alice", LOCAL, Verb.LOAD, model)
    assert raised.value.code is code


def test_the_error_of_control_is_passed_on() -> None:
    """Its message says what is wrong; a reply without an error is returned unchanged."""
    done = ControlReply("n", "w")
    assert check_reply(done) is done
    with pytest.raises(ApiError, match="no model"):
        check_reply(ControlReply("n", "w", error="no model 'x'"))


def test_states_are_those_of_triton() -> None:
    """Clients wait for READY."""
    entries = tuple(ModelEntry("net", "1", state) for state in ModelState)
    states = [each["state"] for each in index(entries, only_ready=False)]
    assert states == ["READY", "READY", "LOADING", "UNAVAILABLE", "UNAVAILABLE"]
    assert [each["state"] for each in index(entries, only_ready=True)] == ["READY", "READY"]
    broken = ModelEntry("net", "1", ModelState.BROKEN, detail="no file")
    assert index((broken,), only_ready=False)[0]["reason"] == "no file"


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        (5, "send an object"),
        (True, "send an object"),
        ([1], "send an object"),
        ([{}], "send an object"),
        ("model", "send an object"),
        # A load request must not bring its own model.
        ({"file:1/x": "", "config": "", "unload_dependents": True}, "parameter config, file:1/x is not supported"),
    ],
)
def test_malformed_and_unsupported_parameters_are_rejected(parameters: Any, error: str) -> None:
    """They come from untrusted JSON, and an unexpected exception would be an error of the worker."""
    with pytest.raises(ApiError, match=error):
        check_parameters(parameters)
