"""A gRPC call as its connection has it: what was said at its beginning, its messages, and each way it can end."""

import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from typing import Protocol
from urllib.parse import quote

from cloud.gateway.grpc_capacity import Share
from cloud.gateway.grpc_inbox import ENCODINGS, Inbox, Message
from cloud.gateway.outbox import GoneError, Outbox
from cloud.gateway.refusal import Kind, RefusedError
from shared import http2
from shared.compression import Buffer
from shared.grpc_words import CODES, GRPC, OK, PREFIX, text, value
from shared.header_lists import packed
from shared.http2 import Code

Metadata = Mapping[str, str | bytes]

_TIMEOUT = re.compile(r"(\d{1,8})([HMSmun])")
_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_ANSWERS = packed({":status": "200", "content-type": GRPC, "grpc-accept-encoding": ",".join(ENCODINGS)}.items())
_READABLE = "".join(chr(character) for character in range(0x20, 0x7F) if character != ord("%"))  # In a status message.
_FOLDING_LEVEL = 1


class Home(Protocol):
    """What a call is of."""

    def held_up(self, context: "Context") -> AbstractContextManager[None]:
        """Entered while the caller does not take the answer."""

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
        self._is_ending = self._is_over = self._has_begun = False
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
                self._outbox.say(http2.window(self.stream, message.let_in))
            yield message

    def tell(self, metadata: Sequence[tuple[str, str | bytes]]) -> None:
        """Have this said behind the answer."""
        self._trailing = metadata

    def send(self, message: Sequence[Buffer]) -> None:
        """Send one of several answers, in parts, and wait until the caller lets it out.

        Raises:
            GoneError: the call is over.
        """
        self._send(self._first(), self._announced(message), ())

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
        if self._claim():
            self._refuse(code, details)

    def refuse_http(self, status: int) -> None:
        """End what is no gRPC."""
        if self._claim():
            self._say_last(self._last(packed([(":status", str(status))])))

    def expire(self) -> None:
        """End it, as the caller's deadline has passed; returns at once. An answer that is on its way goes on."""
        if self._claim():
            self._home.aside(partial(self._refuse, "DEADLINE_EXCEEDED", "the caller's deadline has passed"))

    def cancel(self) -> None:
        """End it, whatever is under way; returns at once."""
        if self._outbox.is_stuck(self.stream):  # In the middle of a frame: nothing can be said behind it.
            self._outbox.cut()
        elif self.gone():
            self._home.aside(partial(self._say, [http2.reset(self.stream, Code.CANCEL)]))

    def gone(self) -> bool:
        """End it without a word; whether it was not over."""
        with self._lock:
            if self._is_over:
                return False
            self._is_ending = self._is_over = True
        acts, self._acts = self._acts, []
        self._outbox.drop(self.stream)
        self.inbox.drop()
        for act in acts:
            act()
        self._home.over(self)
        return True

    def _claim(self) -> bool:
        """Become the one who ends it."""
        with self._lock:
            is_first, self._is_ending = not self._is_ending, True
            return is_first

    def _finish(self, parts: Sequence[Buffer]) -> None:
        if not self._claim():
            raise GoneError
        try:
            self._send(self._first(), parts, self._last(self._status(OK)))
        finally:
            self.gone()

    def _refuse(self, code: str, details: str) -> None:
        block = self._status(code, details)
        self._say_last(self._last(block if self._has_begun else _ANSWERS + block))

    def _say_last(self, frames: Sequence[Buffer]) -> None:
        self._outbox.drop(self.stream)
        self._say(frames)
        self.gone()

    def _say(self, frames: Sequence[Buffer]) -> None:
        """Say what no caller has to let out."""
        with suppress(OSError):  # Then its thread ends it.
            self._outbox.say(b"".join(frames))

    def _send(self, first: Sequence[Buffer], parts: Sequence[Buffer], last: Sequence[Buffer]) -> None:
        try:
            self._outbox.send(self.stream, first, parts, last, partial(self._home.held_up, self))
        except OSError as error:
            self._outbox.cut()
            raise GoneError from error

    def _first(self) -> list[Buffer]:
        """What stands before the first answer."""
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
        fields = [("grpc-status", str(CODES.index(code)))]
        if details:
            fields.append(("grpc-message", quote(details, safe=_READABLE)))
        return packed([*fields, *((name, text(told)) for name, told in self._trailing)])

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
    if written is None:
        return None
    read = _TIMEOUT.fullmatch(written)
    if read is None:
        raise RefusedError(
            Kind.INVALID, f"grpc-timeout {written[:40]!r}: send up to 8 digits and one of {''.join(_SECONDS)}"
        )
    return time.monotonic() + int(read[1]) * _SECONDS[read[2]]
