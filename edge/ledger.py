"""The ledger: accounts for every frame from its due time until its row in the latency log, and notifies listeners.

A frame is due, in flight once it is sent, then ended: its row is written and the listeners are called.
"""

import threading
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

from edge.config import EdgeConfig
from edge.frame_record import ANY_WORKER, Assignment, FrameListener, FrameRecord
from edge.workers.worker_clocks import WorkerClocks
from edge.workers.worker_stats import WorkerLoads, WorkerStats
from shared import clock
from shared.clock import Deadline
from shared.imaging.frames import Frame, UnreadableFrame
from shared.logs import RateLimitedLogger, get_logger
from shared.messages.frame import ResultMessage, Status
from shared.messages.node_metrics import VehicleMetrics
from shared.messages.results import ModelResult
from shared.messages.topics import CameraNames, FrameId
from shared.recent_frames import RecentFrames
from shared.runlog.latency_log import WITH_RESULT, LatencyRow, LogWriter, Outcome
from shared.stages import CLOUD_STAGES, Stage, Stamp, stage_times


class AnsweredBy(NamedTuple):
    """The worker, model version and engine that produced a reply. Workers of one group may run different versions."""

    worker: str = ""
    model_version: str = ""
    engine: str = ""
    sha256: str = ""

    @classmethod
    def of(cls, message: ResultMessage) -> "AnsweredBy":
        """Returns the worker, model version and engine of a reply."""
        return cls(message.worker, message.model_version, message.engine, message.model_sha256)


_MAX_REMEMBERED = 4096  # Retried frames whose second reply is counted as a duplicate, not as late.


