"""The ledger: accounts for every frame, from its due time until its row in the latency log, and logs its end."""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from edge.config import EdgeConfig
from edge.frame_record import ANY_WORKER, Assignment, FrameRecord
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_stats import WorkerLoads, WorkerStats
from shared import clock
from shared.clock import Deadline
from shared.imaging.frames import Frame, UnreadableFrame
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage, Status
from shared.messages.node_metrics import VehicleMetrics
from shared.messages.topics import CameraNames, FrameId
from shared.recent_frames import RecentFrames
from shared.runlog.latency_log import WITH_RESULT, LatencyRow, LogWriter, Outcome
from shared.stages import CLOUD_STAGES, Stage, Stamp, stage_times


class ReplyOrigin(NamedTuple):
    """The worker, model version and engine that produced a reply. Workers of one group may run different versions."""

    worker: str = ""
    model_version: str = ""
    engine: str = ""
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class ValidatedReply:
    """The validated contents of a reply; all fields are empty without a reply."""

    message: ResultMessage | None = None
    bytes_down: int = 0
    node: str = ""  # Process that received the frame: cloud/<worker>/<session>.
    cloud_times: Mapping[Stage, int] = field(default_factory=dict)
    origin: ReplyOrigin = field(default_factory=ReplyOrigin)

    @classmethod
    def of(cls, message: ResultMessage, bytes_down: int, round_trip_ns: int) -> "ValidatedReply":
        """Validates a message; times that do not fit into the round trip are left out."""
        node = _node(message)
        origin = ReplyOrigin(message.worker, message.model_version, message.engine, message.model_sha256)
        return cls(message, bytes_down, node, _cloud_times(message, node, round_trip_ns), origin)


