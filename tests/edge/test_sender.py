"""The sender and its window."""

import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord, Ledger, LedgerSettings
from edge.sender import InFlightWindow, Sender
from edge.transports.mqtt.transport import MqttTransport
from shared import clock
from shared.imaging.frames import Frame
from shared.messages.frame import unpack_frame
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import FRAMES, MASKS, WORKER_STATUS
from shared.mqtt.bus import LINK_JAMMED, Ack, Delivery, MemoryBus
from shared.runlog.latency_log import LogWriter, read_rows
from shared.stages import EDGE_STAGES, Stage

WAIT_S = 60.0


class Vehicle:
    """A sender with its ledger, window and transport, on an in-memory bus."""

    def __init__(self, bus: MemoryBus, folder: Path, card: ModelCard, **options: Any) -> None:
        self.folder = folder
        self.card = card
        self.bus = bus
        self.stop = threading.Event()
        self.window = InFlightWindow(2, self.stop)
        self.log = LogWriter(folder)
        deadline_ms = options.pop("deadline_ms", None)
        settings = LedgerSettings("car", "s1", "tiny", deadline_ms=deadline_ms)
        self.ledger = Ledger(self.log, settings, on_closed=self.window.release)
        self.transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        self.sender = Sender(self.transport, self.ledger, self.window, node="edge/car/s1", **options)
        self.published: list[Delivery] = []

    def announce(self, state: NodeState) -> None:
        """Publishes the status of a worker."""
        status = NodeStatus(state, "s9", 4, (self.card,) if state is NodeState.ONLINE else ())
        self.bus.publish(WORKER_STATUS.of(worker="w"), pack_status(status), qos=1, retained=True)

    def listen(self) -> None:
        """Subscribes to frames like a worker."""
        self.bus.subscribe(FRAMES.filter(model="tiny"), 1, self.published.append)

    def send(self, frame: Frame, codec: str = "raw") -> FrameRecord:
        """Prepares and sends a frame."""
        record = self.ledger.begin(frame, clock.now_ns())
        record.times[Stage.TAKEN] = clock.now_ns()
        self.sender.send(record, prepare(frame, record, Preparation(self.card, codec=codec)))
        return record

    def settle(self) -> None:
        """Waits until the bus has delivered all messages."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)

    def rows(self) -> list[tuple[str, str]]:
        """Returns outcome and reason of the rows so far."""
        return [(row["outcome"], row["reason"]) for row in read_rows(self.folder)]


@pytest.fixture
def vehicle(tmp_path: Path, card: ModelCard) -> Iterator[Callable[..., Vehicle]]:
    """Makes vehicles."""
    with MemoryBus() as bus:
        made: list[Vehicle] = []

        def make(**options: Any) -> Vehicle:
            made.append(Vehicle(bus, tmp_path, card, **options))
            return made[-1]

        yield make
        for vehicle in made:
            vehicle.log.__exit__()


def test_a_message_contains_identity_stamps_and_reply_topic(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """The worker needs them to reply; topic, payload and correlation data agree."""
    car = vehicle(deadline_ms=3_600_000.0)
    car.listen()
    record = car.send(frame(7))
    car.settle()
    (delivery,) = car.published
    message = unpack_frame(delivery.payload, 0)
    assert delivery.topic == "skylane/v1/frames/tiny/car/left"
    assert delivery.properties.response_topic == MASKS.of(vehicle="car", camera="left")
    assert delivery.properties.correlation == str(record.id).encode() == b"car/left/s1/0"
    assert (message.id, message.attempt, message.model) == (record.id, 1, "tiny")
    assert message.data == bytes([7]) * len(message.data)
    assert 0 < message.deadline.at_ns < 3_600_000 * 10**6
    assert delivery.properties.expiry_s == math.ceil(message.deadline.at_ns / 1e9)
    assert [stamp.stage for stamp in message.stamps] == [stage.value for stage in EDGE_STAGES[:6]]
    assert {stamp.node for stamp in message.stamps} == {"edge/car/s1"}
    assert message.stamps == record.stamps
    assert car.ledger.counts().in_flight == 1


def test_a_message_without_a_subscriber_is_dropped(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """The broker reports it at once, and the window is released."""
    car = vehicle()
    car.send(frame())
    car.settle()
    assert car.rows() == [("dropped", "no_worker")]
    assert car.window.in_flight == 0


def test_a_message_that_the_broker_refuses_is_dropped_with_the_reason(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason helps the user to find a changed access list or a quota."""
    car = vehicle()
    reasons = ("Not authorized", "", LINK_JAMMED)
    refused = [Ack(accepted=False, no_subscriber=False, reason=reason) for reason in reasons]

    def publish(*_: object, acknowledged: Callable[[Ack], None], **__: object) -> None:
        acknowledged(refused.pop(0))

    monkeypatch.setattr(car.bus, "publish", publish)
    for index in range(len(reasons)):
        car.send(frame(index))
    monkeypatch.undo()
    car.settle()
    expected = [
        "broker_refused: Not authorized",
        "broker_refused",
        "link_jammed",
    ]  # The last reason comes from the bus.
    assert car.rows() == [("dropped", reason) for reason in expected]


