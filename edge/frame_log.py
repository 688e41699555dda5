"""Log lines about frames: those that were not answered, those that were sent again, and a model that changes."""

from edge.reliability.reply_validation import ReplyOrigin
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome

_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


class FrameLog:
    """Logs what happens to the frames of a run. Any thread may call it; the lines are rate-limited by their kind."""

    def __init__(self) -> None:
        self._limited = RateLimitedLogger(get_logger("edge"))
        self._model: tuple[str, str] | None = None  # Version and hash that answered last.

    def ended(self, frame_id: FrameId, outcome: Outcome, reason: str, worker: str) -> None:
        """Logs a frame that ended without an answer in time."""
        if outcome is Outcome.ANSWERED:
            return
        # Reasons of drops are the vehicle's own; others come from workers, which could make a new one for every frame.
        kind = reason.partition(":")[0] if outcome is Outcome.DROPPED else ""
        fields = {"camera": frame_id.camera, "frame_id": str(frame_id), "reason": reason}
        if worker:
            fields["worker"] = worker
        self._limited.warning((outcome, kind), f"frame {outcome.value}", **fields)

    def sent_again(self, frame_id: FrameId, worker: str, silent_ns: int) -> None:
        """Logs a frame that was sent a second time, to `worker`, as the first attempt met silence."""
        self._limited.warning(
            "sent again",
            "frame sent again",
            camera=frame_id.camera,
            frame_id=str(frame_id),
            worker=worker,
            silent_ms=round(silent_ns / 1e6),
        )

    def stands_still(self, worker: str) -> None:
        """Logs a worker that answers no probes while others do; its frames are sent again."""
        self._limited.warning(("stands still", worker), "worker stands still", worker=worker)

    def answered(self, frame_id: FrameId, model: str, by: ReplyOrigin) -> None:
        """Logs an answer by another version of the model, or another file, than the answer before."""
        now = (by.model_version, by.sha256)
        before, self._model = self._model, now
        if before is not None and before != now:
            self._limited.warning(
                "model changed",
                "model changed",
                model=model,
                version=by.model_version,
                sha256=by.sha256[:_SHOWN_DIGITS],
                version_before=before[0],
                sha256_before=before[1][:_SHOWN_DIGITS],
                worker=by.worker,
                frame_id=str(frame_id),
            )
