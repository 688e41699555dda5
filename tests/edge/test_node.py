"""The vehicle node."""

import json
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from edge import run_record
from edge.config import EdgeConfig
from edge.ledger import RunCounts
from edge.node import EdgeNode, RunSettings
from edge.transports.mqtt_transport import MqttTransport, vehicle_will
from edge.transports.transport import MAX_QUEUED_REPLIES, TransportEvents
from shared.errors import SkylaneError
from shared.messages.node_status import NodeState, NodeStatus, pack_status, unpack_status
from shared.messages.topics import FRAMES, RETRIES, VEHICLE_STATUS, WORKER_STATUS
from shared.runlog.latency_log import LogWriter, Outcome, read_rows
from tests.edge.samples import CARD, ListedSource, make_frame
from tests.support.memory_bus import MemoryBus

WAIT_S = 60.0


def endless() -> ListedSource:
    """Returns a source that never ends."""
    return ListedSource(map(make_frame, count()))


def failing(error: Exception) -> ListedSource:
    """Returns a source that fails after five frames."""
    return ListedSource([make_frame(index) for index in range(5)], error)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    """Returns a bus with a worker that receives frames and never answers."""
    with MemoryBus() as made:
        _announce(made, "w")
        made.subscribe(FRAMES.filter(model="tiny"), 1, lambda _: None)
        yield made


def _announce(bus: MemoryBus, worker: str, state: NodeState = NodeState.ONLINE) -> None:
    status = NodeStatus(state, "s9", 4, (CARD,) if state is NodeState.ONLINE else ())
    bus.publish(WORKER_STATUS.of(worker=worker), pack_status(status), qos=1, retained=True)


def _node(
    bus: MemoryBus, log: LogWriter, source: ListedSource, events: TransportEvents | None = None, **settings: Any
) -> EdgeNode:
    transport = MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1")
    assert transport.wait_for_card(WAIT_S) == CARD
    given = {"vehicle": "car", "closed_loop": True, "codec": "raw", "window": 3, "answer_timeout_s": 0.3}
    config = EdgeConfig.model_validate(given | settings)
    return EdgeNode(source, transport, log, [], RunSettings(config, "s1", CARD), events=events)


def _no_threads_left() -> bool:
    names = {thread.name for thread in threading.enumerate()}
    return not names & {"pipeline", "sinks", "receiver", "pacer", "reader"}


def test_a_source_that_fails_ends_the_run_in_order(bus: MemoryBus, tmp_path: Path) -> None:
    """The run waits for the frames in flight; every frame has its row, and the error is reported at the end."""
    with LogWriter(tmp_path) as log:
        node = _node(bus, log, failing(SkylaneError("the rest is missing")))
        counts = node.run(lambda: None)
    assert [str(fault) for fault in node.faults] == ["the rest is missing"]
    assert (counts.read, counts.outcomes) == (5, {Outcome.LOST: 5})
    assert {row["reason"] for row in read_rows(tmp_path)} == {"no answer"}
    assert _no_threads_left()


def test_an_unexpected_exception_ends_the_run_with_all_rows_written(bus: MemoryBus, tmp_path: Path) -> None:
    """The exception is raised, and no row is lost."""
    with LogWriter(tmp_path) as log:
        node = _node(bus, log, failing(ZeroDivisionError("a bug")))
        with pytest.raises(ZeroDivisionError, match="a bug"):
            node.run(lambda: None)
    counts = node.counts()
    assert counts.read == counts.closed == len(list(read_rows(tmp_path)))
    assert _no_threads_left()


def test_an_exception_on_the_network_thread_ends_the_run(bus: MemoryBus, tmp_path: Path) -> None:
    """It is raised again by `run`."""
    events = TransportEvents()
    with LogWriter(tmp_path) as log:
        node = _node(bus, log, endless(), events)
        with pytest.raises(KeyError, match="lost"):
            node.run(lambda: events.fault(KeyError("lost")))
    assert node.counts().read == node.counts().closed
    assert _no_threads_left()


def test_a_stopped_run_accounts_for_every_frame(bus: MemoryBus, tmp_path: Path) -> None:
    """The stop comes while frames are read, queued and in flight."""
    with LogWriter(tmp_path) as log:
        node = _node(bus, log, endless())
        counts = node.run(lambda: node.stop() if node.counts().read >= 3 else None)
    assert counts.read == counts.closed == len(list(read_rows(tmp_path)))
    assert counts.in_flight == 0
    assert set(counts.outcomes) <= {Outcome.LOST, Outcome.DROPPED}
    assert _no_threads_left()


