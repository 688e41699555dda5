"""The topics that each role may publish and read, with a real Mosquitto."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ops.broker.broker import Broker
from shared.messages import topics
from shared.messages.topics import TopicKind
from shared.package_data import shipped
from tests.support.mqtt_client import Client

pytestmark = pytest.mark.mosquitto
CLIENTS = ("car-1", "car-2", "worker-1", "anna", "vera")

# The clients that may publish each topic of the protocol.
WRITERS = {
    "frames/road-small/car-1/left": {"car-1"},
    "retries/worker-1/road-small/car-1/left": {"car-1"},
    "probes/worker-1/car-1": {"car-1"},
    "status/vehicle/car-1": {"car-1"},
    "masks/car-1/left": {"worker-1"},
    "echoes/car-1/worker-1": {"worker-1"},
    "status/worker/worker-1": {"worker-1"},
    "load/worker-1": {"worker-1"},
    "metrics/worker/worker-1": {"worker-1"},
    "metrics/vehicle/car-1": {"car-1"},
    "control/worker-1/unload": {"anna"},
    "replies/anna/nonce": {"worker-1"},
}
# The clients that may read each topic.
READERS = {
    "frames/road-small/car-1/left": {"worker-1"},
    "retries/worker-1/road-small/car-1/left": {"worker-1"},
    "probes/worker-1/car-1": {"worker-1"},
    "status/vehicle/car-1": {"car-1", "anna", "vera"},
    "masks/car-1/left": {"car-1"},
    "echoes/car-1/worker-1": {"car-1"},
    "status/worker/worker-1": {"car-1", "car-2", "worker-1", "anna", "vera"},
    "load/worker-1": {"car-1", "car-2", "worker-1", "anna", "vera"},
    "metrics/worker/worker-1": {"anna", "vera"},
    "metrics/vehicle/car-1": {"car-1", "anna", "vera"},
    "control/worker-1/unload": {"worker-1"},
    "replies/anna/nonce": {"anna"},
}


@pytest.mark.parametrize("name", CLIENTS)
def test_each_role_publishes_only_its_topics(secured: Broker, certs: Path, name: str) -> None:
    """A vehicle must not send frames of another vehicle or masks of a worker."""
    with Client(secured, certs, name) as client:
        allowed = {topic for topic in WRITERS if client.may_publish(topic)}
    assert allowed == {topic for topic, writers in WRITERS.items() if name in writers}


@pytest.fixture(scope="module")
def writers(secured: Broker, certs: Path) -> Iterator[dict[str, Client]]:
    """A client that may publish each topic of the protocol, by topic."""
    with ExitStack() as stack:
        names = {min(names) for names in WRITERS.values()}
        clients = {name: stack.enter_context(Client(secured, certs, name)) for name in names}
        yield {topic: clients[min(names)] for topic, names in WRITERS.items()}


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("topic_filter", ["#", "+/+/+/+", "$share/skylane/skylane/v1/#"])
def test_each_role_reads_only_its_topics(
    secured: Broker, certs: Path, writers: dict[str, Client], name: str, topic_filter: str
) -> None:
    """A subscription to everything is accepted, but delivers only what the role may read."""
    with Client(secured, certs, name) as reader:
        reader.subscribe(topic_filter)
        for topic, writer in writers.items():
            assert writer.may_publish(topic)
        expected = {topic for topic, readers in READERS.items() if name in readers}
        if topic_filter.startswith("+"):
            expected = {topic for topic in expected if topic.count("/") == 3}
        received = {reader.next()[0] for _ in expected}
        # All messages were acknowledged, so none is still on its way.
        reader.subscribe("nothing")
        assert received == expected
        assert reader.messages.empty()


FORBIDDEN = (
    "frames/road-small/car-2/left",  # Another vehicle's frame.
    "retries/worker-1/road-small/car-2/left",
    "probes/worker-1/car-2",
    "status/vehicle/car-2",
    "status/worker/worker-1",  # A worker's status.
    "status/worker/car-1",
    "load/worker-1",  # A worker's load: the thief would attract or repel frames.
    "load/car-1",
    "metrics/vehicle/car-2",
    "metrics/worker/worker-1",
    "metrics/worker/car-1",
    "masks/car-2/left",
    "masks/car-1/left",
    "echoes/car-2/worker-1",
    "control/worker-1/load",
    "replies/anna/nonce",
    "anything/car-1",
)


def test_a_vehicle_cannot_publish_to_topics_of_others(secured: Broker, certs: Path) -> None:
    """A stolen vehicle must not affect others: readers of such topics receive nothing from it."""
    with Client(secured, certs, "anna") as operator, Client(secured, certs, "worker-1") as worker:
        for reader in (operator, worker):
            reader.subscribe("#")
        while not operator.messages.empty():  # Retained messages of other tests.
            operator.messages.get()
        with Client(secured, certs, "car-1") as thief:
            assert [topic for topic in FORBIDDEN if thief.may_publish(topic)] == []
            assert thief.may_publish("frames/road-small/car-1/canary")
            assert thief.may_publish("status/vehicle/car-1")
        assert worker.next()[0] == "frames/road-small/car-1/canary"
        assert operator.next()[0] == "status/vehicle/car-1"


def test_a_vehicle_in_the_workers_group_receives_no_frame(secured: Broker, certs: Path) -> None:
    """Mosquitto adds it to the group; frames assigned to it are lost, but not delivered.

    If vehicles may attack each other, the workers' `--group` must therefore be a secret name.
    """
    frames = "skylane/v1/frames/road-small/+/+"
    with (
        Client(secured, certs, "worker-1") as worker,
        Client(secured, certs, "car-1") as thief,
        Client(secured, certs, "car-2") as vehicle,
    ):
        worker.subscribe(f"$share/skylane/{frames}")
        worker.subscribe(f"$share/unknown/{frames}")
        thief.subscribe(f"$share/skylane/{frames}")
        for number in range(4):
            assert vehicle.may_publish(f"frames/road-small/car-2/{number}")
        assert vehicle.may_publish("probes/worker-1/car-2")
        worker.subscribe("nothing")
        received = [worker.next()[0] for _ in range(worker.messages.qsize())]
        assert {f"frames/road-small/car-2/{number}" for number in range(4)} <= set(
            received
        )  # Through the unknown group.
        assert len(received) < 8  # The frames assigned to the thief are lost.
        assert thief.messages.empty()


@pytest.mark.parametrize(("client", "role"), [("worker-1", "worker"), ("anna", "operator"), ("vera", "viewer")])
def test_no_other_role_is_a_vehicle_of_its_name(secured: Broker, certs: Path, client: str, role: str) -> None:
    """Patterns with the common name apply to every client, so the role's own lines must deny them."""
    as_vehicle = [
        f"frames/road-small/{role}/left",
        f"retries/worker-1/road-small/{role}/left",
        f"probes/worker-1/{role}",
        f"status/vehicle/{role}",
        f"metrics/vehicle/{role}",
    ]
    with Client(secured, certs, client) as pretender, Client(secured, certs, "worker-1") as worker:
        assert [topic for topic in as_vehicle if pretender.may_publish(topic)] == []
        pretender.subscribe("#")
        for topic in (f"masks/{role}/left", f"echoes/{role}/worker-1"):
            worker.may_publish(topic)
        assert worker.may_publish("load/worker-1")
        while not pretender.messages.empty():
            assert not pretender.messages.get()[0].startswith(("masks", "echoes"))


