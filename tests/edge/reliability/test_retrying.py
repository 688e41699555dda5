import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord, Ledger
from edge.reliability.retry_policy import RetryPolicy
from edge.reliability.retrying import Retrier
from edge.reliability.worker_clocks import Clocks
from edge.reliability.worker_stats import WorkerStats
from edge.sender import Sender, Window
from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.clock import Exchange
from shared.messages.frame import ResultMessage, Status, unpack_frame
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import FRAMES, RETRIES, WORKER_STATUS
from shared.mqtt.bus import Delivery, MemoryBus
from shared.runlog.latency_log import JOURNAL_NAME, LogWriter, read_rows
from shared.stages import CLOUD_STAGES, Stage, Stamp

Make = Callable[..., Any]
MS = 1_000_000
WAIT_S = 60.0


class Vehicle:
    """Ledger, transport, sender and retrier over a bus in memory, with workers that are made up."""

    def __init__(self, bus: MemoryBus, folder: Path, card: ModelCard) -> None:
        self.folder, self.card, self.bus = folder, card, bus
        self.log = LogWriter(folder)
        self.pulse, self.clocks, self.stop = WorkerStats(), Clocks(), threading.Event()
        window = Window(4, self.stop)
        self.ledger = Ledger(
            self.log, vehicle="car", session="s1", model="tiny", deadline_ms=60_000.0, pulse=self.pulse,
            on_closed=window.give_back_place,
        )  # fmt: skip
        self.transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        self.sender = Sender(self.transport, self.ledger, window, node="edge/car/s1", keeps=True)
        self.suspicions = RetryPolicy(self.pulse, window=4)
        self.retrier = Retrier(self.transport, self.ledger, self.suspicions, self.pulse, self.clocks)
        self.taken: list[Delivery] = []
        self.arrived = threading.Semaphore(0)
        for kind in (FRAMES, RETRIES):
            bus.subscribe(kind.filter(), 1, self._take)

    def _take(self, delivery: Delivery) -> None:
        self.taken.append(delivery)
        self.arrived.release()

    def announce(self, worker: str, state: NodeState = NodeState.ONLINE, session: str = "s9") -> None:
        """A worker says where it stands."""
        status = NodeStatus(state, session, 4, (self.card,) if state is NodeState.ONLINE else ())
        self.bus.publish(WORKER_STATUS.of(worker=worker), pack_status(status), qos=1, retained=True)
        self.settle()

    def settle(self) -> None:
        """Wait until the bus has delivered all that was published."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)

    def send(self, frame: Any) -> FrameRecord:
        """Bring a frame from due to published."""
        journey = self.ledger.begin(frame, clock.now_ns())
        journey.times[Stage.TAKEN] = clock.now_ns()
        self.sender.send(journey, prepare(frame, journey, Preparation(self.card, codec="raw")))
        assert self.arrived.acquire(timeout=WAIT_S)
        return journey

    def retry(self, gone: Callable[[], None]) -> Delivery:
        """Have the retrier run while `gone` happens, until one frame has been sent again."""
        thread = threading.Thread(target=self.retrier.run, args=(self.stop,))
        thread.start()
        try:
            gone()
            assert self.arrived.acquire(timeout=WAIT_S)
        finally:
            self.stop.set()
            thread.join(WAIT_S)
        return self.taken[-1]

    def answer(self, delivery: Delivery, answer: Make, journey: FrameRecord, **changes: Any) -> None:
        """A worker's answer to what was delivered to it comes in."""
        message = unpack_frame(delivery.payload)
        at_ns = message.stamps[-1].at_ns
        cloud = tuple(Stamp(stage.value, "cloud/b/s9", at_ns + i) for i, stage in enumerate(CLOUD_STAGES))
        fields = {"attempt": message.attempt, "stamps": message.stamps + cloud, "worker": "b", **changes}
        self.take(answer(journey, **fields))

    def take(self, message: ResultMessage) -> None:
        """As the receiver does."""
        journey = self.ledger.accept(message)
        if journey:
            journey.times[Stage.RETURNED] = journey.times[Stage.MASK_DECODED] = clock.now_ns()
            self.ledger.finish(journey, message, 9)

    def rows(self) -> list[dict[str, str]]:
        """The rows so far."""
        return list(read_rows(self.folder))


@pytest.fixture
def vehicle(tmp_path: Path, card: ModelCard) -> Iterator[Vehicle]:
    """A vehicle that knows of two workers, a and b."""
    with MemoryBus() as bus:
        made = Vehicle(bus, tmp_path / "run", card)
        with made.log:
            for worker in ("a", "b"):
                made.announce(worker)
            yield made


