import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cloud.config import CloudConfig
from cloud.node import CloudNode
from shared.imaging import image_codecs
from shared.inference.model import Model
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from shared.messages.node_status import NodeStatus, unpack_status
from shared.messages.topics import FRAMES, MASKS
from tests.support.memory_bus import MemoryBus
from tests.support.tiny_model import HEIGHT, WIDTH, frame, model

WAIT_S = 60.0


class Serving:
    """A worker in its thread, and a vehicle that talks to it."""

    def __init__(self, bus: MemoryBus, models: list[Model], config: CloudConfig) -> None:
        self.bus = bus
        self.node = CloudNode(models, config, session="s9")
        self.answers: queue.SimpleQueue[ResultMessage] = queue.SimpleQueue()
        self.raised: list[BaseException] = []
        self.ready = threading.Event()
        bus.subscribe(MASKS.filter(), 1, lambda delivery: self.answers.put(unpack_result(delivery.payload)))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def send(self, sequence: int, name: str = "tiny") -> None:
        """Publish a frame."""
        self.bus.publish(FRAMES.of(model=name, vehicle="car", camera="left"), pack_frame(frame(sequence, name)), qos=1)

    def join(self) -> None:
        """Wait for the worker's end."""
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        try:
            self.node.serve(self.bus, lambda: None, self.ready.set)
        except BaseException as error:  # noqa: BLE001 (looked at by the test)
            self.raised.append(error)


@contextmanager
def _serving(*models: Model, **settings: Any) -> Iterator[Serving]:
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        serving = Serving(bus, list(models), CloudConfig(worker="w", **settings))
        try:
            assert serving.ready.wait(WAIT_S)
            yield serving
        finally:
            serving.node.stop()
            serving.join()


def _threads() -> set[str]:
    return {
        thread.name
        for thread in threading.enumerate()
        if thread.name.startswith(("decoder", "engine", "postpro", "refus"))
    }


@pytest.mark.parametrize("decoders", [1, 3])
def test_every_frame_gets_its_own_mask(decoders: int) -> None:
    """This holds for several decoders; the stamps of a reply are in order."""
    with _serving(model(), decoders=decoders) as serving:
        for sequence in range(60):
            serving.send(sequence)
        answers = [serving.answers.get(timeout=WAIT_S) for _ in range(60)]
        assert serving.node.counts == {"answered": 60}
    assert sorted(answer.id.sequence for answer in answers) == list(range(60))
    for answer in answers:
        mask = image_codecs.decode_mask(answer.data, "raw", (HEIGHT, WIDTH))
        np.testing.assert_array_equal(mask, np.full((HEIGHT, WIDTH), answer.id.sequence, np.uint8))
        assert [stamp.at_ns for stamp in answer.stamps] == sorted(stamp.at_ns for stamp in answer.stamps)
        assert {stamp.node for stamp in answer.stamps} == {"cloud/w/s9"}
    assert not serving.raised
    assert not _threads()


def test_a_stopped_worker_serves_all_admitted_frames() -> None:
    """The last replies are sent before the connection is closed."""
    gate, entered = threading.Event(), threading.Event()

    def act() -> None:
        entered.set()
        assert gate.wait(WAIT_S)

    with _serving(model(act)) as serving:
        for sequence in range(20):
            serving.send(sequence)
        assert entered.wait(WAIT_S)
        serving.node.stop()
        gate.set()
        serving.join()
        answers = [serving.answers.get(timeout=WAIT_S) for _ in range(20)]
    assert {answer.status for answer in answers} == {Status.ANSWERED}
    assert not serving.raised
    assert not _threads()


def test_several_models_are_served() -> None:
    """The topic of a frame names its model, and each batch has frames of one model."""
    with _serving(model(), model(name="other")) as serving:
        for sequence in range(10):
            serving.send(sequence, "tiny")
            serving.send(sequence + 100, "other")
        answers = [serving.answers.get(timeout=WAIT_S) for _ in range(20)]
    assert {answer.id.sequence for answer in answers if answer.model == "other"} == set(range(100, 110))
    assert {answer.id.sequence for answer in answers if answer.model == "tiny"} == set(range(10))


def test_a_bug_in_a_model_fails_its_frames_alone() -> None:
    """Every frame is refused as `failed`, and the worker continues."""

    def act() -> None:
        raise ZeroDivisionError("bug")

    with _serving(model(act)) as serving:
        for sequence in range(50):
            serving.send(sequence)
        answers = [serving.answers.get(timeout=WAIT_S) for _ in range(50)]
    assert {answer.status for answer in answers} == {Status.FAILED}
    assert not serving.raised
    assert not _threads()


def test_a_fault_of_the_bus_stops_the_worker() -> None:
    """An exception on the network thread is raised by `serve`."""
    with _serving(model()) as serving:
        serving.node.threads.fault(KeyError("lost"))
        serving.join()
    assert isinstance(serving.raised[0], KeyError)


def test_a_reconnect_announces_the_worker_again() -> None:
    """A restarted broker has lost its retained messages."""
    statuses: list[NodeStatus] = []
    with _serving(model()) as serving:
        serving.bus.subscribe(
            "skylane/v1/status/worker/w", 1, lambda delivery: statuses.append(unpack_status(delivery.payload))
        )
        serving.node.announce()
        serving.send(1)
        serving.answers.get(timeout=WAIT_S)
        assert statuses[1] == replace(statuses[0], age_ms=statuses[1].age_ms)  # It may be a millisecond older.
