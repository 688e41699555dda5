import threading
from collections.abc import Callable

import pytest

from shared.broker.broker import Broker
from shared.messages import topics
from shared.messages.control import ControlRequest, ModelState, Verb, pack_request
from shared.messages.frame import ResultMessage, Status
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.mqtt.bus import Ack, Bus, Delivery, MemoryBus, Properties
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from tests.support.control import WAIT_S, Place, Shelf, open_worker

TWO = {"tiny": ("1", "2"), "other": ("1",)}


def _states(place: Place) -> dict[tuple[str, str], str]:
    return {(entry.model, entry.version): entry.state for entry in place.told(Verb.LIST).models}


def test_a_list_tells_what_is_served_and_what_could_be() -> None:
    """An operator chooses from it."""
    with open_worker(Shelf(**TWO)) as place:
        assert _states(place) == {("tiny", "1"): "current", ("tiny", "2"): "available", ("other", "1"): "available"}
        (entry, _) = place.told(Verb.LIST, "tiny").models
        assert (entry.task, entry.engine, entry.sha256) == ("segmentation", "tensorflow fp32", "ab" * 32)


def test_metadata_and_readiness_can_be_asked_for() -> None:
    """Of what is served, and of what could be loaded."""
    with open_worker(Shelf(**TWO)) as place:
        assert place.told(Verb.READY).is_ready
        assert place.told(Verb.READY, "tiny").is_ready
        assert not place.told(Verb.READY, "tiny", "2").is_ready
        served, could_be = place.told(Verb.METADATA, "tiny"), place.told(Verb.METADATA, "tiny", "2")
        assert served.card is not None
        assert could_be.card is not None
        assert (served.card.version, served.models[0].state) == ("1", ModelState.CURRENT)
        assert (could_be.card.version, could_be.models) == ("2", ())
        assert "no model 'huge'" in place.told(Verb.METADATA, "huge").error


@pytest.fixture(params=["memory", "mosquitto"])
def bus(request: pytest.FixtureRequest) -> Bus | None:
    """What carries the messages; None: memory. The worker closes it."""
    if request.param == "memory":
        return None
    broker: Broker = request.getfixturevalue("mosquitto_broker")
    return MqttBus(Address.parse(broker.url), "test-worker")


def test_a_new_version_takes_over_and_no_frame_is_lost_or_refused(bus: Bus | None) -> None:
    """What was sent before gets the old version or the new one, what is sent after the new one; the old one is freed."""
    with open_worker(Shelf(**TWO), bus=bus) as place:
        stop = threading.Event()
        sent: list[int] = []
        got: list[ResultMessage] = []

        def drive() -> None:
            while not stop.is_set():
                place.send(len(sent))
                sent.append(len(sent))
                if len(sent) > 20:  # So many are under way at a time.
                    got.append(place.answer())

        vehicle = threading.Thread(target=drive)
        vehicle.start()
        old = place.shelf.engines["tiny", "1"]
        reply = place.told(Verb.LOAD, "tiny", "2")
        assert old.closed.wait(WAIT_S)
        assert not reply.error
        assert (reply.models[0].version, reply.models[0].state) == ("2", "current")
        stop.set()
        vehicle.join(WAIT_S)
        answers = [*got, *(place.answer() for _ in range(len(sent) - len(got)))]
        place.send(9999)
        assert place.answer().model_version == "2"
    assert {answer.status for answer in answers} == {Status.ANSWERED}
    versions = [answer.model_version for answer in sorted(answers, key=lambda answer: answer.id.sequence)]
    assert versions == sorted(versions)


def test_a_load_is_in_nobodys_way() -> None:
    """It takes seconds: frames are answered meanwhile, and lists too, which say that it is under way."""
    with open_worker(Shelf(**TWO)) as place:
        place.shelf.gate.clear()
        nonce = place.ask(Verb.LOAD, "other")
        assert place.shelf.began.wait(WAIT_S)
        place.send(1)
        assert place.answer().status is Status.ANSWERED
        assert _states(place)["other", "1"] == "loading"
        place.shelf.gate.set()
        assert place.replies.get(timeout=WAIT_S).nonce == nonce


def test_a_new_model_is_announced_and_answers() -> None:
    """Vehicles learn of it when its frames are taken."""
    with open_worker(Shelf(**TWO)) as place:
        assert [card.name for card in place.statuses.get(timeout=WAIT_S).cards] == ["tiny"]
        place.told(Verb.LOAD, "other")
        assert [card.name for card in place.statuses.get(timeout=WAIT_S).cards] == ["other", "tiny"]
        place.send(7, "other")
        assert (place.answer().model, _states(place)["other", "1"]) == ("other", "current")


