from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.encoding.msgpack_reader import MessageError
from shared.messages.control import (
    MAX_REQUEST_BYTES,
    ControlError,
    ControlReply,
    ControlRequest,
    ModelEntry,
    ModelState,
    Verb,
    pack_reply,
    pack_request,
    unpack_reply,
    unpack_request,
)
from tests.support.tiny_model import CARD

REQUEST = ControlRequest("operator", "n1", Verb.LOAD, "road-small", "2", keep=True)


def _wire(**changes: Any) -> bytes:
    fields = {"v": 1, "operator": "operator", "nonce": "n1", "model": "road-small", "version": None, "keep": False}
    packed: bytes = msgpack.packb({key: value for key, value in (fields | changes).items() if value != "absent"})
    return packed


@pytest.mark.parametrize("verb", Verb)
def test_a_request_comes_back_as_it_was(verb: Verb) -> None:
    """The verb travels in the topic, where a broker's access list can tell a list from a load."""
    request = replace(REQUEST, verb=verb)
    assert unpack_request(pack_request(request), verb.value) == request


def test_a_reply_comes_back_as_it_was() -> None:
    """An operator sees what the worker said."""
    entry = ModelEntry("road-small", "2", ModelState.CURRENT, "segmentation", "tensorflow fp32", "ab" * 32, "")
    reply = ControlReply("n1", "w", "", is_ready=True, models=(entry,), card=CARD, took_ms=812.5)
    assert unpack_reply(pack_reply(reply)) == reply


def test_a_long_list_and_a_long_error_are_cut() -> None:
    """A reply that its reader refuses would look like a worker that is gone."""
    entries = tuple(ModelEntry(f"m{number}", "1", ModelState.BROKEN, detail="x" * 9999) for number in range(500))
    reply = unpack_reply(pack_reply(ControlReply("n1", "w", "e" * 9999, models=entries)))
    assert len(reply.models) == 256
    assert len(reply.error) == len(reply.models[0].detail) == 500


@pytest.mark.parametrize(
    ("changes", "verb", "problem"),
    [
        ({"model": "../../etc"}, "load", "'../../etc' is not allowed.*by its name in the repository"),
        ({"model": "a/b"}, "unload", "'a/b' is not allowed"),
        ({"model": ""}, "load", "'' is not allowed"),
        ({"model": ".."}, "list", "'..' is not allowed"),
        ({"model": 3}, "load", "field 'model': a text"),
        ({"version": "../1"}, "load", "version '../1' is not allowed"),
        ({"keep": 1}, "load", "field 'keep': it is true or false"),
        ({"keep": "absent"}, "load", "field 'keep': missing"),
        ({}, "destroy", "no verb 'destroy': use list, metadata, ready, load, unload"),
        ({}, "", "no verb ''"),
    ],
)
def test_a_wrong_request_tells_what_is_wrong_to_whoever_asked(changes: dict[str, Any], verb: str, problem: str) -> None:
    """Names only, never a path: and as it can be answered, the operator learns why."""
    with pytest.raises(ControlError, match=problem) as caught:
        unpack_request(_wire(**changes), verb)
    assert caught.value.reply_to == ("operator", "n1")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        _wire(v=2),
        _wire(operator="absent"),
        _wire(operator="#"),
        _wire(nonce="n/1"),
        _wire(model="x" * MAX_REQUEST_BYTES),
    ],
)
def test_what_does_not_even_tell_who_asks_has_nobody_to_answer(payload: bytes) -> None:
    """A reply goes to a topic that is built of these names: none may lead elsewhere."""
    with pytest.raises(ControlError) as caught:
        unpack_request(payload, "list")
    assert caught.value.reply_to is None


@given(st.binary(max_size=200), st.text(max_size=10))
def test_no_bytes_do_more_than_be_refused(payload: bytes, verb: str) -> None:
    """Whoever may publish to a control topic may publish anything."""
    with pytest.raises(ControlError):
        unpack_request(payload, verb)
    with pytest.raises(MessageError):
        unpack_reply(payload)
