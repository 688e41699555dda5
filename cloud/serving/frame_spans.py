"""The spans of a worker's frames: one for the frame, a child of the vehicle's, one for each stage, and one for each batch."""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from opentelemetry.trace import SpanKind

from cloud.config import CloudConfig
from cloud.serving.request import Request
from shared.messages.frame import ResultMessage, Status
from shared.span_export import SpanExport, open_span_export
from shared.stages import CLOUD_STAGES, Stage
from shared.trace_context import TraceContext

_MAX_BATCHES = 64  # Batches of which some frames have no reply yet.


@contextmanager
def export_replies(config: CloudConfig) -> Iterator[Callable[[Request, ResultMessage], None]]:
    """Yields what exports the spans of a frame whose reply is sent; it returns at once."""
    assert config.otel is not None
    with open_span_export(config.otel, "skylane-worker", config.worker or "") as export:
        batches = _Batches()

        def replied(request: Request, reply: ResultMessage) -> None:
            given = TraceContext.parse(request.traceparent)
            context = (given or TraceContext.of_frame(reply.id, reply.attempt)).sampled(config.otel_share)
            if context.is_sampled:
                is_ours = given is not None or (request.message is not None and bool(request.message.stamps))
                times = [(stage, request.times[stage]) for stage in CLOUD_STAGES if stage in request.times]
                export.later(partial(batches.make, times, reply, context, is_ours))

        yield replied
        export.later(batches.end)


class _Batches:
    """Makes the spans of frames, and of each batch when all its frames have theirs."""

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str, int], _Batch] = OrderedDict()  # By model, version and start.

    def make(
        self,
        times: list[tuple[Stage, int]],
        reply: ResultMessage,
        context: TraceContext,
        is_from_vehicle: bool,  # noqa: FBT001
        export: SpanExport,
    ) -> None:
        """Makes the spans of a frame."""
        attributes = {
            "skylane.frame": str(reply.id),
            "skylane.status": str(reply.status),
            "skylane.model": reply.model,
            "skylane.model_version": reply.model_version,
            "skylane.batch_size": reply.batch_size,
        }
        whole = export.span(
            "serve",
            (times[0][1], times[-1][1]),
            parent=context if is_from_vehicle else None,
            kind=SpanKind.SERVER,
            attributes=attributes,
            problem="" if reply.status is Status.ANSWERED else f"{reply.status}: {reply.reason}",
        )
        for (_, start_ns), (stage, end_ns) in pairwise(times):
            export.span(stage, (start_ns, end_ns), parent=whole)
        stamps = dict(times)
        if reply.batch_size > 1 and Stage.INFERRED in stamps:
            key = (reply.model, reply.model_version, stamps[Stage.BATCHED])
            batch = self._open.setdefault(key, _Batch(stamps[Stage.INFERRED], reply.batch_size))
            batch.frames.append(whole)
            if len(batch.frames) == batch.size:
                self._close(key, export)
            elif len(self._open) > _MAX_BATCHES:
                self._close(next(iter(self._open)), export)

    def end(self, export: SpanExport) -> None:
        """Makes the spans of batches of which not every frame is sampled."""
        while self._open:
            self._close(next(iter(self._open)), export)

    def _close(self, key: tuple[str, str, int], export: SpanExport) -> None:
        batch = self._open.pop(key)
        attributes = {"skylane.model": key[0], "skylane.model_version": key[1], "skylane.batch_size": batch.size}
        export.span("batch", (key[2], batch.inferred_ns), attributes=attributes, links=batch.frames)


@dataclass(slots=True)
class _Batch:
    inferred_ns: int
    size: int
    frames: list[TraceContext] = field(default_factory=list)
