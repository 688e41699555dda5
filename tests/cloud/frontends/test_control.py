import threading
from collections.abc import Callable, Iterator

import pytest

from ops.broker.broker import Broker
from shared.messages import topics
from shared.messages.control import ControlRequest, ModelState, Verb, pack_request
from shared.messages.frame import ResultMessage, Status, pack_frame
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.bus import Properties
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from tests.support.control import FakeRepository, WorkerRig, open_worker
from tests.support.gateway import WAIT_S
from tests.support.memory_bus import MemoryBus
from tests.support.tiny_model import frame

TWO = {"tiny": ("1", "2"), "other": ("1",)}


@pytest.fixture(name="rig")
def _rig() -> Iterator[WorkerRig]:
    """A worker that serves the first of two versions of `tiny`, and has another model."""
    with open_worker(FakeRepository(**TWO)) as rig:
        yield rig


def _states(rig: WorkerRig) -> dict[tuple[str, str], str]:
    return {(entry.model, entry.version): entry.state for entry in rig.request(Verb.LIST).models}


def test_a_list_has_the_served_and_the_available_versions(rig: WorkerRig) -> None:
    """The list shows which versions can be loaded."""
    assert _states(rig) == {("tiny", "1"): "current", ("tiny", "2"): "available", ("other", "1"): "available"}
    (entry, _) = rig.request(Verb.LIST, "tiny").models
    assert (entry.task, entry.engine, entry.sha256) == ("segmentation", "tensorflow fp32", "ab" * 32)


def test_metadata_and_readiness_can_be_asked_for(rig: WorkerRig) -> None:
    """Both work for served versions, metadata also for versions that can be loaded."""
    assert rig.request(Verb.READY).is_ready
    assert rig.request(Verb.READY, "tiny").is_ready
    assert not rig.request(Verb.READY, "tiny", "2").is_ready
    served, could_be = rig.request(Verb.METADATA, "tiny"), rig.request(Verb.METADATA, "tiny", "2")
    assert served.card is not None
    assert could_be.card is not None
    assert (served.card.version, served.models[0].state) == ("1", ModelState.CURRENT)
    assert (could_be.card.version, could_be.models) == ("2", ())
    assert "no model 'huge'" in rig.request(Verb.METADATA, "huge").error


def test_a_new_version_takes_over_and_no_frame_is_lost_or_refused(mosquitto_broker: Broker) -> None:
    """Frames sent before the load get the old or the new version, later ones the new one; the old one is freed."""
    bus = MqttBus(Address.parse(mosquitto_broker.url), "test-worker")
    with open_worker(FakeRepository(**TWO), bus=bus) as rig:
        stop = threading.Event()
        sent: list[int] = []
        got: list[ResultMessage] = []

        def drive() -> None:
            while not stop.is_set():
                rig.send(len(sent))
                sent.append(len(sent))
                if len(sent) > 20:  # The largest number of frames in flight.
                    got.append(rig.answer())

        vehicle = threading.Thread(target=drive)
        vehicle.start()
        old = rig.repository.engines["tiny", "1"]
        reply = rig.request(Verb.LOAD, "tiny", "2")
        assert old.closed.wait(WAIT_S)
        assert not reply.error
        assert (reply.models[0].version, reply.models[0].state) == ("2", "current")
        stop.set()
        vehicle.join(WAIT_S)
        answers = [*got, *(rig.answer() for _ in range(len(sent) - len(got)))]
        rig.send(9999)
        assert rig.answer().model_version == "2"
    assert {answer.status for answer in answers} == {Status.ANSWERED}
    versions = [answer.model_version for answer in sorted(answers, key=lambda answer: answer.id.sequence)]
    assert versions == sorted(versions)


def test_a_load_blocks_neither_frames_nor_lists(rig: WorkerRig) -> None:
    """A load takes seconds; the list shows that it is in progress."""
    rig.repository.gate.clear()
    nonce = rig.ask(Verb.LOAD, "other")
    assert rig.repository.began.wait(WAIT_S)
    rig.send(1)
    assert rig.answer().status is Status.ANSWERED
    assert _states(rig)["other", "1"] == "loading"
    rig.repository.gate.set()
    assert rig.replies.get(timeout=WAIT_S).nonce == nonce


