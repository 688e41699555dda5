"""Delivery of frames to chosen workers over a bus that divides frames among a group; the test plays the workers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.frame_record import FrameRecord
from shared.messages.frame import unpack_frame
from shared.messages.node_status import NodeState
from shared.messages.topics import FRAMES, RETRIES
from shared.runlog.latency_log import read_journal
from tests.edge.samples import CARD, make_frame
from tests.edge.vehicle import WAIT_S, RetryingVehicle
from tests.support.memory_bus import MemoryBus


class DispatchingVehicle(RetryingVehicle):
    """A vehicle that chooses workers, and workers that record their frames."""

    def __init__(self, bus: MemoryBus, folder: Path) -> None:
        super().__init__(bus, folder, CARD, window=8)

    def join(self, worker: str, answer_ms: float = 100.0) -> None:
        """Brings a worker online."""
        self.bus.subscribe(RETRIES.filter(worker=worker), 1, self.on_frame)
        self.announce(worker)
        self.report(worker, answer_ms=answer_ms)

    def unsubscribe(self, worker: str) -> None:
        """Ends a worker's subscription, before its status has reached the vehicle."""
        self.bus.unsubscribe(RETRIES.filter(worker=worker))

    def topics(self) -> list[str]:
        """Returns the topics of the frames that arrived."""
        self.settle()
        self.settle()  # A frame that could not be delivered is sent again when the bus has reported it.
        return [delivery.topic.removeprefix("skylane/v1/") for delivery in self.delivered]

    def drive(self, index: int = 0) -> FrameRecord:
        """Sends a frame."""
        record = self.send(make_frame(index))
        self.settle()
        return record


@pytest.fixture
def vehicle(tmp_path: Path) -> Iterator[DispatchingVehicle]:
    """Returns a vehicle that knows no worker."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        made = DispatchingVehicle(bus, tmp_path / "run")
        with made.log:
            yield made


def test_a_frame_goes_to_the_topic_of_the_chosen_worker_as_a_first_attempt(vehicle: DispatchingVehicle) -> None:
    """Workers of earlier releases subscribe to this topic too."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    record = vehicle.drive()
    assert vehicle.topics() == ["retries/a/tiny/car/left"]
    assert unpack_frame(vehicle.delivered[0].payload).attempt == 1
    assert (record.worker, record.row.dispatch, record.expected_ns) == ("a", "load", 100_000_000)
    assert [row["dispatch"] for row in read_journal(vehicle.folder)] == ["load"]


def test_a_frame_that_reaches_no_worker_goes_to_another_one(vehicle: DispatchingVehicle) -> None:
    """The worker drains or has just died: the broker reports that no client has the frame, so this is no second attempt."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    vehicle.unsubscribe("a")
    record = vehicle.drive()
    assert vehicle.topics() == ["retries/b/tiny/car/left"]
    assert (record.worker, record.row.dispatch, record.row.attempts) == ("b", "load", 1)
    assert vehicle.drive(1).worker == "b"  # The first worker is not tried again for a second.
    assert vehicle.ledger.counts().retried == 0
    assert not vehicle.rows()


def test_a_frame_that_no_chosen_worker_gets_goes_to_the_group(vehicle: DispatchingVehicle) -> None:
    """A worker that has just come online may be among its members."""
    vehicle.bus.subscribe(FRAMES.filter(), 1, vehicle.on_frame)
    for worker, answer_ms in (("a", 100.0), ("b", 300.0)):
        vehicle.join(worker, answer_ms)
        vehicle.unsubscribe(worker)
    record = vehicle.drive()
    vehicle.settle()
    assert vehicle.topics() == ["frames/tiny/car/left"]
    assert (record.worker, record.row.dispatch) == ("", "group")


def test_without_any_worker_the_frame_is_dropped(vehicle: DispatchingVehicle) -> None:
    """A group without members drops it too."""
    vehicle.join("a")
    vehicle.unsubscribe("a")
    vehicle.drive()
    vehicle.topics()
    ((outcome, reason, dispatch),) = [(row["outcome"], row["reason"], row["dispatch"]) for row in vehicle.rows()]
    assert (outcome, reason, dispatch) == ("dropped", "no_worker", "group")
    assert vehicle.window.in_flight == 0


def test_without_mqtt_5_the_broker_deals_the_frames(tmp_path: Path) -> None:
    """It would not report that a chosen worker is gone."""
    with MemoryBus() as bus:
        vehicle = DispatchingVehicle(bus, tmp_path / "run")
        bus.subscribe(FRAMES.filter(), 1, vehicle.on_frame)
        with vehicle.log:
            vehicle.join("a")
            assert vehicle.drive().row.dispatch == "group"
            assert vehicle.topics() == ["frames/tiny/car/left"]


def retry(vehicle: DispatchingVehicle) -> list[str]:
    """Sends the retries that are due, and returns the topics of all frames."""
    vehicle.retrier.retry_due()
    return vehicle.topics()


def test_the_frames_of_a_killed_worker_are_sent_to_another_at_once(vehicle: DispatchingVehicle) -> None:
    """Frames that another worker has are not: its failure explains nothing about them."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    first = vehicle.drive()
    vehicle.report("a", wait_ms=1000.0)
    second = vehicle.drive(1)
    assert (first.worker, second.worker) == ("a", "b")
    for _ in range(8):  # A usual reply takes a second, for which retries without a known worker would wait.
        vehicle.stats.add_reply("b", 0, 1_000_000_000)
    vehicle.announce("a", NodeState.OFFLINE)
    assert retry(vehicle) == [f"retries/{worker}/tiny/car/left" for worker in "abb"]
    assert unpack_frame(vehicle.delivered[-1].payload).attempt == 2
    assert (first.worker, first.row.dispatch, first.row.attempts, second.row.attempts) == ("b", "load", 2, 1)