def test_a_second_client_with_the_same_id_has_its_own_rights(secured: Broker, certs: Path) -> None:
    """The broker disconnects the first one and may reuse its session, but not its right to read."""
    with Client(secured, certs, "car-1", client_id="same") as first:
        first.subscribe("masks/car-1/left")
        with Client(secured, certs, "car-2", client_id="same") as second, Client(secured, certs, "worker-1") as worker:
            assert not second.may_publish("frames/road-small/car-1/left")
            second.subscribe("masks/+/+")
            assert worker.may_publish("masks/car-1/left")
            assert worker.may_publish("masks/car-2/left")
            assert second.next()[0] == "masks/car-2/left"
            assert second.messages.empty()


def test_the_acl_has_exactly_the_topics_of_the_protocol() -> None:
    """Any wider pattern would be a right that no node needs."""
    kinds = [kind for kind in vars(topics).values() if isinstance(kind, TopicKind)]
    known = {f"{topics.PREFIX}/{re.sub('{.*?}', '+', kind.pattern)}" for kind in kinds}
    lines = (shipped("mosquitto") / "acl").read_text(encoding="utf-8").splitlines()
    roles = [line for line in lines if line and not line.startswith(("#", "topic deny"))]
    patterns = {line.split()[-1] for line in roles if not line.startswith("user ")} - {"$SYS/#"}
    exact = {re.sub("%u", "+", topic) for topic in patterns} - {
        f"{topics.PREFIX}/{both}/+/+" for both in ("status", "metrics")
    }
    assert exact == known
    assert all(line.startswith("pattern ") == ("%u" in line or "status/worker" in line) for line in roles[:7])
