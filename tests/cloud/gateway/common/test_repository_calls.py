"""Orders to load and unload, as they come from the doors."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import pytest

from cloud.gateway.common.auth import ANYONE, Authenticator, Caller
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.common.repository_calls import check_parameters, checked_reply, index, order
from shared.messages.control import ControlReply, ControlRequest, ModelEntry, ModelState, Verb

HERE = "127.0.0.1"


@dataclass
class Control:
    """Takes every order."""

    taken: list[ControlRequest] = field(default_factory=list)
    operators: frozenset[str] = frozenset()

    def ask(self, request: ControlRequest) -> Future[ControlReply]:
        """See cloud.frontends.control.Control."""
        self.taken.append(request)
        return Future()


@dataclass
class Parts:
    """What an order needs of a worker."""

    control: Any
    callers: Authenticator


@pytest.mark.parametrize(
    ("tokens", "operator"), [({}, "a caller without a token"), ({"sixteen-letters!": ANYONE}, "alice")]
)
def test_only_who_has_a_token_is_taken_for_an_operator(tokens: dict[str, str], operator: str) -> None:
    """Without tokens a name is a claim: it must open nothing that is kept for operators by name."""
    control = Control()
    parts: Any = Parts(control, Authenticator(tokens))
    order(parts, Caller("alice", HERE), Verb.LOAD, "net")
    (taken,) = control.taken
    assert (taken.operator, taken.verb, taken.model) == (operator, Verb.LOAD, "net")


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "unknown"])
def test_a_caller_elsewhere_changes_models_by_a_token_alone(address: str) -> None:
    """Whoever reaches the port could otherwise unload the models of all others."""
    control = Control()
    parts: Any = Parts(control, Authenticator({}))
    for verb in (Verb.LOAD, Verb.UNLOAD):
        with pytest.raises(RefusedError, match="from the worker's own machine, or with a token") as raised:
            order(parts, Caller("alice", address), verb, "net")
        assert raised.value.kind is Kind.FORBIDDEN
    order(parts, Caller("alice", address), Verb.LIST)
    order(Parts(control, Authenticator({"sixteen-letters!": ANYONE})), Caller("alice", address), Verb.LOAD, "net")  # type: ignore[arg-type]
    assert [taken.verb for taken in control.taken] == [Verb.LIST, Verb.LOAD]


@pytest.mark.parametrize("operators", [frozenset(), frozenset({"car-1"})])
def test_a_vehicles_token_gives_no_orders_unless_it_is_an_operators(operators: frozenset[str]) -> None:
    """Whoever has one could unload the model of all others; what there is may be asked for."""
    control = Control(operators=operators)
    parts: Any = Parts(control, Authenticator({"sixteen-letters!": "car-1"}))
    order(parts, Caller("car-1", HERE), Verb.LIST)
    for verb in (Verb.LOAD, Verb.UNLOAD):
        if operators:
            order(parts, Caller("car-1", HERE), verb, "net")
            continue
        with pytest.raises(RefusedError, match="car-1 is no operator") as raised:
            order(parts, Caller("car-1", HERE), verb, "net")
        assert raised.value.kind is Kind.FORBIDDEN
    assert [taken.verb for taken in control.taken] == [Verb.LIST, *([Verb.LOAD, Verb.UNLOAD] if operators else [])]


@pytest.mark.parametrize(
    ("control", "model", "kind"), [(None, "net", Kind.FORBIDDEN), (Control(), "../x", Kind.INVALID)]
)
def test_an_order_that_cannot_be_given_is_refused(control: Any, model: str, kind: Kind) -> None:
    """A worker may take none at all, and no path is a model's name."""
    parts: Any = Parts(control, Authenticator({}))
    with pytest.raises(RefusedError) as raised:
        order(parts, Caller("alice", HERE), Verb.LOAD, model)
    assert raised.value.kind is kind


def test_what_control_says_is_told() -> None:
    """Its own words say what is wrong."""
    done = ControlReply("n", "w")
    assert checked_reply(done) is done
    with pytest.raises(RefusedError, match="no model"):
        checked_reply(ControlReply("n", "w", error="no model 'x'"))
    with pytest.raises(RefusedError, match="parameter config, file:1/x"):
        check_parameters({"file:1/x": "", "config": "", "unload_dependents": True})


def test_the_index_tells_states_as_triton_does() -> None:
    """Clients wait for READY."""
    entries = tuple(ModelEntry("net", "1", state) for state in ModelState)
    states = [each["state"] for each in index(entries, ready_alone=False)]
    assert states == ["READY", "READY", "LOADING", "UNAVAILABLE", "UNAVAILABLE"]
    assert [each["state"] for each in index(entries, ready_alone=True)] == ["READY", "READY"]
    broken = ModelEntry("net", "1", ModelState.BROKEN, detail="no file")
    assert index((broken,), ready_alone=False)[0]["reason"] == "no file"


@pytest.mark.parametrize("parameters", [5, True, [1], [{}], "model"])
def test_parameters_that_are_none_are_refused(parameters: Any) -> None:
    """They come as JSON from anybody, and an error of ours would end the worker."""
    with pytest.raises(RefusedError, match="send an object"):
        check_parameters(parameters)
