import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cloud.frontends.mqtt import AnnouncementError, MqttFrontend, SecondWorkerError, StoppingError, worker_will
from cloud.serving.admission import Admission
from cloud.serving.batching import Batcher
from cloud.serving.replies import Replier
from cloud.serving.request import Request
from cloud.serving.served_models import Lane, Serving
from shared.imaging.labels import Labels
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FRAMES, MASKS, RETRIES, WORKER_STATUS
from shared.mqtt.bus import Delivery, MemoryBus, Properties
from shared.stages import Stage
from tests.support.tiny_model import frame, model

WAIT_S = 60.0
FRAME = frame(7)


def _lane(admission: Admission, replier: Replier, name: str = "tiny") -> Lane:
    """What is served, without a thread that would."""
    served = model(name=name)
    return Lane(served, Batcher(served, replier, admission, lambda *_: None))


class Door:
    """An intake on a bus in memory, and what the world outside hears of it."""

    def __init__(self, bus: MemoryBus, admission: Admission, **options: Any) -> None:
        self.bus = bus
        self.admission = admission
        self.replier = Replier("w", "cloud/w/s9")
        self.serving = Serving()
        self.serving.place(_lane(admission, self.replier))
        self.intake = MqttFrontend(admission, self.replier, self.serving, worker="w", session="s9", **options)
        self.answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.said: list[NodeStatus] = []
        bus.subscribe(MASKS.filter(), 1, lambda delivery: self.answers.put(unpack_result(delivery.payload)))
        bus.subscribe(
            WORKER_STATUS.of(worker="w"), 1, lambda delivery: self.said.append(unpack_status(delivery.payload))
        )

    def send(self, payload: bytes, properties: Properties | None = None, name: str = "tiny") -> None:
        """A vehicle publishes a frame for a model."""
        self.bus.publish(FRAMES.of(model=name, vehicle="car", camera="left"), payload, qos=1, properties=properties)

    def settle(self) -> None:
        """Wait until the bus has delivered all that was published."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)


@contextmanager
def open_door(admission: Admission, *, shares: bool = True, **options: Any) -> Iterator[Door]:
    """A door in use."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = shares
        door = Door(bus, admission, **options)
        thread = threading.Thread(target=door.intake.run)
        thread.start()
        try:
            door.intake.open(bus)
            yield door
        finally:
            door.intake.close_refusals()
            thread.join(WAIT_S)
            assert not thread.is_alive()


def _taken(admission: Admission) -> Request:
    """The frame that waits."""
    taken = admission.take(lambda _: True)
    assert taken is not None
    return taken[0]


def test_a_frame_is_stamped_and_admitted() -> None:
    """Nothing else happens on the network thread."""
    admission = Admission()
    with open_door(admission) as door:
        door.send(pack_frame(FRAME), Properties(correlation=b"car/left/s1/7"))
        door.settle()
    request = _taken(admission)
    assert (request.vehicle, request.camera, request.model) == ("car", "left", "tiny")
    assert request.correlation == FRAME.id
    assert list(request.times) == [Stage.RECEIVED]
    assert request.message is None


@pytest.mark.parametrize("properties", [None, Properties(correlation=b"car/left/s1/7")], ids=["MQTT 3.1.1", "MQTT 5"])
def test_what_the_queue_does_not_hold_is_answered_overloaded(properties: Properties | None) -> None:
    """Where nothing beside the payload tells whose it is, the payload does."""
    admission = Admission(max_frames=1)
    with open_door(admission) as door:
        for _ in range(3):
            door.send(pack_frame(FRAME), properties)
        for _ in range(2):
            answer = door.answers.get(timeout=WAIT_S)
            assert (answer.id, answer.status, answer.reason) == (FRAME.id, Status.OVERLOADED, "1 frames are waiting")
    assert door.replier.counts == {"overloaded": 2}


def test_overloaded_frames_take_no_memory() -> None:
    """A flood of large frames must cost answers only."""
    admission = Admission(max_frames=1)
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        door = Door(bus, admission)
        door.intake.open(bus)
        for _ in range(100):
            door.send(bytes(2 << 20))
        door.settle()
        assert door.intake._refused_bytes <= (64 << 20) + (2 << 20)


