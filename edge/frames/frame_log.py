"""Log lines about frames: those without a result, those sent a second time, and changes of the model."""

from edge.frames.reply_validation import ReplyOrigin
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.topics import FrameId
from shared.runlog.latency_log import Outcome

_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


class VehicleFrameLog:
    """Logs events of frames, rate-limited by kind. Any thread may call it."""

    def __init__(self) -> None:
        self._limited = RateLimitedLogger(get_logger("edge"))
        self._model: tuple[str, str] | None = None  # Version and hash of the latest answer.

    def ended(self, frame_id: FrameId, outcome: Outcome, reason: str, worker: str) -> None:
        """Logs a frame that ended without a result in time."""
        if outcome.has_result:
            return
        # The vehicle has few reasons to drop a frame; a worker could send a new reason with every frame.
        kind = reason.partition(":")[0] if outcome is Outcome.DROPPED else ""
        fields = {"camera": frame_id.camera, "frame_id": str(frame_id), "reason": reason}
        if worker:
            fields["worker"] = worker
        self._limited.warning((outcome, kind), f"frame {outcome.value}", **fields)

    def sent_again(self, frame_id: FrameId, worker: str, silent_ns: int) -> None:
        """Logs a frame that was sent again, to `worker`, after `silent_ns` without a reply."""
        self._limited.warning(
            "sent again",
            "frame sent again",
            camera=frame_id.camera,
            frame_id=str(frame_id),
            worker=worker,
            silent_ms=round(silent_ns / 1e6),
        )

    def unresponsive(self, worker: str) -> None:
        """Logs a worker that answers no probes while others do; its frames are sent again."""
        self._limited.warning(("unresponsive", worker), "worker unresponsive", worker=worker)

    def answered(self, frame_id: FrameId, model: str, origin: ReplyOrigin) -> None:
        """Logs an answer by another version of the model, or another file, than the previous answer."""
        current = (origin.model_version, origin.sha256)
        before, self._model = self._model, current
        if before is not None and before != current:
            self._limited.warning(
                "model changed",
                "model changed",
                model=model,
                version=origin.model_version,
                sha256=origin.sha256[:_SHOWN_DIGITS],
                version_before=before[0],
                sha256_before=before[1][:_SHOWN_DIGITS],
                worker=origin.worker,
                frame_id=str(frame_id),
            )
