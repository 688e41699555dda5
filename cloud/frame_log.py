"""Log lines about frames: vehicles that join, frames that are not answered, and a summary once a minute."""

import threading
from collections import OrderedDict
from collections.abc import Mapping

from cloud.serving.request import Request
from shared import clock
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage, Status

_MAX_SESSIONS = 1024  # Sessions of vehicles that are remembered; beyond this the one heard least recently is forgotten.
_LOG = get_logger("cloud")


class FrameLog:
    """Logs what happens to frames. Any thread may call it; the lines are rate-limited by vehicle and reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._joined = RateLimitedLogger(_LOG)
        self._refused = RateLimitedLogger(_LOG)

    def replied(self, request: Request, message: ResultMessage) -> None:
        """A frame was answered, or refused with a status and a reason."""
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
        """A frame does not even say which frame of its vehicle it is."""
        self._refused.warning(
            ("unreadable", request.vehicle),
            "frame unreadable",
            vehicle=request.vehicle,
            camera=request.camera,
            model=request.model,
            reason=reason,
        )

    def ignored(self, reason: str, topic: str) -> None:
        """A message was neither answered nor refused; `reason` is a key of `MqttFrontend.ignored`."""
        self._refused.warning(("ignored", reason), "frame ignored", reason=reason, topic=topic)


class Summary:
    """Logs once a period by how much a worker's counts have grown, if they have."""

    def __init__(self, period_s: float = 60.0) -> None:
        self._period_ns = round(period_s * 1e9)
        self._counts: dict[str, int] = {}
        self._logged_ns = clock.now_ns()

    def look(self, counts: Mapping[str, int]) -> None:
        """Logs the summary if a period has passed since the last one; to be called more often than that."""
        now_ns = clock.now_ns()
        if now_ns - self._logged_ns < self._period_ns:
            return
        grown = {name: count - self._counts.get(name, 0) for name, count in sorted(counts.items())}
        changed = {name: growth for name, growth in grown.items() if growth}
        if changed:
            _LOG.info("summary", seconds=round((now_ns - self._logged_ns) / 1e9), **changed)
        self._counts, self._logged_ns = dict(counts), now_ns
