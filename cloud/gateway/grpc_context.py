"""A gRPC call as its connection has it: what was said at its beginning, its messages, and each way it can end."""

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, lru_cache, partial
from typing import Protocol
from urllib.parse import quote

from cloud.gateway.capacity import Share
from cloud.gateway.grpc_inbox import ENCODINGS, Inbox, Message
from cloud.gateway.outbox import GoneError, Outbox, Outgoing
from cloud.gateway.refusal import Kind, RefusedError
from shared import http2
from shared.compression import Buffer
from shared.grpc_words import CODES, GRPC, OK, PREFIX, text, value
from shared.header_lists import packed
from shared.http2 import Code

Metadata = Mapping[str, str | bytes]

_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_NO_TABLE = b"\x20"  # Of HPACK: we fill no table. A caller that asks for a smaller one waits to be told of it.
_ANSWERS = _NO_TABLE + packed(
    {":status": "200", "content-type": GRPC, "grpc-accept-encoding": ",".join(ENCODINGS)}.items()
)
_STATUSES = {code: packed([("grpc-status", str(number))]) for number, code in enumerate(CODES)}
_READABLE = "".join(chr(character) for character in range(0x20, 0x7F) if character != ord("%"))  # In a status message.
_FOLDING_LEVEL = 1
_REMEMBERED = 64  # Timeouts.
_GONE, _LATE, _NO_GRPC = "CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"


class Home(Protocol):
    """What a call is of."""

    def held_up(self, context: "Context") -> AbstractContextManager[None]:
        """Entered while the caller does not take the answer."""

    def let_in(self, context: "Context", count: int) -> None:
        """Have the caller send so many bytes more. Raises OSError where it has gone."""

    def ending(self, context: "Context") -> None:
        """All that is still to be done of a call is to send the rest of its answer."""

    def over(self, context: "Context") -> None:
        """A call has ended; told once."""

    def aside(self, act: Callable[[], None]) -> None:
        """Have an act done that may have to wait for the caller, on another thread."""


