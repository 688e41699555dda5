"""The spans of a worker's frames, for the share `otel_share` of them.

There is one for the frame (a child of the sender's, if it traces), one for each stage, and one for each batch of several frames.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from opentelemetry.trace import SpanKind

from cloud.config import CloudConfig
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.messages.topics import TraceContext
from shared.span_export import SpanExport
from shared.stages import Stage

_MAX_BATCHES = 64  # Batches of which some frames have no reply yet.


@contextmanager
def export_replies(config: CloudConfig) -> Iterator[Callable[[Request, ResultMessage], None]]:
    """Yields what exports the spans of a frame whose reply is sent; it returns at once."""
    assert config.otel is not None
    with SpanExport(config.otel, "skylane-worker", config.worker or "") as export:
        batches = _Batches()

        def replied(request: Request, reply: ResultMessage) -> None:
            given = TraceContext.parse(request.traceparent)
            context = (given or TraceContext.of_frame(reply.id, reply.attempt)).sampled(config.otel_share)
            if context.is_sampled:
                has_parent = given is not None or (request.message is not None and bool(request.message.stamps))
                parent = context if has_parent else None
                export.later(partial(batches.make, request.own_times, reply, parent))

        yield replied
        export.later(batches.end)


class _Batch(NamedTuple):
    model: str
    version: str
    batched_ns: int
    inferred_ns: int
    size: int


class _Batches:
    """Makes the spans of frames, and of each batch when all its frames have theirs."""

    def __init__(self) -> None:
        self._open: dict[_Batch, list[TraceContext]] = {}  # The oldest first.

    def make(
        self, times: dict[Stage, int], reply: ResultMessage, parent: TraceContext | None, export: SpanExport
    ) -> None:
        """Makes the spans of a frame. `parent`: that of a client which traces its frames."""
        attributes = {
            "skylane.frame": str(reply.id),
            "skylane.status": str(reply.status),
            "skylane.model": reply.model,
            "skylane.model_version": reply.model_version,
            "skylane.batch_size": reply.batch_size,
        }
        problem = "" if reply.status is Status.ANSWERED else f"{reply.status}: {reply.reason}"
        span_ns = (min(times.values()), max(times.values()))
        whole = export.span(
            "serve", span_ns, parent=parent, kind=SpanKind.SERVER, attributes=attributes, problem=problem
        )
        for (_, start_ns), (stage, end_ns) in pairwise(times.items()):
            export.span(stage, (start_ns, end_ns), parent=whole)
        if reply.batch_size > 1 and Stage.INFERRED in times:
            stamps = times[Stage.BATCHED], times[Stage.INFERRED]
            batch = _Batch(reply.model, reply.model_version, *stamps, reply.batch_size)
            frames = self._open.setdefault(batch, [])
            frames.append(whole)
            if len(frames) == batch.size:
                self._close(batch, export)
            elif len(self._open) > _MAX_BATCHES:
                self._close(next(iter(self._open)), export)

    def end(self, export: SpanExport) -> None:
        """Makes the spans of batches of which not every frame is sampled."""
        for batch in list(self._open):
            self._close(batch, export)

    def _close(self, batch: _Batch, export: SpanExport) -> None:
        attributes = {
            "skylane.model": batch.model,
            "skylane.model_version": batch.version,
            "skylane.batch_size": batch.size,
        }
        span_ns = (batch.batched_ns, batch.inferred_ns)
        export.span("batch", span_ns, attributes=attributes, links=self._open.pop(batch))
