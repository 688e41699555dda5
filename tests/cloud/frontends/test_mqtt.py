import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cloud.config import CloudConfig
from cloud.frontends.mqtt import AnnouncementError, MqttFrontend, SecondWorkerError, StoppingError, worker_will
from cloud.node import CloudNode
from cloud.serving.batching import Batcher
from cloud.serving.replies import Postprocessor
from cloud.serving.request import Request
from cloud.serving.served_models import ServedModel
from shared.imaging.labels import Labels
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from shared.messages.model_card import ModelCard
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FRAMES, MASKS, RETRIES, WORKER_STATUS
from shared.mqtt.bus import Handler, Properties
from shared.stages import Stage
from shared.threads import ThreadGroup
from tests.support.memory_bus import MemoryBus
from tests.support.tiny_model import frame, model

WAIT_S = 60.0
FRAME = frame(7)
CORRELATION = Properties(correlation=b"car/left/s1/7")


class _LateThread(threading.Thread):
    """Starts when it is joined."""

    def join(self, timeout: float | None = None) -> None:
        self.start()
        super().join(timeout)


class _LateThreads(ThreadGroup):
    """Lets the refusals wait until the frontend is closed."""

    def start(self, name: str, body: Callable[[], None]) -> threading.Thread:
        return _LateThread(target=body, name=name)


class Rig:
    """An MQTT frontend on a bus in memory, and what a client receives from it. No frame is decoded."""

    def __init__(self, bus: MemoryBus, max_frames: int = 64, **changes: Any) -> None:
        self.bus = bus
        node = CloudNode([], CloudConfig(worker="w", max_frames=max_frames), session="s9")
        for name, value in changes.items():
            setattr(node, name, value)
        self.admission = node.submission.admission
        self.replier = node.replier
        self.served_models = node.served_models
        self.add()
        self.frontend = MqttFrontend(node, bus)
        self.replies: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.statuses: list[NodeStatus] = []
        bus.subscribe(MASKS.filter(), 1, lambda delivery: self.replies.put(unpack_result(delivery.payload)))
        bus.subscribe(
            WORKER_STATUS.of(worker="w"), 1, lambda delivery: self.statuses.append(unpack_status(delivery.payload))
        )

    def add(self, name: str = "tiny") -> None:
        """Adds a model to the served ones."""
        served = model(name=name)
        self.served_models.set_current(
            ServedModel(served, Batcher(served, self.replier, self.admission, Postprocessor(self.replier)))
        )

    def send(self, payload: bytes, properties: Properties | None = None, name: str = "tiny") -> None:
        """Publishes a frame for a model."""
        self.bus.publish(FRAMES.of(model=name, vehicle="car", camera="left"), payload, qos=1, properties=properties)

    def settle(self) -> None:
        """Waits until the bus has delivered everything that was published."""
        done = threading.Event()
        self.bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)

    def take(self) -> Request:
        """Takes the next request out of the queue, as a decoder does."""
        taken = self.admission.take(lambda _: True)
        assert taken is not None
        return taken[0]


@contextmanager
def running(rig: Rig) -> Iterator[Rig]:
    """Starts the frontend, and closes it."""
    try:
        rig.frontend.start()
        yield rig
    finally:
        rig.frontend.close()


@pytest.fixture(name="rig")
def _rig(bus: MemoryBus) -> Iterator[Rig]:
    with running(Rig(bus)) as rig:
        yield rig


def test_a_frame_is_stamped_and_admitted(rig: Rig) -> None:
    """The network thread does not read the message."""
    rig.send(pack_frame(FRAME), CORRELATION)
    request = rig.take()
    assert (request.vehicle, request.camera, request.model) == ("car", "left", "tiny")
    assert request.correlation == FRAME.id
    assert list(request.times) == [Stage.RECEIVED]
    assert request.message is None


@pytest.mark.parametrize("properties", [None, CORRELATION], ids=["MQTT 3.1.1", "MQTT 5"])
def test_frames_beyond_the_queue_are_overloaded(bus: MemoryBus, properties: Properties | None) -> None:
    """Without correlation data, the recipient of the refusal is read from the payload."""
    with running(Rig(bus, 1)) as rig:
        for _ in range(3):
            rig.send(pack_frame(FRAME), properties)
        for _ in range(2):
            reply = rig.replies.get(timeout=WAIT_S)
            assert (reply.id, reply.status, reply.reason) == (FRAME.id, Status.OVERLOADED, "1 frames are waiting")
    assert rig.replier.counts == {"overloaded": 2}


