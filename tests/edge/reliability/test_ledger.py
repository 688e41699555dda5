import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.worker_clocks import Clocks
from shared import clock
from shared.imaging.frames import Frame, UnreadableFrame
from shared.messages.frame import ResultMessage, Status
from shared.runlog.latency_log import LogWriter, Outcome, read_rows
from shared.runlog.repair import repair
from shared.stages import Stage, Stamp

Make = Callable[..., Any]
SECOND_NS = 10**9


class Book:
    """A ledger with its log and a count of the places given back."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.places = 0
        self.log = LogWriter(folder)
        self.ledger = Ledger(self.log, vehicle="car", session="s1", model="tiny", on_closed=self._closed, **options)

    def _closed(self) -> None:
        self.places += 1

    def rows(self) -> list[dict[str, str]]:
        """The rows so far."""
        return list(read_rows(self.folder))


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    """A ledger without a deadline."""
    made = Book(tmp_path)
    with made.log:
        yield made


def _finish(ledger: Ledger, journey: FrameRecord, message: ResultMessage) -> Outcome:
    assert ledger.accept(message) is journey
    journey.times[Stage.RETURNED] = journey.times[Stage.SENT] + 5_000_000
    journey.times[Stage.MASK_DECODED] = journey.times[Stage.RETURNED] + 1000
    return ledger.finish(journey, message, 99)


def test_an_answered_frame_gets_its_row(book: Book, frame: Make, send: Make, answer: Make) -> None:
    """With everything that is known of it."""
    journey = send(book.ledger.begin(frame(3), 1000))
    journey.bytes_up = 77
    book.ledger.open(journey)
    assert _finish(book.ledger, journey, answer(journey)) is Outcome.ANSWERED
    (row,) = book.rows()
    expected = {
        "vehicle": "car", "camera": "/left", "session": "s1", "sequence": "0", "outcome": "answered", "reason": "",
        "frame_index": "3", "frame_stamp_ns": "7", "model": "tiny", "worker": "w", "worker_session": "s9", "attempts": "1", "batch_size": "1",
        "bytes_up": "77", "bytes_down": "99", "total_ms": "5.006000", "cloud_ms": "0.000700", "crossing_ms": "4.999300",
    }  # fmt: skip
    assert {key: row[key] for key in expected} == expected
    assert book.places == 1
    tally = book.ledger.tally()
    assert (tally.read, tally.in_flight, tally.closed, tally.median_ms) == (1, 0, 1, 5.006)


def test_the_first_answer_is_accepted_and_no_other(book: Book, frame: Make, send: Make, answer: Make) -> None:
    """QoS 1 repeats; a window that is given back twice would let too many frames out."""
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    message = answer(journey)
    _finish(book.ledger, journey, message)
    for _ in range(3):
        assert book.ledger.accept(message) is None
    assert len(book.rows()) == 1
    assert book.places == 1
    assert book.ledger.tally().ignored_answers == {"late_or_repeated": 3}


def test_foreign_answers_are_counted_and_change_nothing(book: Book, frame: Make, send: Make, answer: Make) -> None:
    """A worker that mixes frames up, an earlier run's answers, or somebody who guesses ids."""
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    message = answer(journey)
    book.ledger.accept(replace(message, id=replace(message.id, session="old")))
    book.ledger.accept(replace(message, id=replace(message.id, sequence=5)))
    book.ledger.accept(replace(message, stamps=message.stamps[1:]))
    book.ledger.accept(replace(message, stamps=(Stamp("due", "edge/car/s1", 1), *message.stamps[1:])))
    book.ledger.accept(replace(message, stamps=()))
    refusal = replace(message, status=Status.REJECTED, shape=None)
    book.ledger.accept(replace(refusal, stamps=(Stamp("due", "edge/car/s1", 1),)))
    assert book.ledger.tally().ignored_answers == {"other_session": 1, "late_or_repeated": 1, "stamps_not_ours": 4}
    assert not book.rows()
    assert _finish(book.ledger, journey, message) is Outcome.ANSWERED


@pytest.mark.parametrize("status", [Status.EXPIRED, Status.OVERLOADED, Status.REJECTED, Status.FAILED])
@pytest.mark.parametrize("echoed", [True, False], ids=["with our stamps", "without"])
def test_a_refusal_is_the_workers_word(
    book: Book, frame: Make, send: Make, answer: Make, status: Status, *, echoed: bool
) -> None:
    """What a worker could not read, it cannot echo: that must not turn its word into a silent loss."""
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    message = answer(journey, status, reason="because")
    if not echoed:
        message = replace(message, stamps=message.stamps[len(journey.stamps) :])
    assert _finish(book.ledger, journey, message) is Outcome(status.value)
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
    ids=["backwards", "longer than it was away", "absurd"],
)
def test_stamps_that_cannot_be_true_get_no_column(
    book: Book, frame: Make, send: Make, answer: Make, lie: Callable[[Stamp, int], Stamp]
) -> None:
    """A worker that lies must not put negative times into the log, nor spoil the clock's estimate for those after it."""
    for is_lying in (True, False):
        journey = send(book.ledger.begin(frame(), 1000))
        book.ledger.open(journey)
        message = answer(journey)
        if is_lying:
            count = len(journey.stamps)
            cloud = tuple(lie(stamp, i) for i, stamp in enumerate(message.stamps[count:]))
            message = replace(message, stamps=journey.stamps + cloud)
        assert _finish(book.ledger, journey, message) is Outcome.ANSWERED
    lied, told = book.rows()
    assert lied["cloud_ms"] == lied["crossing_ms"] == lied["clock_offset_ms"] == lied["t_received_ns"] == ""
    assert lied["total_ms"]
    assert abs(float(told["clock_offset_ms"]) - 10_000) <= float(told["clock_error_ms"])
    assert abs(float(told["uplink_ms"]) - float(told["crossing_ms"]) / 2) <= float(told["clock_error_ms"])