_MAX_REMEMBERED = 4096  # Retried frames whose second reply is counted as a duplicate, not as late.


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Frame counts and other totals of a run so far."""

    read: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    ignored_answers: Mapping[str, int]  # Rejected messages by reason: replies, echoes (`echo_…`) and loads (`load_…`).
    median_ms: float | None  # Recent frames with a result, from due to that result.
    retried: int = 0  # Frames that were sent twice.
    retry_won: int = 0  # Retried frames that the second attempt answered in time.
    origins: Mapping[ReplyOrigin, int] = field(default_factory=dict)  # Frames with the outcome answered.

    @property
    def closed(self) -> int:
        """Number of frames that have a row."""
        return sum(self.outcomes.values())

    @property
    def with_result(self) -> int:
        """Number of frames that got a result in time, whatever its origin."""
        return sum(self.outcomes.get(outcome, 0) for outcome in WITH_RESULT)


class Ledger:
    """Writes exactly one row for every frame that was read. All methods may be called from any thread."""

    def __init__(
        self,
        log: LogWriter,
        config: EdgeConfig,
        session: str,
        *,
        clocks: WorkerClocks | None = None,
        stats: WorkerStats | None = None,
        loads: WorkerLoads | None = None,
        on_closed: Callable[[], None] = lambda: None,
        on_row: Sequence[Callable[[LatencyRow], None]] = (),
        grace_ms: float = 500.0,
    ) -> None:
        """Starts with no frames.

        `stats` and `loads` are updated with each reply, `on_closed` is called when a sent frame ends, and each of `on_row` with
        the row of every frame, of which it returns at once. `grace_ms`: time after its deadline until a frame counts as lost.
        """
        self._log = log
        self._config = config
        self._session = session
        self._grace_ns = round(grace_ms * 1e6)
        self._clocks = clocks or WorkerClocks()
        self._stats = stats or WorkerStats()
        self._loads = loads
        self._on_closed = on_closed
        self._on_row = on_row
        self._frame_log = VehicleFrameLog()
        self._lock = threading.Lock()
        self._sequence = 0
        self._cameras = CameraNames()
        self.pending_results = PendingResults()
        self._in_flight: dict[FrameId, FrameRecord] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._ignored: Counter[str] = Counter()
        self._origins: Counter[ReplyOrigin] = Counter()
        self._answered_retries: OrderedDict[FrameId, None] = OrderedDict()
        self._retried = 0
        self._retry_won = 0
        self._recent_ms: deque[float] = deque(maxlen=200)
        self._last_minute = RecentFrames()
        self._clock_error_ns: int | None = None  # At the latest reply.
        self._changed = threading.Condition(self._lock)

    def begin(self, frame: Frame | UnreadableFrame, due_ns: int) -> FrameRecord:
        """Returns the record of a frame that is due, and accounts for it from now on."""
        with self._lock:
            sequence = self._sequence
            self._sequence += 1
            self.pending_results.add(sequence)
            camera = self._cameras[frame.camera]
        return FrameRecord(
            id=FrameId(self._config.vehicle, camera, self._session, sequence),
            camera=frame.camera,
            frame_index=frame.index,
            stamp_ns=frame.stamp_ns,
            source_ns=frame.source_ns,
            read_ns=frame.read_ns,
            times={Stage.DUE: due_ns},
            deadline=Deadline.after_ms(self._config.deadline_ms, due_ns),
        )

    def drop(self, record: FrameRecord, reason: str) -> None:
        """Closes a frame that was never sent."""
        self._write(record, Outcome.DROPPED, reason)

    def reuse(self, record: FrameRecord, reused_sequence: int) -> Outcome:
        """Closes a frame that gets the result of an earlier frame; its last stage is the time of that result."""
        record.reused_sequence = reused_sequence
        return self._close_at_vehicle(record, Outcome.REUSED, ValidatedReply())

    def answer_locally(self, record: FrameRecord, engine: str, model_version: str) -> Outcome:
        """Closes a frame that the local model answered; its last stage is the time of that result."""
        reply = ValidatedReply(origin=ReplyOrigin(engine=engine, model_version=model_version))
        return self._close_at_vehicle(record, Outcome.ANSWERED_LOCALLY, reply)

    def open(self, record: FrameRecord, assignment: Assignment = ANY_WORKER) -> None:
        """Writes a frame to the journal and expects its reply; call it just before sending the frame."""
        record.dispatch = assignment.dispatch
        _assign(record, assignment)
        record.attempts += 1
        if record.deadline == Deadline.NEVER:
            record.lost_after_ns = clock.now_ns() + round(self._config.answer_timeout_s * 1e9)
        else:
            record.lost_after_ns = record.deadline.at_ns + self._grace_ns
        self._log.open(self._row(record, Outcome.ABORTED, ""))
        with self._lock:
            self._in_flight[record.id] = record

    def open_retry(self, record: FrameRecord, sent_ns: int, assignment: Assignment = ANY_WORKER) -> bool:
        """Writes a second attempt to the journal, just before sending it; returns False if the frame has ended."""
        with self._lock:
            if record.id not in self._in_flight:
                return False
            if self._loads is not None:
                self._loads.unanswered(record, sent_ns)
            _assign(record, assignment)
            record.attempts += 1
            record.resent_ns = sent_ns
            self._retried += 1
            self._log.open(self._row(record, Outcome.ABORTED, ""))
        return True

    def reassign(self, frame_id: FrameId, attempt: int, assignment: Assignment) -> bool:
        """Changes the worker of an attempt that reached none; returns False if the frame has ended or was sent again."""
        with self._lock:
            record = self._in_flight.get(frame_id)
            if record is None or record.attempts != attempt:
                return False
            if attempt == 1:
                record.dispatch = assignment.dispatch
            _assign(record, assignment)
            return True

    def in_flight(self) -> tuple[FrameRecord, ...]:
        """Returns the frames that were sent and have not ended, the oldest first."""
        with self._lock:
            return tuple(self._in_flight.values())

    def close_undelivered(self, frame_id: FrameId, reason: str) -> None:
        """Closes a sent frame that reached no worker, unless it has been retried."""
        with self._lock:
            record = self._in_flight.get(frame_id)
            if record is None or record.resent_ns:
                return
            del self._in_flight[frame_id]
            record.message = None
        self._close(record, Outcome.DROPPED, reason)

    def accept(self, message: ResultMessage) -> FrameRecord | None:
        """Returns the record of the frame that a reply belongs to, and takes it out of flight.

        Returns None for a late, repeated or foreign reply, and for the refusal of one attempt while the other attempt
        may still be answered. Such a refusal is kept: it becomes the outcome if the other attempt times out.
        """
        with self._lock:
            record = self._in_flight.get(message.id)
            if (
                record is None
                or not (stamps := record.stamps_of(message.attempt))
                or not matches_attempt(message, stamps)
            ):
                reason = self._why_ignored(message, record)
                self._ignored[reason] += 1
                if reason == "duplicate" and self._loads is not None:
                    self._loads.answered(message.worker, clock.now_ns())
                return None
            if record.resent_ns and message.status is not Status.ANSWERED and not _is_second_refusal(message, record):
                record.refusal = record.refusal or message
                self._stats.add_retry(was_useful=False)
                self._add_load(record, ValidatedReply.of(message, 0, 0), clock.now_ns())
                return None
            del self._in_flight[message.id]
            record.message = None
            record.times[Stage.SENT] = stamps[-1].at_ns
            if record.resent_ns:
                self._remember(record.id)
                self._stats.add_retry(was_useful=message.attempt > 1 and message.status is Status.ANSWERED)
            return record

    def ignore(self, reason: str) -> None:
        """Counts a reply that could not be decoded."""
        with self._lock:
            self._ignored[reason] += 1

    @staticmethod
    def outcome_of(record: FrameRecord, message: ResultMessage, fault: str = "") -> tuple[Outcome, str]:
        """Returns the outcome of an accepted reply, and the reason for it. `fault`: why its result cannot be used."""
        if fault:
            return Outcome.FAILED, fault
        if record.deadline.is_expired(record.times[Stage.MASK_DECODED]):
            return Outcome.EXPIRED, message.reason or "answered after the deadline"
        return Outcome(message.status.value), message.reason

    def finish(
        self, record: FrameRecord, message: ResultMessage, bytes_down: int, outcome: Outcome, reason: str
    ) -> None:
        """Writes the row of an accepted reply, with what `outcome_of` returned for it."""
        sent_ns, returned_ns = record.times[Stage.SENT], record.times[Stage.RETURNED]
        reply = ValidatedReply.of(message, bytes_down, returned_ns - sent_ns)
        if outcome is Outcome.ANSWERED:
            self._add_latency(record, record.times[Stage.MASK_DECODED])
            with self._lock:
                self._origins[reply.origin] += 1
                self._retry_won += bool(record.resent_ns) and message.attempt > 1
        self._add_load(record, reply, returned_ns)
        if message.status is Status.ANSWERED:
            self._stats.add_reply(message.worker, sent_ns, returned_ns)
            self._frame_log.answered(record.id, self._config.model, reply.origin)
        self._close(record, outcome, reason, reply)

    def close_timed_out(self, processed_until_ns: int) -> None:
        """Closes frames as `lost` whose time is over; all replies received until `processed_until_ns` were processed."""
        with self._lock:
            timed_out = [record for record in self._in_flight.values() if record.lost_after_ns < processed_until_ns]
        for record in timed_out:
            with self._lock:
                is_open = self._in_flight.pop(record.id, None) is not None
            if is_open:
                record.message = None
                self._lose(record, "no answer")

    def close_all(self, reason: str) -> None:
        """Closes all frames in flight as `lost` at the end of a run."""
        with self._lock:
            records = list(self._in_flight.values())
            self._in_flight.clear()
        for record in records:
            self._lose(record, reason)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no frame is in flight; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, timeout_s)

    def wait_until_all_closed(self, timeout_s: float) -> bool:
        """Waits until every frame that was due has its row; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._outcomes.total() == self._sequence, timeout_s)

    def counts(self) -> RunCounts:
        """Returns the totals so far."""
        with self._lock:
            recent = list(self._recent_ms)
            echoes = {f"echo_{reason}": count for reason, count in self._clocks.ignored.items()}
            loads = {f"load_{reason}": count for reason, count in self._loads.ignored.items()} if self._loads else {}
            return RunCounts(
                read=self._sequence,
                in_flight=len(self._in_flight),
                outcomes=dict(self._outcomes),
                ignored_answers={**self._ignored, **echoes, **loads},
                median_ms=median(recent) if recent else None,
                retried=self._retried,
                retry_won=self._retry_won,
                origins=dict(self._origins),
            )

    def metrics(self) -> VehicleMetrics:
        """Returns the report of the last minute, for `skylane status` and `skylane top`."""
        recent, error_ns = self._last_minute.summary(), self._clock_error_ns
        return VehicleMetrics(
            session=self._session,
            model=self._config.model,
            seconds=recent.seconds,
            frames=recent.frames,
            reason=recent.reason,
            total=recent.times.get("total"),
            in_flight=len(self._in_flight),
            clock_error_ms=None if error_ns is None else error_ns / 1e6,
            totals={outcome.value: count for outcome, count in self.counts().outcomes.items()},
        )

    def _add_load(self, record: FrameRecord, reply: ValidatedReply, returned_ns: int) -> None:
        if self._loads is not None and reply.message is not None:
            self._loads.replied(record, reply.message, reply.node.rpartition("/")[2], returned_ns)

    def _close_at_vehicle(self, record: FrameRecord, outcome: Outcome, reply: ValidatedReply) -> Outcome:
        reason, result_ns = "", max(record.times.values())
        if record.deadline.is_expired(result_ns):
            outcome, reason = Outcome.EXPIRED, f"{outcome.replace('_', ' ')} after the deadline"
        else:
            self._add_latency(record, result_ns)
        self._write(record, outcome, reason, reply)
        return outcome

    def _add_latency(self, record: FrameRecord, result_ns: int) -> None:
        with self._lock:
            self._recent_ms.append((result_ns - record.times[Stage.DUE]) / 1e6)

    def _why_ignored(self, message: ResultMessage, record: FrameRecord | None) -> str:
        if record:
            return "stamps_not_ours"
        if message.id.session != self._session:
            return "other_session"
        return "duplicate" if message.id in self._answered_retries else "late_or_repeated"

    def _remember(self, frame_id: FrameId) -> None:
        self._answered_retries[frame_id] = None
        if len(self._answered_retries) > _MAX_REMEMBERED:
            self._answered_retries.popitem(last=False)

    def _lose(self, record: FrameRecord, reason: str) -> None:
        """Closes a frame without a reply; if one of two attempts was refused, that is the outcome."""
        refusal = record.refusal
        if self._loads is not None:
            self._loads.unanswered(record, clock.now_ns())
        if refusal is None:
            self._close(record, Outcome.LOST, reason)
        else:
            reply = ValidatedReply.of(refusal, 0, 0)
            self._close(record, Outcome(refusal.status.value), refusal.reason or reason, reply)

    def _close(self, record: FrameRecord, outcome: Outcome, reason: str, reply: ValidatedReply | None = None) -> None:
        self._write(record, outcome, reason, reply)
        self._on_closed()

    def _write(self, record: FrameRecord, outcome: Outcome, reason: str, reply: ValidatedReply | None = None) -> None:
        row = self._row(record, outcome, reason, reply)
        with self._changed:
            self._log.close(row)
            self._outcomes[outcome] += 1
            self._changed.notify_all()
        for listener in self._on_row:
            listener(row)
        if row.clock is not None:
            self._clock_error_ns = row.clock.error_ns
        if outcome.has_result:
            total_ns = max(record.times.values()) - record.times[Stage.DUE]
            self._last_minute.add(outcome.value, {"total": total_ns})
        else:
            self._last_minute.add(outcome.value, {}, reason or outcome.value)
            self.pending_results.remove(record.id.sequence)
        self._frame_log.ended(record.id, outcome, reason, row.worker)

    def _row(
        self, record: FrameRecord, outcome: Outcome, reason: str, reply: ValidatedReply | None = None
    ) -> LatencyRow:
        reply = reply or ValidatedReply()
        return LatencyRow(
            vehicle=record.id.vehicle,
            camera=record.camera,
            camera_id=record.id.camera,
            session=record.id.session,
            sequence=record.id.sequence,
            outcome=outcome,
            reason=reason,
            frame_index=record.frame_index,
            frame_stamp_ns=record.stamp_ns,
            source_ns=record.source_ns,
            read_ns=record.read_ns,
            attempts=record.attempts,
            dispatch=record.dispatch,
            retry_wait_ns=record.times[Stage.SENT] - record.stamps[-1].at_ns if record.stamps else 0,
            model=self._config.model,
            model_version=reply.origin.model_version,
            engine=reply.origin.engine,
            worker=reply.origin.worker,
            worker_session=reply.node.rpartition("/")[2],
            batch_size=reply.message.batch_size if reply.message else 0,
            bytes_up=record.bytes_up,
            bytes_down=reply.bytes_down,
            edge_times=record.times,
            cloud_times=reply.cloud_times,
            clock=self._offset(reply, record.times),
            gate_distance=record.gate_distance,
            reused_sequence=record.reused_sequence,
            local_confidence=record.local_confidence,
        )

    def _offset(self, reply: ValidatedReply, edge: Mapping[Stage, int]) -> clock.Offset | None:
        cloud = reply.cloud_times
        if reply.message is None or not {Stage.RECEIVED, Stage.REPLIED} <= cloud.keys() or Stage.RETURNED not in edge:
            return None
        exchange = clock.Exchange(edge[Stage.SENT], cloud[Stage.RECEIVED], cloud[Stage.REPLIED], edge[Stage.RETURNED])
        return self._clocks.offset(reply.node, exchange)


