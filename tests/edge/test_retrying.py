"""Retries of unanswered frames."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.frame_record import FrameRecord
from shared import clock
from shared.clock import Deadline, Exchange
from shared.imaging.frames import Frame
from shared.messages.frame import ResultMessage, Status, unpack_frame
from shared.messages.node_status import NodeState
from shared.messages.topics import FRAMES, RETRIES
from shared.mqtt.bus import Delivery
from shared.runlog.latency_log import JOURNAL_NAME
from shared.stages import CLOUD_STAGES, Stage, Stamp
from tests.edge.samples import CARD, make_answer, make_frame
from tests.edge.vehicle import WAIT_S, RetryingVehicle
from tests.support.memory_bus import MemoryBus

MS = 1_000_000


class AnsweredVehicle(RetryingVehicle):
    """A vehicle whose workers answer what the test says."""

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        super().__init__(bus, folder, CARD, window=4, deadline_ms=60_000.0)
        for kind in (FRAMES, RETRIES):
            bus.subscribe(kind.filter(), 1, self.on_frame)

    def send(self, frame: Frame) -> FrameRecord:
        """Sends a frame, waits until it has arrived, and returns its record."""
        record = super().send(frame)
        assert self.arrived.acquire(timeout=WAIT_S)
        return record

    def send_twice(self) -> tuple[FrameRecord, Delivery]:
        """Sends a frame, and again when the worker a dies; returns its record and its second attempt."""
        record = self.send(make_frame())
        return record, self.retry(lambda: self.announce("a", NodeState.OFFLINE))

    def answer(self, delivery: Delivery, record: FrameRecord, **changes: Any) -> None:
        """Processes a worker's answer to a delivered frame."""
        message = unpack_frame(delivery.payload)
        at_ns = message.stamps[-1].at_ns
        cloud = tuple(Stamp(stage.value, "cloud/b/s9", at_ns + i) for i, stage in enumerate(CLOUD_STAGES))
        fields = {"attempt": message.attempt, "stamps": message.stamps + cloud, "worker": "b", **changes}
        self.process(make_answer(record, **fields))

    def process(self, message: ResultMessage) -> None:
        """Processes a message like the receiver."""
        record = self.ledger.accept(message)
        if record:
            record.times[Stage.RETURNED] = record.times[Stage.MASK_DECODED] = clock.now_ns()
            self.ledger.finish(record, message, 9, None)


@pytest.fixture
def vehicle(tmp_path: Path) -> Iterator[AnsweredVehicle]:
    """Returns a vehicle that knows two workers, a and b."""
    with MemoryBus() as bus:
        made = AnsweredVehicle(bus, tmp_path / "run")
        with made.log:
            for worker in ("a", "b"):
                made.announce(worker)
            yield made


def test_a_frame_of_a_dead_worker_is_sent_to_another(vehicle: AnsweredVehicle) -> None:
    """The second attempt has the same id and data, its own send time, and the remaining time budget."""
    record = vehicle.send(make_frame(7))
    first = vehicle.delivered[0]
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    assert again.topic == "skylane/v1/retries/b/tiny/car/left"
    before, after = unpack_frame(first.payload, 0), unpack_frame(again.payload, 0)
    assert (after.attempt, after.id, after.data) == (2, before.id, before.data)
    assert after.stamps[:-1] == before.stamps[:-1]
    assert after.stamps[-1].at_ns > before.stamps[-1].at_ns
    assert after.deadline <= before.deadline < Deadline.NEVER
    assert again.properties.response_topic == first.properties.response_topic
    vehicle.answer(again, record)
    (row,) = vehicle.rows()
    assert (row["outcome"], row["attempts"], row["t_sent_ns"]) == ("answered", "2", str(after.stamps[-1].at_ns))
    waited_ns = after.stamps[-1].at_ns - before.stamps[-1].at_ns
    assert row["retry_wait_ms"] == f"{waited_ns // MS}.{waited_ns % MS:06d}"
    assert float(row["sent_ms"]) >= float(row["retry_wait_ms"])
    assert (vehicle.folder / JOURNAL_NAME).read_text().count("\n") == 2
    counts = vehicle.ledger.counts()
    assert (counts.retried, counts.retry_won, vehicle.stats.silence_multiplier) == (1, 1, 1)
    assert record.message is None


