"""What a vehicle with a good certificate can do to another one: a real worker, a real broker, and frames that lie."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cloud.node import CloudNode, WorkerSettings
from shared.broker.broker import Broker
from shared.messages.frame import FrameMessage, ResultMessage, Status, pack_frame, unpack_result
from shared.messages.topics import FrameId
from shared.mqtt.bus import Bus
from shared.mqtt.name_guard import IdentityError
from shared.network.address import Certificates
from tests.pipeline.rig import connect, serving
from tests.support.mqtt_client import NOT_AUTHORIZED, TIMEOUT_S, Client
from tests.support.tiny_model import frame, model

pytestmark = pytest.mark.mosquitto
OWN = replace(frame(1), id=FrameId("car-1", "left", "s1", 1))
VICTIMS = FrameId("car-2", "left", "s9", 7)


@pytest.fixture
def worker(secured: Broker, certs: Path) -> Iterator[CloudNode]:
    """A worker behind the secured broker, in the group of all workers, with a certificate of its own."""
    with serving(lambda node: bus_of(node, secured, certs, "worker-1"), model()) as node:
        yield node


def bus_of(node: CloudNode, broker: Broker, certs: Path, name: str) -> Bus:
    """A worker's bus, with the certificate of `name`."""
    files = [str(certs / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key")]
    return connect(broker.url, certificates=Certificates(*files), on_connected=node.announce, on_fault=node.fault)


@pytest.fixture
def car_1(secured: Broker, certs: Path) -> Iterator[Client]:
    """The one that lies; it hears its own answers."""
    with Client(secured, certs, "car-1") as client:
        client.subscribe("masks/car-1/+")
        yield client


@pytest.fixture
def car_2(secured: Broker, certs: Path) -> Iterator[Client]:
    """The one that it means; it hears whatever comes to it."""
    with Client(secured, certs, "car-2") as client:
        client.subscribe("masks/car-2/+")
        yield client


@pytest.fixture
def group(worker: CloudNode, secured: Broker, certs: Path) -> str:
    """Where frames for this test's worker alone go to, the topic of its retries; the broker knows that it is there."""
    name = worker._settings.worker
    with Client(secured, certs, "anna") as operator:
        operator.subscribe(f"status/worker/{name}")
        operator.next()  # A broker does one thing after the other: what the worker subscribed to before is in force.
    return f"retries/{name}/tiny"


def answer(client: Client) -> ResultMessage:
    """The next answer that comes to a vehicle."""
    return unpack_result(client.next()[1])


def properties(frame_id: FrameId, response_topic: str | None = None) -> Mapping[str, Any]:
    """What stands beside the payload."""
    told: dict[str, Any] = {"CorrelationData": str(frame_id).encode()}
    return told | ({"ResponseTopic": f"skylane/v1/{response_topic}"} if response_topic else {})


def hears_nothing(victim: Client, worker_group: str) -> None:
    """A frame of its own is the first thing that the victim hears an answer to."""
    own = replace(frame(2), id=FrameId("car-2", "left", "s2", 2))
    victim.publish(f"{worker_group}/car-2/left", pack_frame(own), **properties(own.id))
    heard = answer(victim)
    assert (heard.id, heard.status) == (own.id, Status.ANSWERED)
    assert victim.messages.empty()


def counted(worker: CloudNode, **expected: int) -> None:
    """A worker counts an answer just after it has sent it: what it counts in the end is what is expected."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while worker.counts != expected and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert worker.counts == expected


def test_an_own_frame_is_answered(car_1: Client, car_2: Client, group: str) -> None:
    """Without this, the refusals below would say nothing."""
    car_1.publish(f"{group}/car-1/left", pack_frame(OWN), **properties(OWN.id, "masks/car-1/left"))
    assert answer(car_1).status is Status.ANSWERED
    hears_nothing(car_2, group)


def test_anothers_id_in_the_payload_is_rejected_and_counted(
    worker: CloudNode, car_1: Client, car_2: Client, group: str
) -> None:
    """The broker proves the topic's vehicle; a mask under another's id would be taken for that one's picture."""
    lie = pack_frame(replace(OWN, id=VICTIMS))
    car_1.publish(f"{group}/car-1/left", lie, **properties(OWN.id))
    told = answer(car_1)
    assert (told.id, told.status) == (OWN.id, Status.REJECTED)
    assert "vehicle, camera and model of the message must be those of its topic" in told.reason
    hears_nothing(car_2, group)
    counted(worker, rejected=1, answered=1)


@pytest.mark.parametrize("beside", [VICTIMS, FrameId("car-1", "right", "s1", 1)])
def test_anothers_id_beside_the_payload_is_answered_to_nobody(
    worker: CloudNode, car_1: Client, car_2: Client, group: str, beside: FrameId
) -> None:
    """Nothing tells whose frame it is: it is counted, and no vehicle hears of it."""
    lie = pack_frame(replace(OWN, id=VICTIMS))
    car_1.publish(f"{group}/car-1/left", lie, **properties(beside))
    car_1.publish(f"{group}/car-1/left", pack_frame(OWN), **properties(OWN.id))
    assert answer(car_1).id == OWN.id
    hears_nothing(car_2, group)
    counted(worker, unreadable=1, answered=2)
    assert car_1.messages.empty()


def test_an_answer_cannot_be_sent_to_another(worker: CloudNode, car_1: Client, car_2: Client, group: str) -> None:
    """The worker may write every vehicle's masks: a response topic that it followed would be that right, lent."""
    car_1.publish(f"{group}/car-1/left", pack_frame(OWN), **properties(OWN.id, "masks/car-2/left"))
    told = answer(car_1)
    assert told.status is Status.REJECTED
    assert "the response topic must be skylane/v1/masks/car-1/left" in told.reason
    hears_nothing(car_2, group)
    counted(worker, rejected=1, answered=1)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda own: replace(own, model="other"), "must be those of its topic"),
        (lambda own: replace(own, version="9"), "version"),
    ],
)
def test_another_model_or_version_is_rejected(
    car_1: Client, group: str, change: Callable[[FrameMessage], FrameMessage], reason: str
) -> None:
    """A mask of another network than the one that was asked for would lie about the street."""
    car_1.publish(f"{group}/car-1/left", pack_frame(change(OWN)), **properties(OWN.id))
    told = answer(car_1)
    assert told.status is Status.REJECTED
    assert reason in told.reason


def test_frames_that_pretend_to_be_anothers_never_arrive(
    worker: CloudNode, car_1: Client, car_2: Client, group: str
) -> None:
    """The broker stops them at the door: the worker counts one frame, the victim's own."""
    lie = pack_frame(replace(OWN, id=VICTIMS))
    for topic in (f"{group}/car-2/left", "frames/tiny/car-2/left"):
        assert car_1.publish(topic, lie, **properties(VICTIMS)) == NOT_AUTHORIZED
    hears_nothing(car_2, group)
    counted(worker, answered=1)


def test_a_vehicles_certificate_makes_no_worker(secured: Broker, certs: Path, car_2: Client) -> None:
    """It would wait for frames that the broker withholds, online by its own account alone: it ends, and says why."""
    node = CloudNode([model()], WorkerSettings(worker="worker-9", session="s1"))
    car_2.subscribe("status/worker/worker-9")
    with pytest.raises(IdentityError, match="worker-9"):
        node.serve(bus_of(node, secured, certs, "car-1"), lambda: None)
    with Client(secured, certs, "worker-1") as worker:
        assert worker.may_publish("masks/car-2/canary")
    assert car_2.next()[0] == "masks/car-2/canary"
    assert car_2.messages.empty()