def test_a_version_that_is_kept_answers_whoever_names_it() -> None:
    """And the operator can go back to it without loading it again."""
    with open_worker(Shelf(**TWO)) as place:
        place.told(Verb.LOAD, "tiny", "2", keep=True)
        for version, answered_by in ((None, "2"), ("1", "1"), ("2", "2")):
            place.send(1, version=version)
            assert place.answer().model_version == answered_by
        place.shelf.began.clear()
        assert place.told(Verb.LOAD, "tiny", "1").models[0].version == "1"
        assert not place.shelf.began.is_set()
        assert place.shelf.engines["tiny", "2"].closed.wait(WAIT_S)
        assert _states(place)["tiny", "2"] == "available"


def test_a_load_that_fails_leaves_all_as_it_was() -> None:
    """And whoever asked learns why."""
    with open_worker(Shelf(**TWO)) as place:
        place.shelf.broken.add(("tiny", "2"))
        assert place.told(Verb.LOAD, "tiny", "2").error == "tiny cannot be run"
        assert "no model 'huge'" in place.told(Verb.LOAD, "huge").error
        place.send(3)
        assert place.answer().model_version == "1"
        assert place.node.counts["control_refused_failed"] == 2


def test_an_unloaded_model_answers_what_it_holds_then_refuses() -> None:
    """A frame that a vehicle still sends here is told what is served instead."""
    shelf = Shelf(**TWO)
    with open_worker(shelf, (("tiny", "1"), ("other", "1"))) as place:
        for sequence in range(30):
            place.send(sequence, "other")
        reply = place.told(Verb.UNLOAD, "other")
        assert [(entry.model, entry.state) for entry in reply.models] == [("other", "available")]
        assert {place.answer().status for _ in range(30)} == {Status.ANSWERED}
        assert shelf.engines["other", "1"].closed.is_set()
        retries = topics.RETRIES.of(worker="w", model="other", vehicle="car", camera="left")
        place.bus.publish(retries, b"", qos=1, properties=Properties(correlation=b"car/left/s1/5"))
        refused = place.answer()
        assert refused.status is Status.REJECTED
        assert refused.reason == "other is not served here: ask for tiny version 1"
        assert "nothing to unload" in place.told(Verb.UNLOAD, "other").error
        assert place.told(Verb.LOAD, "other").is_ready
        place.send(1, "other")
        assert place.answer().status is Status.ANSWERED


def test_a_worker_without_a_repository_serves_what_it_was_given() -> None:
    """A bench's worker thinks nothing and has no files."""
    shelf = Shelf(**TWO)
    with open_worker(shelf, with_loader=False) as place:
        assert place.told(Verb.LOAD, "tiny", "2").error.startswith("this worker has no repository")
        assert "tiny version 2 is not served here" in place.told(Verb.METADATA, "tiny", "2").error
        assert _states(place) == {("tiny", "1"): "current"}
        assert place.told(Verb.UNLOAD, "tiny").is_ready is False
    assert not shelf.engines["tiny", "1"].closed.is_set()  # It is whoever's who gave it.


def test_a_model_that_may_not_be_served_twice_is_not_loaded() -> None:
    """MQTT 3.1.1 cannot share: both workers would answer every frame."""
    shelf = Shelf(**TWO)
    rival = NodeStatus(NodeState.ONLINE, "s8", 1, (shelf.card("other"),))
    with MemoryBus() as bus:
        bus.publish(topics.WORKER_STATUS.of(worker="rival"), pack_status(rival), qos=1, retained=True)
        with open_worker(shelf, bus=bus) as place:
            assert "worker 'rival' already serves other" in place.told(Verb.LOAD, "other").error
            assert shelf.engines["other", "1"].closed.is_set()
            assert _states(place)["other", "1"] == "available"


def test_one_version_can_be_unloaded_alone() -> None:
    """Its memory is wanted; frames of the other version must not notice."""
    with open_worker(Shelf(**TWO)) as place:
        place.told(Verb.LOAD, "tiny", "2", keep=True)
        place.told(Verb.UNLOAD, "tiny", "2")
        place.send(1)
        assert place.answer().model_version == "1"
        place.send(2, version="2")
        assert place.answer().reason == "tiny version 2 is not served here: ask for tiny version 1"


