"""The messages of a gRPC call, as they come and until they are taken."""

import threading
import zlib
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cloud.gateway.outbox import GoneError
from cloud.gateway.refusal import Kind, RefusedError
from shared import clock
from shared.compression import Buffer
from shared.grpc_words import PREFIX

MOST_WAITING = 16  # Messages of a call that lie ready; what comes behind them is kept as it came.
ENCODINGS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}  # zlib's word for each.

_PIECE_BYTES = 1 << 20  # That are unfolded at a time.
_SPILL_BYTES = 1 << 16  # That are read at a time where none lie ready any more.


class Message(NamedTuple):
    """A whole one."""

    received_ns: int  # When it was.
    data: memoryview
    let_in: int  # Bytes of the wire,
    held: int  # and of memory.


class Inbox:
    """One thread fills it, in turns `room` and `took`; another takes messages out."""

    def __init__(self, most_bytes: int, encoding: str | None, hold: Callable[[int], None]) -> None:
        """`most_bytes`: of a message, folded or not. `encoding`: of those that say that they have one.

        `hold`: told of bytes that are held from now on; raises RefusedError where they must not be.
        """
        self._most_bytes = most_bytes
        self._hold = hold
        self._encoding = encoding
        self._changed = threading.Condition()
        self._ready: deque[tuple[int, bool, memoryview]] = deque()
        self._spilled = bytearray()  # What came behind those that are ready.
        self._spill: memoryview | None = None  # Where it is read to; None: no such bytes are awaited.
        self._prefix = bytearray(PREFIX.size)
        self._is_folded = False
        self._data: memoryview | None = None  # Of the message under way, once its size is known.
        self._left = memoryview(self._prefix)  # What is still to come of it, or of what announces it.
        self._is_ended = self._is_gone = False

    @property
    def has_message(self) -> bool:
        """Whether one can be taken."""
        return bool(self._ready)

    @property
    def is_ended(self) -> bool:
        """Whether the caller sends no more."""
        return self._is_ended

    def room(self) -> memoryview:
        """Where the next bytes belong, not empty."""
        with self._changed:
            if len(self._ready) < MOST_WAITING and not self._spilled:
                return self._left
        self._spill = memoryview(bytearray(_SPILL_BYTES))
        return self._spill

    def took(self, count: int) -> None:
        """So many have come there.

        Raises:
            RefusedError: the message is larger than is taken, or in no form that is read here, or all are too large.
        """
        self._hold(count)
        with self._changed:
            if self._spill is None:
                self._advance(count)
                return
            self._spilled += self._spill[:count]
            self._spill = None
            self._sort_spilled()

    def end(self) -> None:
        """The caller sends no more."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def drop(self) -> None:
        """The call is over: whoever waits for a message gets none."""
        with self._changed:
            self._is_gone = True
            self._ready.clear()
            self._spilled.clear()
            self._changed.notify_all()

    def take(self) -> Message | None:
        """Wait for the next message; None: there is none any more.

        Raises:
            GoneError: the call is over.
            RefusedError: it cannot be unfolded.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._is_ended or self._is_gone)
            if self._is_gone:
                raise GoneError
            if not self._ready:
                return None
            received_ns, is_folded, data = self._ready.popleft()
            self._sort_spilled()
        unfolded = self._unfolded(data) if is_folded else data
        let_in = PREFIX.size + len(data)
        return Message(received_ns, unfolded, let_in, let_in + (len(unfolded) if is_folded else 0))

    def _sort_spilled(self) -> None:
        """Make messages of what lies there, as far as there is place for them."""
        while self._spilled and len(self._ready) < MOST_WAITING:
            count = min(len(self._spilled), len(self._left))
            self._left[:count] = self._spilled[:count]
            self._advance(count)
            del self._spilled[:count]

    def _advance(self, count: int) -> None:
        self._left = self._left[count:]
        if self._left:
            return
        if self._data is None:
            self._is_folded, size = self._announced()
            self._data = self._left = np.empty(size, np.uint8).data  # Unlike a bytearray, it is not filled first.
        if not self._left:
            self._ready.append((clock.now_ns(), self._is_folded, self._data))
            self._data, self._left = None, memoryview(self._prefix)
            self._changed.notify_all()

    def _announced(self) -> tuple[bool, int]:
        is_folded, size = PREFIX.unpack(self._prefix)
        if size > self._most_bytes:
            raise RefusedError(Kind.TOO_LARGE, f"a message of {size} bytes: at most {self._most_bytes} are taken")
        if is_folded > 1:
            raise RefusedError(
                Kind.INVALID, f"a message whose first byte is {is_folded}: send 0, or 1 if it is compressed"
            )
        if is_folded and self._encoding not in ENCODINGS:
            given = "no grpc-encoding" if self._encoding is None else f"grpc-encoding {self._encoding[:40]}"
            raise RefusedError(
                Kind.UNIMPLEMENTED, f"a compressed message with {given}: send {' or '.join(ENCODINGS)}, or as it is"
            )
        return bool(is_folded), size

    def _unfolded(self, data: Buffer) -> memoryview:
        """What a message says, held piece by piece: nobody knows how much it will be."""
        assert self._encoding is not None
        unfolding = zlib.decompressobj(ENCODINGS[self._encoding])
        unfolded = bytearray()
        try:
            is_going_on = True
            while is_going_on:
                piece = unfolding.decompress(data, _PIECE_BYTES)
                self._hold(len(piece))
                unfolded += piece
                if len(unfolded) > self._most_bytes:
                    raise RefusedError(
                        Kind.TOO_LARGE, f"a message unfolds to more than the {self._most_bytes} bytes that are taken"
                    )
                data = unfolding.unconsumed_tail
                is_going_on = not unfolding.eof and bool(data or len(piece) == _PIECE_BYTES)
        except zlib.error as error:
            raise RefusedError(Kind.INVALID, f"a message that is not {self._encoding}: {error}") from error
        if not unfolding.eof or unfolding.unused_data:
            raise RefusedError(Kind.INVALID, f"a message that is not one whole {self._encoding} stream")
        return memoryview(unfolded)
