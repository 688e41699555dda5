from dataclasses import asdict, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.encoding.field_types import MAX_NS
from shared.encoding.msgpack_reader import MessageError
from shared.messages.clock_probes import MAX_PROBE_BYTES, Echo, Probe, pack_echo, pack_probe, unpack_echo, unpack_probe

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
NS = st.integers(0, MAX_NS)
PROBES = st.builds(Probe, NAMES, st.integers(0, 1 << 53), NS)
ECHOES = st.builds(
    Echo,
    *(NAMES, st.integers(0, 1 << 53), NS, NS, NS),
    node=st.builds("cloud/{}/{}".format, NAMES, NAMES),
)
ECHO = Echo("s1", 7, 1, 2, 3, "cloud/w/s9")


def packed(**changes: Any) -> bytes:
    """An echo on the wire, which is also a probe, with some fields changed; None takes one out."""
    fields = {"v": 1, **asdict(ECHO), **changes}
    data: bytes = msgpack.packb({key: value for key, value in fields.items() if value is not None})
    return data


@given(PROBES)
def test_a_probe_is_read_as_it_was_sent(probe: Probe) -> None:
    """Whatever the session is called."""
    payload = pack_probe(probe)
    assert unpack_probe(payload) == probe
    assert len(payload) <= MAX_PROBE_BYTES


@given(ECHOES)
def test_an_echo_is_read_as_it_was_sent(echo: Echo) -> None:
    """The longest names fit the limit."""
    payload = pack_echo(echo)
    assert unpack_echo(payload) == echo
    assert len(payload) <= MAX_PROBE_BYTES


@given(st.binary(max_size=2 * MAX_PROBE_BYTES))
def test_garbage_is_refused_in_one_way(payload: bytes) -> None:
    """The network thread must not die of what anyone may publish."""
    for unpack in (unpack_probe, unpack_echo):
        with pytest.raises(MessageError):
            unpack(payload)


@given(ECHOES, st.data())
def test_a_damaged_echo_is_refused_or_another_echo(echo: Echo, data: st.DataObject) -> None:
    """A bit that flips may change a number, but never what kind of thing is read."""
    payload = bytearray(pack_echo(echo))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read = unpack_echo(bytes(payload))
    except MessageError:
        return
    assert type(read) is Echo
    assert unpack_echo(pack_echo(read)) == read


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"v": 2}, "version 2 is not spoken here"),
        ({"session": None}, "'session': missing"),
        ({"session": "a/b"}, "'session': .* is not allowed"),
        ({"sequence": -1}, "'sequence': a whole number"),
        ({"sequence": True}, "'sequence': a whole number"),
        ({"sent_ns": MAX_NS + 1}, "'sent_ns': a whole number"),
        ({"sent_ns": 1.5}, "'sent_ns': a whole number"),
        ({"received_ns": "soon"}, "'received_ns': a whole number"),
        ({"replied_ns": None}, "'replied_ns': missing"),
        ({"node": 5}, "'node': a text"),
        ({"node": "edge/w/s9"}, "'node': .* is not cloud/worker/session"),
        ({"node": "cloud/w"}, "'node': .* is not cloud/worker/session"),
        ({"node": "cloud/w/s9/x"}, "'node': .* is not cloud/worker/session"),
        ({"node": "cloud/w/"}, "'node': part of a node '' is not allowed"),
        ({"spare": bytes(MAX_PROBE_BYTES)}, "bytes is over the limit of 512"),
    ],
    ids=str,
)
def test_what_is_wrong_is_named(changes: dict[str, Any], what: str) -> None:
    """Whoever writes another client reads it."""
    with pytest.raises(MessageError, match=what):
        unpack_echo(packed(**changes))


def test_what_a_later_version_adds_is_nobodys_business() -> None:
    """Unknown keys are ignored everywhere on this wire."""
    assert unpack_echo(packed(colour="red")) == ECHO
    assert unpack_probe(packed()) == Probe("s1", 7, 1)
    assert unpack_echo(packed(sequence=8)) == replace(ECHO, sequence=8)
