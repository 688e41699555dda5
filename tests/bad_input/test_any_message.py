"""Any value in any place of any message: refused by our own error, or read as what packs back to an equal message."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from bench.faults.hostile.mutations import STRANGE
from shared.encoding.msgpack_reader import MessageError
from shared.errors import SkylaneError
from shared.imaging import geometry
from shared.imaging.labels import Labels, LabelsError
from shared.messages.clock_probes import pack_echo, pack_probe, unpack_echo, unpack_probe
from shared.messages.control import ControlReply, Verb, pack_reply, pack_request, unpack_reply, unpack_request
from shared.messages.frame import pack_frame, pack_result, unpack_frame, unpack_result
from shared.messages.frame_header import peek
from shared.messages.node_status import pack_status, unpack_status
from tests.fuzz.targets import wire

Place = tuple[Any, ...]
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


class Kind(NamedTuple):
    """A kind of message: valid ones, and how it is read and packed."""

    valid: list[bytes]
    unpack: Callable[[bytes], Any]
    pack: Callable[[Any], bytes]


KINDS = {
    "frame": Kind([*wire._frame_seeds()], unpack_frame, pack_frame),
    "mask": Kind([*wire._mask_seeds()], unpack_result, pack_result),
    "status": Kind([*wire._status_seeds()], unpack_status, pack_status),
    "probe": Kind([wire._seed_of_probe()], unpack_probe, pack_probe),
    "echo": Kind([wire._seed_of_echo()], unpack_echo, pack_echo),
    "request": Kind(
        [seed[1:] for seed in wire._control_seeds()], lambda data: unpack_request(data, Verb.METADATA), pack_request
    ),
    "reply": Kind([*wire._reply_seeds()], unpack_reply, pack_reply),
}


def _places(value: Any, above: Place = ()) -> Iterator[Place]:
    """Every place within a message: keys of its maps, places of its lists, at any depth."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield (*above, key)
        yield from _places(each, (*above, key))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80)
@given(data=st.data())
def test_any_value_at_any_place_is_refused_or_packs_back(kind: str, data: st.DataObject) -> None:
    """A reader of ours runs on a network thread: whatever else it raised would end the node."""
    valid, unpack, pack = KINDS[kind]
    message = msgpack.unpackb(data.draw(st.sampled_from(valid)))
    for _ in range(data.draw(st.integers(1, 2))):
        *above, last = data.draw(st.sampled_from([*_places(message)]))
        within = message
        for key in above:
            within = within[key]
        if data.draw(st.booleans()) or not isinstance(within, dict):
            within[last] = deepcopy(data.draw(ANYTHING))  # What is drawn may be drawn again.
        else:
            del within[last]
        if data.draw(st.booleans()):
            message[data.draw(st.text(max_size=5))] = deepcopy(data.draw(ANYTHING))
    payload = msgpack.packb(message)
    peek(payload)
    try:
        read = unpack(payload)
    except MessageError as error:
        assert "\n" not in str(error)  # noqa: PT017  Many changes leave a message that can be read.
        return
    if not isinstance(read, ControlReply):  # Its texts may be cut.
        assert unpack(pack(read)) == read


@settings(max_examples=100)
@given(value=ANYTHING, key=st.sampled_from([*asdict(wire.PLAN)]))
def test_any_geometry_is_refused_or_one_that_a_mask_can_be_laid_back_by(value: object, key: str) -> None:
    """Its numbers become the sides of arrays."""
    frame = msgpack.unpackb(KINDS["frame"].valid[0])
    for given_value in (value, asdict(wire.PLAN) | {key: value}):
        try:
            read = unpack_frame(msgpack.packb(frame | {"geometry": given_value}))
        except MessageError:
            continue
        geometry.check(read.geometry)


@settings(max_examples=100)
@given(names=ANYTHING | st.lists(ANYTHING, max_size=3), colours=ANYTHING | st.lists(ANYTHING, max_size=3))
def test_any_labels_are_refused_or_come_back(names: object, colours: object) -> None:
    """They colour pictures and name columns."""
    try:
        labels = Labels.from_wire({"names": names, "colours": colours})
    except LabelsError:
        return
    assert Labels.from_wire(labels.to_wire()) == labels


@settings(max_examples=100)
@given(data=st.binary(max_size=200), place=st.integers(0, 255))
def test_any_bytes_are_read_as_their_reader_reads_them(data: bytes, place: int) -> None:
    """The fuzz target's own property, without its coverage: it lets nothing out but a finding."""
    try:
        wire.run(bytes([place]) + data)
    except SkylaneError as error:
        pytest.fail(f"{type(error).__name__} came out of a reader: {error}")
