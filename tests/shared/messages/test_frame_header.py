import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.clock import Deadline
from shared.imaging.frames import Layout
from shared.imaging.geometry import Resize, plan
from shared.messages.frame import EMPTY_HEADER, FrameHeader, FrameMessage, pack_frame, peek
from shared.messages.topics import FrameId
from shared.stages import Stamp

FRAME = FrameMessage(
    id=FrameId("car", "left", "s1", 7),
    model="tiny",
    layout=Layout.RGB8,
    shape=(608, 968, 3),
    codec="raw",
    geometry=plan(Resize.CROP, 1216, 1936, 608, 968),
    stamp_ns=0,
    data=bytes(608 * 968 * 3),
    attempt=2,
    version="3",
    deadline=Deadline.after_ms(500, 7),
    stamps=(Stamp("due", "edge/car/s1", 10**18), Stamp("taken", "edge/car/s1", 10**18 + 1)),
)
HEADER = FrameHeader(due_ns=10**18, deadline=FRAME.deadline, version="3", attempt=2)


def test_header_is_read_from_the_first_bytes() -> None:
    """The network thread has no time to decode the image."""
    payload = pack_frame(FRAME, 7)
    assert peek(payload, 7) == HEADER
    assert peek(payload[:2000], 7) == HEADER


@pytest.mark.parametrize("key", ["due", "budget_ms", "attempt", "version"])
@pytest.mark.parametrize("value", [None, -1, "soon", 1.5, [[]], {"a": 1}, True, 1 << 63])
def test_invalid_field_is_treated_as_missing(key: str, value: object) -> None:
    """It is rejected later, when the whole message is validated."""
    fields = msgpack.unpackb(pack_frame(FRAME))
    if key == "due":
        fields["stamps"] = [["due", "edge/car/s1", value]]
    else:
        fields[key] = value
    header = peek(msgpack.packb(fields))
    read = {
        "due": header.due_ns,
        "budget_ms": header.deadline.remaining_ms(),
        "attempt": header.attempt,
        "version": header.version,
    }
    assert read[key] == {"attempt": 1, "version": value if isinstance(value, str) else None}.get(key)


def test_keys_after_the_image_are_not_read() -> None:
    """Finding them would require reading the image."""
    fields = msgpack.unpackb(pack_frame(FRAME))
    payload = msgpack.packb({"data": fields.pop("data"), **fields})
    assert peek(payload) == EMPTY_HEADER


@pytest.mark.parametrize("nesting", [b"\x91", b"\x81\xa1a"])
@pytest.mark.parametrize("place", [b"\x81", b"\x81\xa6stamps"])
def test_deep_nesting_does_not_raise(place: bytes, nesting: bytes) -> None:
    """An exception on the network thread would stop the worker."""
    for depth in (500, 1000, 1023, 1300):
        assert peek(place + nesting * depth + b"\xc0\xc0") == EMPTY_HEADER


@given(st.binary(max_size=200) | st.binary(max_size=60).map(lambda tail: pack_frame(FRAME)[:300] + tail))
def test_random_bytes_do_not_raise(payload: bytes) -> None:
    """Any payload yields a header with valid or missing fields."""
    header = peek(payload, 0)
    assert header.deadline == Deadline.NEVER or 0 <= header.deadline.at_ns <= 86_400_000 * 10**6
    assert header.due_ns is None or 0 <= header.due_ns <= 1 << 62
