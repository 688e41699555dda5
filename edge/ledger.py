"""The ledger: it owns every frame from the moment it is due until its one row is written."""

import threading
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from edge.clocks import Clocks
from shared import clock
from shared.frames import Frame, Pixels, UnreadableFrame
from shared.geometry import Geometry
from shared.latency_log import LogWriter, Outcome, Row
from shared.messages import MaskMessage, Status
from shared.stages import CLOUD_STAGES, Stage, Stamp, times_of
from shared.topics import FrameId, camera_name

_OUTCOMES = {
    Status.ANSWERED: Outcome.ANSWERED,
    Status.EXPIRED: Outcome.EXPIRED,
    Status.OVERLOADED: Outcome.OVERLOADED,
    Status.REJECTED: Outcome.REJECTED,
    Status.FAILED: Outcome.FAILED,
}


@dataclass(slots=True)
class Journey:
    """A frame under way. One thread at a time holds it: pacing, pipeline, then the ledger until its answer comes."""

    id: FrameId
    camera: str  # As the source names it; the id holds the form that a topic can carry.
    frame_index: int
    frame_stamp_ns: int
    source_ns: int
    read_ns: int
    times: dict[Stage, int]
    deadline_ns: int | None
    attempts: int = 0
    bytes_up: int = 0
    stamps: tuple[Stamp, ...] = ()  # As sent; an answer must echo them.
    given_up_ns: int = 0  # When silence becomes a loss; set when it is sent.
    picture: Pixels | None = None  # As it was sent, in the model's colour order; kept for the sinks while under way.
    geometry: Geometry | None = None


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a run stands."""

    read: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    ignored_answers: Mapping[str, int]  # Late, repeated, foreign: by reason; of probes as `echo_…`.
    median_ms: float | None  # Of the last answered frames, due to mask decoded.

    @property
    def closed(self) -> int:
        """Frames whose row is written."""
        return sum(self.outcomes.values())


class Ledger:
    """Every frame read gets one row. All methods may be called from any thread."""

    def __init__(
        self,
        log: LogWriter,
        *,
        vehicle: str,
        session: str,
        model: str,
        deadline_ms: float | None = None,
        answer_timeout_s: float = 30.0,
        grace_ms: float = 500.0,
        clocks: Clocks | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`clocks`: the workers', where somebody probes them; else they are known by the frames alone.

        `on_closed` is told of every sent frame that ends, so that the window can be given back its place.
        """
        self._log = log
        self._clocks = clocks or Clocks()
        self._vehicle = vehicle
        self._session = session
        self._model = model
        self._deadline_ns = None if deadline_ms is None else round(deadline_ms * 1e6)
        self._answer_timeout_ns = round(answer_timeout_s * 1e9)
        self._grace_ns = round(grace_ms * 1e6)
        self._on_closed = on_closed
        self._lock = threading.Lock()
        self._sequence = 0
        self._in_flight: dict[FrameId, Journey] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._ignored: Counter[str] = Counter()
        self._recent_ms: deque[float] = deque(maxlen=200)
        self._idle = threading.Condition(self._lock)

    def begin(self, frame: Frame | UnreadableFrame, due_ns: int) -> Journey:
        """A frame is due: from here on it is accounted for."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
        return Journey(
            id=FrameId(self._vehicle, camera_name(frame.camera), self._session, sequence),
            camera=frame.camera,
            frame_index=frame.index,
            frame_stamp_ns=frame.stamp_ns,
            source_ns=frame.source_ns,
            read_ns=frame.read_ns,
            times={Stage.DUE: due_ns},
            deadline_ns=None if self._deadline_ns is None else due_ns + self._deadline_ns,
        )

    def drop(self, journey: Journey, reason: str) -> None:
        """Close a frame that was never sent."""
        self._write(journey, Outcome.DROPPED, reason)

    def open(self, journey: Journey) -> None:
        """Journal a frame and expect its answer; call it just before publishing."""
        journey.attempts += 1
        now = clock.now_ns()
        journey.given_up_ns = (
            now + self._answer_timeout_ns if journey.deadline_ns is None else journey.deadline_ns + self._grace_ns
        )
        self._log.open(self._row(journey, Outcome.ABORTED, ""))
        with self._lock:
            self._in_flight[journey.id] = journey

    def withdraw(self, frame_id: FrameId, reason: str) -> None:
        """Close a sent frame that is known to reach nobody."""
        journey = self._pop(frame_id)
        if journey:
            self._close(journey, Outcome.DROPPED, reason)

    def accept(self, message: MaskMessage) -> Journey | None:
        """The journey that an answer belongs to, no longer in flight; None for a late, repeated or foreign answer."""
        with self._lock:
            journey = self._in_flight.get(message.id)
            if journey is None:
                reason = "late_or_repeated" if message.id.session == self._session else "other_session"
            elif not _echoes(message, journey):
                reason = "stamps_not_ours"
            else:
                del self._in_flight[message.id]
                return journey
            self._ignored[reason] += 1
            return None

    def ignore(self, reason: str) -> None:
        """Count an answer that could not be read."""
        with self._lock:
            self._ignored[reason] += 1

    def finish(self, journey: Journey, message: MaskMessage, bytes_down: int, fault: str = "") -> Outcome:
        """Write the row of an accepted answer. `fault`: why its mask could not be used."""
        outcome, reason = _OUTCOMES[message.status], message.reason
        if fault:
            outcome, reason = Outcome.FAILED, fault
        elif journey.deadline_ns is not None and journey.times[Stage.MASK_DECODED] > journey.deadline_ns:
            outcome, reason = Outcome.EXPIRED, reason or "answered after the deadline"
        if outcome is Outcome.ANSWERED:
            with self._lock:
                self._recent_ms.append((journey.times[Stage.MASK_DECODED] - journey.times[Stage.DUE]) / 1e6)
        node = _node(message)
        self._close(journey, outcome, reason, _Answer(message, bytes_down, node, _cloud_times(message, node, journey)))
        return outcome

    def give_up_silent(self, heard_ns: int) -> None:
        """Close as `lost` whatever has been silent for too long; all that came in until `heard_ns` was looked at."""
        with self._lock:
            silent = [journey for journey in self._in_flight.values() if journey.given_up_ns < heard_ns]
        for journey in silent:
            if self._pop(journey.id):
                self._close(journey, Outcome.LOST, "no answer")

    def give_up_all(self, reason: str) -> None:
        """Close as `lost` whatever is still in flight when a run ends."""
        with self._lock:
            open_journeys = list(self._in_flight.values())
            self._in_flight.clear()
        for journey in open_journeys:
            self._close(journey, Outcome.LOST, reason)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False if something still is."""
        with self._idle:
            return self._idle.wait_for(lambda: not self._in_flight, timeout_s)

    def wait_until_all_ended(self, timeout_s: float) -> bool:
        """Wait until every frame that was due has its row; False if one has none yet."""
        with self._idle:
            return self._idle.wait_for(lambda: self._outcomes.total() == self._sequence, timeout_s)

    def tally(self) -> Tally:
        """Where the run stands."""
        with self._lock:
            recent = list(self._recent_ms)
            echoes = {f"echo_{reason}": count for reason, count in self._clocks.ignored.items()}
            return Tally(
                read=self._sequence,
                in_flight=len(self._in_flight),
                outcomes=dict(self._outcomes),
                ignored_answers={**self._ignored, **echoes},
                median_ms=median(recent) if recent else None,
            )

    def _pop(self, frame_id: FrameId) -> Journey | None:
        with self._lock:
            return self._in_flight.pop(frame_id, None)

    def _close(self, journey: Journey, outcome: Outcome, reason: str, answer: "_Answer | None" = None) -> None:
        self._write(journey, outcome, reason, answer)
        self._on_closed()

    def _write(self, journey: Journey, outcome: Outcome, reason: str, answer: "_Answer | None" = None) -> None:
        row = self._row(journey, outcome, reason, answer)
        with self._idle:
            self._log.close(row)
            self._outcomes[outcome] += 1
            self._idle.notify_all()

    def _row(self, journey: Journey, outcome: Outcome, reason: str, answer: "_Answer | None" = None) -> Row:
        answer = answer or _Answer()
        return Row(
            vehicle=journey.id.vehicle,
            camera=journey.camera,
            session=journey.id.session,
            sequence=journey.id.sequence,
            outcome=outcome,
            reason=reason,
            frame_index=journey.frame_index,
            frame_stamp_ns=journey.frame_stamp_ns,
            source_ns=journey.source_ns,
            read_ns=journey.read_ns,
            attempts=journey.attempts,
            model=self._model,
            worker=answer.message.worker if answer.message else "",
            worker_session=answer.node.rpartition("/")[2],
            batch_size=answer.message.batch_size if answer.message else 0,
            bytes_up=journey.bytes_up,
            bytes_down=answer.bytes_down,
            edge_times=journey.times,
            cloud_times=answer.cloud_times,
            clock=self._offset(answer, journey.times),
        )

    def _offset(self, answer: "_Answer", edge: Mapping[Stage, int]) -> clock.Offset | None:
        cloud = answer.cloud_times
        if answer.message is None or not {Stage.RECEIVED, Stage.REPLIED} <= cloud.keys() or Stage.RETURNED not in edge:
            return None
        exchange = clock.Exchange(edge[Stage.SENT], cloud[Stage.RECEIVED], cloud[Stage.REPLIED], edge[Stage.RETURNED])
        return self._clocks.offset(answer.node, exchange)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a worker's word adds to a row."""

    message: MaskMessage | None = None
    bytes_down: int = 0
    node: str = ""  # The process that received the frame, as its stamps tell: cloud/<worker>/<session>.
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)