def test_another_response_topic_is_rejected(rig: Rig) -> None:
    """A vehicle must not have its replies sent to another one."""
    rig.send(pack_frame(FRAME), Properties(correlation=CORRELATION.correlation, response_topic="elsewhere"))
    reply = rig.replies.get(timeout=WAIT_S)
    assert (reply.status, reply.reason) == (Status.REJECTED, "the response topic must be skylane/v1/masks/car/left")
    assert rig.admission.depth == 0


def test_a_flood_of_large_frames_takes_bounded_memory(bus: MemoryBus) -> None:
    """The payloads of frames that wait for their refusal are kept only up to 64 MiB."""
    rig = Rig(bus, 1, threads=_LateThreads(lambda: None))
    rig.frontend.start()
    payload = pack_frame(msgspec.structs.replace(FRAME, data=bytes(2 << 20)))
    for _ in range(100):
        rig.send(payload)
    rig.settle()
    rig.frontend.close()
    assert rig.replier.counts["overloaded"] <= 33
    assert sum(rig.replier.counts.values()) == 99


def test_refusals_beyond_their_queue_are_counted_and_dropped(bus: MemoryBus) -> None:
    """An unbounded queue of refusals would undo the bound of the admission queue."""
    rig = Rig(bus, 1, threads=_LateThreads(lambda: None))
    rig.frontend.start()
    for _ in range(1 + 1024 + 7):
        rig.send(b"")
    rig.settle()
    assert rig.replier.ignored == {"refusals_full": 7}


def test_retained_frames_are_ignored(bus: MemoryBus) -> None:
    """The broker would deliver a retained frame to every worker that starts."""
    bus.publish(RETRIES.of(worker="w", model="tiny", vehicle="car", camera="left"), b"x", qos=1, retained=True)
    with running(Rig(bus)) as rig:
        rig.settle()
    assert rig.replier.ignored == {"retained": 1}
    assert rig.admission.depth == 0


class _PromiscuousBus(MemoryBus):
    """A broker that delivers every message to every subscription."""

    supports_shared_subscriptions = True

    def subscribe(self, topic_filter: str, qos: int, handler: Handler) -> None:
        """See MemoryBus."""
        del topic_filter
        super().subscribe("#", qos, handler)


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        ("skylane/v1/frames/huge/car/left", "model"),
        ("skylane/v1/frames/tiny/a b/left", "topic"),
        ("skylane/v1/frames/tiny/car", "topic"),
        ("frames/tiny/car/left", "topic"),
    ],
)
def test_frames_for_other_models_and_invalid_topics_are_ignored(topic: str, reason: str) -> None:
    """A wildcard also matches invalid names, and a broker may deliver more than the subscription."""
    with _PromiscuousBus() as bus:
        node, done = CloudNode([], CloudConfig(worker="w"), session="s9"), threading.Event()
        replier, frontend = node.replier, MqttFrontend(node, bus)
        frontend.start()
        before = replier.ignored.get(reason, 0)
        bus.publish(topic, b"", qos=1)
        bus.publish(WORKER_STATUS.of(worker="w"), b"", qos=1, acknowledged=lambda _: done.set())
        assert done.wait(WAIT_S)
        assert replier.ignored[reason] > before
        assert node.submission.admission.depth == 0
        frontend.close()


def test_a_worker_announces_its_start_and_its_end(bus: MemoryBus) -> None:
    """Vehicles send frames only to workers that are online; a stopping worker receives no frames."""
    with running(Rig(bus, 5)) as rig:
        rig.frontend.stop()
        rig.send(pack_frame(FRAME))
        rig.settle()
        assert rig.admission.depth == 0
    assert [(status.state, status.session, status.cards) for status in rig.statuses] == [
        (NodeState.ONLINE, "s9", rig.served_models.cards()),
        (NodeState.STOPPING, "s9", ()),
        (NodeState.OFFLINE, "s9", ()),
    ]
    assert rig.statuses[0].capacity == 5
    assert unpack_status(worker_will("w", "s9").payload).state is NodeState.OFFLINE


