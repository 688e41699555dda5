"""The retained load reports of a worker."""

import queue
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from cloud.config import CloudConfig
from cloud.frontends.mqtt import LoadReports
from cloud.node import CloudNode
from shared.messages.frame import Status, pack_frame, unpack_result
from shared.messages.load import LoadReport, unpack_load
from shared.messages.topics import FRAMES, LOADS, MASKS
from shared.mqtt.bus import Bus, Delivery
from shared.stages import Stage
from tests.support.cloud_requests import make_request
from tests.support.gateway import WAIT_S, Gate, Sender, open_gateway
from tests.support.memory_bus import MemoryBus
from tests.support.mqtt_bus import connect, free_port, mosquitto_with
from tests.support.tiny_model import frame, model

RESEND_S = 5.0
_TOPIC = LOADS.of(worker="w")


class _Reports:
    """The reports that a bus delivers."""

    def __init__(self, bus: Bus) -> None:
        self.deliveries: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        bus.subscribe(_TOPIC, 1, self.deliveries.put)

    def next(self) -> LoadReport:
        """Waits for the next report."""
        return unpack_load(self.deliveries.get(timeout=WAIT_S).payload)

    def until_queue(self, frames: int) -> LoadReport:
        """Waits for a report with this number of frames in flight."""
        while (report := self.next()).models["tiny"].queue != frames:
            pass
        return report


def test_a_worker_reports_when_it_goes_online_and_when_it_becomes_busy_and_idle(bus: MemoryBus) -> None:
    """Vehicles learn of a free worker at once; the busy one counts every frame without a reply."""
    gate = Gate()
    gate.close()
    with open_gateway(model(gate), http=None, bus=bus) as worker:
        reports = _Reports(bus)
        first = reports.next()
        assert first.session == "s9"
        assert (first.models["tiny"].queue, first.models["tiny"].free) == (0, 64)
        Sender(worker.bus).send(*(frame(sequence) for sequence in range(3)))
        reports.until_queue(3)
        gate.open()
        reports.until_queue(0)


def test_closing_removes_the_report(bus: MemoryBus) -> None:
    """A vehicle that starts later must not read of a worker that has left."""
    node = CloudNode([], CloudConfig(worker="w"), session="s9")
    reports, inbox = LoadReports(node, bus, lambda: True), _Reports(bus)
    reports.start()
    assert inbox.next() == LoadReport("s9", {})
    reports.close()
    assert inbox.deliveries.get(timeout=WAIT_S).payload == b""
    later = _Reports(bus)
    bus.publish(_TOPIC, b"marker", qos=1)
    assert later.deliveries.get(timeout=WAIT_S).payload == b"marker"


def test_an_announcement_repeats_the_report(bus: MemoryBus) -> None:
    """The node announces itself after each reconnect, because a restarted broker has lost retained messages."""
    with open_gateway(model(), http=None, bus=bus) as worker:
        reports = _Reports(bus)
        first = reports.next()
        worker.node.announce()
        assert reports.next() == first


def test_the_rate_of_reports_is_limited(bus: MemoryBus) -> None:
    """A vehicle that sends one frame after the other makes a worker busy and idle many times a second."""
    node = CloudNode([], CloudConfig(worker="w"), session="s9")
    inbox = _Reports(bus)
    reports = LoadReports(node, bus, lambda: True)
    reports.start()
    inbox.next()
    for sequence in range(40):
        request = make_request(times={Stage.RECEIVED: sequence})
        node.in_flight.add(request)
        threading.Event().wait(0.01)
        request.finish()
    reports.close()
    times_ns = []
    while (delivery := inbox.deliveries.get(timeout=WAIT_S)).payload:
        times_ns.append(delivery.received_ns)
    elapsed_s = (times_ns[-1] - times_ns[0]) / 1e9
    assert 1 <= len(times_ns) <= 4 + 2 * elapsed_s


def test_a_worker_that_lost_its_name_publishes_nothing(bus: MemoryBus) -> None:
    """Its reports would replace those of the process that has the name, and its end would remove them."""
    node = CloudNode([], CloudConfig(worker="w"), session="s9")
    bus.publish(_TOPIC, b"of another process", qos=1, retained=True)
    reports = LoadReports(node, bus, lambda: False)
    reports.start()
    reports.repeat()
    reports.close()
    inbox = _Reports(bus)
    assert inbox.deliveries.get(timeout=WAIT_S).payload == b"of another process"
    assert inbox.deliveries.empty()


@pytest.mark.mosquitto
def test_a_restarted_broker_gets_the_report_again(tmp_path: Path) -> None:
    """The broker keeps the last report for vehicles that start later, until it restarts or the worker leaves."""
    node, port = CloudNode([model()], CloudConfig(worker="w"), session="s9"), free_port()
    with mosquitto_with(tmp_path, "allow_anonymous true", port=port) as broker:
        bus = connect(broker.url, on_connected=node.announce)
        thread = threading.Thread(target=lambda: node.serve(bus, lambda: None))
        thread.start()
        vehicle = connect(broker.url)
        assert _Reports(vehicle).next().session == "s9"
        vehicle.close()
    with mosquitto_with(tmp_path, "allow_anonymous true", port=port) as broker:
        vehicle = connect(broker.url)
        reports = _Reports(vehicle)
        assert reports.next().models.keys() == {"tiny"}
        node.stop()
        thread.join(WAIT_S)
        while reports.deliveries.get(timeout=WAIT_S).payload:
            pass  # Reports of the time before.
        vehicle.close()


@pytest.mark.mosquitto
def test_a_broker_that_denies_reports_costs_nothing_else(tmp_path: Path) -> None:
    """Access rules of earlier releases do not know the topic; the replies of such a worker still have its load."""
    rules = tmp_path / "acl"
    rules.write_text("".join(f"topic readwrite skylane/v1/{kind}/#\n" for kind in ("frames", "masks", "status")))
    with mosquitto_with(tmp_path, "allow_anonymous true", f"acl_file {rules}") as broker:
        vehicle = connect(broker.url)
        replies: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        vehicle.subscribe(MASKS.filter(), 1, replies.put)
        with open_gateway(model(), http=None, bus=connect(broker.url)):
            for sequence in range(3):  # Each makes the worker busy, and idle again.
                topic = FRAMES.of(model="tiny", vehicle="car", camera="left")
                reply = None
                while reply is None:  # A frame that was sent while the worker reconnects is lost.
                    vehicle.publish(topic, pack_frame(frame(sequence)), qos=1)
                    with suppress(queue.Empty):
                        reply = unpack_result(replies.get(timeout=RESEND_S).payload)
                assert (reply.status, reply.load is not None) == (Status.ANSWERED, True)
        vehicle.close()