def test_what_the_probes_told_is_what_the_row_says(tmp_path: Path, frame: Make, send: Make, answer: Make) -> None:
    """A quick probe knows the clock better than a large frame that took long one way; both crossings follow from it."""
    clocks = Clocks()
    book = Book(tmp_path, clocks=clocks)
    with book.log:
        journey = send(book.ledger.begin(frame(), 1000))
        book.ledger.open(journey)
        sent_ns, there_ns = journey.times[Stage.SENT], journey.times[Stage.SENT] + 10**10
        # Its clock is 9.9 s ahead: the frame took 100 ms of its 105 up.
        clocks.probed(
            "cloud/w/s9", clock.Exchange(sent_ns, there_ns - 99_900_000, there_ns - 99_900_000, sent_ns + 200_000)
        )
        journey.times[Stage.RETURNED] = sent_ns + 105_000_000
        journey.times[Stage.MASK_DECODED] = journey.times[Stage.RETURNED] + 1000
        message = answer(journey)
        accepted = book.ledger.accept(message)
        assert accepted is not None
        book.ledger.finish(accepted, message, 99)
    (row,) = book.rows()
    error_ms = float(row["clock_error_ms"])
    assert error_ms < 0.5
    assert abs(float(row["uplink_ms"]) - 100) <= error_ms
    assert abs(float(row["downlink_ms"]) - 5) <= error_ms
    assert (row["uplink_resolved"], row["downlink_resolved"]) == ("1", "1")


def test_a_worker_tells_of_no_clock_but_its_own(tmp_path: Path, frame: Make, send: Make, answer: Make) -> None:
    """One that gives another's name for its clock's would make every later row of the other's untrue."""
    clocks = Clocks()
    book = Book(tmp_path, clocks=clocks)
    with book.log:
        journey = send(book.ledger.begin(frame(), 1000))
        book.ledger.open(journey)
        assert _finish(book.ledger, journey, answer(journey, worker="liar")) is Outcome.ANSWERED
    (row,) = book.rows()
    assert (row["worker"], row["worker_session"], row["cloud_ms"], row["clock_offset_ms"]) == ("liar", "", "", "")
    assert not clocks._unprobed


def test_a_crossing_that_is_smaller_than_its_bound_is_marked(book: Book, frame: Make, send: Make, answer: Make) -> None:
    """A frame that knows the clock by itself alone can say nothing of either way."""
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    _finish(book.ledger, journey, answer(journey))
    book.ledger.drop(book.ledger.begin(frame(), 1000), "window")
    answered, dropped = book.rows()
    assert (answered["uplink_resolved"], answered["downlink_resolved"]) == ("0", "0")
    assert (dropped["uplink_resolved"], dropped["worker_session"]) == ("", "")


def test_echoes_that_were_not_believed_are_told(tmp_path: Path) -> None:
    """Beside the answers that were not."""
    clocks = Clocks()
    book = Book(tmp_path, clocks=clocks)
    with book.log:
        clocks.ignore("untrue")
        assert book.ledger.tally().ignored_answers == {"echo_untrue": 1}


def test_only_stamps_of_one_node_are_subtracted(book: Book, frame: Make, send: Make, answer: Make) -> None:
    """A relay or a second worker on the way has another clock."""
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    message = answer(journey)
    relay = (Stamp("dequeued", "relay/r/s2", 5), Stamp("replied", "relay/r/s2", 6))
    _finish(book.ledger, journey, replace(message, stamps=message.stamps + relay))
    (row,) = book.rows()
    assert row["cloud_ms"] == "0.000700"


def test_an_answer_after_the_deadline_is_expired(tmp_path: Path, frame: Make, send: Make, answer: Make) -> None:
    """Only the edge's clock judges in the end, whatever the worker thought."""
    book = Book(tmp_path, deadline_ms=5.0)
    with book.log:
        for status in (Status.ANSWERED, Status.OVERLOADED):
            journey = send(book.ledger.begin(frame(), 1000))
            book.ledger.open(journey)
            assert _finish(book.ledger, journey, answer(journey, status)) is Outcome.EXPIRED
    assert [row["outcome"] for row in book.rows()] == ["expired", "expired"]


