from dataclasses import replace
from typing import Any

import msgpack
import pytest

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


def _packed_request(**changes: Any) -> bytes:
    fields = {"v": 1, "operator": "operator", "nonce": "n1", "model": "road-small", "version": None, "keep": False}
    packed: bytes = msgpack.packb({key: value for key, value in (fields | changes).items() if value != "absent"})
    return packed


@pytest.mark.parametrize("verb", Verb)
def test_request_round_trips(verb: Verb) -> None:
    """The verb is part of the topic, where broker ACLs can distinguish listing from loading."""
    request = replace(REQUEST, verb=verb)
    assert unpack_request(pack_request(request), verb.value) == request


def test_reply_round_trips() -> None:
    """All fields of the reply reach the operator."""
    entry = ModelEntry("road-small", "2", ModelState.CURRENT, "segmentation", "tensorflow fp32", "ab" * 32, "")
    reply = ControlReply("n1", "w", "", is_ready=True, models=(entry,), card=CARD, took_ms=812.5)
    assert unpack_reply(pack_reply(reply)) == reply


def test_long_lists_and_errors_are_truncated() -> None:
    """A reply above the limits would be rejected by the operator, as if the worker were gone."""
    entries = tuple(ModelEntry(f"m{number}", "1", ModelState.BROKEN, detail="x" * 9999) for number in range(500))
    reply = unpack_reply(pack_reply(ControlReply("n1", "w", "e" * 9999, models=entries)))
    assert len(reply.models) == 256
    assert len(reply.error) == len(reply.models[0].detail) == 500


@pytest.mark.parametrize(
    ("changes", "verb", "problem"),
    [
        ({"model": "../../etc"}, "load", "'../../etc' is not allowed.*give the name of a model in the repository"),
        ({"model": "a/b"}, "unload", "'a/b' is not allowed"),
        ({"model": ""}, "load", "'' is not allowed"),
        ({"model": ".."}, "list", "'..' is not allowed"),
        ({"model": 3}, "load", "field 'model': expected a text"),
        ({"version": "../1"}, "load", "'version': expected a version of 1 to 64 of .*, not '../1'"),
        ({"keep": 1}, "load", "field 'keep': expected true or false"),
        ({"keep": "absent"}, "load", "field 'keep': missing"),
        ({}, "destroy", "'verb': expected one of list, metadata, ready, load, unload, not 'destroy'"),
        ({}, "", "'verb': expected one of .*, not ''"),
    ],
)
def test_invalid_request_is_rejected_with_a_reply_address(changes: dict[str, Any], verb: str, problem: str) -> None:
    """Models are given by name, never by path; the operator receives the reason."""
    with pytest.raises(ControlError, match=problem) as caught:
        unpack_request(_packed_request(**changes), verb)
    assert caught.value.reply_to == ("operator", "n1")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        _packed_request(v=2),
        _packed_request(operator="absent"),
        _packed_request(operator="#"),
        _packed_request(nonce="n/1"),
        _packed_request(model="x" * MAX_REQUEST_BYTES),
    ],
)
def test_request_without_valid_sender_has_no_reply_address(payload: bytes) -> None:
    """The reply topic is built from operator and nonce, so invalid names must not be used."""
    with pytest.raises(ControlError) as caught:
        unpack_request(payload, "list")
    assert caught.value.reply_to is None