def test_a_worker_that_stops_while_it_loads_frees_what_comes_too_late() -> None:
    """And tells whoever waits for it."""
    shelf = Shelf(**TWO)
    with open_worker(shelf) as place:
        shelf.gate.clear()
        place.ask(Verb.LOAD, "tiny", "2")
        assert shelf.began.wait(WAIT_S)
        place.node.stop()
        shelf.gate.set()
        assert place.replies.get(timeout=WAIT_S).error == "the worker is stopping"
        place.thread.join(WAIT_S)
    assert shelf.engines["tiny", "2"].closed.is_set()
    assert shelf.engines["tiny", "1"].closed.is_set()


REQUEST = ControlRequest("ops", "n1", Verb.LOAD, "tiny", "2")


def _send(place: Place, verb: str, payload: bytes, properties: Properties | None = None) -> None:
    place.bus.publish(f"skylane/v1/control/w/{verb}", payload, qos=1, properties=properties)


@pytest.mark.parametrize(
    ("send", "reason", "error"),
    [
        (
            lambda place: _send(
                place, "load", pack_request(REQUEST), Properties(response_topic="skylane/v1/masks/a/b")
            ),
            "response_topic",
            "the response topic must be skylane/v1/replies/ops/n1",
        ),
        (
            lambda place: _send(place, "load", pack_request(ControlRequest("ops", "n1", Verb.LOAD, "../tiny"))),
            "request",
            "field 'model': model '../tiny' is not allowed",
        ),
        (lambda place: _send(place, "destroy", pack_request(REQUEST)), "request", "no verb 'destroy'"),
    ],
    ids=["foreign response topic", "a path", "unknown verb"],
)
def test_what_may_not_be_asked_is_refused_and_counted(send: Callable[[Place], None], reason: str, error: str) -> None:
    """Traffic unharmed."""
    with open_worker(Shelf(**TWO)) as place:
        send(place)
        assert place.replies.get(timeout=WAIT_S).error.startswith(error)
        assert place.node.counts[f"control_refused_{reason}"] == 1
        place.send(1)
        assert place.answer().model_version == "1"


def test_an_operator_who_is_not_on_the_list_gets_nothing_done() -> None:
    """The broker says who may speak at all; the worker may be stricter."""
    with open_worker(Shelf(**TWO), operators=("anna",)) as place:
        assert place.told(Verb.LOAD, "tiny", "2").error == "operator 'ops' may not control this worker"
        assert not place.shelf.began.is_set()
        assert place.node.counts == {"control_refused_operator": 1}


def test_what_cannot_be_read_is_counted() -> None:
    """There is nobody to answer."""
    with open_worker(Shelf(**TWO)) as place:
        _send(place, "list", b"\xc1")
        _send(place, "list", bytes(1 << 20))
        place.told(Verb.LIST)
        assert place.node.counts == {"control_refused_unreadable": 2}


def test_an_order_that_the_broker_kept_is_counted_and_not_carried_out() -> None:
    """It would be obeyed again by every worker of that name that starts, long after whoever gave it has gone."""
    with open_worker(Shelf(**TWO)) as place:
        order = Delivery(
            topics.CONTROL.of(worker="w", verb="load"), pack_request(REQUEST), 0, Properties(), retained=True
        )
        control = place.node._control
        assert control is not None
        control._received(order)
        assert place.node.counts == {"control_refused_retained": 1}


def test_loads_that_pile_up_are_refused() -> None:
    """A queue without an end would be a way to fill the memory."""
    with open_worker(Shelf(**TWO)) as place:
        place.shelf.gate.clear()
        place.ask(Verb.LOAD, "other")
        assert place.shelf.began.wait(WAIT_S)
        for _ in range(5):
            place.ask(Verb.LOAD, "tiny", "2")
        assert "loads and unloads wait already" in place.replies.get(timeout=WAIT_S).error
        place.shelf.gate.set()
        assert {place.replies.get(timeout=WAIT_S).error for _ in range(5)} == {""}


def test_a_worker_may_take_no_control_at_all() -> None:
    """Nobody listens then, and the broker says so to whoever asks."""
    with open_worker(Shelf(**TWO), takes_control=False) as place:
        acks: list[Ack] = []
        acknowledged = threading.Event()

        def tell(ack: Ack) -> None:
            acks.append(ack)
            acknowledged.set()

        topic = topics.CONTROL.of(worker="w", verb="list")
        place.bus.publish(topic, pack_request(REQUEST), qos=1, acknowledged=tell)
        assert acknowledged.wait(WAIT_S)
        assert acks[0].no_subscriber
