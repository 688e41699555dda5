"""The vehicle's report of its last minute, for `skylane status` and `skylane top`."""

from collections.abc import Callable

from edge.config import EdgeConfig
from shared import clock
from shared.messages.node_metrics import MAX_REASON, VehicleMetrics
from shared.recent_frames import RecentFrames
from shared.runlog.latency_log import LatencyRow
from shared.stages import Stage

_INTERVAL_NS = 2_000_000_000


class RunMetrics:
    """Collects the ended frames of a run, and makes a report of them, at most one in two seconds."""

    def __init__(self, config: EdgeConfig, session: str, report: Callable[[VehicleMetrics], None]) -> None:
        """`report` sends a report and returns at once."""
        self._config = config
        self._session = session
        self._report = report
        self._recent = RecentFrames()
        self._clock_error_ns: int | None = None
        self._due_ns = 0

    def ended(self, row: LatencyRow) -> None:
        """Adds the row of a frame. Any thread may call it."""
        if row.clock is not None:
            self._clock_error_ns = row.clock.error_ns
        if row.outcome.has_result:
            total_ns = max(row.edge_times.values()) - row.edge_times[Stage.DUE]
            self._recent.add(row.outcome.value, {"total": total_ns})
        else:
            self._recent.add(row.outcome.value, {}, row.reason[:MAX_REASON] or row.outcome.value)

    def report_if_due(self, in_flight: int) -> None:
        """Reports the last minute if two seconds have passed since the last time."""
        now_ns = clock.now_ns()
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + _INTERVAL_NS
        recent = self._recent.summary()
        self._report(
            VehicleMetrics(
                session=self._session,
                model=self._config.model,
                seconds=recent.seconds,
                frames=recent.frames,
                reason=recent.reason,
                total=recent.times.get("total"),
                in_flight=in_flight,
                clock_error_ms=None if self._clock_error_ns is None else self._clock_error_ns / 1e6,
            )
        )
