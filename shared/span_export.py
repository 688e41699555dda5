"""Exports the spans of frames by OpenTelemetry's SDK (OTLP over HTTP), in a thread of its own that delays nobody."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, SpanKind, TraceFlags, set_span_in_context
from opentelemetry.trace.status import Status, StatusCode

from shared.logs import get_logger
from shared.runtime.machine import package_version
from shared.threads import lower_priority
from shared.trace_context import TraceContext

_LOG = get_logger("spans")
_MAX_WAITING = 1024  # Frames whose spans are not made yet; later ones get none.
_BATCH = 512  # Spans of one message.
_PERIOD_S = 1.0  # Longest wait of a span.
_TIMEOUT_S = 2.0  # For one message, and for the rest at the end.

MakeSpans = Callable[["SpanExport"], None]


class SpanExport:
    """Makes the spans of frames that have ended, and sends them. Use `open_span_export`."""

    def __init__(self, url: str, service: str, name: str) -> None:
        """`service` and `name` identify the node in the traces."""
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # This module logs failures, once.
        version = package_version("skylane") or "unknown"
        about = {"service.name": service, "service.instance.id": name, "service.version": version}
        self._url = url
        self._ids = _Ids()
        self._made: list[ReadableSpan] = []
        provider = TracerProvider(ALWAYS_ON, Resource.create(about), shutdown_on_exit=False, id_generator=self._ids)
        provider.add_span_processor(_Collector(self._made))
        self._tracer = provider.get_tracer("skylane")
        self._exporter = OTLPSpanExporter(f"{url.rstrip('/')}/v1/traces", timeout=_TIMEOUT_S, session=_HeadersOnly())
        self._waiting: queue.Queue[MakeSpans | None] = queue.Queue(_MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
        self.sent = 0  # Spans that the receiver has accepted.
        self.lost = 0  # Spans that it has not.
        self.skipped = 0  # Frames without spans, because too many waited.

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def later(self, make: MakeSpans) -> None:
        """Makes the spans of a frame soon, by calling `make` in the export's thread. Never waits."""
        try:
            self._waiting.put_nowait(make)
        except queue.Full:
            self.skipped += 1

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
        """Makes a span and returns its context. `own`: the ids that it gets; otherwise they are random."""
        self._ids.next = own
        context = Context() if parent is None else set_span_in_context(NonRecordingSpan(_span_context(parent)))
        linked = [Link(_span_context(each)) for each in links]
        span = self._tracer.start_span(name, context, kind, attributes, linked, times_ns[0])
        if problem:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(max(times_ns))
        ids = span.get_span_context()
        return TraceContext(ids.trace_id, ids.span_id)

    def close(self) -> None:
        """Sends what waits, as far as the receiver takes it in two seconds."""
        ends_s = time.monotonic() + _TIMEOUT_S
        try:
            self._waiting.put(None, timeout=_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(max(0.0, ends_s - time.monotonic()))

    def _run(self) -> None:
        lower_priority()
        is_open = True
        while is_open:
            due_s = time.monotonic() + _PERIOD_S
            while is_open and len(self._made) < _BATCH:
                try:
                    make = self._waiting.get(timeout=max(0.0, due_s - time.monotonic()))
                except queue.Empty:
                    break
                is_open = make is not None
                if make is not None:
                    make(self)
            self._send()

    def _send(self) -> None:
        spans = self._made.copy()
        self._made.clear()
        if not spans:
            return
        if self._exporter.export(spans) is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            return
        if not self.lost:
            _LOG.warning("spans not accepted; later failures are only counted", receiver=self._url)
        self.lost += len(spans)


@contextmanager
def open_span_export(url: str, service: str, name: str) -> Iterator[SpanExport]:
    """Yields the export of a node's spans; logs at the end how many were sent."""
    export = SpanExport(url, service, name)
    export.start()
    try:
        yield export
    finally:
        export.close()
        _LOG.info("spans", receiver=url, sent=export.sent, lost=export.lost, frames_skipped=export.skipped)


class _Ids(RandomIdGenerator):
    """Gives the next span the ids that it must have."""

    next: TraceContext | None = None

    def generate_trace_id(self) -> int:
        return super().generate_trace_id() if self.next is None else self.next.trace_id

    def generate_span_id(self) -> int:
        return super().generate_span_id() if self.next is None else self.next.span_id


class _Collector(SpanProcessor):
    def __init__(self, spans: list[ReadableSpan]) -> None:
        self._spans = spans

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)


class _HeadersOnly(requests.Session):
    """Closes a connection without reading the body of the reply, which may have no end."""

    def request(self, *arguments: Any, **options: Any) -> requests.Response:
        response = super().request(*arguments, **options | {"stream": True})
        response.close()
        return response


def _span_context(context: TraceContext) -> SpanContext:
    return SpanContext(context.trace_id, context.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
