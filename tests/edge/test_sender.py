import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.pipeline import Preparation, prepare
from edge.reliability.ledger import FrameRecord, Ledger
from edge.sender import Sender, Window
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
    """A sender with all that it needs, over a bus in memory with a worker that announces itself and listens."""

    def __init__(self, bus: MemoryBus, folder: Path, card: ModelCard, **options: Any) -> None:
        self.folder = folder
        self.card = card
        self.bus = bus
        self.stop = threading.Event()
        self.window = Window(2, self.stop)
        self.log = LogWriter(folder)
        deadline_ms = options.pop("deadline_ms", None)
        self.ledger = Ledger(
            self.log, vehicle="car", session="s1", model="tiny", deadline_ms=deadline_ms,
            on_closed=self.window.give_back_place,
        )  # fmt: skip
        self.transport = MqttTransport(bus, vehicle="car", session="s1", model="tiny")
        self.sender = Sender(self.transport, self.ledger, self.window, node="edge/car/s1", **options)
        self.published: list[Delivery] = []

    def announce(self, state: NodeState) -> None:
        """The worker says where it stands."""
        status = NodeStatus(state, "s9", 4, (self.card,) if state is NodeState.ONLINE else ())
        self.bus.publish(WORKER_STATUS.of(worker="w"), pack_status(status), qos=1, retained=True)

    def listen(self) -> None:
        """Have the worker take frames."""
        self.bus.subscribe(FRAMES.filter(model="tiny"), 1, self.published.append)

    def send(self, frame: Frame, codec: str = "raw") -> FrameRecord:
        """Bring a frame from due to published."""
        journey = self.ledger.begin(frame, clock.now_ns())
        journey.times[Stage.TAKEN] = clock.now_ns()
        self.sender.send(journey, prepare(frame, journey, Preparation(self.card, codec=codec)))
        return journey

    def settle(self) -> None:
        """Wait until the bus has delivered all that was published."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)

    def rows(self) -> list[tuple[str, str]]:
        """Outcome and reason of the rows so far."""
        return [(row["outcome"], row["reason"]) for row in read_rows(self.folder)]


@pytest.fixture
def vehicle(tmp_path: Path, card: ModelCard) -> Iterator[Callable[..., Vehicle]]:
    """Makes the vehicle."""
    with MemoryBus() as bus:
        made: list[Vehicle] = []

        def make(**options: Any) -> Vehicle:
            made.append(Vehicle(bus, tmp_path, card, **options))
            return made[-1]

        yield make
        for vehicle in made:
            vehicle.log.__exit__()


def test_a_message_carries_all_that_the_far_side_needs(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """Identity in topic, payload and correlation alike; stamps of one node in order; where to answer."""
    car = vehicle(deadline_ms=3_600_000.0)
    car.listen()
    journey = car.send(frame(7))
    car.settle()
    (delivery,) = car.published
    message = unpack_frame(delivery.payload)
    assert delivery.topic == "skylane/v1/frames/tiny/car/left"
    assert delivery.properties.response_topic == MASKS.of(vehicle="car", camera="left")
    assert delivery.properties.correlation == str(journey.id).encode() == b"car/left/s1/0"
    assert (message.id, message.attempt, message.model) == (journey.id, 1, "tiny")
    assert message.data == bytes([7]) * len(message.data)
    assert message.budget_ms is not None
    assert 0 < message.budget_ms < 3_600_000
    assert delivery.properties.expiry_s == math.ceil(message.budget_ms / 1000)
    assert [stamp.stage for stamp in message.stamps] == [stage.value for stage in EDGE_STAGES[:6]]
    assert {stamp.node for stamp in message.stamps} == {"edge/car/s1"}
    assert message.stamps == journey.stamps
    assert car.ledger.tally().in_flight == 1


def test_a_message_that_nobody_took_is_withdrawn(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """The broker says so at once, and the window gets its place back."""
    car = vehicle()
    car.send(frame())
    car.settle()
    assert car.rows() == [("dropped", "no_worker")]
    assert car.window._unanswered == 0


def test_a_message_that_the_broker_refuses_is_withdrawn_with_its_words(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An access list that was changed, a quota: the reason is the only way to find it."""
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
    said = ["broker_refused: Not authorized", "broker_refused", "link_jammed"]  # The last is the bus's own word.
    assert car.rows() == [("dropped", reason) for reason in said]


def test_a_message_too_large_for_the_broker_is_not_published(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """It would cut the connection, and again at every reconnect."""
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
    assert car.window._unanswered == 0


def test_a_frame_past_its_deadline_is_not_worked_on(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """Its mask would be of no use."""
    car = vehicle(deadline_ms=10.0)
    car.announce(NodeState.ONLINE)
    car.settle()
    assert car.sender.refusal(car.ledger.begin(frame(), clock.now_ns() - 11_000_000)) == "deadline"
    assert car.sender.refusal(car.ledger.begin(frame(), clock.now_ns() + 3600 * 10**9)) is None


def test_without_patience_a_missing_worker_is_told_at_once(
    vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]
) -> None:
    """In open loop newer frames come anyway."""
    car = vehicle()
    journey = car.ledger.begin(frame(), clock.now_ns())
    assert car.sender.refusal(journey) == "no_worker"
    car.announce(NodeState.ONLINE)
    car.settle()
    assert car.sender.refusal(journey) is None
    car.announce(NodeState.STOPPING)
    car.settle()
    assert car.sender.refusal(journey) == "no_worker"


def test_with_patience_a_worker_is_waited_for(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """In closed loop every frame is to be answered, and a worker may be restarting."""
    car = vehicle(patience_s=WAIT_S)
    found: list[str | None] = []
    journey = car.ledger.begin(frame(), clock.now_ns())
    waiting = threading.Thread(target=lambda: found.append(car.sender.refusal(journey)))
    waiting.start()
    car.announce(NodeState.ONLINE)
    waiting.join(WAIT_S)
    assert found == [None]


def test_patience_ends_when_the_run_is_stopped(vehicle: Callable[..., Vehicle], frame: Callable[..., Frame]) -> None:
    """Ctrl-C must not wait half a minute for a worker."""
    car = vehicle(patience_s=3600.0)
    found: list[str | None] = []
    journey = car.ledger.begin(frame(), clock.now_ns())
    waiting = threading.Thread(target=lambda: found.append(car.sender.refusal(journey)))
    waiting.start()
    car.stop.set()
    waiting.join(WAIT_S)
    assert found == ["no_worker"]


def test_the_window_counts_answers() -> None:
    """Back-pressure is how many frames are unanswered, not how many the broker has acknowledged."""
    stop = threading.Event()
    window = Window(2, stop)
    for _ in range(2):
        assert window.wait_for_place()
        window.take_place()
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(window.wait_for_place()))
    waiting.start()
    window.give_back_place()
    waiting.join(WAIT_S)
    assert found == [True]
    window.take_place()
    stop.set()
    assert not window.wait_for_place()