def _announce(bus: MemoryBus, state: NodeState, *cards: ModelCard) -> None:
    """Announces another worker, which is named after its state."""
    status = pack_status(NodeStatus(state, "s8", 1, cards))
    bus.publish(WORKER_STATUS.of(worker=f"other-{state}"), status, qos=1, retained=True)


def test_without_shared_subscriptions_a_second_worker_is_refused() -> None:
    """Both workers would reply to every frame."""
    with MemoryBus() as bus:
        _announce(bus, NodeState.ONLINE, model().card)
        problem = r"worker 'other-online' already serves tiny .* use Mosquitto, or stop"
        with pytest.raises(SecondWorkerError, match=problem), running(Rig(bus)):
            pytest.fail("it was started")


def test_without_shared_subscriptions_a_harmless_status_is_ignored() -> None:
    """A retained status may be old; only a worker that is online with the same model is a conflict."""
    with MemoryBus() as bus:
        _announce(bus, NodeState.OFFLINE)
        _announce(bus, NodeState.STOPPING, model().card)
        _announce(bus, NodeState.ONLINE)
        bus.publish(WORKER_STATUS.of(worker="unreadable"), b"garbage", qos=1, retained=True)
        with running(Rig(bus)) as rig:
            rig.send(pack_frame(FRAME))
            rig.settle()
            assert rig.admission.depth == 1


def test_a_retry_is_admitted_for_the_model_in_its_topic(rig: Rig) -> None:
    """A vehicle sends a retry to one worker by name, and other workers do not receive it."""
    topic = RETRIES.of(worker="w", model="tiny", vehicle="car", camera="left")
    rig.bus.publish(topic, pack_frame(msgspec.structs.replace(FRAME, attempt=2)), qos=1)
    rig.bus.publish(RETRIES.of(worker="other", model="tiny", vehicle="car", camera="left"), b"", qos=1)
    rig.settle()
    assert rig.admission.depth == 1
    request = rig.take()
    assert (request.vehicle, request.camera, request.model, request.header.attempt) == ("car", "left", "tiny", 2)


def test_a_model_is_announced_only_while_its_frames_are_received(rig: Rig) -> None:
    """Vehicles must not send frames that no worker receives."""
    rig.add("other")
    rig.frontend.announce()
    rig.frontend.add_model("other")
    rig.frontend.announce()
    rig.send(pack_frame(frame(1, "other")), name="other")
    rig.settle()
    assert rig.admission.depth == 1
    rig.frontend.remove_model("other")
    rig.send(pack_frame(frame(2, "other")), name="other")
    rig.settle()
    assert rig.admission.depth == 1
    announced = [tuple(card.name for card in status.cards) for status in rig.statuses]
    assert announced == [("tiny",), ("tiny",), ("other", "tiny"), ("tiny",)]


def _cards(models: int) -> list[ModelCard]:
    """Cards of models with the largest number of classes, each with a long name."""
    labels = Labels(
        tuple(f"{number:064d}" for number in range(256)), tuple((number, 255, 255 - number) for number in range(256))
    )
    return [replace(model(name=f"model-{number}").card, labels=labels) for number in range(models)]


def test_too_many_models_for_one_status_message_are_refused(rig: Rig) -> None:
    """Vehicles could not read the status of such a worker, and would not use it."""
    rig.frontend.check_cards(_cards(16))
    status = NodeStatus(NodeState.ONLINE, "s9", 64, tuple(_cards(16)))
    assert unpack_status(pack_status(status)) == status
    with pytest.raises(AnnouncementError, match=r"^80 models .* \(.*\): divide them among several"):
        rig.frontend.check_cards(_cards(80))


def test_a_stopping_worker_accepts_no_new_model(rig: Rig) -> None:
    """A model may finish loading after the worker has begun to stop; its frames would be lost."""
    rig.add("other")
    rig.frontend.stop()
    with pytest.raises(StoppingError, match="is stopping and accepts no more frames for other"):
        rig.frontend.add_model("other")
    rig.send(pack_frame(frame(1, "other")), name="other")
    rig.settle()
    assert rig.admission.depth == 0


def test_a_stopping_worker_is_not_announced_as_online_again(rig: Rig) -> None:
    """A reconnect while the worker drains repeats the announcement."""
    rig.frontend.stop()
    rig.frontend.announce()
    rig.settle()
    assert [status.state for status in rig.statuses] == [NodeState.ONLINE, NodeState.STOPPING, NodeState.STOPPING]