def test_a_new_model_is_announced_and_served(rig: WorkerRig) -> None:
    """The announcement follows when its frames are received."""
    assert [card.name for card in rig.statuses.get(timeout=WAIT_S).cards] == ["tiny"]
    rig.request(Verb.LOAD, "other")
    assert [card.name for card in rig.statuses.get(timeout=WAIT_S).cards] == ["other", "tiny"]
    rig.send(7, "other")
    assert (rig.answer().model, _states(rig)["other", "1"]) == ("other", "current")


def test_a_kept_version_serves_frames_that_name_it(rig: WorkerRig) -> None:
    """An operator can make it current again without loading it."""
    rig.request(Verb.LOAD, "tiny", "2", keep=True)
    for version, answered_by in ((None, "2"), ("1", "1"), ("2", "2")):
        rig.send(1, version=version)
        assert rig.answer().model_version == answered_by
    rig.repository.began.clear()
    assert rig.request(Verb.LOAD, "tiny", "1").models[0].version == "1"
    assert not rig.repository.began.is_set()
    assert rig.repository.engines["tiny", "2"].closed.wait(WAIT_S)
    assert _states(rig)["tiny", "2"] == "available"


def test_a_failed_load_changes_nothing(rig: WorkerRig) -> None:
    """The reply has the reason."""
    rig.repository.broken.add(("tiny", "2"))
    assert rig.request(Verb.LOAD, "tiny", "2").error == "tiny cannot be run"
    assert "no model 'huge'" in rig.request(Verb.LOAD, "huge").error
    rig.send(3)
    assert rig.answer().model_version == "1"
    assert rig.node.counts["control_refused_failed"] == 2


def test_an_unloaded_model_serves_accepted_frames_and_refuses_later_ones() -> None:
    """A refusal lists the served models."""
    repository = FakeRepository(**TWO)
    with open_worker(repository, (("tiny", "1"), ("other", "1"))) as rig:
        for sequence in range(30):
            rig.send(sequence, "other")
        reply = rig.request(Verb.UNLOAD, "other")
        assert [(entry.model, entry.state) for entry in reply.models] == [("other", "available")]
        assert {rig.answer().status for _ in range(30)} == {Status.ANSWERED}
        assert repository.engines["other", "1"].closed.is_set()
        retries = topics.RETRIES.of(worker="w", model="other", vehicle="car", camera="left")
        rig.bus.publish(retries, b"", qos=1, properties=Properties(correlation=b"car/left/s1/5"))
        refused = rig.answer()
        assert refused.status is Status.REJECTED
        assert refused.reason == "other is not served here: ask for tiny version 1"
        assert "nothing to unload" in rig.request(Verb.UNLOAD, "other").error
        assert rig.request(Verb.LOAD, "other").is_ready
        rig.send(1, "other")
        assert rig.answer().status is Status.ANSWERED


def test_frames_that_chose_this_worker_before_an_unload_are_answered() -> None:
    """A vehicle that sends by load may not know yet that the model has left."""
    with open_worker(FakeRepository(**TWO), (("tiny", "1"), ("other", "1"))) as rig:
        rig.ask(Verb.UNLOAD, "other")
        while {card.name for card in rig.statuses.get(timeout=WAIT_S).cards} != {"tiny"}:
            pass
        retries = topics.RETRIES.of(worker="w", model="other", vehicle="car", camera="left")
        correlation = str(frame(1).id).encode()
        rig.bus.publish(retries, pack_frame(frame(1, "other")), qos=1, properties=Properties(correlation=correlation))
        assert rig.answer().status is Status.ANSWERED


def test_a_worker_without_a_repository_serves_what_it_was_given() -> None:
    """Benchmarks run workers with models in memory."""
    repository = FakeRepository(**TWO)
    with open_worker(repository, with_loader=False) as rig:
        assert rig.request(Verb.LOAD, "tiny", "2").error.startswith("this worker has no repository")
        assert "tiny version 2 is not served here" in rig.request(Verb.METADATA, "tiny", "2").error
        assert _states(rig) == {("tiny", "1"): "current"}
        assert rig.request(Verb.UNLOAD, "tiny").is_ready is False
    assert not repository.engines["tiny", "1"].closed.is_set()  # It belongs to the caller.


