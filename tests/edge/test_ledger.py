"""Accounting for frames."""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edge.config import EdgeConfig
from edge.frame_record import FrameRecord
from edge.ledger import Ledger
from edge.workers.worker_clocks import WorkerClocks
from shared import clock
from shared.imaging.frames import UnreadableFrame
from shared.messages.frame import ResultMessage, Status
from shared.messages.results import ModelResult
from shared.runlog.latency_log import LogWriter, Outcome, read_rows
from shared.runlog.repair import repair
from shared.stages import Stage, Stamp
from tests.edge.samples import HEIGHT, WIDTH, make_answer, make_frame, mark_sent
from tests.support.waiting import beside

SECOND_NS = 10**9
RESULT = ModelResult(np.zeros((HEIGHT, WIDTH), np.uint8), "3", "tflite")


class Book:
    """A ledger with its log, and the number of closed frames that were sent."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        """`settings`: `clocks` and `grace_ms` of the ledger, and those of the vehicle's configuration."""
        own = {key: settings.pop(key) for key in ("clocks", "grace_ms") if key in settings}
        self.folder, self.log, self.closed = folder, LogWriter(folder), 0
        config = EdgeConfig(vehicle="car", model="tiny", **settings)
        self.ledger = Ledger(self.log, config, "s1", **own)
        self.ledger.listeners.append(self._count_closed)

    def _count_closed(self, record: FrameRecord, _: ModelResult | None) -> None:
        self.closed += record.row.attempts > 0

    def sent(self, index: int = 0, due_ns: int = 1000) -> FrameRecord:
        """Returns a frame in flight."""
        record = mark_sent(self.ledger.begin(make_frame(index), due_ns))
        self.ledger.open(record)
        return record

    def gated(self, *, distance: float | None = 1.5) -> FrameRecord:
        """Returns a frame that was taken 1 ms and compared 2 ms after it was due."""
        record = self.ledger.begin(make_frame(), 1000)
        record.times.update({Stage.TAKEN: 1_001_000, Stage.GATED: 2_001_000})
        record.row.gate_distance = distance
        return record

    def drop(self) -> None:
        """Drops a frame before it is sent."""
        self.ledger.drop(self.ledger.begin(make_frame(), 1000), "window")

    def rows(self) -> list[dict[str, str]]:
        """Returns the rows so far."""
        return list(read_rows(self.folder))


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Callable[..., Book]]:
    """Makes ledgers."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Book:
            made = Book(tmp_path / "run", **settings)
            stack.enter_context(made.log)
            return made

        yield make


@pytest.fixture
def book(books: Callable[..., Book]) -> Book:
    """Returns a ledger without a deadline."""
    return books()


def _finish(ledger: Ledger, record: FrameRecord, message: ResultMessage) -> Outcome:
    assert ledger.accept(message) is record
    record.times[Stage.RETURNED] = record.times[Stage.SENT] + 5_000_000
    record.times[Stage.MASK_DECODED] = record.times[Stage.RETURNED] + 1000
    ledger.finish(record, message, 99, RESULT)
    return record.row.outcome


def test_an_answered_frame_gets_its_row(book: Book) -> None:
    """The row contains everything that is known about the frame."""
    record = book.sent(3)
    record.row.bytes_up = 77
    assert _finish(book.ledger, record, make_answer(record)) is Outcome.ANSWERED
    (row,) = book.rows()
    expected = {
        "vehicle": "car", "camera": "/left", "session": "s1", "sequence": "0", "outcome": "answered", "reason": "",
        "frame_index": "3", "frame_stamp_ns": "7", "model": "tiny", "worker": "w", "worker_session": "s9", "attempts": "1", "batch_size": "1",
        "bytes_up": "77", "bytes_down": "99", "total_ms": "5.006000", "cloud_ms": "0.000700", "crossing_ms": "4.999300",
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert book.closed == 1
    counts = book.ledger.counts()
    assert (counts.read, counts.in_flight, counts.closed, counts.median_ms) == (1, 0, 1, 5.006)


def test_only_the_first_answer_is_accepted(book: Book) -> None:
    """QoS 1 may deliver twice; releasing the window twice would allow too many frames in flight."""
    record = book.sent()
    message = make_answer(record)
    _finish(book.ledger, record, message)
    for _ in range(3):
        assert book.ledger.accept(message) is None
    assert len(book.rows()) == 1
    assert book.closed == 1
    assert book.ledger.counts().ignored_answers == {"late_or_repeated": 3}


def test_foreign_answers_are_counted_and_ignored(book: Book) -> None:
    """They may come from a faulty worker, from an earlier run, or from an attacker who guesses ids."""
    record = book.sent()
    message = make_answer(record)
    book.ledger.accept(replace(message, id=replace(message.id, session="old")))
    book.ledger.accept(replace(message, id=replace(message.id, sequence=5)))
    book.ledger.accept(replace(message, stamps=message.stamps[1:]))
    book.ledger.accept(replace(message, stamps=(Stamp("due", "edge/car/s1", 1), *message.stamps[1:])))
    book.ledger.accept(replace(message, stamps=()))
    refusal = replace(message, status=Status.REJECTED, shape=None)
    book.ledger.accept(replace(refusal, stamps=(Stamp("due", "edge/car/s1", 1),)))
    assert book.ledger.counts().ignored_answers == {"other_session": 1, "late_or_repeated": 1, "stamps_not_ours": 4}
    assert not book.rows()
    assert _finish(book.ledger, record, message) is Outcome.ANSWERED


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.OVERLOADED, Status.REJECTED, Status.FAILED])
@pytest.mark.parametrize("echoed", [True, False], ids=["with our stamps", "without"])
def test_a_refusal_is_the_outcome_with_the_workers_reason(book: Book, status: Status, *, echoed: bool) -> None:
    """A worker that could not decode a frame cannot repeat its stamps; its refusal still counts."""
    record = book.sent()
    message = make_answer(record, status, reason="because")
    if not echoed:
        message = replace(message, stamps=message.stamps[len(record.stamps) :])
    assert _finish(book.ledger, record, message) is Outcome(status.value)
    (row,) = book.rows()
    assert (row["outcome"], row["reason"], row["worker"]) == (status.value, "because", "w")
    assert row["cloud_ms"] == "0.000700"


@pytest.mark.parametrize(
    "lie",
    [
        lambda stamp, i: stamp._replace(at_ns=stamp.at_ns - 200 * i),
        lambda stamp, i: stamp._replace(at_ns=stamp.at_ns + i * SECOND_NS),
        lambda stamp, i: stamp._replace(at_ns=[0, 1 << 62][i % 2]),
    ],
    ids=["backwards", "longer than the round trip", "absurd"],
)
def test_inconsistent_times_are_left_out(book: Book, lie: Callable[[Stamp, int], Stamp]) -> None:
    """A faulty worker must not cause negative times in the log, nor corrupt the clock offset of later frames."""
    for is_lying in (True, False):
        record = book.sent()
        message = make_answer(record)
        if is_lying:
            count = len(record.stamps)
            cloud = tuple(lie(stamp, i) for i, stamp in enumerate(message.stamps[count:]))
            message = replace(message, stamps=record.stamps + cloud)
        assert _finish(book.ledger, record, message) is Outcome.ANSWERED
    wrong, right = book.rows()
    assert wrong["cloud_ms"] == wrong["crossing_ms"] == wrong["clock_offset_ms"] == wrong["t_received_ns"] == ""
    assert wrong["total_ms"]
    assert abs(float(right["clock_offset_ms"]) - 10_000) <= float(right["clock_error_ms"])
    assert abs(float(right["uplink_ms"]) - float(right["crossing_ms"]) / 2) <= float(right["clock_error_ms"])


def test_probes_split_the_network_time_of_a_frame(books: Callable[..., Book]) -> None:
    """A probe gives a better offset than a large frame that was slow in one direction."""
    clocks = WorkerClocks()
    book = books(clocks=clocks)
    record = book.sent()
    sent_ns, there_ns = record.times[Stage.SENT], record.times[Stage.SENT] + 10**10
    # The worker's clock is 9.9 s ahead: 100 of the 105 ms were uplink.
    clocks.add_probe(
        "cloud/w/s9", clock.Exchange(sent_ns, there_ns - 99_900_000, there_ns - 99_900_000, sent_ns + 200_000)
    )
    record.times[Stage.RETURNED] = sent_ns + 105_000_000
    record.times[Stage.MASK_DECODED] = record.times[Stage.RETURNED] + 1000
    message = make_answer(record)
    accepted = book.ledger.accept(message)
    assert accepted is not None
    book.ledger.finish(accepted, message, 99, RESULT)
    (row,) = book.rows()
    error_ms = float(row["clock_error_ms"])
    assert error_ms < 0.5
    assert abs(float(row["uplink_ms"]) - 100) <= error_ms
    assert abs(float(row["downlink_ms"]) - 5) <= error_ms
    assert (row["uplink_resolved"], row["downlink_resolved"]) == ("1", "1")


def test_a_worker_cannot_affect_the_clock_of_another(books: Callable[..., Book]) -> None:
    """Stamps with the name of another worker would corrupt all later rows of that worker."""
    clocks = WorkerClocks()
    book = books(clocks=clocks)
    record = book.sent()
    assert _finish(book.ledger, record, make_answer(record, worker="liar")) is Outcome.ANSWERED
    (row,) = book.rows()
    assert (row["worker"], row["worker_session"], row["cloud_ms"], row["clock_offset_ms"]) == ("liar", "", "", "")
    exchange = clock.Exchange(0, 10, 10, 20)
    assert clocks.offset("cloud/w/s9", exchange) == WorkerClocks().offset("cloud/w/s9", exchange)


def test_a_network_time_below_its_error_bound_is_marked(book: Book) -> None:
    """Without probes, a frame alone cannot tell uplink from downlink."""
    record = book.sent()
    _finish(book.ledger, record, make_answer(record))
    book.drop()
    answered, dropped = book.rows()
    assert (answered["uplink_resolved"], answered["downlink_resolved"]) == ("0", "0")
    assert (dropped["uplink_resolved"], dropped["worker_session"]) == ("", "")


def test_rejected_clock_replies_are_counted(books: Callable[..., Book]) -> None:
    """The counts of ignored answers include them."""
    clocks = WorkerClocks()
    book = books(clocks=clocks)
    clocks.ignore("untrue")
    assert book.ledger.counts().ignored_answers == {"echo_untrue": 1}


def test_only_times_of_the_same_node_are_subtracted(book: Book) -> None:
    """A relay between vehicle and worker has another clock."""
    record = book.sent()
    message = make_answer(record)
    relay = (Stamp("dequeued", "relay/r/s2", 5), Stamp("replied", "relay/r/s2", 6))
    _finish(book.ledger, record, replace(message, stamps=message.stamps + relay))
    (row,) = book.rows()
    assert row["cloud_ms"] == "0.000700"


def test_an_answer_after_the_deadline_is_expired(books: Callable[..., Book]) -> None:
    """The vehicle's clock decides, whatever status the worker sent."""
    book = books(deadline_ms=5.0)
    for status in (Status.ANSWERED, Status.OVERLOADED):
        record = book.sent()
        assert _finish(book.ledger, record, make_answer(record, status)) is Outcome.EXPIRED
    assert [row["outcome"] for row in book.rows()] == ["expired", "expired"]
    assert not book.ledger.counts().answered_by  # Summary and manifest mean by "answered" what the table means.