def _echoes(message: MaskMessage, journey: Journey) -> bool:
    """Whether an answer gives our own stamps back; the refusal of what could not be read may give none."""
    node = journey.stamps[0].node
    ours = tuple(stamp for stamp in message.stamps if stamp.node == node)
    return ours == journey.stamps or (not ours and message.status is not Status.ANSWERED)


def _node(message: MaskMessage) -> str:
    """The process of the answering worker that received the frame; empty where no stamp tells.

    A worker that gives another's name for its clock's would spoil what is known of the other's.
    """
    process = f"cloud/{message.worker}/"
    received = (stamp.node for stamp in message.stamps if stamp.stage == Stage.RECEIVED)
    return next((node for node in received if node.startswith(process)), "")


def _cloud_times(message: MaskMessage, node: str, journey: Journey) -> dict[Stage, int]:
    """The times of the node that received the frame, or none at all where they cannot be true.

    Times that run backwards, or last longer than the frame was away, would spoil the estimate of the clock as well.
    """
    if not node:
        return {}
    times = times_of((stamp for stamp in message.stamps if stamp.node == node), CLOUD_STAGES)
    values = list(times.values())
    away_ns = journey.times[Stage.RETURNED] - journey.times[Stage.SENT]
    return times if values and values == sorted(values) and values[-1] - values[0] <= away_ns else {}