def _assign(record: FrameRecord, assignment: Assignment) -> None:
    record.worker, record.expected_ns = assignment.worker or "", assignment.expected_ns


def _is_second_refusal(message: ResultMessage, record: FrameRecord) -> bool:
    """Returns whether both attempts are refused now. A worker that cannot decode the second reports attempt 1."""
    refusal = record.refusal
    return refusal is not None and (refusal.worker, refusal.attempt) != (message.worker, message.attempt)


class PendingResults:
    """Numbers of frames from their due time until they have ended without a result, or their result is with the sinks.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}  # In increasing order, because frames become due in this order.
        self._next = 0
        self._changed = threading.Condition()

    def add(self, sequence: int) -> None:
        """Adds the frame with the next sequence number."""
        with self._changed:
            self._numbers[sequence] = None
            self._next = sequence + 1

    def remove(self, sequence: int) -> None:
        """Removes a frame, if it is present."""
        with self._changed:
            self._numbers.pop(sequence, None)
            self._changed.notify_all()

    def first(self) -> int:
        """Returns the lowest number of a frame that may still get a result; without any, that of the next frame."""
        with self._changed:
            return self._first()

    def wait_until_within(self, frames: int, timeout_s: float) -> bool:
        """Waits until the first frame is among the last `frames` that were due; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._next - self._first() < frames, timeout_s)

    def _first(self) -> int:
        return next(iter(self._numbers), self._next)


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


