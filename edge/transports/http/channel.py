"""The way to a worker over HTTP: connections that are kept, one call on each at a time."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import BadStatusLine, RemoteDisconnected
from typing import Protocol

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

from edge.transports.call_threads import CallThreads
from edge.transports.channel import ChannelError, Dialect, Done, Outcome, Refused, Returned, Silent, Unsent
from edge.transports.credentials import Security
from edge.transports.http.connection_pool import connections
from edge.transports.transport import EncodedRequest
from shared import clock
from shared.encoding.msgpack_reader import MAX_MESSAGE_BYTES
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.messages.frame import Status
from shared.messages.node_status import MAX_STATUS_BYTES
from shared.network.endpoint import Endpoint
from shared.sanitize import printable

TIMEOUT_HEADER = "Skylane-Timeout-Ms"

_PROBE_S = 2.0  # An echo that took longer would tell nothing of the clocks.
_ASK_S = 5.0
_LOOK_S = 0.5  # Between two looks at the worker's status.
_BASE64 = 4 / 3
_MOST_ANSWER = int(MAX_MESSAGE_BYTES * _BASE64) + (1 << 20)  # The result, in JSON where it has to be.
_TOLD_CHARACTERS = 300  # Characters of what a server says.
_PIECE_BYTES = 1 << 18
_OK = 200
_SERVERS_FAULT = 500
_FINAL = (401, 403, 404, 405, 501)
_STOPPING = 503
_REFUSALS = {408: Status.EXPIRED, 429: Status.OVERLOADED, 504: Status.EXPIRED}
_UNSENT = (NewConnectionError, ConnectTimeoutError, SSLError)


class HttpAdapter(Dialect, Protocol):
    """A dialect, and the path that takes it."""

    path: str
    content_type: str


class HttpChannel:
    """A worker's HTTP door."""

    def __init__(
        self, address: Endpoint, dialect: HttpAdapter, security: Security, vehicle: str, *, most_calls: int
    ) -> None:
        """`most_calls`: under way at a time. Nothing is sent yet.

        Raises:
            WorkerAddressError: a token would travel in the clear, or the authority cannot be used.
        """
        self._dialect = dialect
        self._headers = security.headers(vehicle, address)
        self._pool = connections(address, security, most_calls + 2)  # The status and the probes have one each.
        self._calls = CallThreads("http-call", most_calls)
        self._probes = CallThreads("http-probe", 1)
        self._probing = threading.Semaphore(1)

    def call(self, parcel: EncodedRequest, budget_ms: int | None, timeout_s: float, done: Done) -> None:
        """See Line."""
        headers = {**self._headers, **_texts(parcel.beside), "content-type": self._dialect.content_type}
        if budget_ms is not None:
            headers[TIMEOUT_HEADER] = str(budget_ms)
        ask = _Ask("POST", self._dialect.path, parcel.body, headers, timeout_s, _MOST_ANSWER)
        self._calls.run(lambda: done(self._outcome(ask)))

    def probe(self, payload: bytes, echoed: Callable[[bytes, int], None]) -> None:
        """See Line. While one is unanswered the next is not sent: it would only wait behind it."""
        if not self._probing.acquire(blocking=False):
            return

        def probed() -> None:
            try:
                outcome = self._outcome(self._ask_echo(payload, _PROBE_S))
            finally:
                self._probing.release()
            if isinstance(outcome, Returned):
                echoed(bytes(outcome.body), outcome.returned_ns)

        self._probes.run(probed)

    def echo(self, payload: bytes) -> bytes:
        """See Line."""
        return self._asked(self._ask_echo(payload, _ASK_S))

    def statuses(self, stop: threading.Event) -> Iterator[bytes]:
        """See Line. It is asked for again and again."""
        ask = _Ask("GET", "/skylane/v1/status", b"", self._headers, _ASK_S, MAX_STATUS_BYTES)
        told = b""
        while not stop.is_set():
            now = self._asked(ask)
            if now != told:
                told = now
                yield now
            stop.wait(_LOOK_S)

    def close(self) -> None:
        """See Line."""
        self._pool.close()
        self._calls.close()
        self._probes.close()

    def _ask_echo(self, payload: bytes, timeout_s: float) -> "_Ask":
        return _Ask("POST", "/skylane/v1/probe", payload, self._headers, timeout_s, MAX_PROBE_BYTES)

    def _asked(self, ask: "_Ask") -> bytes:
        try:
            answer = self._spoken(ask)
        except _UNSENT as error:
            raise ChannelError(
                f"it cannot be reached ({told_of(error)})", is_final=isinstance(error, SSLError)
            ) from error
        except HTTPError as error:
            raise ChannelError(told_of(error)) from error
        if answer.body is None:
            raise ChannelError(f"its answer to {ask.path} is larger than {ask.most_bytes} bytes")
        if answer.status != _OK:
            raise ChannelError(f"HTTP {answer.status}: {_told(answer.body)}", is_final=answer.status in _FINAL)
        return answer.body

    def _outcome(self, ask: "_Ask") -> Outcome:
        try:
            answer = self._spoken(ask)
        except _UNSENT:
            return Unsent(is_stopping=False)
        except ReadTimeoutError:
            return Silent(is_broken=False)
        except (HTTPError, OSError):
            return Silent(is_broken=True)
        return _read(answer, ask.most_bytes)

    def _spoken(self, ask: "_Ask") -> "_Answer":
        """Ask, and take at most as much as is allowed, for as long.

        Raises:
            HTTPError: there is no whole answer, or not in time.
        """
        response = self._pool.urlopen(
            ask.method,
            ask.path,
            ask.body,
            ask.headers,
            retries=False,
            redirect=False,
            timeout=urllib3.Timeout(connect=ask.timeout_s, read=ask.timeout_s),
            preload_content=False,
            decode_content=False,
        )
        try:
            body = _body(response, ask)
        except BaseException:
            response.close()
            raise
        returned_ns = clock.now_ns()
        if body is None:
            response.close()  # With what is still to come.
        response.release_conn()
        return _Answer(response.status, response.headers, body, returned_ns)