def test_the_frames_of_a_worker_that_drains_are_not_sent_again(vehicle: DispatchingVehicle) -> None:
    """It answers them before it ends; its last replies may still be waiting to be read."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    vehicle.drive()
    for state in (NodeState.STOPPING, NodeState.OFFLINE):
        vehicle.announce("a", state)
        assert len(retry(vehicle)) == 1


def test_a_frame_that_a_drained_worker_never_got_is_sent_again(vehicle: DispatchingVehicle) -> None:
    """Brokers that do not report a missing subscriber lose it silently; after the worker's end, it cannot be answered."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    vehicle.drive()
    for state in (NodeState.STOPPING, NodeState.OFFLINE):
        vehicle.announce("a", state)
    assert vehicle.arrived.acquire(timeout=WAIT_S)
    assert vehicle.retry(lambda: None).topic == "skylane/v1/retries/b/tiny/car/left"


def test_a_restarted_worker_is_no_reason_to_send_its_new_frames_again(vehicle: DispatchingVehicle) -> None:
    """Only the frames of its last process are lost."""
    vehicle.join("a")
    vehicle.announce("a", session="s10")
    vehicle.report("a", session="s10")
    vehicle.join("b", answer_ms=300.0)
    assert vehicle.drive().worker == "a"
    assert len(retry(vehicle)) == 1


def test_a_retry_that_reaches_no_worker_goes_to_another_one(vehicle: DispatchingVehicle) -> None:
    """There is no third attempt, so the second must not be wasted."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    vehicle.join("c", answer_ms=600.0)
    record = vehicle.drive()
    vehicle.unsubscribe("b")
    vehicle.announce("a", NodeState.OFFLINE)
    assert retry(vehicle)[-1] == "retries/c/tiny/car/left"
    assert (record.worker, record.row.attempts) == ("c", 2)


def test_a_retry_in_progress_is_not_assigned_again(vehicle: DispatchingVehicle) -> None:
    """The broker may report late that the first attempt reached no worker."""
    vehicle.join("a")
    vehicle.join("b", answer_ms=300.0)
    record = vehicle.drive()
    vehicle.announce("a", NodeState.OFFLINE)
    retry(vehicle)
    assert not vehicle.ledger.reassign(record.id, 1, vehicle.sender.dispatcher.choose((), 0))  # type: ignore[union-attr]
    assert record.worker == "b"


def test_ignored_reports_are_counted_with_ignored_replies(vehicle: DispatchingVehicle) -> None:
    """The manifest shows that somebody claims the load of others."""
    vehicle.join("a")
    vehicle.report("a", session="s8")
    assert vehicle.ledger.counts().ignored_answers == {"load_other_session": 1}
