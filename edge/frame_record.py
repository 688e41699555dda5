"""The record of a frame on the vehicle, from its due time until its row in the latency log, and its worker."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.clock import Deadline
from shared.imaging.frames import Pixels
from shared.imaging.geometry import Geometry
from shared.messages.frame import FrameMessage, ResultMessage
from shared.messages.results import ModelResult
from shared.messages.topics import FrameId
from shared.runlog.latency_log import LatencyRow, Outcome
from shared.stages import Stage, Stamp


@dataclass(slots=True)
class FrameRecord:
    """The state of one frame. Owned by one thread at a time: the pacer, the pipeline, then the ledger's caller."""

    id: FrameId
    row: LatencyRow  # Its row of the latency log, with the outcome `aborted` until it ends.
    deadline: Deadline = Deadline.NEVER
    worker: str = ""  # The worker to which the latest attempt was sent; empty if the transport chose it.
    expected_ns: int = 0  # Expected time from sending to the answer of that worker; 0: unknown.
    stamps: tuple[Stamp, ...] = ()  # Stamps of the first attempt, SENT last; a reply must repeat them.
    resent_ns: int = 0  # Send time of the second attempt; 0 without one.
    lost_after_ns: int = 0  # Time after which a missing reply counts as lost; set when the frame is sent.
    message: FrameMessage | None = None  # The sent message; kept until the frame ends if it may be sent again.
    refusal: ResultMessage | None = None  # Refusal of one attempt while the other may still be answered.
    image: Pixels | None = None  # The prepared image, in the colour order of the model.
    geometry: Geometry | None = None
    comparison: Any = None  # The gate's comparison of this frame with an earlier one; see `shared.reuse.gate`.

    @classmethod
    def of(cls, frame_id: FrameId, camera: str, **facts: Any) -> "FrameRecord":
        """Returns the record of a frame of `camera`, its name in the source. `facts`: other fields of its row."""
        names = (frame_id.vehicle, camera, frame_id.session, frame_id.sequence)
        return cls(frame_id, LatencyRow(*names, Outcome.ABORTED, camera_id=frame_id.camera, **facts))

    @property
    def times(self) -> dict[Stage, int]:
        """The time of each stage that the frame has passed, by the clock of this vehicle."""
        return self.row.edge_times

    @property
    def sent_ns(self) -> int:
        """Send time of the latest attempt."""
        return self.resent_ns or self.times[Stage.SENT]

    def stamps_of(self, attempt: int) -> tuple[Stamp, ...]:
        """Returns the stamps of an attempt; empty if there was no such attempt."""
        if attempt == 1:
            return self.stamps
        if attempt == 2 and self.resent_ns:  # A frame is sent at most twice.
            return (*self.stamps[:-1], Stamp(Stage.SENT, self.stamps[-1].node, self.resent_ns))
        return ()


# Called with the record of each frame that has ended, and its result if it came in time. Must not wait; only
# the writer of the sinks waits while they are far behind.
FrameListener = Callable[[FrameRecord, ModelResult | None], None]


class Assignment(NamedTuple):
    """The worker to which a frame is sent."""

    dispatch: str = ""  # The value of the column `dispatch`: load or group; empty without a broker.
    worker: str | None = None  # None: the transport gives the frame to any worker.
    expected_ns: int = 0  # Expected time until the answer; 0: unknown.


ANY_WORKER = Assignment()
GROUP = Assignment("group")