def test_a_message_above_the_brokers_limit_is_not_published(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """The broker would close the connection, and again after every reconnect."""
    car = vehicle()
    car.listen()
    car.bus.max_payload_bytes = 200
    car.send(frame())
    car.settle()
    ((outcome, reason),) = car.rows()
    assert outcome == "dropped"
    assert reason.startswith("too_large: ")
    assert reason.endswith("the broker takes 200")
    assert not car.published
    assert car.window.in_flight == 0


def test_a_frame_past_its_deadline_is_refused(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """Its result would be useless."""
    car = vehicle(deadline_ms=10.0)
    car.announce(NodeState.ONLINE)
    car.settle()
    assert car.sender.refusal(car.ledger.begin(frame(), clock.now_ns() - 11_000_000)) == "deadline"
    assert car.sender.refusal(car.ledger.begin(frame(), clock.now_ns() + 3600 * 10**9)) is None


def test_without_a_worker_wait_frames_are_refused_at_once(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """In an open loop, newer frames follow anyway."""
    car = vehicle()
    record = car.ledger.begin(frame(), clock.now_ns())
    assert car.sender.refusal(record) == "no_worker"
    car.announce(NodeState.ONLINE)
    car.settle()
    assert car.sender.refusal(record) is None
    car.announce(NodeState.STOPPING)
    car.settle()
    assert car.sender.refusal(record) == "no_worker"


def test_a_frame_can_wait_for_a_worker(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """A closed loop sends every frame, and the worker may be restarting."""
    car = vehicle(worker_wait_s=WAIT_S)
    found: list[str | None] = []
    record = car.ledger.begin(frame(), clock.now_ns())
    waiting = threading.Thread(target=lambda: found.append(car.sender.refusal(record)))
    waiting.start()
    car.announce(NodeState.ONLINE)
    waiting.join(WAIT_S)
    assert found == [None]


def test_a_stop_ends_the_wait_for_a_worker(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """Ctrl-C must not wait for a worker."""
    car = vehicle(worker_wait_s=3600.0)
    found: list[str | None] = []
    record = car.ledger.begin(frame(), clock.now_ns())
    waiting = threading.Thread(target=lambda: found.append(car.sender.refusal(record)))
    waiting.start()
    car.stop.set()
    waiting.join(WAIT_S)
    assert found == ["no_worker"]


def test_the_window_counts_frames_until_their_answer() -> None:
    """Acknowledgements of the broker have no effect."""
    stop = threading.Event()
    window = InFlightWindow(2, stop)
    for _ in range(2):
        assert window.wait_for_room()
        window.acquire()
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(window.wait_for_room()))
    waiting.start()
    window.release()
    waiting.join(WAIT_S)
    assert found == [True]
    window.acquire()
    stop.set()
    assert not window.wait_for_room()