@dataclass(frozen=True, slots=True)
class RunCounts:
    """Frame counts and other totals of a run so far."""

    read: int
    in_flight: int
    outcomes: Mapping[Outcome, int]
    ignored_answers: Mapping[str, int]  # Rejected messages by reason: replies, echoes (`echo_…`) and loads (`load_…`).
    median_ms: float | None  # Median time of recent frames from due to their result.
    retried: int = 0  # Frames that were sent twice.
    retry_won: int = 0  # Retried frames that the second attempt answered in time.
    answered_by: Mapping[AnsweredBy, int] = field(default_factory=dict)  # Frames with the outcome answered.

    @property
    def closed(self) -> int:
        """The number of frames that have a row."""
        return sum(self.outcomes.values())

    @property
    def with_result(self) -> int:
        """The number of frames that got a result in time, of any origin."""
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
        grace_ms: float = 500.0,
    ) -> None:
        """Starts with no frames.

        `stats` and `loads` are updated with each reply. `grace_ms`: time after its deadline until a frame counts as lost.
        """
        self.listeners: list[FrameListener] = []  # Called after a row is written; not changed once frames are due.
        self._log = log
        self._config = config
        self._session = session
        self._grace_ns = round(grace_ms * 1e6)
        self._clocks = clocks or WorkerClocks()
        self._stats = stats or WorkerStats()
        self._loads = loads
        self._changed = threading.Condition(threading.Lock())
        self._sequence = 0
        self._cameras = CameraNames()
        self._open: dict[
            int, None
        ] = {}  # Numbers of the frames that have not ended, in the order in which they were due.
        self._in_flight: dict[FrameId, FrameRecord] = {}
        self._outcomes: Counter[Outcome] = Counter()
        self._ignored: Counter[str] = Counter()
        self._answered_by: Counter[AnsweredBy] = Counter()
        self._answered_retries: OrderedDict[FrameId, None] = OrderedDict()
        self._retried = 0
        self._retry_won = 0
        self._recent_ms: deque[float] = deque(maxlen=200)

    def begin(self, frame: Frame | UnreadableFrame, due_ns: int) -> FrameRecord:
        """Starts to account for a frame that is due, and returns its record."""
        with self._changed:
            sequence = self._sequence
            self._sequence += 1
            self._open[sequence] = None
            camera = self._cameras[frame.camera]
        record = FrameRecord.of(
            FrameId(self._config.vehicle, camera, self._session, sequence),
            frame.camera,
            frame_index=frame.index,
            frame_stamp_ns=frame.stamp_ns,
            source_ns=frame.source_ns,
            read_ns=frame.read_ns,
            model=self._config.model,
            edge_times={Stage.DUE: due_ns},
        )
        record.deadline = Deadline.after_ms(self._config.deadline_ms, due_ns)
        return record

    def drop(self, record: FrameRecord, reason: str) -> None:
        """Ends a frame that was never sent."""
        self._end(record, Outcome.DROPPED, reason)

    def reuse(self, record: FrameRecord, result: ModelResult, reused_sequence: int) -> None:
        """Ends a frame with the result of an earlier frame; its last stage is the time of that result."""
        record.row.reused_sequence = reused_sequence
        self._end_at_vehicle(record, Outcome.REUSED, result)

    def answer_locally(self, record: FrameRecord, result: ModelResult) -> None:
        """Ends a frame with the result of the local model; its last stage is the time of that result."""
        record.row.engine, record.row.model_version = result.engine, result.model_version
        self._end_at_vehicle(record, Outcome.ANSWERED_LOCALLY, result)

    def open(self, record: FrameRecord, assignment: Assignment = ANY_WORKER) -> None:
        """Writes a frame to the journal and marks it as in flight; to be called just before it is sent."""
        record.row.dispatch = assignment.dispatch
        _assign(record, assignment)
        record.row.attempts += 1
        if record.deadline == Deadline.NEVER:
            record.lost_after_ns = clock.now_ns() + round(self._config.answer_timeout_s * 1e9)
        else:
            record.lost_after_ns = record.deadline.at_ns + self._grace_ns
        self._log.open(record.row)
        with self._changed:
            self._in_flight[record.id] = record

    def open_retry(self, record: FrameRecord, sent_ns: int, assignment: Assignment = ANY_WORKER) -> bool:
        """Writes a second attempt to the journal, just before sending it; returns False if the frame has ended."""
        with self._changed:
            if record.id not in self._in_flight:
                return False
            if self._loads is not None:
                self._loads.unanswered(record, sent_ns)
            _assign(record, assignment)
            record.row.attempts += 1
            record.resent_ns = sent_ns
            self._retried += 1
            self._log.open(record.row)
        return True

    def reassign(self, frame_id: FrameId, attempt: int, assignment: Assignment) -> bool:
        """Changes the worker of an attempt that reached none; returns False if the frame has ended or was sent again."""
        with self._changed:
            record = self._in_flight.get(frame_id)
            if record is None or record.row.attempts != attempt:
                return False
            if attempt == 1:
                record.row.dispatch = assignment.dispatch
            _assign(record, assignment)
            return True

    def in_flight(self) -> tuple[FrameRecord, ...]:
        """Returns the frames that were sent and have not ended, the oldest first."""
        with self._changed:
            return tuple(self._in_flight.values())

    def first_open(self) -> int:
        """Returns the lowest number of a frame that has not ended; if all have ended, the number of the next frame."""
        with self._changed:
            return self._first_open()

    def close_undelivered(self, frame_id: FrameId, reason: str) -> None:
        """Ends a sent frame that reached no worker, unless it has been retried."""
        with self._changed:
            record = self._in_flight.get(frame_id)
            if record is None or record.resent_ns:
                return
            del self._in_flight[frame_id]
            record.message = None
        self._end(record, Outcome.DROPPED, reason)

    def accept(self, message: ResultMessage) -> FrameRecord | None:
        """Ends the flight of the frame that a reply belongs to, and returns its record.

        Returns None for a late, repeated or foreign reply, and for the refusal of one attempt while the other attempt
        may still be answered. Such a refusal is kept: it becomes the outcome if the other attempt times out.
        """
        with self._changed:
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
                if self._loads is not None:
                    self._loads.replied(record, message, _session(_node(message)), clock.now_ns())
                return None
            del self._in_flight[message.id]
            record.message = None
            record.times[Stage.SENT] = stamps[-1].at_ns
            record.row.retry_wait_ns = stamps[-1].at_ns - record.stamps[-1].at_ns
            if record.resent_ns:
                self._remember(record.id)
                self._stats.add_retry(was_useful=message.attempt > 1 and message.status is Status.ANSWERED)
            return record

    def ignore(self, reason: str) -> None:
        """Counts a reply that could not be decoded."""
        with self._changed:
            self._ignored[reason] += 1

    def finish(
        self, record: FrameRecord, message: ResultMessage, bytes_down: int, result: ModelResult | None, fault: str = ""
    ) -> None:
        """Ends the frame of an accepted reply. `fault`: why its result cannot be used."""
        sent_ns, returned_ns = record.times[Stage.SENT], record.times[Stage.RETURNED]
        self._add_reply(record.row, message, returned_ns - sent_ns)
        record.row.bytes_down = bytes_down
        if self._loads is not None:
            self._loads.replied(record, message, record.row.worker_session, returned_ns)
        if message.status is Status.ANSWERED:
            self._stats.add_reply(message.worker, sent_ns, returned_ns)
        if fault:
            self._end(record, Outcome.FAILED, fault)
        elif record.deadline.is_expired(record.times[Stage.MASK_DECODED]):
            self._end(record, Outcome.EXPIRED, message.reason or "answered after the deadline")
        else:
            self._end(record, Outcome(message.status.value), message.reason, result, message)

    def close_timed_out(self, processed_until_ns: int) -> None:
        """Ends overdue frames as `lost`; all replies received until `processed_until_ns` were processed."""
        with self._changed:
            timed_out = [record for record in self._in_flight.values() if record.lost_after_ns < processed_until_ns]
        for record in timed_out:
            with self._changed:
                is_open = self._in_flight.pop(record.id, None) is not None
            if is_open:
                record.message = None
                self._lose(record, "no answer")

    def close_all(self, reason: str) -> None:
        """Ends all frames in flight as `lost` at the end of a run."""
        with self._changed:
            records = list(self._in_flight.values())
            self._in_flight.clear()
        for record in records:
            self._lose(record, reason)

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Waits until no frame is in flight; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._in_flight, timeout_s)

    def wait_until_all_closed(self, timeout_s: float) -> bool:
        """Waits until every frame that was due has ended; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout_s)

    def wait_until_within(self, frames: int, timeout_s: float) -> bool:
        """Waits until all but the last `frames` that were due have ended; returns False on a timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._sequence - self._first_open() < frames, timeout_s)

    def counts(self) -> RunCounts:
        """Returns the totals so far."""
        with self._changed:
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
                answered_by=dict(self._answered_by),
            )

    def _first_open(self) -> int:
        return next(iter(self._open), self._sequence)

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
        """Ends a frame without a reply; if one of two attempts was refused, the refusal is the outcome."""
        refusal = record.refusal
        if self._loads is not None:
            self._loads.unanswered(record, clock.now_ns())
        if refusal is None:
            self._end(record, Outcome.LOST, reason)
        else:
            self._add_reply(record.row, refusal, 0)
            self._end(record, Outcome(refusal.status.value), refusal.reason or reason)

    def _end_at_vehicle(self, record: FrameRecord, outcome: Outcome, result: ModelResult) -> None:
        if record.deadline.is_expired(max(record.times.values())):
            self._end(record, Outcome.EXPIRED, f"{outcome.replace('_', ' ')} after the deadline")
        else:
            self._end(record, outcome, "", result)

    def _end(
        self,
        record: FrameRecord,
        outcome: Outcome,
        reason: str,
        result: ModelResult | None = None,
        message: ResultMessage | None = None,
    ) -> None:
        """Writes the row of a frame, and calls the listeners. `message`: the reply, if it came in time."""
        row = record.row
        row.outcome, row.reason = outcome, reason
        with self._changed:
            self._log.close(row)
        try:
            for listener in self.listeners:
                listener(record, result)
        finally:
            with self._changed:
                self._outcomes[outcome] += 1
                if outcome.has_result:
                    self._recent_ms.append(result_ns(row) / 1e6)
                if outcome is Outcome.ANSWERED and message is not None:
                    self._answered_by[AnsweredBy.of(message)] += 1
                    self._retry_won += bool(record.resent_ns) and message.attempt > 1
                del self._open[row.sequence]
                self._changed.notify_all()

    def _add_reply(self, row: LatencyRow, message: ResultMessage, round_trip_ns: int) -> None:
        """Adds a reply to the row of its frame; times that do not fit into the round trip are left out."""
        node = _node(message)
        row.worker, row.worker_session = message.worker, _session(node)
        row.model_version, row.engine, row.batch_size = message.model_version, message.engine, message.batch_size
        row.cloud_times = cloud = _cloud_times(message, node, round_trip_ns)
        edge = row.edge_times
        if {Stage.RECEIVED, Stage.REPLIED} <= cloud.keys() and Stage.RETURNED in edge:
            there_ns, back_ns = cloud[Stage.RECEIVED], cloud[Stage.REPLIED]
            exchange = clock.Exchange(edge[Stage.SENT], there_ns, back_ns, edge[Stage.RETURNED])
            row.clock = self._clocks.offset(node, exchange)