def test_what_a_dead_worker_held_goes_to_one_that_lives(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """The same frame, under the same id, as its second attempt, with the time that is left; and each stamp exact."""
    journey = vehicle.send(frame(7))
    first = vehicle.taken[0]
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    assert again.topic == "skylane/v1/retries/b/tiny/car/left"
    before, after = unpack_frame(first.payload), unpack_frame(again.payload)
    assert (after.attempt, after.id, after.data) == (2, before.id, before.data)
    assert after.stamps[:-1] == before.stamps[:-1]
    assert after.stamps[-1].at_ns > before.stamps[-1].at_ns
    assert before.budget_ms is not None
    assert after.budget_ms is not None
    assert after.budget_ms <= before.budget_ms
    assert again.properties.response_topic == first.properties.response_topic
    vehicle.answer(again, answer, journey)
    (row,) = vehicle.rows()
    assert (row["outcome"], row["attempts"], row["t_sent_ns"]) == ("answered", "2", str(after.stamps[-1].at_ns))
    waited_ns = after.stamps[-1].at_ns - before.stamps[-1].at_ns
    assert row["retry_wait_ms"] == f"{waited_ns // MS}.{waited_ns % MS:06d}"
    assert float(row["sent_ms"]) >= float(row["retry_wait_ms"])
    assert (vehicle.folder / JOURNAL_NAME).read_text().count("\n") == 2
    tally = vehicle.ledger.tally()
    assert (tally.retried, tally.retry_won, vehicle.pulse.caution) == (1, 1, 1)
    assert journey.message is None


def test_the_other_attempts_answer_is_a_duplicate(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """At most one mask a frame, whichever comes first; a first attempt that was answered after all makes cautious."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    vehicle.answer(vehicle.taken[0], answer, journey)
    vehicle.answer(again, answer, journey)
    (row,) = vehicle.rows()
    assert (row["outcome"], row["attempts"], row["retry_wait_ms"]) == ("answered", "2", "0.000000")
    tally = vehicle.ledger.tally()
    assert (tally.retried, tally.retry_won, tally.ignored_answers) == (1, 0, {"duplicate": 1})
    assert vehicle.pulse.caution == 2


def test_an_answer_to_a_frame_given_up_is_late_and_no_duplicate(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """A run that tells of answers that came twice must have taken one of them."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    vehicle.ledger.give_up_all("no answer")
    vehicle.answer(again, answer, journey)
    assert [row["outcome"] for row in vehicle.rows()] == ["lost"]
    assert vehicle.ledger.tally().ignored_answers == {"late_or_repeated": 1}


def test_a_first_attempt_that_nobody_took_does_not_end_the_second(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """The broker's word on the first may come late, after a reconnect, when a worker has the second already."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    vehicle.ledger.withdraw(journey.id, "no_worker")
    vehicle.answer(again, answer, journey)
    assert [row["outcome"] for row in vehicle.rows()] == ["answered"]


def test_stamps_of_one_attempt_are_no_answer_to_the_other(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """Else a crossing would be told that nothing took."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    for attempt in (1, 3):
        vehicle.answer(again, answer, journey, attempt=attempt)
    assert vehicle.ledger.tally().ignored_answers == {"stamps_not_ours": 2}
    assert not vehicle.rows()


def test_one_attempts_refusal_is_not_the_end_while_the_other_may_be_answered(
    vehicle: Vehicle, frame: Make, answer: Make
) -> None:
    """A retry that meets a full worker must not cost the mask that the first attempt still brings."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    vehicle.answer(again, answer, journey, status=Status.OVERLOADED, shape=None, data=b"")
    assert not vehicle.rows()
    vehicle.answer(vehicle.taken[0], answer, journey)
    assert [row["outcome"] for row in vehicle.rows()] == ["answered"]


@pytest.mark.parametrize("is_refused_again", [True, False])
def test_a_refusal_is_the_last_word_where_nothing_else_comes(
    vehicle: Vehicle, frame: Make, answer: Make, *, is_refused_again: bool
) -> None:
    """The row tells what a worker said, and not that nobody said anything."""
    journey = vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    refusal = {"status": Status.OVERLOADED, "shape": None, "data": b"", "reason": "full"}
    for _ in range(2):  # The same one twice is not both.
        vehicle.answer(again, answer, journey, **refusal)
    assert not vehicle.rows()
    if is_refused_again:
        vehicle.answer(vehicle.taken[0], answer, journey, **refusal | {"worker": "a"})
    else:
        vehicle.ledger.give_up_all("the run ended")
    (row,) = vehicle.rows()
    assert (row["outcome"], row["reason"], row["attempts"]) == ("overloaded", "full", "2")


def test_a_restarted_worker_gets_what_its_last_process_held(vehicle: Vehicle, frame: Make) -> None:
    """With no other worker at all, and no last will that was seen."""
    vehicle.announce("a", NodeState.STOPPING)
    vehicle.send(frame())
    again = vehicle.retry(lambda: vehicle.announce("b", session="s10"))
    assert RETRIES.names_in(again.topic) == {"worker": "b", "model": "tiny", "vehicle": "car", "camera": "left"}


def test_a_worker_that_drains_holds_nothing_back(vehicle: Vehicle, frame: Make) -> None:
    """A rolling update needs no retries: it answers what it holds before it goes."""
    vehicle.send(frame())
    for state in (NodeState.STOPPING, NodeState.OFFLINE):
        vehicle.announce("a", state)
    assert vehicle.transport.departed_ns() == 0


def test_what_was_under_way_when_the_connection_broke_is_sent_again(vehicle: Vehicle, frame: Make) -> None:
    """Answers find no subscriber while the vehicle is away, and a broker that was restarted has forgotten the frame."""
    vehicle.send(frame())

    def reconnect() -> None:
        vehicle.transport.reconnected()
        vehicle.announce("b")

    assert vehicle.retry(reconnect).topic.startswith("skylane/v1/retries/b/")


@pytest.mark.parametrize("sign", ["answer", "echo", "earlier answer"])
def test_the_worker_that_was_heard_of_last_is_chosen(vehicle: Vehicle, frame: Make, sign: str) -> None:
    """One that stands still is online for all the broker knows."""
    for worker in ("c", "d"):
        vehicle.announce(worker)
    now_ns = clock.now_ns()
    if sign == "earlier answer":
        vehicle.pulse.answered("c", now_ns - 2, now_ns - 1)
    vehicle.send(frame())
    now_ns = clock.now_ns()
    if sign == "answer":  # It says more than an echo: that the engine lives.
        vehicle.pulse.answered("c", now_ns, now_ns)
    for worker in {"answer": ("d",), "echo": ("c",)}.get(sign, ()):
        vehicle.clocks.probed(f"cloud/{worker}/s9", Exchange(now_ns, now_ns, now_ns, now_ns + 1))
    again = vehicle.retry(lambda: vehicle.announce("a", NodeState.OFFLINE))
    assert again.topic.startswith("skylane/v1/retries/c/")


def test_a_worker_that_stands_still_is_as_good_as_gone(vehicle: Vehicle, frame: Make) -> None:
    """The broker takes 22 seconds to notice; its frames need not wait so long, and it gets none of them."""
    now_ns = clock.now_ns()
    for worker, ago_s in (("a", 2), ("b", 0)):
        at_ns = now_ns - ago_s * 1000 * MS
        vehicle.clocks.probed(f"cloud/{worker}/s9", Exchange(at_ns, at_ns, at_ns, at_ns + 1))
        vehicle.pulse.answered("a", at_ns, at_ns)
    vehicle.send(frame())
    again = vehicle.retry(lambda: None)
    assert again.topic.startswith("skylane/v1/retries/b/")


def test_where_no_worker_echoes_it_is_the_link(vehicle: Vehicle, frame: Make) -> None:
    """Or this process itself was asleep: nothing is to be told from it."""
    at_ns = clock.now_ns() - 5000 * MS
    for worker in ("a", "b"):
        vehicle.clocks.probed(f"cloud/{worker}/s9", Exchange(at_ns, at_ns, at_ns, at_ns + 1))
    vehicle.send(frame())
    vehicle.retrier._look(0)
    vehicle.settle()
    assert len(vehicle.taken) == 1


def test_a_frame_that_ended_meanwhile_is_not_sent_again(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """Its answer and the decision to retry it race."""
    journey = vehicle.send(frame())
    kept = journey.message
    vehicle.answer(vehicle.taken[0], answer, journey)
    journey.message = kept
    assert not vehicle.ledger.reopen(journey, clock.now_ns())
    assert vehicle.ledger.tally().retried == 0


def test_who_answered_is_counted(vehicle: Vehicle, frame: Make, answer: Make) -> None:
    """Workers of one group may be of several versions; figures over all of them are of none."""
    for version in ("1", "2", "2"):
        journey = vehicle.send(frame())
        message = answer(journey, model_version=version, engine="openvino bf16", model_sha256=version * 64)
        vehicle.take(message)
    found = {(by.worker, by.model_version, by.engine): n for by, n in vehicle.ledger.tally().answerers.items()}
    assert found == {("w", "1", "openvino bf16"): 1, ("w", "2", "openvino bf16"): 2}
    assert [row["model_version"] for row in vehicle.rows()] == ["1", "2", "2"]
    assert {row["engine"] for row in vehicle.rows()} == {"openvino bf16"}
