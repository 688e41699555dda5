import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import FrameMessage, pack_frame
from shared.messages.frame_header import EMPTY_HEADER, FrameHeader, peek
from shared.messages.topics import FrameId
from shared.stages import Stamp

FRAME = FrameMessage(
    id=FrameId("car", "left", "s1", 7),
    model="tiny",
    layout=Layout.RGB8,
    shape=(608, 968, 3),
    codec="raw",
    geometry=plan(Resize.CROP, 1216, 1936, 608, 968),
    frame_stamp_ns=0,
    data=bytes(608 * 968 * 3),
    attempt=2,
    version="3",
    budget_ms=500,
    stamps=(Stamp("due", "edge/car/s1", 10**18), Stamp("taken", "edge/car/s1", 10**18 + 1)),
)
HEAD = FrameHeader(due_ns=10**18, budget_ms=500, version="3", attempt=2)


def test_a_head_is_read_before_the_picture() -> None:
    """From the first bytes alone: the network thread has no time for more."""
    payload = pack_frame(FRAME)
    assert peek(payload) == HEAD
    assert peek(payload[:2000]) == HEAD


@pytest.mark.parametrize("key", ["due", "budget_ms", "attempt", "version"])
@pytest.mark.parametrize("value", [None, -1, "soon", 1.5, [[]], {"a": 1}, True, 1 << 63])
def test_what_is_told_wrongly_is_not_believed(key: str, value: object) -> None:
    """It is refused later, with the whole message."""
    fields = msgpack.unpackb(pack_frame(FRAME))
    if key == "due":
        fields["stamps"] = [["due", "edge/car/s1", value]]
    else:
        fields[key] = value
    head = peek(msgpack.packb(fields))
    told = {"due": head.due_ns, "budget_ms": head.budget_ms, "attempt": head.attempt, "version": head.version}
    assert told[key] == {"attempt": 1, "version": value if isinstance(value, str) else None}.get(key)


def test_keys_behind_the_picture_are_not_looked_for() -> None:
    """Looking for them would cost reading the picture."""
    fields = msgpack.unpackb(pack_frame(FRAME))
    payload = msgpack.packb({"data": fields.pop("data"), **fields})
    assert peek(payload) == EMPTY_HEADER


@pytest.mark.parametrize("nesting", [b"\x91", b"\x81\xa1a"])
@pytest.mark.parametrize("place", [b"\x81", b"\x81\xa6stamps"])
def test_no_nesting_is_too_deep(place: bytes, nesting: bytes) -> None:
    """It runs on the worker's network thread: a vehicle that could make it raise would end the worker."""
    for depth in (500, 1000, 1023, 1300):
        assert peek(place + nesting * depth + b"\xc0\xc0") == EMPTY_HEADER


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: pack_frame(FRAME)[:300] + tail))
def test_anything_else_has_no_head_or_part_of_one(payload: bytes) -> None:
    """Whatever comes over the wire costs no more than a look."""
    head = peek(payload)
    assert head.budget_ms is None or 0 <= head.budget_ms <= 86_400_000
    assert head.due_ns is None or 0 <= head.due_ns <= 1 << 62
