"""The server's end of an HTTP/2 connection (RFC 9113), and the gRPC calls on it."""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import partial

from cloud.gateway.capacity import Share
from cloud.gateway.grpc_context import Context, until_s
from cloud.gateway.grpc_inbox import Inbox
from cloud.gateway.header_blocks import HeaderBlocks, HeaderList
from cloud.gateway.http2_terms import ConnectionTerms, UnderWay
from cloud.gateway.outbox import Outbox
from cloud.gateway.patience import Patience
from cloud.gateway.refusal import Kind, RefusedError
from cloud.gateway.wires import Wire
from shared import clock, http2
from shared.grpc_words import GRPC, PREFIX
from shared.http2 import MAX_HEADERS, Code, Http2Error, Setting

_LEAST_NS = 1_000_000_000  # For so long a message may be awaited and an answer untaken, whoever is kept out.
_SMALL_BYTES = 256  # Of data: a frame of fewer takes longer than what it brings.
_SCRAP_BYTES = 1 << 16  # Of what nobody reads, at a time.
_POST = "POST"
_NOT_ALLOWED, _NOT_SUPPORTED = 405, 415  # HTTP's.


class Connection:
    """One thread at a time reads it, and makes the call that it finds ready while another reads on."""

    def __init__(
        self,
        wire: Wire,
        host: str,
        terms: ConnectionTerms,
        on_closed: Callable[["Connection"], None],
        on_left: Callable[[], None],
    ) -> None:
        """`host`: the caller's address. `on_closed`: told once nothing is done on it any more. `on_left`: see `is_left`."""
        self.host = host
        self.since_s = time.monotonic()
        self.is_greeted = False
        self._wire = wire
        self._terms = terms
        self._on_closed, self._on_left = on_closed, on_left
        self._outbox = Outbox(wire, lambda: terms.untaken.held(self))
        self._blocks = HeaderBlocks()
        self._patience = Patience()
        self._head = memoryview(bytearray(http2.HEAD_BYTES))
        self._scrap = memoryview(b"")
        self._calls: dict[int, UnderWay] = {}
        self._ending: set[int] = set()  # Those of which all but the rest of the answer is done.
        self._window = min(http2.LARGEST, terms.most_bytes + PREFIX.size)
        self._last = 0  # The highest number of a call.
        self._untold = 0  # Bytes that came in, and have not been allowed anew.
        self._is_leaving = False
        self._lock = threading.Lock()
        self._users = 1  # Threads that use the wire: who reads, and each that makes a call or says something of one.

    def serve(self) -> None:
        """Greet, and read; the body of a thread."""
        try:
            self._wire.greet()
            self._greet()
        except (OSError, Http2Error):
            self._close()
        except BaseException:
            self._close()
            raise
        else:
            self.is_greeted = True
            self._read_on()

    @property
    def is_left(self) -> bool:
        """Whether nothing is under way, nor will be."""
        return self._is_leaving and not self._calls

    def leave(self) -> None:
        """Take no more calls; those under way are still answered. Returns at once."""
        self._is_leaving = True
        if self.is_greeted:
            self.aside(self._say_farewell)
        else:
            self.cancel()

    def cancel(self) -> None:
        """End it, whatever is under way."""
        self._wire.cut()

    def held_up(self, context: Context) -> AbstractContextManager[None]:
        """See Home."""
        return self._terms.untaken.held(context)

    def let_in(self, context: Context, count: int) -> None:
        """See Home."""
        with self._lock:
            if call := self._calls.get(context.stream):
                call.window += count
        self._outbox.say(http2.window(context.stream, count))

    def ending(self, context: Context) -> None:
        """See Home: who has the answer may call again at once."""
        context.share.leave()
        self._ending.add(context.stream)

    def over(self, context: Context) -> None:
        """See Home."""
        call = self._calls.pop(context.stream)
        self._ending.discard(context.stream)
        if call.deadline is not None:
            self._terms.deadlines.remove(call.deadline)
        if call.place is not None:
            self._terms.awaited.leave(call.place)
        if not call.is_made:
            context.share.leave()
        call.handler.count(context.code or "")
        self._end_if_left()

    def aside(self, act: Callable[[], None]) -> None:
        """See Home."""
        if self._use():
            self._terms.threads.run(partial(self._do_aside, act))

    def _do_aside(self, act: Callable[[], None]) -> None:
        try:
            act()
        finally:
            self._release()

    def _say_farewell(self) -> None:
        with suppress(OSError):  # It has ended.
            self._outbox.say(http2.going(self._last, Code.NONE))
        self._end_if_left()

    def _end_if_left(self) -> None:
        if self.is_left:
            self._wire.end()
            self._on_left()

    def _greet(self) -> None:
        self._outbox.say(
            http2.settings(
                {
                    Setting.MOST_STREAMS: self._terms.most_streams,
                    Setting.INITIAL_WINDOW: self._window,
                    Setting.LARGEST_FRAME: http2.LARGEST_FRAME,
                    Setting.LARGEST_LIST: MAX_HEADERS,
                }
            ),
            http2.window(0, http2.LARGEST - http2.FIRST_WINDOW),
        )
        if self._read(len(http2.PREFACE)) != http2.PREFACE:
            raise Http2Error("it does not greet in HTTP/2")
        self._wire.fill(self._head)
        length, kind, flags, _ = http2.read_head(self._head)
        if kind != http2.Kind.SETTINGS or flags & http2.ACKNOWLEDGES or length > MAX_HEADERS:
            raise Http2Error("it says something else before its settings")
        self._take_settings(self._read(length))

    def _read_on(self) -> None:
        """Take frames until a call can be made; another thread reads on, and this one makes it. The body of a thread."""
        try:
            while (call := self._take()) is None:
                pass
            self._use()
            self._terms.threads.run(self._read_on)
        except Http2Error as error:
            with suppress(OSError):
                self._outbox.say(http2.going(self._last, Code(error.code or Code.PROTOCOL), str(error)))
            self._close()
        except OSError:
            self._close()
        except BaseException:
            self._close()
            raise
        else:
            self._make(call)

    def _make(self, call: UnderWay) -> None:
        try:
            call.handler.answer(call.context)
        finally:
            self._patience.restore()
            call.context.share.leave()
            call.context.gone()
            self._release()

    def _close(self) -> None:
        """Nothing more will be read."""
        for call in list(self._calls.values()):
            call.context.gone()
        self._wire.cut()
        self._release()

    def _use(self) -> bool:
        """Keep the wire open; whether it is."""
        with self._lock:
            is_open = self._users > 0
            self._users += is_open
            return is_open

    def _release(self) -> None:
        """The last one lets go: before, its number could become another's under who still writes to it."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            self._wire.close()
            self._on_closed(self)

    def _take(self) -> UnderWay | None:
        """Take a frame; the call that can be made since, if there is one."""
        self._wire.fill(self._head)
        length, kind, flags, stream = http2.read_head(self._head)
        self._blocks.check(kind)
        if kind == http2.Kind.DATA:
            return self._take_data(length, flags, stream)
        self._patience.bear(length, self._outbox.sent_bytes)
        if length > MAX_HEADERS:
            raise Http2Error(f"a frame of {length} bytes that is no data", code=Code.ENOUGH)
        payload = self._read(length)
        if kind in (http2.Kind.HEADERS, http2.Kind.CONTINUATION):
            return self._take_headers(kind, flags, stream, payload)
        self._take_word(kind, flags, stream, payload)
        return None

    def _take_word(self, kind: int, flags: int, stream: int, payload: bytearray) -> None:
        """What a caller says beside its calls; of kinds that nobody knows, nothing."""
        is_told = not flags & http2.ACKNOWLEDGES
        match kind:
            case http2.Kind.SETTINGS if is_told:
                self._take_settings(payload)
            case http2.Kind.PING if is_told:
                self._outbox.say(http2.pong(payload))
            case http2.Kind.WINDOW:
                count = http2.numbers(payload, 1)[0] & http2.LARGEST
                if not count:
                    raise Http2Error("a window that is widened by nothing")
                self._outbox.widen(stream, count)
            case http2.Kind.RESET:
                if stream > self._last or not stream:
                    raise Http2Error("the end of a call that has not begun")
                if call := self._calls.get(stream):
                    call.context.gone()
            case http2.Kind.PROMISE:
                raise Http2Error("a caller that promises")

    def _take_settings(self, payload: bytearray) -> None:
        told = http2.read_settings(payload)
        self._outbox.agree(told.get(Setting.INITIAL_WINDOW), told.get(Setting.LARGEST_FRAME))

    def _take_data(self, length: int, flags: int, stream: int) -> UnderWay | None:
        """The one frame that may be long: it goes where the call's message is to lie."""
        if not stream & 1 or stream > self._last:
            raise Http2Error("data of a call that has not begun")
        call = self._calls.get(stream)
        self._let_more(length)
        if call is not None:
            self._check_let(call, length)
        if call is None or length < _SMALL_BYTES:
            self._patience.bear(length, self._outbox.sent_bytes)
        padding = 0  # With the byte that tells how much.
        if flags & http2.IS_PADDED and length:
            padding = 1 + self._read(1)[0]
            length -= padding
            if length < 0:
                raise Http2Error("padding beyond its frame")
        self._take_body(call, length)
        if padding:
            self._read(padding - 1)
        if call is None:
            return None
        if flags & http2.ENDS_STREAM:
            call.context.inbox.end()
        elif padding:
            self.let_in(call.context, padding)
        return self._made_ready(call)

    def _check_let(self, call: UnderWay, length: int) -> None:
        with self._lock:
            call.window -= length
        if call.window < 0:
            raise Http2Error("more than was let in", code=Code.FLOW_CONTROL)
        if call.context.inbox.is_ended:
            raise Http2Error("data behind the end of a call")

    def _take_body(self, call: UnderWay | None, length: int) -> None:
        """Read so many bytes to where they belong; to nowhere, where nobody will take them."""
        inbox = None
        if call is not None and not (call.is_made and call.handler.needs_message):
            inbox = call.context.inbox
        while length:
            room = (inbox.room() if inbox else self._scrapped())[:length]
            self._wire.fill(room)
            length -= len(room)
            if call is not None and inbox is not None:
                try:
                    inbox.took(len(room))
                except RefusedError as error:
                    self._refuse(call, error)
                    inbox = None

    def _take_headers(self, kind: int, flags: int, stream: int, payload: bytearray) -> UnderWay | None:
        came = self._blocks.take(kind, flags, stream, payload)
        if came is None:
            return None
        if stream > self._last:
            self._last = stream
            return self._begin(came)
        call = self._calls.get(stream)
        if call is None:
            return None
        if not came.is_last:
            raise Http2Error("header lists without end")
        call.context.inbox.end()
        return self._made_ready(call)

    def _begin(self, came: HeaderList) -> UnderWay | None:
        """Hear of a call; it, if it can be made at once."""
        stream, fields, is_last = came
        if self._is_leaving or len(self._calls) - len(self._ending) >= self._terms.most_streams:
            self._outbox.say(http2.reset(stream, Code.REFUSED_STREAM))
            return None
        self._outbox.open(stream)
        share = Share(self._terms.capacity)
        inbox = Inbox(self._terms.most_bytes, fields.get("grpc-encoding"), share.hold)
        if is_last:
            inbox.end()
        context = Context(stream, self.host, fields, inbox=inbox, share=share, outbox=self._outbox, home=self)
        handler = self._terms.handlers.get(fields.get(":path", ""), self._terms.unknown)
        call = self._calls[stream] = UnderWay(context, handler, self._window)
        if not self._is_grpc(call, fields):
            return None
        try:
            context.until_s = until_s(fields)
            handler.admit(context)
            context.share.enter()
        except RefusedError as error:
            self._refuse(call, error)
            return None
        if context.until_s is not None:
            call.deadline = self._terms.deadlines.add(context)
        ready = self._made_ready(call)
        if ready is None:
            call.place = self._terms.awaited.enter(context)
            if context.is_over:  # Since a moment, and who ended it saw no place.
                self._terms.awaited.leave(call.place)
        return ready

    def _is_grpc(self, call: UnderWay, fields: Mapping[str, str]) -> bool:
        status = _NOT_ALLOWED if fields.get(":method") != _POST else _NOT_SUPPORTED
        if status == _NOT_SUPPORTED and fields.get("content-type", "").startswith(GRPC):
            return True
        call.context.refuse_http(status)
        return False

    def _made_ready(self, call: UnderWay) -> UnderWay | None:
        """The call, if it can be made now."""
        inbox = call.context.inbox
        if inbox.has_message:
            self._patience.restore()
        is_awaited = call.handler.needs_message and not (inbox.has_message or inbox.is_ended)
        if call.is_made or call.context.is_over or is_awaited:
            return None
        call.is_made = True
        if call.place is not None:
            self._terms.awaited.leave(call.place)
        return call

    def _refuse(self, call: UnderWay, error: RefusedError) -> None:
        if error.kind is Kind.BUSY:  # The next one is to find a place.
            for places in (self._terms.untaken, self._terms.awaited):
                places.end_oldest_before(clock.now_ns() - _LEAST_NS)
        call.handler.refuse(call.context, error)

    def _let_more(self, length: int) -> None:
        """Allow of all calls anew what has come: what one may send has a bound of its own."""
        self._untold += length
        if self._untold > http2.LARGEST // 2:
            self._outbox.say(http2.window(0, self._untold))
            self._untold = 0

    def _scrapped(self) -> memoryview:
        if not self._scrap:
            self._scrap = memoryview(bytearray(_SCRAP_BYTES))
        return self._scrap

    def _read(self, length: int) -> bytearray:
        payload = bytearray(length)
        self._wire.fill(memoryview(payload))
        return payload