class Context:
    """Any thread may call it. Of those that end the call the first does, and the others do nothing."""

    def __init__(
        self,
        stream: int,
        host: str,
        fields: Mapping[str, str],
        *,
        inbox: Inbox,
        share: Share,
        outbox: Outbox,
        home: Home,
    ) -> None:
        """`host`: the caller's address. `fields`: of the header list that begins the call."""
        self.stream, self.host, self.inbox, self.share = stream, host, inbox, share
        self.path = fields.get(":path", "")
        self._fields = fields
        self._outbox = outbox
        self._home = home
        self._lock = threading.Lock()
        self._acts: list[Callable[[], object]] = []  # Once it is over.
        self._trailing: Sequence[tuple[str, str | bytes]] = ()
        self._is_over = self._has_begun = False
        self.code: str | None = None  # With which it ends; None: nobody has ended it.
        self.until_s: float | None = None  # When nobody waits any more, by time.monotonic; None: one waits for ever.

    @cached_property
    def metadata(self) -> Metadata:
        """What the caller sent beside its messages, by key in small letters."""
        return {name: value(name, written) for name, written in self._fields.items() if not name.startswith(":")}

    @property
    def left_s(self) -> float | None:
        """The time until the caller's deadline; None without one."""
        return None if self.until_s is None else self.until_s - time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether nobody waits any more."""
        return self._is_over

    def when_over(self, act: Callable[[], object]) -> bool:
        """Have something done then; whether it is still to come."""
        with self._lock:
            if not self._is_over:
                self._acts.append(act)
            return not self._is_over

    def message(self) -> Message:
        """The one message of a call that has one.

        Raises:
            GoneError: it is over.
            RefusedError: none came, or none that can be read.
        """
        message = self.inbox.take()
        if message is None:
            raise RefusedError(Kind.INVALID, "no message came: send one")
        return message

    def messages(self) -> Iterator[Message]:
        """Each as it comes; the next ones may come as these are taken.

        Raises:
            GoneError: it is over.
            RefusedError: one cannot be read.
        """
        while (message := self.inbox.take()) is not None:
            if not self.inbox.is_ended:
                with suppress(OSError):  # Then the call will be over.
                    self._home.let_in(self, message.let_in)
            yield message

    def tell(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Have this said behind the answer."""
        self._trailing = metadata

    def send(self, message: Sequence[Buffer]) -> None:
        """Send one of several answers, in parts, and wait until the caller lets it out.

        Raises:
            GoneError: the call is over.
        """
        self._send(Outgoing(self._announced(message), self._first()))

    def answer(self, message: Sequence[Buffer]) -> None:
        """Send the one answer, in parts, which ends the call.

        Raises:
            GoneError: it is over.
        """
        self._finish(self._announced(message))

    def finish(self) -> None:
        """End a call of several answers.

        Raises:
            GoneError: it is over.
        """
        self._finish(())

    def refuse(self, code: str, details: str) -> None:
        """End it with another code than OK."""
        if self._claim(code):
            self._refuse(code, details)

    def refuse_http(self, status: int) -> None:
        """End what is no gRPC."""
        if self._claim(_NO_GRPC):
            self._end(lambda _: self._last(_NO_TABLE + packed([(":status", str(status))])))

    def expire(self) -> None:
        """End it, as the caller's deadline has passed; returns at once. An answer that goes out is not broken off."""
        if self._claim(_LATE):
            self._home.aside(partial(self._refuse, _LATE, "the caller's deadline has passed"))
        elif self._outbox.is_shut(self.stream):
            self.cancel()

    def cancel(self) -> None:
        """End it, whatever is under way; returns at once."""
        if self._outbox.is_blocked(self.stream):  # In the middle of a frame: nothing can be said behind it.
            self._outbox.cut()
        elif self.gone():
            self._home.aside(partial(self._say, [http2.reset(self.stream, Code.CANCEL)]))

    def gone(self) -> bool:
        """End it without a word, though its answer may be on its way; whether it was not over."""
        with self._lock:
            if self.code == OK and not self._is_over:
                self.code = _GONE
        return self._end(lambda _: ())

    def _claim(self, code: str) -> bool:
        """Become the one who ends it."""
        with self._lock:
            is_first = self.code is None
            self.code = self.code or code
            return is_first

    def _finish(self, parts: Sequence[Buffer]) -> None:
        if not self._claim(OK):
            raise GoneError
        last = self._last(self._status(OK))
        try:
            self._send(Outgoing(parts, self._first(), last, partial(self._home.ending, self)))
        except BaseException:
            self.gone()
            raise
        self._end(lambda _: ())

    def _refuse(self, code: str, details: str) -> None:
        block = self._status(code, details)
        self._end(lambda has_begun: self._last(block if has_begun else _ANSWERS + block))

    def _end(self, last: Callable[[bool], Sequence[Buffer]]) -> bool:
        """Let go of what it holds, and say `last`, of which no caller has to let anything out; whether it was not over.

        `last` is told whether an answer has begun.
        """
        with self._lock:
            if self._is_over:
                return False
            self._is_over = True
            self.code = self.code or _GONE
            acts, self._acts = self._acts, []
        has_begun = self._outbox.drop(self.stream)
        self.inbox.drop()
        try:
            for act in acts:
                act()
            self._say(last(has_begun))
        finally:
            self._home.over(self)
        return True

    def _say(self, frames: Sequence[Buffer]) -> None:
        with suppress(OSError):  # Then who reads hears of it.
            if frames:
                self._outbox.say(b"".join(frames))

    def _send(self, outgoing: Outgoing) -> None:
        try:
            self._outbox.send(self.stream, outgoing, partial(self._home.held_up, self))
        except OSError as error:
            self._outbox.cut()
            raise GoneError from error

    def _first(self) -> list[Buffer]:
        """What stands before the first answer; one thread sends them."""
        if self._has_begun:
            return []
        self._has_begun = True
        block = _ANSWERS + packed([("grpc-encoding", self._folding)]) if self._folding else _ANSWERS
        return http2.header_frames(block, self.stream, http2.LEAST_FRAME)

    def _last(self, block: bytes) -> list[Buffer]:
        """A header list behind which nothing comes; a caller that is still sending need not."""
        frames = http2.header_frames(block, self.stream, http2.LEAST_FRAME, is_last=True)
        return frames if self.inbox.is_ended else [*frames, http2.reset(self.stream, Code.NONE)]

    def _status(self, code: str, details: str = "") -> bytes:
        fields = [(name, text(told)) for name, told in self._trailing]
        if details:
            fields.append(("grpc-message", quote(details, safe=_READABLE)))
        return _STATUSES[code] + packed(fields) if fields else _STATUSES[code]

    def _announced(self, message: Sequence[Buffer]) -> Sequence[Buffer]:
        """A message as it goes, folded where its caller's are."""
        if self._folding is None:
            return PREFIX.pack(0, sum(map(len, message))), *message
        folding = zlib.compressobj(_FOLDING_LEVEL, zlib.DEFLATED, ENCODINGS[self._folding])
        folded = b"".join((*map(folding.compress, message), folding.flush()))
        return PREFIX.pack(1, len(folded)), folded

    @cached_property
    def _folding(self) -> str | None:
        encoding = self._fields.get("grpc-encoding")
        accepted = self._fields.get("grpc-accept-encoding", "").replace(" ", "").split(",")
        return encoding if encoding in ENCODINGS and encoding in accepted else None


def until_s(fields: Mapping[str, str]) -> float | None:
    """When a call's deadline ends, by time.monotonic; None: it has none.

    Raises:
        RefusedError: what it says of it cannot be read.
    """
    written = fields.get("grpc-timeout")
    return None if written is None else time.monotonic() + _timeout_s(written)


@lru_cache(maxsize=_REMEMBERED)
def _timeout_s(written: str) -> float:
    """A timeout in seconds; most callers have the same for all their calls."""
    read = _TIMEOUT.fullmatch(written)
    if read is None:
        raise RefusedError(
            Kind.INVALID, f"grpc-timeout {written[:40]!r}: send up to 8 digits and one of {''.join(_SECONDS)}"
        )
    return int(read[1]) * _SECONDS[read[2]]
