"""The ledger: it owns every frame from the moment it is due until its one row is written."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from edge.frame_log import FrameLog
from edge.reliability.reply_validation import Answer, ReplyOrigin, echoes
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from shared import clock
from shared.imaging.frames import Frame, Pixels, UnreadableFrame
from shared.imaging.geometry import Geometry
from shared.messages.frame import FrameMessage, ResultMessage, Status
from shared.messages.topics import FrameId, camera_name
from shared.runlog.latency_log import LogWriter, Outcome, Row
from shared.stages import Stage, Stamp

_OUTCOMES = {
    Status.ANSWERED: Outcome.ANSWERED,
    Status.EXPIRED: Outcome.EXPIRED,
    Status.OVERLOADED: Outcome.OVERLOADED,
    Status.REJECTED: Outcome.REJECTED,
    Status.FAILED: Outcome.FAILED,
}
_MOST_REMEMBERED = 4096  # Answered frames that were sent twice: second answers are duplicates, and none that are late.


@dataclass(slots=True)
class FrameRecord:
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
    stamps: tuple[Stamp, ...] = ()  # As first sent, SENT the last of them; an answer must echo them.
    resent_ns: int = 0  # When the second attempt left; 0 where there is none.
    given_up_ns: int = 0  # When silence becomes a loss; set when it is sent.
    message: FrameMessage | None = None  # As sent; kept while it may have to be sent again.
    refusal: ResultMessage | None = None  # Of one attempt, while the other may still be answered.
    picture: Pixels | None = None  # As it was sent, in the model's colour order; kept for the sinks while under way.
    geometry: Geometry | None = None

    def stamps_of(self, attempt: int) -> tuple[Stamp, ...]:
        """The stamps that an attempt left with; none where there was no such attempt."""
        if attempt == 1:
            return self.stamps
        if attempt == 2 and self.resent_ns:  # noqa: PLR2004 (a frame is sent twice at most)
            return (*self.stamps[:-1], Stamp(Stage.SENT, self.stamps[-1].node, self.resent_ns))
        return ()


@dataclass(frozen=True, slots=True)
class Tally:
    """Where a run stands."""

    read: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    ignored_answers: Mapping[str, int]  # Late, repeated, foreign: by reason; of probes as `echo_…`.
    median_ms: float | None  # Of the last answered frames, due to mask decoded.
    retried: int = 0  # Frames that were sent twice.
    retry_won: int = 0  # Those of them that the second attempt brought the answer of.
    answerers: Mapping[ReplyOrigin, int] = field(default_factory=dict)  # How many frames each answered, in time or not.

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
        pulse: WorkerStats | None = None,
        on_closed: Callable[[], None] = lambda: None,
    ) -> None:
        """`clocks`: the workers', where somebody probes them; else they are known by the frames alone.

        `pulse` is told of every answer, for whoever has to know how long they take. `on_closed` is told of every sent frame that ends, so that the window can be given back its place.
        """
        self._log = log
        self._clocks = clocks or Clocks()
        self._pulse = pulse or WorkerStats()
        self._vehicle = vehicle
        self._session = session
        self._model = model
        self._deadline_ns = None if deadline_ms is None else round(deadline_ms * 1e6)
        self._answer_timeout_ns = round(answer_timeout_s * 1e9)
        self._grace_ns = round(grace_ms * 1e6)
        self._on_closed = on_closed
        self._frame_log = FrameLog()
        self._lock = threading.Lock()
        self._sequence = 0
        self._in_flight: dict[FrameId, FrameRecord] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._ignored: Counter[str] = Counter()
        self._answerers: Counter[ReplyOrigin] = Counter()
        self._answered_of_two: OrderedDict[FrameId, None] = OrderedDict()
        self._retried = 0
        self._retry_won = 0
        self._recent_ms: deque[float] = deque(maxlen=200)
        self._idle = threading.Condition(self._lock)

    def begin(self, frame: Frame | UnreadableFrame, due_ns: int) -> FrameRecord:
        """A frame is due: from here on it is accounted for."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
        return FrameRecord(
            id=FrameId(self._vehicle, camera_name(frame.camera), self._session, sequence),
            camera=frame.camera,
            frame_index=frame.index,
            frame_stamp_ns=frame.stamp_ns,
            source_ns=frame.source_ns,
            read_ns=frame.read_ns,
            times={Stage.DUE: due_ns},
            deadline_ns=None if self._deadline_ns is None else due_ns + self._deadline_ns,
        )

    def drop(self, journey: FrameRecord, reason: str) -> None:
        """Close a frame that was never sent."""
        self._write(journey, Outcome.DROPPED, reason)

    def open(self, journey: FrameRecord) -> None:
        """Journal a frame and expect its answer; call it just before publishing."""
        journey.attempts += 1
        now = clock.now_ns()
        journey.given_up_ns = (
            now + self._answer_timeout_ns if journey.deadline_ns is None else journey.deadline_ns + self._grace_ns
        )
        self._log.open(self._row(journey, Outcome.ABORTED, ""))
        with self._lock:
            self._in_flight[journey.id] = journey

    def reopen(self, journey: FrameRecord, sent_ns: int) -> bool:
        """Journal a second attempt; call it just before publishing. False where the frame has ended meanwhile."""
        with self._lock:
            if journey.id not in self._in_flight:
                return False
            journey.attempts += 1
            journey.resent_ns = sent_ns
            self._retried += 1
            self._log.open(self._row(journey, Outcome.ABORTED, ""))
        return True

    def in_flight(self) -> tuple[FrameRecord, ...]:
        """The frames that were sent and have not ended, the oldest first."""
        with self._lock:
            return tuple(self._in_flight.values())

    def withdraw(self, frame_id: FrameId, reason: str) -> None:
        """Close a sent frame that is known to reach nobody; not one whose second attempt has a worker of its own."""
        with self._lock:
            journey = self._in_flight.get(frame_id)
            if journey is None or journey.resent_ns:
                return
            del self._in_flight[frame_id]
            journey.message = None
        self._close(journey, Outcome.DROPPED, reason)

    def accept(self, message: ResultMessage) -> FrameRecord | None:
        """The journey that an answer belongs to, no longer in flight; None for a late, repeated or foreign answer.

        Nor is the refusal of one attempt taken while the other may still be answered: it is kept, for if that stays
        silent it is the frame's end.
        """
        with self._lock:
            journey = self._in_flight.get(message.id)
            if journey is None or not (stamps := journey.stamps_of(message.attempt)) or not echoes(message, stamps):
                self._ignored[self._why_ignored(message, journey)] += 1
                return None
            if journey.resent_ns and message.status is not Status.ANSWERED and not _is_last_word(message, journey):
                journey.refusal = journey.refusal or message
                self._pulse.retried(in_vain=True)
                return None
            del self._in_flight[message.id]
            journey.message = None
            journey.times[Stage.SENT] = stamps[-1].at_ns
            if journey.resent_ns:
                self._remember(journey.id)
                has_won = message.attempt > 1 and message.status is Status.ANSWERED
                self._retry_won += has_won
                self._pulse.retried(in_vain=not has_won)
            return journey

    def ignore(self, reason: str) -> None:
        """Count an answer that could not be read."""
        with self._lock:
            self._ignored[reason] += 1

    def finish(self, journey: FrameRecord, message: ResultMessage, bytes_down: int, fault: str = "") -> Outcome:
        """Write the row of an accepted answer. `fault`: why its mask could not be used."""
        outcome, reason = _OUTCOMES[message.status], message.reason
        if fault:
            outcome, reason = Outcome.FAILED, fault
        elif journey.deadline_ns is not None and journey.times[Stage.MASK_DECODED] > journey.deadline_ns:
            outcome, reason = Outcome.EXPIRED, reason or "answered after the deadline"
        if outcome is Outcome.ANSWERED:
            with self._lock:
                self._recent_ms.append((journey.times[Stage.MASK_DECODED] - journey.times[Stage.DUE]) / 1e6)
        sent_ns, returned_ns = journey.times[Stage.SENT], journey.times[Stage.RETURNED]
        answer = Answer.of(message, bytes_down, returned_ns - sent_ns)
        if message.status is Status.ANSWERED:
            self._pulse.answered(message.worker, sent_ns, returned_ns)
            with self._lock:
                self._answerers[answer.answerer] += 1
            self._frame_log.answered(journey.id, self._model, answer.answerer)
        self._close(journey, outcome, reason, answer)
        return outcome

    def give_up_silent(self, last_received_ns: int) -> None:
        """Close as `lost` whatever has been silent for too long; all that came in until `last_received_ns` was looked at."""
        with self._lock:
            silent = [journey for journey in self._in_flight.values() if journey.given_up_ns < last_received_ns]
        for journey in silent:
            if self._pop(journey.id):
                self._lose(journey, "no answer")

    def give_up_all(self, reason: str) -> None:
        """Close as `lost` whatever is still in flight when a run ends."""
        with self._lock:
            open_journeys = list(self._in_flight.values())
            self._in_flight.clear()
        for journey in open_journeys:
            self._lose(journey, reason)

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
                retried=self._retried,
                retry_won=self._retry_won,
                answerers=dict(self._answerers),
            )

    def _why_ignored(self, message: ResultMessage, journey: FrameRecord | None) -> str:
        if journey:
            return "stamps_not_ours"
        if message.id.session != self._session:
            return "other_session"
        return "duplicate" if message.id in self._answered_of_two else "late_or_repeated"

    def _remember(self, frame_id: FrameId) -> None:
        """Of a frame that was sent twice one answer is taken: the other is a duplicate."""
        self._answered_of_two[frame_id] = None
        if len(self._answered_of_two) > _MOST_REMEMBERED:
            self._answered_of_two.popitem(last=False)

    def _pop(self, frame_id: FrameId) -> FrameRecord | None:
        with self._lock:
            journey = self._in_flight.pop(frame_id, None)
        if journey:
            journey.message = None
        return journey

    def _lose(self, journey: FrameRecord, reason: str) -> None:
        """Nothing more will come; where one of two attempts was refused, that is the last word."""
        refusal = journey.refusal
        if refusal is None:
            self._close(journey, Outcome.LOST, reason)
        else:
            self._close(journey, _OUTCOMES[refusal.status], refusal.reason or reason, Answer.of(refusal, 0, 0))

    def _close(self, journey: FrameRecord, outcome: Outcome, reason: str, answer: Answer | None = None) -> None:
        self._write(journey, outcome, reason, answer)
        self._on_closed()

    def _write(self, journey: FrameRecord, outcome: Outcome, reason: str, answer: Answer | None = None) -> None:
        row = self._row(journey, outcome, reason, answer)
        with self._idle:
            self._log.close(row)
            self._outcomes[outcome] += 1
            self._idle.notify_all()
        self._frame_log.ended(journey.id, outcome, reason, row.worker)

    def _row(self, journey: FrameRecord, outcome: Outcome, reason: str, answer: Answer | None = None) -> Row:
        answer = answer or Answer()
        by = answer.answerer
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
            retry_wait_ns=journey.times[Stage.SENT] - journey.stamps[-1].at_ns if journey.stamps else 0,
            model=self._model,
            model_version=by.model_version,
            engine=by.engine,
            worker=by.worker,
            worker_session=answer.node.rpartition("/")[2],
            batch_size=answer.message.batch_size if answer.message else 0,
            bytes_up=journey.bytes_up,
            bytes_down=answer.bytes_down,
            edge_times=journey.times,
            cloud_times=answer.cloud_times,
            clock=self._offset(answer, journey.times),
        )

    def _offset(self, answer: Answer, edge: Mapping[Stage, int]) -> clock.Offset | None:
        cloud = answer.cloud_times
        if answer.message is None or not {Stage.RECEIVED, Stage.REPLIED} <= cloud.keys() or Stage.RETURNED not in edge:
            return None
        exchange = clock.Exchange(edge[Stage.SENT], cloud[Stage.RECEIVED], cloud[Stage.REPLIED], edge[Stage.RETURNED])
        return self._clocks.offset(answer.node, exchange)


def _is_last_word(message: ResultMessage, journey: FrameRecord) -> bool:
    """Whether both attempts of a frame are refused now; a worker that could not read the second says it was the first."""
    refusal = journey.refusal
    return refusal is not None and (refusal.worker, refusal.attempt) != (message.worker, message.attempt)