def test_a_frame_is_lost_only_after_all_received_answers_were_processed(books: Callable[..., Book]) -> None:
    """An answer that waits in the queue has arrived."""
    book = books(answer_timeout_s=10.0)
    book.sent(due_ns=clock.now_ns())
    book.ledger.close_timed_out(clock.now_ns() + 9 * SECOND_NS)
    assert book.ledger.counts().in_flight == 1
    book.ledger.close_timed_out(clock.now_ns() + 11 * SECOND_NS)
    book.ledger.close_timed_out(clock.now_ns() + 12 * SECOND_NS)
    (row,) = book.rows()
    assert (row["outcome"], row["reason"]) == ("lost", "no answer")
    assert book.closed == 1


def test_a_frame_with_a_deadline_is_lost_after_a_grace_period(books: Callable[..., Book]) -> None:
    """The answer timeout of half a minute applies only without a deadline."""
    book = books(deadline_ms=100.0, grace_ms=50.0)
    due_ns = clock.now_ns()
    book.sent(due_ns=due_ns)
    book.ledger.close_timed_out(due_ns + 149_000_000)
    assert book.ledger.counts().in_flight == 1
    book.ledger.close_timed_out(due_ns + 151_000_000)
    assert [row["outcome"] for row in book.rows()] == ["lost"]