def test_frames_that_the_broker_kept_are_counted_and_not_read() -> None:
    """One vehicle can have it keep thousands; each would be given to every worker that starts, before any that is new."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        bus.publish(RETRIES.of(worker="w", model="tiny", vehicle="car", camera="left"), b"x", qos=1, retained=True)
        door = Door(bus, Admission())
        door.intake.open(bus)
        door.settle()
    assert door.intake.ignored == {"retained": 1}
    assert door.admission.depth == 0


def test_refusals_that_nobody_takes_are_counted_and_not_kept() -> None:
    """Without end they would be the memory that admission is there to bound; uncounted, a frame would be gone."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        door = Door(bus, Admission(max_frames=1))
        door.intake.open(bus)  # And nobody runs what tells the refusals.
        for _ in range(1 + 1024 + 7):
            door.send(b"")
        door.settle()
    assert door.intake.ignored == {"refusals_full": 7}


def test_frames_for_nobody_here_are_counted() -> None:
    """A subscription's wildcard takes in what no name may be."""
    with open_door(Admission()) as door:
        door.bus.publish("skylane/v1/frames/tiny/a b/left", b"", qos=1)
        door.settle()
        assert door.intake.ignored == {"topic": 1}


def test_a_worker_says_when_it_comes_and_when_it_goes() -> None:
    """Its cards only while it serves; vehicles send to nobody else."""
    with open_door(Admission(max_frames=5)) as door:
        door.intake.stop()
        door.send(pack_frame(FRAME))
        door.settle()
        assert door.admission.depth == 0
        door.intake.close()
    assert [(status.state, status.session, status.cards) for status in door.said] == [
        (NodeState.ONLINE, "s9", door.serving.cards()),
        (NodeState.STOPPING, "s9", ()),
        (NodeState.OFFLINE, "s9", ()),
    ]
    assert door.said[0].capacity == 5
    assert unpack_status(worker_will("w", "s9").payload).state is NodeState.OFFLINE


def _other(state: NodeState, *cards: ModelCard) -> Callable[[MemoryBus], None]:
    def announce(bus: MemoryBus) -> None:
        bus.publish(
            WORKER_STATUS.of(worker="other"), pack_status(NodeStatus(state, "s8", 1, cards)), qos=1, retained=True
        )

    return announce


def test_a_second_worker_is_refused_where_frames_cannot_be_shared() -> None:
    """Both would answer every frame."""
    with MemoryBus() as bus:
        _other(NodeState.ONLINE, model().card)(bus)
        door = Door(bus, Admission())
        with pytest.raises(SecondWorkerError, match=r"worker 'other' already serves tiny .* use Mosquitto, or stop"):
            door.intake.open(bus)
        door.send(pack_frame(FRAME))
        door.settle()
        assert door.admission.depth == 0


@pytest.mark.parametrize(
    "announce",
    [
        _other(NodeState.OFFLINE),
        _other(NodeState.STOPPING, model().card),
        _other(NodeState.ONLINE),
        lambda bus: bus.publish(WORKER_STATUS.of(worker="other"), b"garbage", qos=1, retained=True),
    ],
    ids=["gone", "going", "of other models", "garbled"],
)
def test_a_worker_that_is_no_rival_keeps_nobody_away(announce: Callable[[MemoryBus], None]) -> None:
    """What is retained may be of yesterday."""
    with MemoryBus() as bus:
        announce(bus)
        door = Door(bus, Admission())
        door.intake.open(bus)
        door.send(pack_frame(FRAME))
        door.settle()
        assert door.admission.depth == 1


def test_frames_of_other_models_and_topics_that_are_none_are_left_alone() -> None:
    """A broker may deliver more than was meant."""
    with open_door(Admission()) as door:
        topics: Sequence[str] = (
            "skylane/v1/frames/huge/car/left",
            "skylane/v1/frames/tiny/car",
            "frames/tiny/car/left",
        )
        for topic in topics:
            door.intake._received(Delivery(topic, b"", 0))
        assert door.admission.depth == 0


