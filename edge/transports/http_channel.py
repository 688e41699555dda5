"""The connection to a worker over HTTP: pooled connections, one call at a time on each."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError, SSLError

from edge.transports.channel import (
    CallOutcome,
    ChannelError,
    Indeterminate,
    NotDelivered,
    OnOutcome,
    ProtocolAdapter,
    RpcRefusal,
    RpcReply,
)
from edge.transports.credentials import WorkerCredentials
from edge.transports.http_client import HttpReply, WorkerHttpClient, describe_error
from edge.transports.transport import EncodedRequest
from shared.clock import Deadline
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.messages.frame import Status
from shared.messages.msgpack_reader import MAX_MESSAGE_BYTES
from shared.messages.node_status import MAX_STATUS_BYTES
from shared.network.endpoint import Endpoint

TIMEOUT_HEADER = "Skylane-Timeout-Ms"

_STATUS_PATH, _PROBE_PATH = "/skylane/v1/status", "/skylane/v1/probe"
_PROBE_TIMEOUT_S = 2.0  # A slower echo is useless for estimating the clock offset.
_CONTROL_TIMEOUT_S = 5.0
_STATUS_INTERVAL_S = 0.5
_BASE64_GROWTH = 4 / 3  # JSON replies carry the result in base64.
_MAX_REPLY_BYTES = int(MAX_MESSAGE_BYTES * _BASE64_GROWTH) + (1 << 20)
_OK = 200
_STOPPING = 503
_SERVER_ERROR = 500
_FINAL = (401, 403, 404, 405, 501)  # A later attempt would fail as well.
_REFUSALS = {408: Status.EXPIRED, 429: Status.OVERLOADED, 504: Status.EXPIRED}
_UNSENT = (NewConnectionError, ConnectTimeoutError, SSLError)


class HttpAdapter(ProtocolAdapter, Protocol):
    """A protocol adapter with the path and the content type of its requests."""

    path: str
    content_type: str


class HttpChannel:
    """The connection to a worker's HTTP endpoint. See RpcChannel."""

    def __init__(
        self, address: Endpoint, adapter: HttpAdapter, credentials: WorkerCredentials, vehicle: str, *, window: int = 1
    ) -> None:
        """Opens no connection yet. `window`: maximum number of unanswered frames.

        Raises:
            WorkerAddressError: the token would travel unencrypted, or the certificate authority is invalid.
        """
        self._adapter = adapter
        max_calls = 2 * window  # A retry runs at the same time as its first attempt.
        # The status and the probes have a connection each, so that they never wait for frames.
        self._client = WorkerHttpClient(address, credentials, vehicle, max_connections=max_calls + 2)
        self._threads = ThreadPoolExecutor(max_calls + 1, "http")
        self._probe_slot = threading.Semaphore(1)
        self._interrupted = threading.Event()

    def call(self, request: EncodedRequest, deadline: Deadline, timeout_s: float, on_outcome: OnOutcome) -> None:
        """See RpcChannel."""
        metadata = {name: value if isinstance(value, str) else value.decode() for name, value in request.metadata}
        headers = {**metadata, "content-type": self._adapter.content_type}
        if (remaining_ms := deadline.remaining_ms()) is not None:
            headers[TIMEOUT_HEADER] = str(remaining_ms)

        def call() -> None:
            on_outcome(self._post(self._adapter.path, request.body, headers, timeout_s, _MAX_REPLY_BYTES))

        self._run(call)

    def probe(self, payload: bytes, on_echo: Callable[[bytes, int], None]) -> None:
        """See RpcChannel. Sends nothing while an earlier probe waits for its echo."""
        if not self._probe_slot.acquire(blocking=False):
            return

        def call() -> None:
            try:
                outcome = self._post(_PROBE_PATH, payload, {}, _PROBE_TIMEOUT_S, MAX_PROBE_BYTES)
            finally:
                self._probe_slot.release()
            if isinstance(outcome, RpcReply):
                on_echo(bytes(outcome.body), outcome.returned_ns)

        self._run(call)

    def echo(self, payload: bytes) -> bytes:
        """See RpcChannel."""
        return self._control("POST", _PROBE_PATH, payload, MAX_PROBE_BYTES)

    def statuses(self) -> Iterator[bytes]:
        """See RpcChannel. Polls the worker."""
        last = b""
        self._interrupted.clear()
        while not self._interrupted.is_set():
            status = self._control("GET", _STATUS_PATH, b"", MAX_STATUS_BYTES)
            if status != last:
                last = status
                yield status
            self._interrupted.wait(_STATUS_INTERVAL_S)

    def interrupt(self) -> None:
        """See RpcChannel."""
        self._interrupted.set()

    def close(self) -> None:
        """See RpcChannel."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()
        self._threads.shutdown()

    def _run(self, call: Callable[[], None]) -> None:
        # Raised after `close`, and if the system allows no more threads: the call then waits for a running one.
        with suppress(RuntimeError):
            self._threads.submit(call)

    def _control(self, method: str, path: str, body: bytes, max_bytes: int) -> bytes:
        try:
            reply = self._client.request(method, path, body, timeout_s=_CONTROL_TIMEOUT_S, max_bytes=max_bytes)
        except _UNSENT as error:
            problem = f"it cannot be reached ({describe_error(error)})"
            raise ChannelError(problem, is_final=isinstance(error, SSLError)) from error
        except HTTPError as error:
            raise ChannelError(describe_error(error)) from error
        if reply.body is None:
            raise ChannelError(f"its reply to {path} is larger than {max_bytes} bytes")
        if reply.status != _OK:
            raise ChannelError(f"HTTP {reply.status}: {reply.text}", is_final=reply.status in _FINAL)
        return reply.body

    def _post(self, path: str, body: bytes, headers: dict[str, str], timeout_s: float, max_bytes: int) -> CallOutcome:
        try:
            reply = self._client.request("POST", path, body, headers, timeout_s=timeout_s, max_bytes=max_bytes)
        except _UNSENT:
            return NotDelivered(is_stopping=False)
        except ReadTimeoutError:
            return Indeterminate(is_broken=False)
        except (HTTPError, OSError):
            return Indeterminate(is_broken=True)
        return _outcome(reply, max_bytes)


def _outcome(reply: HttpReply, max_bytes: int) -> CallOutcome:
    if reply.body is None:
        reason = f"too_large: the reply is larger than {max_bytes} bytes"
        return RpcRefusal(Status.FAILED, reason, reply.returned_ns)
    if reply.status == _OK:
        return RpcReply(reply.body, reply.headers, reply.returned_ns)
    if reply.status == _STOPPING:
        return NotDelivered(is_stopping=True)
    status = _REFUSALS.get(reply.status) or (Status.FAILED if reply.status >= _SERVER_ERROR else Status.REJECTED)
    return RpcRefusal(status, f"HTTP {reply.status}: {reply.text}", reply.returned_ns)