@dataclass(frozen=True, slots=True)
class _Ask:
    """What is asked, for how long, and how much of an answer is taken."""

    method: str
    path: str
    body: bytes
    headers: Mapping[str, str]
    timeout_s: float
    most_bytes: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """What is answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes | None  # None: larger than is taken.
    returned_ns: int


def told_of(error: Exception) -> str:
    """What came in the way of a call, for people, at most 300 characters."""
    cause = error.args[-1] if error.args else None
    if isinstance(cause, RemoteDisconnected):
        return "it closes the connection without a word: where it speaks TLS, give --worker-tls-ca"
    if isinstance(cause, BadStatusLine):
        return "it does not answer in HTTP/1.1: give the address of its HTTP door (skylane cloud serve --http)"
    return str(error).rpartition(": ")[2][:_TOLD_CHARACTERS] or type(error).__name__


def _body(response: urllib3.BaseHTTPResponse, ask: _Ask) -> bytes | None:
    """None: it is larger than is taken."""
    announced = response.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > ask.most_bytes:
        return None
    body = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        body += piece
        if len(body) > ask.most_bytes:
            return None
    return bytes(body)


def _read(answer: _Answer, most_bytes: int) -> Outcome:
    if answer.body is None:
        reason = f"too_large: the answer is larger than {most_bytes} bytes"
        return Refused(Status.FAILED, reason, answer.returned_ns)
    if answer.status == _OK:
        return Returned(answer.body, answer.headers, answer.returned_ns)
    if answer.status == _STOPPING:
        return Unsent(is_stopping=True)
    status = _REFUSALS.get(answer.status) or (Status.FAILED if answer.status >= _SERVERS_FAULT else Status.REJECTED)
    return Refused(status, f"HTTP {answer.status}: {_told(answer.body)}", answer.returned_ns)


def _texts(beside: Iterable[tuple[str, str | bytes]]) -> dict[str, str]:
    return {name: value if isinstance(value, str) else value.decode() for name, value in beside}


def _told(answer: bytes) -> str:
    """What a server says, in one line."""
    return printable(answer[:_TOLD_CHARACTERS].decode(errors="replace")).strip() or "nothing is said"
