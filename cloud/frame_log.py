"""Log lines about frames: vehicles that join, frames that are refused, and a summary once a minute."""

import threading
from collections import OrderedDict
from collections.abc import Mapping

from cloud.serving.request import Request
from shared import clock
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage, Status

_MAX_SESSIONS = 1024  # Known sessions of vehicles; beyond this limit, the least recent one is forgotten.
_LOG = get_logger("cloud")


class WorkerFrameLog:
    """Logs what happens to frames, with a rate limit per vehicle and status. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._joined = RateLimitedLogger(_LOG)
        self._refused = RateLimitedLogger(_LOG)

    def replied(self, request: Request, message: ResultMessage) -> None:
        """Logs the first reply to a session of a vehicle, and every refusal."""
        frame_id = message.id
        session = (frame_id.vehicle, frame_id.session)
        with self._lock:
            is_new = session not in self._sessions
            self._sessions[session] = None
            self._sessions.move_to_end(session)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        if is_new:
            self._joined.info(session, "vehicle joined", vehicle=frame_id.vehicle, session=frame_id.session)
        if message.status is not Status.ANSWERED:
            self._refused.warning(
                (message.status, frame_id.vehicle),
                f"frame {message.status.value}",
                vehicle=frame_id.vehicle,
                camera=frame_id.camera,
                frame_id=str(frame_id),
                model=request.model,
                reason=message.reason,
            )

    def unreadable(self, request: Request, reason: str) -> None:
        """Logs a frame that got no reply because its id is unreadable."""
        self._refused.warning(
            ("unreadable", request.vehicle),
            "frame unreadable",
            vehicle=request.vehicle,
            camera=request.camera,
            model=request.model,
            reason=reason,
        )

    def ignored(self, reason: str, topic: str) -> None:
        """Logs a message without a reply; `reason` is a key of `Replier.ignored`."""
        self._refused.warning(("ignored", reason), "frame ignored", reason=reason, topic=topic)


class CountSummary:
    """Logs the growth of a worker's counts periodically."""

    def __init__(self, period_s: float = 60.0) -> None:
        self._period_ns = round(period_s * 1e9)
        self._counts: dict[str, int] = {}
        self._logged_ns = clock.now_ns()

    def update(self, counts: Mapping[str, int]) -> None:
        """Logs the summary if the period is over and a count has grown."""
        now_ns = clock.now_ns()
        if now_ns - self._logged_ns < self._period_ns:
            return
        grown = {name: count - self._counts.get(name, 0) for name, count in sorted(counts.items())}
        changed = {name: growth for name, growth in grown.items() if growth}
        if changed:
            _LOG.info("summary", seconds=round((now_ns - self._logged_ns) / 1e9), **changed)
        self._counts, self._logged_ns = dict(counts), now_ns
