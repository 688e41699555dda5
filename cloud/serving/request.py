"""A frame inside the worker, independent of the frontend that received it, and the count of unexpected errors."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec

from shared import clock
from shared.clock import Deadline
from shared.compression import Buffer
from shared.inference.engine import Outputs
from shared.logs import get_logger
from shared.messages.frame import EMPTY_HEADER, FrameHeader, FrameMessage, Status
from shared.messages.topics import FrameId
from shared.stages import CLOUD_STAGES, Stage

P = ParamSpec("P")
UNHEALTHY_ERRORS = 10  # Errors within one minute from which the worker reports itself unhealthy.
_MINUTE_NS = 60_000_000_000
_MAX_LOGGED = 20  # Tracebacks written to the log in one minute; further errors are only counted.
_LOG = get_logger("cloud")


class Refusal(NamedTuple):
    """The status and the reason that the client receives instead of a result."""

    status: Status
    reason: str


CLIENT_GONE = Refusal(Status.EXPIRED, "the client no longer waits for the result")
EXPIRED_IN_QUEUE = Refusal(Status.EXPIRED, "the deadline passed while the frame waited")
EXPIRED_BEFORE_INFERENCE = Refusal(Status.EXPIRED, "the deadline passed before inference")
TOO_LATE = Refusal(Status.EXPIRED, "inference would end after the deadline")


def _no_refuse(request: "Request", refusal: Refusal) -> None:
    raise AssertionError(f"{request.model}: a request without `refuse` cannot be submitted ({refusal.reason})")


@dataclass(slots=True, eq=False)
class Request:
    """A frame on its way through the worker. Only one thread at a time holds it."""

    payload: Buffer  # The packed frame message; the encoded image where `message` is set from the start.
    vehicle: str  # Authenticated by the broker or by the gateway.
    camera: str
    model: str
    reply: Callable[..., None]  # Sends the reply, a ResultMessage, to the client; then the outputs, if it wants them.
    times: dict[Stage, int]  # Nanoseconds by stage; RECEIVED is the first.
    max_reply_bytes: int
    traceparent: str | None = None  # The trace context that the client sent.
    correlation: FrameId | None = None  # The recipient of a refusal if the payload cannot be read.
    header: FrameHeader = EMPTY_HEADER  # The fields that admission needs before the payload is read.
    message: FrameMessage | None = None
    outputs: Outputs | None = None  # The outputs of the model for this frame, without the batch dimension.
    image: Any = None  # The decoded image: uint8 H×W×3 in the colour order of the model.
    batch_size: int = 0
    refuse: Callable[["Request", Refusal], None] = _no_refuse  # Sends a refusal without blocking `submit`.
    wants_outputs: bool = False  # The raw outputs of the model instead of a result.
    is_wanted: Callable[[], bool] = lambda: True  # True if the client still waits for the result.
    on_finished: Callable[[], None] | None = None  # Called once, after the reply or when the request is dropped.

    @property
    def id(self) -> FrameId | None:
        """The frame's id; None if neither the message nor the correlation data has one."""
        return self.message.id if self.message else self.correlation

    @property
    def own_times(self) -> dict[Stage, int]:
        """The times of the stages that it has passed here, in their order."""
        return {stage: self.times[stage] for stage in CLOUD_STAGES if stage in self.times}

    @property
    def is_in_flight(self) -> bool:
        """True from its submission until `finish`."""
        return self.on_finished is not None

    @property
    def deadline(self) -> Deadline:
        """The deadline of the client, by this node's clock."""
        return (self.message or self.header).deadline

    def refusal(self, expired: Refusal) -> Refusal | None:
        """The reason why the client cannot use a result any more: `expired` after the deadline, or that it has gone."""
        if self.deadline.is_expired():
            return expired
        return None if self.is_wanted() else CLIENT_GONE

    def stamp(self, stage: Stage) -> None:
        """Records the current time as the end of a stage."""
        self.times[stage] = clock.now_ns()

    def finish(self) -> None:
        """Calls `on_finished`; later calls have no effect."""
        on_finished, self.on_finished = self.on_finished, None
        if on_finished is not None:
            on_finished()


class RequestErrors:
    """Counts unexpected exceptions by stage and logs their tracebacks. Thread-safe.

    Known errors of a request are `SkylaneError`s and are not recorded here.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._recent_ns: deque[int] = deque(maxlen=max(UNHEALTHY_ERRORS, _MAX_LOGGED))  # Times of the last errors.

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of errors since the worker started, by stage."""
        with self._lock:
            return dict(self._counts)

    @property
    def is_healthy(self) -> bool:
        """True if fewer than `UNHEALTHY_ERRORS` occurred within the last minute."""
        with self._lock:
            return self._within_minute(clock.now_ns()) < UNHEALTHY_ERRORS

    def record(self, stage: str, error: Exception) -> None:
        """Counts an error and logs its traceback. `stage` is the part of the worker that raised it."""
        now_ns = clock.now_ns()
        with self._lock:
            self._counts[stage] += 1
            is_logged = self._within_minute(now_ns) < _MAX_LOGGED
            self._recent_ns.append(now_ns)
        if is_logged:
            _LOG.error("unexpected error, only this request fails", stage=stage, exc_info=error)

    def guarded(self, stage: str, handler: Callable[P, None]) -> Callable[P, None]:
        """Wraps a handler so that exceptions are recorded and not raised."""

        def call(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                handler(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  One message must not stop the worker.
                self.record(stage, error)

        return call

    def _within_minute(self, now_ns: int) -> int:
        return sum(now_ns - at_ns < _MINUTE_NS for at_ns in self._recent_ns)