def test_without_shared_subscriptions_a_model_of_another_worker_is_not_loaded() -> None:
    """Both workers would reply to every frame."""
    repository = FakeRepository(**TWO)
    rival = NodeStatus(NodeState.ONLINE, "s8", 1, (repository.find("other").card(),))
    with MemoryBus() as bus:
        bus.publish(topics.WORKER_STATUS.of(worker="rival"), pack_status(rival), qos=1, retained=True)
        with open_worker(repository, bus=bus) as rig:
            assert "worker 'rival' already serves other" in rig.request(Verb.LOAD, "other").error
            assert repository.engines["other", "1"].closed.is_set()
            assert _states(rig)["other", "1"] == "available"


def test_a_model_that_is_loaded_after_the_stop_is_freed() -> None:
    """The operator gets an error."""
    repository = FakeRepository(**TWO)
    with open_worker(repository) as rig:
        repository.gate.clear()
        rig.ask(Verb.LOAD, "tiny", "2")
        assert repository.began.wait(WAIT_S)
        rig.node.stop()
        repository.gate.set()
        assert rig.replies.get(timeout=WAIT_S).error == "the worker is stopping"
        rig.thread.join(WAIT_S)
    assert repository.engines["tiny", "2"].closed.is_set()
    assert repository.engines["tiny", "1"].closed.is_set()


REQUEST = ControlRequest("ops", "n1", Verb.LOAD, "tiny", "2")


def _send(rig: WorkerRig, verb: str, payload: bytes, properties: Properties | None = None) -> None:
    rig.bus.publish(f"skylane/v1/control/w/{verb}", payload, qos=1, properties=properties)


@pytest.mark.parametrize(
    ("send", "reason", "error"),
    [
        (
            lambda rig: _send(rig, "load", pack_request(REQUEST), Properties(response_topic="skylane/v1/masks/a/b")),
            "response_topic",
            "the response topic must be skylane/v1/replies/ops/n1",
        ),
        (
            lambda rig: _send(rig, "load", pack_request(ControlRequest("ops", "n1", Verb.LOAD, "../tiny"))),
            "request",
            "field 'model': model '../tiny' is not allowed",
        ),
        (
            lambda rig: _send(rig, "destroy", pack_request(REQUEST)),
            "request",
            "field 'verb': expected one of list, metadata, ready, load, unload, not",
        ),
    ],
    ids=["foreign response topic", "a path", "unknown verb"],
)
def test_invalid_requests_are_refused_and_counted(
    rig: WorkerRig, send: Callable[[WorkerRig], None], reason: str, error: str
) -> None:
    """Frames are not affected."""
    send(rig)
    assert rig.replies.get(timeout=WAIT_S).error.startswith(error)
    assert rig.node.counts[f"control_refused_{reason}"] == 1
    rig.send(1)
    assert rig.answer().model_version == "1"


def test_other_operators_are_refused() -> None:
    """The list of operators restricts those that the broker admits."""
    with open_worker(FakeRepository(**TWO), operators=("anna",)) as rig:
        assert rig.request(Verb.LOAD, "tiny", "2").error == "operator 'ops' may not control this worker"
        assert not rig.repository.began.is_set()
        assert rig.node.counts == {"control_refused_operator": 1}


def test_unreadable_requests_are_counted(rig: WorkerRig) -> None:
    """No reply can be sent to them."""
    _send(rig, "list", b"\xc1")
    _send(rig, "list", bytes(1 << 20))
    rig.request(Verb.LIST)
    assert rig.node.counts == {"control_refused_unreadable": 2}


def test_retained_requests_are_counted_and_ignored() -> None:
    """The broker would deliver such a request to every worker with this name that starts later."""
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        bus.publish(topics.CONTROL.of(worker="w", verb="load"), pack_request(REQUEST), qos=1, retained=True)
        with open_worker(FakeRepository(**TWO), bus=bus) as rig:
            rig.request(Verb.LIST)
            assert rig.node.counts == {"control_refused_retained": 1}


def test_loads_that_pile_up_are_refused(rig: WorkerRig) -> None:
    """The queue of changes is bounded."""
    rig.repository.gate.clear()
    rig.ask(Verb.LOAD, "other")
    assert rig.repository.began.wait(WAIT_S)
    for _ in range(5):
        rig.ask(Verb.LOAD, "tiny", "2")
    assert "loads and unloads wait already" in rig.replies.get(timeout=WAIT_S).error
    rig.repository.gate.set()
    assert {rig.replies.get(timeout=WAIT_S).error for _ in range(5)} == {""}