def result_ns(row: LatencyRow) -> int:
    """Returns the time of a frame with a result, from due to that result."""
    return max(row.edge_times.values()) - row.edge_times[Stage.DUE]


def _assign(record: FrameRecord, assignment: Assignment) -> None:
    record.worker, record.expected_ns = assignment.worker or "", assignment.expected_ns


def _is_second_refusal(message: ResultMessage, record: FrameRecord) -> bool:
    """Returns whether both attempts are refused now. A worker that cannot decode the second reports attempt 1."""
    refusal = record.refusal
    return refusal is not None and (refusal.worker, refusal.attempt) != (message.worker, message.attempt)


def _session(node: str) -> str:
    """Returns the session in the name of a worker's process, cloud/<worker>/<session>; empty without a session."""
    return node.rpartition("/")[2]


class LastMinute:
    """A listener that sums up the frames of the last minute, for `skylane status` and `skylane top`."""

    def __init__(self) -> None:
        self._frames = RecentFrames()
        self._clock_error_ns: int | None = None  # Error bound of the clock offset at the latest reply.

    def ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        """See FrameListener."""
        row = record.row
        if row.clock is not None:
            self._clock_error_ns = row.clock.error_ns
        if row.outcome.has_result:
            self._frames.add(row.outcome.value, {"total": result_ns(row)})
        else:
            self._frames.add(row.outcome.value, {}, row.reason or row.outcome.value)

    def metrics(self, session: str, model: str, counts: RunCounts) -> VehicleMetrics:
        """Returns the metrics of the last minute. `counts`: the totals of the run."""
        recent, error_ns = self._frames.summary(), self._clock_error_ns
        return VehicleMetrics(
            session=session,
            model=model,
            seconds=recent.seconds,
            frames=recent.frames,
            reason=recent.reason,
            total=recent.times.get("total"),
            in_flight=counts.in_flight,
            clock_error_ms=None if error_ns is None else error_ns / 1e6,
            totals={outcome.value: count for outcome, count in counts.outcomes.items()},
        )