def test_the_second_answer_is_a_duplicate(vehicle: AnsweredVehicle) -> None:
    """A frame has at most one result; an answer to the first attempt makes later retries more cautious."""
    record, again = vehicle.send_twice()
    vehicle.answer(vehicle.delivered[0], record)
    vehicle.answer(again, record)
    (row,) = vehicle.rows()
    assert (row["outcome"], row["attempts"], row["retry_wait_ms"]) == ("answered", "2", "0.000000")
    counts = vehicle.ledger.counts()
    assert (counts.retried, counts.retry_won, counts.ignored_answers) == (1, 0, {"duplicate": 1})
    assert vehicle.stats.silence_multiplier == 2


def test_an_answer_to_a_lost_frame_is_late_and_not_a_duplicate(vehicle: AnsweredVehicle) -> None:
    """Duplicates imply that the other answer was accepted."""
    record, again = vehicle.send_twice()
    vehicle.ledger.close_all("no answer")
    vehicle.answer(again, record)
    assert [row["outcome"] for row in vehicle.rows()] == ["lost"]
    assert vehicle.ledger.counts().ignored_answers == {"late_or_repeated": 1}


def test_an_undelivered_first_attempt_does_not_end_the_second(vehicle: AnsweredVehicle) -> None:
    """The broker may report it late, after a reconnect, when a worker already has the second attempt."""
    record, again = vehicle.send_twice()
    vehicle.ledger.close_undelivered(record.id, "no_worker")
    vehicle.answer(again, record)
    assert [row["outcome"] for row in vehicle.rows()] == ["answered"]


def test_an_answer_must_repeat_the_stamps_of_its_attempt(vehicle: AnsweredVehicle) -> None:
    """Otherwise the latency log would contain a wrong network time."""
    record, again = vehicle.send_twice()
    for attempt in (1, 3):
        vehicle.answer(again, record, attempt=attempt)
    assert vehicle.ledger.counts().ignored_answers == {"stamps_not_ours": 2}
    assert not vehicle.rows()


def test_a_refused_attempt_does_not_end_a_frame_while_the_other_may_be_answered(vehicle: AnsweredVehicle) -> None:
    """A retry at an overloaded worker must not discard the answer to the first attempt."""
    record, again = vehicle.send_twice()
    vehicle.answer(again, record, status=Status.OVERLOADED, shape=None, data=b"")
    assert not vehicle.rows()
    vehicle.answer(vehicle.delivered[0], record)
    assert [row["outcome"] for row in vehicle.rows()] == ["answered"]


@pytest.mark.parametrize("is_refused_again", [True, False])
def test_a_refusal_is_the_outcome_if_nothing_else_arrives(vehicle: AnsweredVehicle, *, is_refused_again: bool) -> None:
    """The row contains the worker's reason instead of a timeout."""
    record, again = vehicle.send_twice()
    refusal = {"status": Status.OVERLOADED, "shape": None, "data": b"", "reason": "full"}
    for _ in range(2):  # A repeated refusal counts once.
        vehicle.answer(again, record, **refusal)
    assert not vehicle.rows()
    if is_refused_again:
        vehicle.answer(vehicle.delivered[0], record, **refusal | {"worker": "a"})
    else:
        vehicle.ledger.close_all("the run ended")
    (row,) = vehicle.rows()
    assert (row["outcome"], row["reason"], row["attempts"]) == ("overloaded", "full", "2")


def test_a_restarted_worker_gets_the_frames_of_its_last_process(vehicle: AnsweredVehicle) -> None:
    """There is no other worker, and no last will was received."""
    vehicle.announce("a", NodeState.STOPPING)
    vehicle.send(make_frame())
    again = vehicle.retry(lambda: vehicle.announce("b", session="s10"))
    assert RETRIES.names_in(again.topic) == {"worker": "b", "model": "tiny", "vehicle": "car", "camera": "left"}