def test_without_retries_the_frames_of_a_dead_worker_are_lost(bus: MemoryBus, tmp_path: Path) -> None:
    """Another worker could answer them. Every frame still has its row."""
    bus.subscribe(RETRIES.filter(), 1, lambda _: None)
    _announce(bus, "v")
    died: list[str] = []

    def tick() -> None:
        counts = node.counts()
        if not died and counts.in_flight == 3:
            _announce(bus, "w", NodeState.OFFLINE)
            died.append("w")
        elif Outcome.LOST in counts.outcomes:
            node.stop()

    with LogWriter(tmp_path) as log:
        node = _node(bus, log, endless(), retry=False, answer_timeout_s=1.0)
        node.run(tick)
    rows = [row for row in read_rows(tmp_path) if row["outcome"] == "lost"]
    assert {(row["attempts"], row["reason"]) for row in rows} == {("1", "no answer")}


def test_a_vehicle_announces_its_start_and_its_end() -> None:
    """If it crashes, the broker publishes its last will."""
    statuses: list[NodeStatus] = []
    with MemoryBus() as bus:
        bus.subscribe(VEHICLE_STATUS.filter(), 1, lambda delivery: statuses.append(unpack_status(delivery.payload)))
        MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1").close()
    assert [(status.state, status.session) for status in statuses] == [
        (NodeState.ONLINE, "s1"),
        (NodeState.OFFLINE, "s1"),
    ]
    will = vehicle_will("car", "s1")
    assert will.topic == "skylane/v1/status/vehicle/car"
    assert unpack_status(will.payload).state is NodeState.OFFLINE


def test_only_replies_to_this_vehicle_are_received() -> None:
    """The topic filter contains the vehicle's name."""
    with MemoryBus() as bus:
        transport = MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1")
        for vehicle, payload in (("bus", b"of bus"), ("car", b"of the car")):
            bus.publish(f"skylane/v1/masks/{vehicle}/left", payload, qos=1)
        reply = transport.replies.get(timeout=WAIT_S)
        assert reply is not None
        assert reply.size == len(b"of the car")
        assert transport.replies.empty()


def test_the_queue_of_replies_is_bounded(bus: MemoryBus, tmp_path: Path) -> None:
    """Slow sinks must not fill the memory; frames whose reply was dropped time out."""
    transport = MqttTransport(bus, EdgeConfig(vehicle="car", model="tiny"), "s1")
    settled = threading.Event()
    for _ in range(MAX_QUEUED_REPLIES + 3):
        bus.publish("skylane/v1/masks/car/left", b"", qos=1)
    bus.publish("tests/settled", b"", qos=1, acknowledged=lambda _: settled.set())
    assert settled.wait(WAIT_S)
    assert transport.replies.qsize() == MAX_QUEUED_REPLIES
    with LogWriter(tmp_path) as log:
        node = EdgeNode(endless(), transport, log, [], RunSettings(EdgeConfig(vehicle="car"), "s1", CARD))
        assert node.counts().ignored_answers == {"too_many": 3}


def test_the_manifest_describes_the_run_without_secrets(tmp_path: Path) -> None:
    """It has a count for every outcome, including zeros."""
    key = tmp_path / "secret.pem"
    key.touch()
    config = EdgeConfig(vehicle="car", broker="mqtts://broker", tls_key=key)
    started = run_record.started(config, "s1", {"kind": "bag", "sha256": "ab"}, CARD)
    assert (started["state"], started["session"], started["model"]["sha256"]) == ("running", "s1", CARD.sha256)
    assert started["source"]["sha256"] == "ab"
    assert started["configuration"]["codec"] == "jpeg"
    assert started["host"]["python"]
    ended = run_record.ended(started, RunCounts(3, 0, {Outcome.ANSWERED: 2, Outcome.LOST: 1}, {}, 1.0), 0)
    assert ended["outcomes"].keys() == set(Outcome)
    assert sum(ended["outcomes"].values()) == ended["frames_read"] == 3
    assert ended["state"] == "complete"
    assert run_record.ended(started, RunCounts(3, 0, {}, {}, None), 1)["state"] == "incomplete"
    assert "secret" not in json.dumps(ended)


def test_a_run_that_loses_its_name_ends_in_order(bus: MemoryBus, tmp_path: Path) -> None:
    """Another process uses the vehicle's name, perhaps since before the node existed: every frame has its row."""
    events = TransportEvents()
    events.check()
    events.give_up(SkylaneError("car runs already"))
    with pytest.raises(SkylaneError, match="car runs already"):
        events.check()
    with LogWriter(tmp_path) as log:
        node = _node(bus, log, endless(), events)
        counts = node.run(lambda: None)
    assert [str(fault) for fault in node.faults] == ["car runs already"]
    assert counts.read == counts.closed == len(list(read_rows(tmp_path)))
    assert _no_threads_left()