_SHOWN_DIGITS = 12  # Length of a model's hash in a line.


class VehicleFrameLog:
    """Logs events of frames, rate-limited by kind. Any thread may call it."""

    def __init__(self) -> None:
        self._limited = RateLimitedLogger(get_logger("edge"))
        self._model: tuple[str, str] | None = None  # Version and hash of the latest answer.

    def ended(self, record: FrameRecord, _: ModelResult | None) -> None:
        """Logs a frame that ended without a result in time. See FrameListener."""
        row, outcome = record.row, record.row.outcome
        if outcome.has_result:
            return
        # The vehicle has few reasons to drop a frame; a worker could send a new reason with every frame.
        kind = row.reason.partition(":")[0] if outcome is Outcome.DROPPED else ""
        fields = {"camera": record.id.camera, "frame_id": str(record.id), "reason": row.reason}
        if row.worker:
            fields["worker"] = row.worker
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

    def answered(self, message: ResultMessage, model: str) -> None:
        """Logs an answer by another version of the model of a run, or another file, than the previous answer."""
        current = (message.model_version, message.model_sha256)
        before, self._model = self._model, current
        if before is not None and before != current:
            self._limited.warning(
                "model changed",
                "model changed",
                model=model,
                version=message.model_version,
                sha256=message.model_sha256[:_SHOWN_DIGITS],
                version_before=before[0],
                sha256_before=before[1][:_SHOWN_DIGITS],
                worker=message.worker,
                frame_id=str(message.id),
            )


def matches_attempt(message: ResultMessage, stamps: tuple[Stamp, ...]) -> bool:
    """Returns whether a reply belongs to the attempt, first or second, that was sent with `stamps`.

    A worker repeats the stamps of the message. The refusal of an unreadable message may lack them.
    """
    node = stamps[0].node
    ours = tuple(stamp for stamp in message.stamps if stamp.node == node)
    return ours == stamps or (not ours and message.status is not Status.ANSWERED)


def _node(message: ResultMessage) -> str:
    """Returns the process of the replying worker that received the frame; empty if no stamp names a process.

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