def test_frames_in_flight_are_sent_again_after_a_reconnect(vehicle: AnsweredVehicle) -> None:
    """While the vehicle is offline its answers have no subscriber, and a restarted broker has lost the frame."""
    vehicle.send(make_frame())

    def reconnect() -> None:
        vehicle.transport.reconnected()
        vehicle.announce("b")

    assert vehicle.retry(reconnect).topic.startswith("skylane/v1/retries/b/")


@pytest.mark.parametrize("sign", ["answer", "echo", "earlier answer"])
def test_the_worker_with_the_last_sign_of_life_is_chosen(vehicle: AnsweredVehicle, sign: str) -> None:
    """A worker that hangs is still online for the broker."""
    for worker in ("c", "d"):
        vehicle.announce(worker)
    now_ns = clock.now_ns()
    if sign == "earlier answer":
        vehicle.stats.add_reply("c", now_ns - 2, now_ns - 1)
    vehicle.send(make_frame())
    now_ns = clock.now_ns()
    if sign == "answer":  # Unlike a clock reply, an answer shows that the engine works.
        vehicle.stats.add_reply("c", now_ns, now_ns)
    for worker in {"answer": ("d",), "echo": ("c",)}.get(sign, ()):
        vehicle.clocks.add_probe(f"cloud/{worker}/s9", Exchange(now_ns, now_ns, now_ns, now_ns + 1))
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    assert again.topic.startswith("skylane/v1/retries/c/")


def test_the_frames_of_a_hanging_worker_are_sent_again(vehicle: AnsweredVehicle) -> None:
    """The broker needs 22 seconds to notice; the retry goes to another worker before that."""
    now_ns = clock.now_ns()
    for worker, ago_s in (("a", 2), ("b", 0)):
        at_ns = now_ns - ago_s * 1000 * MS
        vehicle.clocks.add_probe(f"cloud/{worker}/s9", Exchange(at_ns, at_ns, at_ns, at_ns + 1))
        vehicle.stats.add_reply("a", at_ns, at_ns)
    vehicle.send(make_frame())
    again = vehicle.retry(lambda: None)
    assert again.topic.startswith("skylane/v1/retries/b/")


def test_without_any_clock_reply_no_worker_counts_as_hanging(vehicle: AnsweredVehicle) -> None:
    """The cause may be the link, or a pause of this process."""
    at_ns = clock.now_ns() - 5000 * MS
    for worker in ("a", "b"):
        vehicle.clocks.add_probe(f"cloud/{worker}/s9", Exchange(at_ns, at_ns, at_ns, at_ns + 1))
    vehicle.send(make_frame())
    vehicle.retrier.retry_due()
    vehicle.settle()
    assert len(vehicle.delivered) == 1


def test_a_frame_that_has_ended_is_not_sent_again(vehicle: AnsweredVehicle) -> None:
    """Its answer may arrive while the retry is being decided."""
    record = vehicle.send(make_frame())
    kept = record.message
    vehicle.answer(vehicle.delivered[0], record)
    record.message = kept
    assert not vehicle.ledger.open_retry(record, clock.now_ns())
    assert vehicle.ledger.counts().retried == 0


def test_answers_are_counted_by_origin(vehicle: AnsweredVehicle) -> None:
    """Workers of one group may run different versions."""
    for version in ("1", "2", "2"):
        record = vehicle.send(make_frame())
        message = make_answer(record, model_version=version, engine="openvino bf16", model_sha256=version * 64)
        vehicle.process(message)
    found = {(by.worker, by.model_version, by.engine): n for by, n in vehicle.ledger.counts().answered_by.items()}
    assert found == {("w", "1", "openvino bf16"): 1, ("w", "2", "openvino bf16"): 2}
    assert [row["model_version"] for row in vehicle.rows()] == ["1", "2", "2"]
    assert {row["engine"] for row in vehicle.rows()} == {"openvino bf16"}