def matches_attempt(message: ResultMessage, stamps: tuple[Stamp, ...]) -> bool:
    """Returns whether a reply belongs to the attempt, first or second, that was sent with `stamps`.

    A worker repeats the stamps of the message. The refusal of an unreadable message may lack them.
    """
    node = stamps[0].node
    ours = tuple(stamp for stamp in message.stamps if stamp.node == node)
    return ours == stamps or (not ours and message.status is not Status.ANSWERED)


def _node(message: ResultMessage) -> str:
    """Returns the process of the replying worker that received the frame; empty if no stamp names one.

    Processes of other workers do not count: their times would corrupt the clock offset of this one.
    """
    prefix = f"cloud/{message.worker}/"
    received: Iterable[str] = (stamp.node for stamp in message.stamps if stamp.stage == Stage.RECEIVED)
    return next((node for node in received if node.startswith(prefix)), "")


def _cloud_times(message: ResultMessage, node: str, round_trip_ns: int) -> dict[Stage, int]:
    """Returns the times of a node; empty if they are not in order or span more than the round trip."""
    if not node:
        return {}
    times = stage_times((stamp for stamp in message.stamps if stamp.node == node), CLOUD_STAGES)
    values = list(times.values())
    is_consistent = values and values == sorted(values) and values[-1] - values[0] <= round_trip_ns
    return times if is_consistent else {}