def test_silence_is_a_loss_only_after_all_that_came_was_heard(tmp_path: Path, frame: Make, send: Make) -> None:
    """An answer that waits to be looked at is none that never came."""
    book = Book(tmp_path, answer_timeout_s=10.0)
    with book.log:
        journey = send(book.ledger.begin(frame(), clock.now_ns()))
        book.ledger.open(journey)
        book.ledger.give_up_silent(clock.now_ns() + 9 * SECOND_NS)
        assert book.ledger.tally().in_flight == 1
        book.ledger.give_up_silent(clock.now_ns() + 11 * SECOND_NS)
        book.ledger.give_up_silent(clock.now_ns() + 12 * SECOND_NS)
    (row,) = book.rows()
    assert (row["outcome"], row["reason"]) == ("lost", "no answer")
    assert book.places == 1


def test_a_deadline_ends_the_waiting_with_a_grace(tmp_path: Path, frame: Make, send: Make) -> None:
    """With a deadline nobody waits half a minute."""
    book = Book(tmp_path, deadline_ms=100.0, grace_ms=50.0)
    with book.log:
        due_ns = clock.now_ns()
        journey = send(book.ledger.begin(frame(), due_ns))
        book.ledger.open(journey)
        book.ledger.give_up_silent(due_ns + 149_000_000)
        assert book.ledger.tally().in_flight == 1
        book.ledger.give_up_silent(due_ns + 151_000_000)
    assert [row["outcome"] for row in book.rows()] == ["lost"]


def test_a_frame_is_dropped_without_a_place_and_withdrawn_with_one(book: Book, frame: Make, send: Make) -> None:
    """Only what was sent held a place in the window."""
    book.ledger.drop(book.ledger.begin(frame(), 1000), "window")
    assert book.places == 0
    journey = send(book.ledger.begin(frame(), 1000))
    book.ledger.open(journey)
    book.ledger.withdraw(journey.id, "no_worker")
    book.ledger.withdraw(journey.id, "no_worker")
    assert book.places == 1
    assert [(row["outcome"], row["reason"], row["attempts"]) for row in book.rows()] == [
        ("dropped", "window", "0"), ("dropped", "no_worker", "1"),
    ]  # fmt: skip


def test_an_unreadable_frame_is_accounted_for_like_any_other(book: Book) -> None:
    """It was in the source, so it has a row."""
    journey = book.ledger.begin(UnreadableFrame("/left", 4, 8, 9, 10, "broken"), 1000)
    book.ledger.drop(journey, "undecodable: broken")
    (row,) = book.rows()
    assert (row["frame_index"], row["frame_stamp_ns"], row["source_ns"], row["read_ms"]) == ("4", "8", "9", "0.000010")


def test_a_frame_is_in_the_journal_before_it_is_sent(tmp_path: Path, frame: Make, send: Make) -> None:
    """What a killed edge had under way is found there."""
    book = Book(tmp_path)
    with book.log:
        for _ in range(3):
            book.ledger.open(send(book.ledger.begin(frame(), 1000)))
    assert repair(tmp_path) == 3
    assert {row["outcome"] for row in book.rows()} == {"aborted"}


def test_everything_is_accounted_for_whoever_closes_it_first(
    book: Book, frame: Callable[..., Frame], send: Make, answer: Make
) -> None:
    """Answers, refusals by the broker and the passing of time race for every frame: one of them wins, once."""
    count = 300
    journeys = [send(book.ledger.begin(frame(i), 1000)) for i in range(count)]
    for journey in journeys:
        book.ledger.open(journey)
    messages = [answer(journey) for journey in journeys]
    ledger = book.ledger
    _at_once(
        [partial(_receive, ledger, message) for message in messages],
        [partial(ledger.withdraw, journey.id, "no_worker") for journey in reversed(journeys)],
        [partial(ledger.give_up_silent, 1 << 62)] * 20,
        [partial(_receive, ledger, message) for message in reversed(messages)],
    )
    assert book.ledger.wait_until_idle(60.0)
    rows = book.rows()
    assert len({row["sequence"] for row in rows}) == len(rows) == count
    assert book.places == count
    tally = book.ledger.tally()
    assert tally.read == tally.closed == count
    assert Counter(row["outcome"] for row in rows) == {key.value: n for key, n in tally.outcomes.items()}


def _receive(ledger: Ledger, message: ResultMessage) -> None:
    journey = ledger.accept(message)
    if journey:
        journey.times[Stage.RETURNED] = journey.times[Stage.MASK_DECODED] = clock.now_ns()
        ledger.finish(journey, message, 1)


def _at_once(*works: Sequence[Callable[[], None]]) -> None:
    """Do several lists of things at the same time, a thread a list."""

    def work_through(work: Sequence[Callable[[], None]]) -> None:
        for step in work:
            step()

    threads = [threading.Thread(target=work_through, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
