"""A vehicle with a valid certificate cannot impersonate another one; with a real worker and broker."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cloud.config import CloudConfig
from cloud.node import CloudNode
from ops.broker.broker import Broker
from shared.messages.frame import ResultMessage, Status, pack_frame, unpack_result
from shared.messages.node_status import NodeState, unpack_status
from shared.messages.topics import FrameId
from shared.mqtt.bus import Bus
from shared.mqtt.name_guard import IdentityError
from shared.network.address import Certificates
from tests.pipeline.rig import connect, serving
from tests.support.mqtt_client import NOT_AUTHORIZED, TIMEOUT_S, Client
from tests.support.tiny_model import frame, model

pytestmark = pytest.mark.mosquitto
OWN = replace(frame(1), id=FrameId("car-1", "left", "s1", 1))
VICTIM_ID = FrameId("car-2", "left", "s9", 7)


@pytest.fixture
def worker(secured: Broker, certs: Path) -> Iterator[CloudNode]:
    """A worker at the secured broker, with its own certificate."""
    with serving(lambda node: bus_of(node, secured, certs, "worker-1"), model()) as node:
        yield node


def bus_of(node: CloudNode, broker: Broker, certs: Path, name: str) -> Bus:
    """Connects a worker with the certificate of `name`."""
    files = [str(certs / file) for file in ("ca.crt", f"{name}.crt", f"{name}.key")]
    return connect(
        broker.url, certificates=Certificates(*files), on_connected=node.announce, on_fault=node.threads.fault
    )


@pytest.fixture
def car_1(secured: Broker, certs: Path) -> Iterator[Client]:
    """The attacker, subscribed to its own masks."""
    with Client(secured, certs, "car-1") as client:
        client.subscribe("masks/car-1/+")
        yield client


@pytest.fixture
def car_2(secured: Broker, certs: Path) -> Iterator[Client]:
    """The victim, subscribed to its own masks."""
    with Client(secured, certs, "car-2") as client:
        client.subscribe("masks/car-2/+")
        yield client


@pytest.fixture
def group(worker: CloudNode, secured: Broker, certs: Path) -> str:  # noqa: ARG001  The worker must run.
    """The topic of retries, which only this test's worker receives; waits until the worker has subscribed."""
    with Client(secured, certs, "anna") as operator:
        operator.subscribe("status/worker/+")
        topic, status = operator.next()
        while unpack_status(status).state is not NodeState.ONLINE:  # Retained by the worker of an earlier test.
            topic, status = operator.next()
    return f"retries/{topic.rpartition('/')[2]}/tiny"


def next_mask(client: Client) -> ResultMessage:
    """Waits for the next mask message of a vehicle."""
    return unpack_result(client.next()[1])


def properties(frame_id: FrameId, response_topic: str | None = None) -> Mapping[str, Any]:
    """The MQTT properties of a frame."""
    correlation: dict[str, Any] = {"CorrelationData": str(frame_id).encode()}
    return correlation | ({"ResponseTopic": f"skylane/v1/{response_topic}"} if response_topic else {})


def check_victim_received_nothing(victim: Client, worker_group: str) -> None:
    """Checks that the next mask that the victim receives is that of a frame it sends now."""
    message = replace(frame(2), id=FrameId("car-2", "left", "s2", 2))
    victim.publish(f"{worker_group}/car-2/left", pack_frame(message), **properties(message.id))
    mask = next_mask(victim)
    assert (mask.id, mask.status) == (message.id, Status.ANSWERED)
    assert victim.messages.empty()


def check_counts(worker: CloudNode, **expected: int) -> None:
    """Waits until the worker has these counts; it counts an answer after sending it."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while worker.counts != expected and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert worker.counts == expected


def test_a_vehicles_own_frame_is_answered(car_1: Client, car_2: Client, group: str) -> None:
    """This validates the tests below."""
    car_1.publish(f"{group}/car-1/left", pack_frame(OWN), **properties(OWN.id, "masks/car-1/left"))
    assert next_mask(car_1).status is Status.ANSWERED
    check_victim_received_nothing(car_2, group)


@pytest.mark.parametrize(
    ("changes", "response_topic", "reason"),
    [
        ({"id": VICTIM_ID}, None, "vehicle, camera and model of the message must be those of its topic"),
        ({"model": "other"}, None, "must be those of its topic"),
        ({"version": "9"}, None, "version"),
        # The worker may publish masks for all vehicles; following any response topic would lend that right.
        ({}, "masks/car-2/left", "the response topic must be skylane/v1/masks/car-1/left"),
    ],
    ids=["another vehicle", "another model", "another version", "another response topic"],
)
def test_a_frame_that_contradicts_its_topic_is_rejected(
    worker: CloudNode,
    car_1: Client,
    car_2: Client,
    group: str,
    *,
    changes: dict[str, Any],
    response_topic: str | None,
    reason: str,
) -> None:
    """The broker checks the vehicle in the topic only; another vehicle or model would receive a wrong mask."""
    forged = pack_frame(replace(OWN, **changes))
    car_1.publish(f"{group}/car-1/left", forged, **properties(OWN.id, response_topic))
    mask = next_mask(car_1)
    assert (mask.id, mask.status) == (OWN.id, Status.REJECTED)
    assert reason in mask.reason
    check_victim_received_nothing(car_2, group)
    check_counts(worker, rejected=1, answered=1)


@pytest.mark.parametrize("correlation_id", [VICTIM_ID, FrameId("car-1", "right", "s1", 1)])
def test_another_vehicles_id_in_the_properties_is_not_answered(
    worker: CloudNode, car_1: Client, car_2: Client, group: str, correlation_id: FrameId
) -> None:
    """The sender is unknown: the worker counts the frame and sends nothing."""
    forged = pack_frame(replace(OWN, id=VICTIM_ID))
    car_1.publish(f"{group}/car-1/left", forged, **properties(correlation_id))
    car_1.publish(f"{group}/car-1/left", pack_frame(OWN), **properties(OWN.id))
    assert next_mask(car_1).id == OWN.id
    check_victim_received_nothing(car_2, group)
    check_counts(worker, unreadable=1, answered=2)
    assert car_1.messages.empty()


def test_the_broker_rejects_frames_on_another_vehicles_topic(
    worker: CloudNode, car_1: Client, car_2: Client, group: str
) -> None:
    """The worker receives only the victim's own frame."""
    forged = pack_frame(replace(OWN, id=VICTIM_ID))
    for topic in (f"{group}/car-2/left", "frames/tiny/car-2/left"):
        assert car_1.publish(topic, forged, **properties(VICTIM_ID)) == NOT_AUTHORIZED
    check_victim_received_nothing(car_2, group)
    check_counts(worker, answered=1)


def test_a_worker_with_a_vehicles_certificate_ends(secured: Broker, certs: Path, car_2: Client) -> None:
    """The broker withholds its messages, so it would wait for frames forever; it ends with an error instead."""
    node = CloudNode([model()], CloudConfig(worker="worker-9"), session="s1")
    car_2.subscribe("status/worker/worker-9")
    with pytest.raises(IdentityError, match="worker-9"):
        node.serve(bus_of(node, secured, certs, "car-1"), lambda: None)
    with Client(secured, certs, "worker-1") as worker:
        assert worker.may_publish("masks/car-2/canary")
    assert car_2.next()[0] == "masks/car-2/canary"
    assert car_2.messages.empty()
