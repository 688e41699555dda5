"""Messages of a gRPC call, however they are cut, folded and late."""

import gzip
import threading
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloud.gateway.capacity import Capacity, Share
from cloud.gateway.grpc_inbox import MOST_WAITING, Inbox
from cloud.gateway.outbox import GoneError
from cloud.gateway.refusal import Kind, RefusedError
from shared.grpc_words import PREFIX
from tests.cloud.gateway.grpc_rig import announced

MOST_BYTES = 1_000
FOLDED, FOLDED_LARGE = gzip.compress(b"one"), gzip.compress(bytes(MOST_BYTES + 1))


def inbox(encoding: str | None = None, hold: Callable[[int], None] = lambda _: None) -> Inbox:
    """One of small messages."""
    return Inbox(MOST_BYTES, encoding, hold)


def fill(into: Inbox, data: bytes) -> None:
    """Have bytes come as a connection has them."""
    while data:
        room = into.room()[: len(data)]
        room[:] = data[: len(room)]
        data = data[len(room) :]
        into.took(len(room))


def test_messages_come_whole_however_they_are_cut() -> None:
    """Frames of HTTP/2 know nothing of messages; and of many that wait, all but a few wait as they came."""

    @given(st.lists(st.binary(max_size=90), max_size=3 * MOST_WAITING), st.data())
    def check(messages: list[bytes], data: st.DataObject) -> None:
        wire = b"".join(map(announced, messages))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
        taken_early = data.draw(st.integers(0, 3))
        filled, taken = inbox(), []
        for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
            fill(filled, wire[begin:end])
            taken += [filled.take() for _ in range(taken_early) if filled.has_message]
        filled.end()
        taken += iter(filled.take, None)
        assert [bytes(each.data) for each in taken if each] == messages

    check()


def test_what_is_held_is_told_and_given_back() -> None:
    """Else a stream that lasts would at some time hold all there is."""
    share = Share(Capacity(1, 10 * MOST_BYTES))
    share.enter()
    filled = inbox(hold=share.hold)
    for number in range(4 * MOST_WAITING):
        fill(filled, announced(bytes([number]) * 100))
    filled.end()
    while message := filled.take():
        share.give_back(message.held)
    share.hold(10 * MOST_BYTES)  # There is room for all again.


def test_all_calls_together_hold_no_more_than_they_may() -> None:
    """Each within its own bound, they would fill the memory."""
    capacity = Capacity(4, 2 * (MOST_BYTES + PREFIX.size))
    shares = [Share(capacity) for _ in range(3)]
    for share in shares:
        share.enter()
    for share in shares[:2]:
        fill(inbox(hold=share.hold), announced(bytes(MOST_BYTES)))
    with pytest.raises(RefusedError) as raised:
        fill(inbox(hold=shares[2].hold), announced(b"1"))
    assert raised.value.kind is Kind.BUSY
    shares[0].leave()
    fill(inbox(hold=shares[2].hold), announced(bytes(MOST_BYTES)))


@pytest.mark.parametrize(("encoding", "fold"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_folded_messages_are_unfolded(encoding: str, fold: Callable[[bytes], bytes]) -> None:
    """And those that say they are not, are not."""
    filled = inbox(encoding)
    fill(filled, announced(fold(b"a" * MOST_BYTES), is_folded=1) + announced(b"b"))
    taken = [filled.take(), filled.take()]
    assert [bytes(each.data) for each in taken if each] == [b"a" * MOST_BYTES, b"b"]


def test_a_bomb_is_unfolded_no_further_than_there_is_room() -> None:
    """All of it in memory before anybody counts would be as many times the largest message as there are calls."""
    share = Share(Capacity(1, 3 << 20))
    share.enter()
    filled = Inbox(1 << 30, "gzip", share.hold)
    fill(filled, announced(gzip.compress(bytes(1 << 28)), is_folded=1))
    with pytest.raises(RefusedError) as raised:
        filled.take()
    assert raised.value.kind is Kind.TOO_LARGE
    fill(inbox_of_gzip := Inbox(8 << 20, "gzip", lambda _: None), announced(gzip.compress(bytes(4 << 20)), is_folded=1))
    message = inbox_of_gzip.take()
    assert message is not None
    assert bytes(message.data) == bytes(4 << 20)


@pytest.mark.parametrize(
    ("encoding", "wire", "kind"),
    [
        pytest.param(None, announced(bytes(MOST_BYTES + 1)), Kind.TOO_LARGE, id="large"),
        pytest.param("gzip", announced(FOLDED_LARGE, is_folded=1), Kind.TOO_LARGE, id="large unfolded"),
        pytest.param("gzip", announced(b"no gzip", is_folded=1), Kind.INVALID, id="no gzip"),
        pytest.param("gzip", announced(FOLDED_LARGE[:-1], is_folded=1), Kind.TOO_LARGE, id="large and cut"),
        pytest.param("gzip", announced(FOLDED[:-1], is_folded=1), Kind.INVALID, id="cut"),
        pytest.param("gzip", announced(FOLDED + b"more", is_folded=1), Kind.INVALID, id="more"),
        pytest.param(None, announced(b"", is_folded=1), Kind.UNIMPLEMENTED, id="no encoding"),
        pytest.param("snappy", announced(b"", is_folded=1), Kind.UNIMPLEMENTED, id="another encoding"),
        pytest.param(None, announced(b"", is_folded=2), Kind.INVALID, id="another prefix"),
    ],
)
def test_what_cannot_be_read_is_refused(encoding: str | None, wire: bytes, kind: Kind) -> None:
    """With the code that its client knows, and before it takes any memory."""
    filled = inbox(encoding)

    def read() -> None:
        fill(filled, wire)
        filled.take()

    with pytest.raises(RefusedError) as raised:
        read()
    assert raised.value.kind is kind


def test_who_waits_hears_of_the_end() -> None:
    """Of the caller's, that no message comes; of the call's, that nobody wants one."""
    ended, gone = inbox(), inbox()
    threading.Timer(0.05, ended.end).start()
    assert ended.take() is None
    threading.Timer(0.05, gone.drop).start()
    with pytest.raises(GoneError):
        gone.take()
