"""The spans of a vehicle's frames: one for the frame, one per attempt to send it, and one per stage."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from opentelemetry.trace import SpanKind

from edge.config import EdgeConfig
from edge.frame_record import FrameListener, FrameRecord
from shared.messages.results import ModelResult
from shared.messages.topics import FrameId, TraceContext
from shared.runlog.latency_log import LatencyRow
from shared.span_export import SpanExport
from shared.stages import Stage


@contextmanager
def export_rows(config: EdgeConfig) -> Iterator[FrameListener]:
    """Yields a listener that exports the spans of each frame."""
    assert config.otel is not None
    with SpanExport(config.otel, "skylane-vehicle", config.vehicle) as export:

        def ended(record: FrameRecord, _: ModelResult | None) -> None:
            context = TraceContext.of_frame(record.id, 0, config.otel_share)
            if context.is_sampled:
                export.later(partial(_make, record.row, record.id, context))

        yield ended


def _make(row: LatencyRow, frame_id: FrameId, whole: TraceContext, export: SpanExport) -> None:
    times = list(row.edge_times.items())
    ends_ns = max(row.edge_times.values())
    attributes = {
        "skylane.frame": str(frame_id),
        "skylane.outcome": str(row.outcome),
        "skylane.reason": row.reason,
        "skylane.attempts": row.attempts,
        "skylane.bytes_up": row.bytes_up,
        "skylane.bytes_down": row.bytes_down,
    }
    if row.clock is not None:
        attributes |= {"skylane.clock_offset_ns": row.clock.offset_ns, "skylane.clock_error_ns": row.clock.error_ns}
    problem = "" if row.outcome.has_result else f"{row.outcome}: {row.reason}"
    export.span("frame", (times[0][1], ends_ns), own=whole, attributes=attributes, problem=problem)
    for (_, start_ns), (stage, end_ns) in pairwise(times):
        if stage is not Stage.RETURNED:
            export.span(stage, (start_ns, end_ns), parent=whole)
    sent_ns = row.edge_times.get(Stage.SENT)
    if sent_ns is None:
        return
    returned_ns = row.edge_times.get(Stage.RETURNED, ends_ns)
    first_ns = sent_ns - row.retry_wait_ns
    attempts = [(first_ns, sent_ns), (sent_ns, returned_ns)] if row.retry_wait_ns else [(sent_ns, returned_ns)]
    for number, span_ns in enumerate(attempts, 1):
        own = TraceContext.of_frame(frame_id, number)
        about = {"skylane.attempt": number, "skylane.worker": row.worker if number == len(attempts) else ""}
        export.span("attempt", span_ns, parent=whole, own=own, kind=SpanKind.CLIENT, attributes=about)
