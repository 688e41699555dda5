from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict, replace

from shared.clock import Deadline
from shared.errors import SkylaneError
from shared.imaging import geometry
from shared.messages.clock_probes import pack_echo, pack_probe, unpack_echo, unpack_probe
from shared.messages.control import ControlReply, Verb, pack_reply, pack_request, unpack_reply, unpack_request
from shared.messages.frame import FrameMessage, pack_frame, pack_result, peek, unpack_frame, unpack_result
from shared.messages.load import pack_load, unpack_load
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_status import pack_status, unpack_status
from tests.fuzz.targets import wire
from tests.support.faults.hostile.mutations import STRANGE

ValuePath = tuple[Any, ...]
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(STRANGE)
    | st.none()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


class MessageType(NamedTuple):
    """A type of message: valid examples, its decoder and encoder."""

    valid: list[bytes]
    unpack: Callable[[bytes], Any]
    pack: Callable[[Any], bytes]


MESSAGE_TYPES = {
    "frame": MessageType([*wire.frame_seeds()], unpack_frame, pack_frame),
    "result": MessageType([*wire.result_seeds()], unpack_result, pack_result),
    "status": MessageType([*wire.status_seeds()], unpack_status, pack_status),
    "load": MessageType([*wire.load_seeds()], unpack_load, pack_load),
    "probe": MessageType([*wire.probe_seeds()], unpack_probe, pack_probe),
    "echo": MessageType([*wire.echo_seeds()], unpack_echo, pack_echo),
    "request": MessageType(
        [seed[1:] for seed in wire.request_seeds()], lambda data: unpack_request(data, Verb.METADATA), pack_request
    ),
    "reply": MessageType([*wire.reply_seeds()], unpack_reply, pack_reply),
}


def _paths(value: Any, parent: ValuePath = ()) -> Iterator[ValuePath]:
    """Yields the paths of all values: map keys and list indices, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*parent, key)
        yield from _paths(each, (*parent, key))


@pytest.mark.parametrize("name", MESSAGE_TYPES)
@settings(max_examples=50)
@given(data=st.data())
def test_any_value_is_rejected_or_round_trips(name: str, data: st.DataObject) -> None:
    """Decoders run on network threads, where any other exception would stop the node."""
    valid, unpack, pack = MESSAGE_TYPES[name]
    message = msgpack.unpackb(data.draw(st.sampled_from(valid)))
    for _ in range(data.draw(st.integers(1, 2))):
        *above, last = data.draw(st.sampled_from([*_paths(message)]))
        container = message
        for key in above:
            container = container[key]
        if data.draw(st.booleans()) or not isinstance(container, dict):
            container[last] = deepcopy(data.draw(ANYTHING))  # Hypothesis may draw the same object again.
        else:
            del container[last]
        if data.draw(st.booleans()):
            message[data.draw(st.text(max_size=5))] = deepcopy(data.draw(ANYTHING))
    payload = msgpack.packb(message)
    peek(payload)
    try:
        read = unpack(payload)
    except MessageError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    if not isinstance(read, ControlReply):  # Long texts are truncated.
        again = unpack(pack(read))
        if isinstance(read, FrameMessage):  # The remaining time of its deadline passes in the meantime.
            assert (again.deadline == Deadline.NEVER) == (read.deadline == Deadline.NEVER)
            again, read = replace(again, deadline=Deadline.NEVER), replace(read, deadline=Deadline.NEVER)
        assert again == read


@settings(max_examples=100)
@given(value=ANYTHING, key=st.sampled_from([*asdict(wire.PLAN)]))
def test_any_geometry_is_rejected_or_valid(value: object, key: str) -> None:
    """Its values become array shapes."""
    frame = msgpack.unpackb(MESSAGE_TYPES["frame"].valid[0])
    for given_value in (value, asdict(wire.PLAN) | {key: value}):
        try:
            read = unpack_frame(msgpack.packb(frame | {"geometry": given_value}))
        except MessageError:
            continue
        geometry.check(read.geometry)


@settings(max_examples=100)
@given(data=st.binary(max_size=200), reader=st.integers(0, 255))
def test_random_bytes_raise_no_error(data: bytes, reader: int) -> None:
    """Runs the fuzz target without coverage guidance."""
    try:
        wire.run(bytes([reader]) + data)
    except SkylaneError as error:
        pytest.fail(f"a reader raised {type(error).__name__}: {error}")
