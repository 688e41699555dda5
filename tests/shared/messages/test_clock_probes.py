from dataclasses import asdict, replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.messages.clock_probes import MAX_PROBE_BYTES, Echo, Probe, pack_echo, pack_probe, unpack_echo, unpack_probe
from shared.messages.msgpack_reader import MAX_NS, MessageError

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True)
NS = st.integers(0, MAX_NS)
PROBES = st.builds(Probe, NAMES, st.integers(0, 1 << 53), NS)
ECHOES = st.builds(
    Echo,
    *(NAMES, st.integers(0, 1 << 53), NS, NS, NS),
    node=st.builds("cloud/{}/{}".format, NAMES, NAMES),
)
ECHO = Echo("s1", 7, 1, 2, 3, "cloud/w/s9")


def packed_echo(**changes: Any) -> bytes:
    """Returns an encoded echo, which is also a valid probe, with fields changed or (None) removed."""
    fields = {"v": 1, **asdict(ECHO), **changes}
    data: bytes = msgpack.packb({key: value for key, value in fields.items() if value is not None})
    return data


@given(PROBES)
def test_probe_round_trips(probe: Probe) -> None:
    """The session may be any valid name."""
    payload = pack_probe(probe)
    assert unpack_probe(payload) == probe
    assert len(payload) <= MAX_PROBE_BYTES


@given(ECHOES)
def test_echo_round_trips(echo: Echo) -> None:
    """An echo with the longest names fits the size limit."""
    payload = pack_echo(echo)
    assert unpack_echo(payload) == echo
    assert len(payload) <= MAX_PROBE_BYTES


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"v": 2}, "version 2 is not supported"),
        ({"session": None}, "'session': missing"),
        ({"session": "a/b"}, "'session': expected a name of 1 to 64 of .*, not 'a/b'"),
        ({"sequence": -1}, "'sequence': expected an integer"),
        ({"sequence": True}, "'sequence': expected an integer"),
        ({"sent_ns": MAX_NS + 1}, "'sent_ns': expected an integer"),
        ({"replied_ns": None}, "'replied_ns': missing"),
        ({"node": 5}, "'node': expected cloud/worker/session, not 5"),
        ({"node": "edge/w/s9"}, "'node': expected cloud/worker/session, not "),
        ({"node": "cloud/w"}, "'node': expected cloud/worker/session, not "),
        ({"node": "cloud/w/s9/x"}, "'node': expected cloud/worker/session, not "),
        ({"node": "cloud/w/"}, "'node': expected cloud/worker/session"),
        ({"spare": bytes(MAX_PROBE_BYTES)}, "bytes is over the limit of 512"),
    ],
    ids=str,
)
def test_error_names_the_invalid_field(changes: dict[str, Any], error: str) -> None:
    """The message helps authors of other clients."""
    with pytest.raises(MessageError, match=error):
        unpack_echo(packed_echo(**changes))


def test_unknown_keys_are_ignored() -> None:
    """A later version may add fields."""
    assert unpack_echo(packed_echo(colour="red")) == ECHO
    assert unpack_probe(packed_echo()) == Probe("s1", 7, 1)
    assert unpack_echo(packed_echo(sequence=8)) == replace(ECHO, sequence=8)