def test_a_retry_is_a_frame_of_the_model_that_its_topic_names() -> None:
    """A vehicle retries to one worker by name; from there on it is a frame as any other."""
    admission = Admission()
    with open_door(admission) as door:
        topic = RETRIES.of(worker="w", model="tiny", vehicle="car", camera="left")
        door.bus.publish(topic, pack_frame(msgspec.structs.replace(FRAME, attempt=2)), qos=1)
        door.bus.publish(RETRIES.of(worker="other", model="tiny", vehicle="car", camera="left"), b"", qos=1)
        door.settle()
        assert admission.depth == 1
    request = _taken(admission)
    assert (request.vehicle, request.camera, request.model, request.head.attempt) == ("car", "left", "tiny", 2)


def test_what_is_served_can_grow_and_shrink() -> None:
    """A vehicle must not be told of a model before its frames are taken, nor send to one that is going."""
    with open_door(Admission()) as door:
        door.serving.place(_lane(door.admission, door.replier, "other"))
        door.intake.announce()
        door.intake.admit("other")
        door.intake.announce()
        door.send(pack_frame(frame(1, "other")), name="other")
        door.settle()
        assert door.admission.depth == 1
        door.intake.dismiss("other")
        door.send(pack_frame(frame(2, "other")), name="other")
        door.settle()
        assert door.admission.depth == 1
    told = [tuple(card.name for card in status.cards) for status in door.said]
    assert told == [("tiny",), ("tiny",), ("other", "tiny"), ("tiny",)]


def test_a_model_is_dismissed_when_its_last_frame_is_answered() -> None:
    """It is unloaded next; a frame that came before must not find it gone."""
    with open_door(Admission()) as door:
        door.send(pack_frame(FRAME), Properties(correlation=b"car/left/s1/7"))
        door.settle()
        thread = threading.Thread(target=door.intake.dismiss, args=("tiny",))
        thread.start()
        while len(door.said) < 2:
            door.settle()
        assert thread.is_alive()
        door.replier.refuse(_taken(door.admission), Status.FAILED, "test")
        thread.join(WAIT_S)
        assert not thread.is_alive()


def _cards(models: int) -> list[ModelCard]:
    """Models of as many classes as one can have, each with a long name."""
    labels = Labels(
        tuple(f"{number:064d}" for number in range(256)), tuple((number, 255, 255 - number) for number in range(256))
    )
    return [replace(model(name=f"model-{number}").card, labels=labels) for number in range(models)]


def test_many_large_models_are_announced_and_too_many_are_refused() -> None:
    """A status that vehicles cannot read leaves a worker that nobody finds."""
    with open_door(Admission()) as door:
        door.intake.check(_cards(16))
        status = NodeStatus(NodeState.ONLINE, "s9", 64, tuple(_cards(16)))
        assert unpack_status(pack_status(status)) == status
        with pytest.raises(AnnouncementError, match=r"^80 models .* \(.*\): divide them among several"):
            door.intake.check(_cards(80))


def test_a_model_that_was_loaded_too_late_is_not_subscribed_to() -> None:
    """Its frames would come to a worker that has left, and be acknowledged by it."""
    with open_door(Admission()) as door:
        door.serving.place(_lane(door.admission, door.replier, "other"))
        door.intake.stop()
        with pytest.raises(StoppingError, match="is stopping: it takes no frames of other any more"):
            door.intake.admit("other")
        door.send(pack_frame(frame(1, "other")), name="other")
        door.settle()
        assert door.admission.depth == 0


def test_a_worker_that_is_stopping_is_not_announced_as_online_again() -> None:
    """A broker that restarts while it drains asks for its state: vehicles must not send to it."""
    with open_door(Admission()) as door:
        door.intake.stop()
        door.intake.announce()
        door.settle()
    assert [status.state for status in door.said] == [NodeState.ONLINE, NodeState.STOPPING, NodeState.STOPPING]
