"""The sender and its window."""

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.sender import InFlightWindow
from shared.messages.frame import unpack_frame
from shared.messages.node_status import NodeState
from shared.messages.topics import FRAMES, MASKS
from shared.mqtt.bus import LINK_JAMMED, Ack, Delivery
from shared.stages import EDGE_STAGES, OPTIONAL_STAGES, Stage
from tests.edge.samples import CARD, make_frame, make_record
from tests.edge.vehicle import WAIT_S, Vehicle
from tests.support.memory_bus import MemoryBus
from tests.support.waiting import beside


@pytest.fixture
def vehicle(tmp_path: Path) -> Iterator[Callable[..., Vehicle]]:
    """Makes vehicles."""
    with MemoryBus() as bus:
        made: list[Vehicle] = []

        def make(**options: Any) -> Vehicle:
            made.append(Vehicle(bus, tmp_path, CARD, **options))
            return made[-1]

        yield make
        for vehicle in made:
            vehicle.log.__exit__()


def outcomes(vehicle: Vehicle) -> list[tuple[str, str]]:
    """Returns outcome and reason of the rows so far."""
    return [(row["outcome"], row["reason"]) for row in vehicle.rows()]


def test_a_message_contains_identity_stamps_and_reply_topic(vehicle: Callable[..., Vehicle]) -> None:
    """The worker needs them to reply; topic, payload and correlation data agree."""
    car, published = vehicle(deadline_ms=3_600_000.0), list[Delivery]()
    car.bus.subscribe(FRAMES.filter(model="tiny"), 1, published.append)
    record = car.send(make_frame(7))
    car.settle()
    (delivery,) = published
    message = unpack_frame(delivery.payload, 0)
    assert delivery.topic == "skylane/v1/frames/tiny/car/left"
    assert delivery.properties.response_topic == MASKS.of(vehicle="car", camera="left")
    assert delivery.properties.correlation == str(record.id).encode() == b"car/left/s1/0"
    assert (message.id, message.attempt, message.model) == (record.id, 1, "tiny")
    assert message.data == bytes([7]) * len(message.data)
    assert 0 < message.deadline.at_ns < 3_600_000 * 10**6
    assert delivery.properties.expiry_s == math.ceil(message.deadline.at_ns / 1e9)
    until_sent = EDGE_STAGES[: EDGE_STAGES.index(Stage.SENT) + 1]
    assert [stamp.stage for stamp in message.stamps] == [each for each in until_sent if each not in OPTIONAL_STAGES]
    assert {stamp.node for stamp in message.stamps} == {"edge/car/s1"}
    assert message.stamps == record.stamps
    assert car.ledger.counts().in_flight == 1


def test_a_message_without_a_subscriber_is_dropped(vehicle: Callable[..., Vehicle]) -> None:
    """The broker reports it at once, and the window is released."""
    car = vehicle()
    car.send(make_frame())
    car.settle()
    assert outcomes(car) == [("dropped", "no_worker")]
    assert car.window.in_flight == 0


def test_a_message_that_the_broker_refuses_is_dropped_with_the_reason(
    vehicle: Callable[..., Vehicle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason helps the user to find a changed access list or a quota."""
    car = vehicle()
    reasons = ("Not authorized", "", LINK_JAMMED)
    refused = [Ack(accepted=False, no_subscriber=False, reason=reason) for reason in reasons]

    def publish(*_: object, acknowledged: Callable[[Ack], None], **__: object) -> None:
        acknowledged(refused.pop(0))

    monkeypatch.setattr(car.bus, "publish", publish)
    for index in range(len(reasons)):
        car.send(make_frame(index))
    monkeypatch.undo()
    car.settle()
    expected = [
        "broker_refused: Not authorized",
        "broker_refused",
        "link_jammed",
    ]  # The last reason comes from the bus.
    assert outcomes(car) == [("dropped", reason) for reason in expected]


def test_a_message_above_the_brokers_limit_is_not_published(vehicle: Callable[..., Vehicle]) -> None:
    """The broker would close the connection, and again after every reconnect."""
    car, published = vehicle(), list[Delivery]()
    car.bus.subscribe(FRAMES.filter(model="tiny"), 1, published.append)
    car.bus.max_payload_bytes = 200
    car.send(make_frame())
    car.settle()
    ((outcome, reason),) = outcomes(car)
    assert outcome == "dropped"
    assert reason.startswith("too_large: ")
    assert reason.endswith("the broker takes 200")
    assert not published
    assert car.window.in_flight == 0


def test_without_a_worker_wait_no_frame_waits_for_one(vehicle: Callable[..., Vehicle]) -> None:
    """In an open loop, newer frames follow anyway."""
    car = vehicle()
    assert not car.sender.wait_for_worker()
    assert car.sender.unsent_reason("no_worker") == "no_worker"
    car.bus.is_connected = False
    assert car.sender.unsent_reason("no_worker") == "no_broker"
    car.bus.is_connected = True
    car.announce()
    assert car.sender.wait_for_worker()
    car.announce(state=NodeState.STOPPING)
    assert not car.sender.wait_for_worker()


@pytest.mark.parametrize("comes", [True, False], ids=["a worker comes", "the run is stopped"])
def test_a_frame_can_wait_for_a_worker(vehicle: Callable[..., Vehicle], *, comes: bool) -> None:
    """A closed loop sends every frame, and the worker may be restarting; Ctrl-C must not wait for it."""
    car = vehicle(worker_wait_s=WAIT_S if comes else 3600.0)
    found: list[bool] = []
    with beside(lambda: found.append(car.sender.wait_for_worker())):
        if comes:
            car.announce()
        else:
            car.stop.set()
    assert found == [comes]


def test_the_window_counts_frames_until_their_answer() -> None:
    """Acknowledgements of the broker have no effect."""
    stop = threading.Event()
    window = InFlightWindow(2, stop)
    for _ in range(2):
        assert window.wait_for_room()
        window.acquire()
    found: list[bool] = []
    record = make_record()
    with beside(lambda: found.append(window.wait_for_room())):
        window.ended(record, None)  # It was dropped before it was sent.
        assert not window.has_room
        record.row.attempts = 1
        window.ended(record, None)
    assert found == [True]
    window.acquire()
    stop.set()
    assert not window.wait_for_room()