def test_only_sent_frames_release_the_window(book: Book) -> None:
    """A dropped frame was never counted in the window."""
    book.drop()
    assert book.closed == 0
    record = book.sent()
    book.ledger.close_undelivered(record.id, "no_worker")
    book.ledger.close_undelivered(record.id, "no_worker")
    assert book.closed == 1
    assert [(row["outcome"], row["reason"], row["attempts"]) for row in book.rows()] == [
        ("dropped", "window", "0"), ("dropped", "no_worker", "1"),
    ]  # fmt: skip


def test_a_reused_frame_names_the_frame_whose_result_it_got(book: Book) -> None:
    """It was not sent: it has no worker, and it does not release the window."""
    _finish(book.ledger, record := book.sent(), make_answer(record))
    book.ledger.reuse(book.gated(), RESULT, record.id.sequence)
    row = book.rows()[1]
    expected = {
        "sequence": "1", "outcome": "reused", "reason": "", "reused_sequence": "0", "gate_distance": "1.500000",
        "gated_ms": "1.000000", "total_ms": "2.000000", "attempts": "0", "worker": "", "engine": "", "t_sent_ns": "",
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert book.closed == 1
    counts = book.ledger.counts()
    assert (counts.read, counts.closed, counts.with_result, counts.median_ms) == (2, 2, 2, (5.006 + 2.0) / 2)
    assert sum(counts.answered_by.values()) == 1  # Only those answered by workers.


def test_a_frame_answered_locally_has_the_local_models_engine_and_version(book: Book) -> None:
    """A gate may have compared the frame before."""
    record = book.gated()
    record.times[Stage.INFERRED_LOCALLY] = 9_001_000
    record.row.local_confidence = 0.875
    book.ledger.answer_locally(record, RESULT)
    (row,) = book.rows()
    expected = {
        "outcome": "answered_locally", "local_confidence": "0.875000", "gate_distance": "1.500000", "engine": "tflite",
        "model_version": "3", "worker": "", "reused_sequence": "", "inferred_locally_ms": "7.000000", "total_ms": "9.000000",
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert book.closed == 0


def test_a_result_of_the_vehicle_after_the_deadline_is_expired(books: Callable[..., Book]) -> None:
    """A deadline means the same whatever the origin of the result."""
    book = books(deadline_ms=1.9)
    book.ledger.reuse(book.gated(), RESULT, 0)
    book.ledger.answer_locally(book.gated(), RESULT)
    assert [(row["outcome"], row["reason"], row["total_ms"]) for row in book.rows()] == [
        ("expired", "reused after the deadline", "2.000000"),
        ("expired", "answered locally after the deadline", "2.000000"),
    ]
    assert book.ledger.counts().with_result == 0
    assert book.ledger.counts().median_ms is None


def test_after_a_crash_open_frames_and_gaps_are_closed(book: Book, tmp_path: Path) -> None:
    """A frame is in the journal, with its columns, before it is sent; one that was not sent is a gap in the sequence."""
    book.gated()
    book.ledger.open(mark_sent(book.gated(distance=40.25)))
    book.sent()
    crashed = shutil.copytree(book.folder, tmp_path / "crashed")
    assert repair(crashed) == 3
    rows = sorted(read_rows(crashed), key=lambda row: int(row["sequence"]))
    assert [(row["outcome"], row["gate_distance"]) for row in rows] == [
        ("aborted", ""), ("aborted", "40.250000"), ("aborted", "")
    ]  # fmt: skip


def test_an_unreadable_frame_gets_a_row(book: Book) -> None:
    """Every frame of the source has one."""
    record = book.ledger.begin(UnreadableFrame("/left", 4, 8, 9, 10, "broken"), 1000)
    book.ledger.drop(record, "undecodable: broken")
    (row,) = book.rows()
    assert (row["frame_index"], row["frame_stamp_ns"], row["source_ns"], row["read_ms"]) == ("4", "8", "9", "0.000010")


def test_concurrent_ends_of_a_frame_produce_one_row(book: Book) -> None:
    """Answers, failed deliveries and timeouts race for every frame; exactly one of them wins."""
    count = 300
    records = [book.sent(i) for i in range(count)]
    messages = [make_answer(record) for record in records]
    ledger = book.ledger
    works = (
        [partial(_receive, ledger, message) for message in messages],
        [partial(ledger.close_undelivered, record.id, "no_worker") for record in reversed(records)],
        [partial(ledger.close_timed_out, 1 << 62)] * 20,
        [partial(_receive, ledger, message) for message in reversed(messages)],
    )
    with beside(*(lambda work=work: [step() for step in work] for work in works)):
        pass
    assert book.ledger.wait_until_idle(60.0)
    rows = book.rows()
    assert len({row["sequence"] for row in rows}) == len(rows) == count
    assert book.closed == count
    counts = book.ledger.counts()
    assert counts.read == counts.closed == count
    assert Counter(row["outcome"] for row in rows) == {key.value: n for key, n in counts.outcomes.items()}


def _receive(ledger: Ledger, message: ResultMessage) -> None:
    record = ledger.accept(message)
    if record:
        record.times[Stage.RETURNED] = record.times[Stage.MASK_DECODED] = clock.now_ns()
        ledger.finish(record, message, 1, None)


def test_listeners_get_every_ended_frame_and_only_results_in_time(books: Callable[..., Book]) -> None:
    """What follows a frame needs no other event. A listener that fails costs no frame its place in the counts."""
    book = books(deadline_ms=5.5)
    got: list[tuple[Outcome, ModelResult | None]] = []
    book.ledger.listeners.append(lambda record, result: got.append((record.row.outcome, result)))
    _finish(book.ledger, record := book.sent(), make_answer(record))
    late = book.gated()
    late.times[Stage.INFERRED_LOCALLY] = 9_001_000
    book.ledger.answer_locally(late, RESULT)
    book.drop()
    assert got == [(Outcome.ANSWERED, RESULT), (Outcome.EXPIRED, None), (Outcome.DROPPED, None)]

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    book.ledger.listeners.append(fail)
    with pytest.raises(ZeroDivisionError):
        book.drop()
    assert book.ledger.counts().closed == len(book.rows()) == 4


def test_the_first_frame_that_may_get_a_result(book: Book) -> None:
    """Frames end in any order. The pipeline gets no further ahead of a slow answer than the sinks can hold back."""
    assert book.ledger.first_open() == 0
    records = [book.ledger.begin(make_frame(), 1000) for _ in range(5)]
    book.ledger.drop(records[1], "window")
    assert book.ledger.first_open() == 0
    book.ledger.drop(records[0], "window")
    assert book.ledger.first_open() == 2
    assert book.ledger.wait_until_within(4, 0.0)
    assert not book.ledger.wait_until_within(2, 0.0)

    def end_frames() -> None:
        for record in records[2:4]:
            book.ledger.drop(record, "window")

    ending = threading.Timer(0.01, end_frames)
    ending.start()
    assert book.ledger.wait_until_within(2, 60.0)
    ending.join(60.0)
