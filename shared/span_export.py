"""Exports the spans of frames by OpenTelemetry's SDK (OTLP over HTTP), in a separate thread that delays no frame."""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import requests
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from shared.logs import get_logger
from shared.messages.topics import TraceContext
from shared.runtime.machine import package_version
from shared.sanitize import printable
from shared.threads import lower_priority

_LOG = get_logger("spans")
_MAX_WAITING = 1024  # Frames whose spans are not made yet; later ones get none.
_BATCH = 128  # Spans of one message; encoding more at once would delay other threads.
_PERIOD_S = 0.5  # Longest wait of a span.
_MAX_REPLY_BYTES = 1 << 16
_REASON_CHARACTERS = 120  # Characters.
_TIMEOUT_S = 2.0  # Timeout of one message, and of the remaining ones at the end.

_SCOPE = InstrumentationScope("skylane")
_UNSET = Status(StatusCode.UNSET)

MakeSpans = Callable[["SpanExport"], None]


class SpanExport:
    """Makes and sends the spans of ended frames inside a `with` block, and logs their number at its end."""

    def __init__(self, url: str, service: str, name: str) -> None:
        """`service` and `name` identify the node in the traces."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # This module logs failures, once.
        version = package_version("skylane") or "unknown"
        about = {"service.name": service, "service.instance.id": name, "service.version": version}
        self._url = url
        self._resource = Resource.create(about)
        self._made: list[ReadableSpan] = []
        self._session = _ShortReplies()
        self._exporter = OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S, session=self._session)
        self._waiting: deque[MakeSpans] = deque()  # Nothing wakes the thread: that would take more time than a span.
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self._sent = 0  # Spans that the receiver has accepted.
        self._lost = 0  # Spans that it has not.
        self._skipped = 0  # Frames without spans, because too many waited.

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Sends the waiting spans, as many as the receiver accepts in two seconds."""
        self._closed.set()
        self._thread.join(_TIMEOUT_S)
        if self._thread.is_alive():  # The receiver hangs: the thread is left behind.
            self._lost += len(self._made)
            self._skipped += len(self._waiting)
        _LOG.info("spans", receiver=self._url, sent=self._sent, lost=self._lost, frames_skipped=self._skipped)

    def later(self, make: MakeSpans) -> None:
        """Makes the spans of a frame soon, by calling `make` in the export's thread. Never waits."""
        if len(self._waiting) < _MAX_WAITING:
            self._waiting.append(make)
        else:
            self._skipped += 1

    def span(
        self,
        name: str,
        times_ns: tuple[int, int],
        *,
        parent: TraceContext | None = None,
        own: TraceContext | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, Any] | None = None,
        links: Sequence[TraceContext] = (),
        problem: str = "",
    ) -> TraceContext:
        """Makes a span and returns its context. `own`: the ids of the span; None: random ids."""
        if own is None:
            own = TraceContext(parent.trace_id if parent else random.getrandbits(128), random.getrandbits(64))
        self._made.append(
            ReadableSpan(  # A tracer takes six times as long, and needs a generator to give it these ids.
                name,
                _span_context(own),
                None if parent is None else _span_context(parent),
                self._resource,
                attributes,
                links=[Link(_span_context(each)) for each in links],
                kind=kind,
                status=Status(StatusCode.ERROR, problem) if problem else _UNSET,
                start_time=times_ns[0],
                end_time=max(times_ns),
                instrumentation_scope=_SCOPE,
            )
        )
        return own

    def _run(self) -> None:
        lower_priority()
        while not self._closed.wait(_PERIOD_S):
            self._make_waiting()
        self._make_waiting()

    def _make_waiting(self) -> None:
        while self._waiting:
            self._waiting.popleft()(self)
            time.sleep(0)  # Lets other threads go on.
            if len(self._made) >= _BATCH:
                self._send()
        self._send()

    def _send(self) -> None:
        if not self._made:
            return
        if self._exporter.export(self._made) is SpanExportResult.SUCCESS:
            self._sent += len(self._made)
        else:
            if not self._lost:
                reason = self._session.problem
                _LOG.warning("spans not accepted; later failures are only counted", receiver=self._url, reason=reason)
            self._lost += len(self._made)
        self._made.clear()


class _ShortReplies(requests.Session):
    """Ignores replies that are long or endless. Keeps the reason of the latest failed request."""

    problem = ""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        try:
            response = super().request(*arguments, **options | {"stream": True})
        except requests.RequestException as error:
            inner = getattr(error.args[0], "reason", error) if error.args else error
            self.problem = printable(str(inner).rpartition(": ")[2])[:_REASON_CHARACTERS]
            raise
        self.problem = printable(f"HTTP status {response.status_code} {response.reason}")[:_REASON_CHARACTERS]
        length = response.headers.get("Content-Length", "")
        if length.isdecimal() and len(length) <= len(str(_MAX_REPLY_BYTES)) and int(length) <= _MAX_REPLY_BYTES:
            _ = response.content  # The connection can be used again.
        else:
            response.close()
        return response


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
