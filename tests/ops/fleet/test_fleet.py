"""`skylane status` and `skylane top` at a real broker, with made nodes."""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from rich.console import Console

from ops.broker.broker import Broker
from ops.fleet.cli import fleet_tables, top
from ops.fleet.fleet import MAX_NODES, FleetMonitor
from shared.messages.msgpack_reader import MessageError
from shared.messages.node_metrics import (
    MAX_METRICS_BYTES,
    Quantiles,
    VehicleMetrics,
    WorkerMetrics,
    pack_vehicle_metrics,
    pack_worker_metrics,
    unpack_vehicle_metrics,
    unpack_worker_metrics,
)
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import VEHICLE_METRICS, VEHICLE_STATUS, WORKER_METRICS, WORKER_STATUS, TopicNameError
from shared.mqtt.bus import Bus, Delivery, NoBus
from tests.conftest import need_mosquitto
from tests.ops.fleet.made_fleet import CARD, problems, reporting, run_status, state_of, vehicle, worker

pytestmark = pytest.mark.mosquitto
VEHICLE = VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", Quantiles(1.0, 2.0), 0, 0.5)
WORKER = WorkerMetrics("s1", 60.0, {"answered": 300}, Quantiles(1.0, 2.0), None, None, None, None, None)


@pytest.fixture
def url() -> Iterator[str]:
    """A broker of its own: the nodes of other tests are not in its tables."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker.url


@pytest.mark.parametrize("size", [8, 50])
def test_the_slow_worker_and_the_dropping_vehicle_are_named(url: str, size: int) -> None:
    """They come first, with the figure; nobody else is named."""

    def send(bus: Bus) -> None:
        for number in range(size):
            worker(bus, f"gpu-{number}", 95.0 if number == 3 else 20.0)
            if number == 5:
                vehicle(bus, "car-5", "window", answered=200, dropped=100)
            else:
                vehicle(bus, f"car-{number}")

    with reporting(url, send):
        state = state_of(url)
        shown, _ = run_status(url)
    assert problems(state, "workers") == {"gpu-3": ["slow: inference 95 ms, the others 20 ms"]}
    assert problems(state, "vehicles") == {"car-5": ["loses 33 % of the frames (dropped: window)"]}
    assert (state["workers"][0]["name"], state["vehicles"][0]["name"]) == ("gpu-3", "car-5")
    assert (len(state["workers"]), len(state["vehicles"])) == (size, size)
    row = state["workers"][1]
    assert row["frames_per_s"] == 10.0
    assert row["inference_ms"] == {"p50": 20.0, "p95": 40.0}
    assert (row["models"], row["engine"], row["in_queue"]) == (["road 2"], "tensorflow fp32", 1)
    assert "mosquitto" in state["broker"]["version"]
    assert "worker gpu-3: slow: inference 95 ms" in shown.output
    assert "vehicle car-5: loses 33 %" in " ".join(shown.output.split())


def test_nodes_that_left_are_silent_or_lie_are_marked(url: str) -> None:
    """Each with what is wrong; a vehicle that left is counted only."""

    def send(bus: Bus) -> None:
        metrics = VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", None, 0, None)
        bus.publish(VEHICLE_METRICS.of(vehicle="ghost"), pack_vehicle_metrics(metrics), qos=0)
        bus.publish(
            VEHICLE_METRICS.of(vehicle="liar"),
            pack_vehicle_metrics(metrics).replace(b"\xcd\x01\x2c", b"\xd1\xff\x00"),
            qos=0,
        )
        for name in ("gpu-1", "gpu-2"):
            worker(bus, name)
        worker(bus, "two", session="s2")
        mute = NodeStatus(NodeState.ONLINE, "s1")
        bus.publish(WORKER_STATUS.of(worker="mute"), pack_status(mute), qos=1, retained=True)
        worker(bus, "full", answered=50, overloaded=50)
        bus.publish(
            WORKER_STATUS.of(worker="dead"), pack_status(NodeStatus(NodeState.OFFLINE, "s1")), qos=1, retained=True
        )
        bus.publish(
            VEHICLE_STATUS.of(vehicle="gone"), pack_status(NodeStatus(NodeState.OFFLINE, "s1")), qos=1, retained=True
        )
        vehicle(bus, "car-1")

    with reporting(url, send):
        state = state_of(url)
    found = problems(state, "workers")
    assert found == {
        "dead": ["offline"],
        "mute": ["sends no metrics"],
        "full": ["refuses 50 % of the frames (overloaded)"],
        "two": ["two processes of this name report"],
    }
    assert state["workers"][-1]["name"] == "dead"
    assert state["vehicles_offline"] == 1
    vehicles = problems(state, "vehicles")
    assert vehicles["ghost"] == ["reports, but the broker has no status of it"]
    assert any("sends what cannot be read: metrics" in problem for problem in vehicles["liar"])
    assert "car-1" not in vehicles


def test_workers_that_left_hide_none_that_is_there(url: str) -> None:
    """Kubernetes names each worker after its pod, and the broker keeps the names of all of them."""

    def send(bus: Bus) -> None:
        left = pack_status(NodeStatus(NodeState.OFFLINE, "s1"))
        for number in range(70):
            bus.publish(WORKER_STATUS.of(worker=f"a-pod-{number}"), left, qos=1, retained=True)
        for name in ("gpu-1", "gpu-2"):
            worker(bus, name)
        worker(bus, "gpu-3", inference_ms=90.0)

    with reporting(url, send):
        state = state_of(url)
        shown, _ = run_status(url)
    assert [row["name"] for row in state["workers"][:3]] == ["gpu-3", "gpu-1", "gpu-2"]
    text = " ".join(shown.output.split())
    assert "worker gpu-3: slow: inference 90 ms" in text
    assert "offline workers: 70: a-pod-0, a-pod-1, a-pod-10, a-pod-11, a-pod-12, …" in text
    assert text.index("gpu-2") < text.index("a-pod-20")


@pytest.mark.parametrize(
    "lie",
    [
        {"frames": {"answered": 1 << 32}},
        {"total": Quantiles(90.0, 91.0)},  # Swapped below.
        {"in_flight": 1 << 32},
    ],
)
def test_numbers_that_cannot_be_are_marked_until_others_come(lie: dict[str, Any]) -> None:
    """A report that says nonsense is not shown, and the next one that can be read ends the mark."""
    good = VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", None, 0, None)
    payload = pack_vehicle_metrics(msgspec.structs.replace(good, **lie)).replace(
        struct.pack(">d", 91.0), struct.pack(">d", 1.0)
    )
    handlers: dict[str, Any] = {}

    class Recorder(NoBus):
        def subscribe(self, topic_filter: str, qos: int, handler: object) -> None:  # noqa: ARG002
            handlers[topic_filter] = handler

    fleet = FleetMonitor()
    fleet.open(Recorder())
    topic = VEHICLE_METRICS.of(vehicle="car")
    for message, is_marked in ((payload, True), (pack_vehicle_metrics(good), False)):
        handlers[VEHICLE_METRICS.filter()](Delivery(topic, message, 1))
        (row,) = fleet.state().vehicles
        assert any("sends what cannot be read" in problem for problem in row["problems"]) is is_marked


def test_a_thousand_made_up_names_fill_nothing(url: str) -> None:
    """Names beyond the limit are left out and counted, and the table stays short."""
    fleet = FleetMonitor()
    handlers = {}

    class Recorder(NoBus):
        def subscribe(self, topic_filter: str, qos: int, handler: object) -> None:  # noqa: ARG002
            handlers[topic_filter] = handler

    fleet.open(Recorder())
    payload = pack_vehicle_metrics(VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", None, 0, None))
    take = handlers[VEHICLE_METRICS.filter()]
    for number in range(3 * MAX_NODES):
        take(Delivery(VEHICLE_METRICS.of(vehicle=f"made-{number}"), payload, 1))  # type: ignore[operator]
    state = fleet.state()
    assert len(state.vehicles) == MAX_NODES
    assert state.left_out == MAX_NODES
    assert state.problems == [f"{MAX_NODES} or more further names report, and are left out"]

    def send(bus: Bus) -> None:
        for number in range(200):
            vehicle(bus, f"made-{number}")

    with reporting(url, send):
        shown, _ = run_status(url)
    assert shown.output.count("made-") <= 120
    assert "140 more, see --json" in shown.output


@pytest.mark.parametrize(
    "change",
    [
        {b"\xa5total": b"\xa5tital"},
        {b"road": b"r/ad"},
        {b"answered": b"\x1b[31mhi!"},
    ],
)
def test_metrics_with_other_keys_or_names_are_refused(change: dict[bytes, bytes]) -> None:
    """They are for tables of a terminal."""
    payload = pack_vehicle_metrics(VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", None, 0, None))
    for old, new in change.items():
        assert old in payload
        payload = payload.replace(old, new)
    with pytest.raises(MessageError):
        unpack_vehicle_metrics(payload)


def changed(payload: bytes, fields: Mapping[str, object]) -> bytes:
    """Returns a message with other fields."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(payload) | fields)


@pytest.mark.parametrize(
    "lie",
    [
        {"seconds": -1.0},
        {"seconds": 1e9},
        {"seconds": float("nan")},
        {"seconds": True},
        {"frames": {"answered": -1}},
        {"frames": {"answered": 1 << 40}},
        {"frames": {"answered": 0.5}},
        {"frames": {f"o{chr(97 + number)}": 1 for number in range(17)}},
        {"frames": {"x" * 33: 1}},
        {"frames": {"[bold]": 1}},
        {"frames": [1]},
        {"session": "s" * 65},
        {"session": "../x"},
        {"session": "\u202egpu"},
    ],
)
def test_lies_of_both_kinds_are_refused(lie: dict[str, object]) -> None:
    """Negative, absurd, of other types, or too long. The name of the sender is that of the topic, which the broker checks."""
    for honest, read in (
        (pack_vehicle_metrics(VEHICLE), unpack_vehicle_metrics),
        (pack_worker_metrics(WORKER), unpack_worker_metrics),
    ):
        assert read(changed(honest, {}))
        with pytest.raises(MessageError):
            read(changed(honest, lie))


@pytest.mark.parametrize(
    "lie",
    [
        {"clock_error_ms": -0.1},
        {"clock_error_ms": float("inf")},
        {"in_flight": -1},
        {"in_flight": "many"},
        {"reason": "r" * 65},
        {"model": "\x1b]0;x\x07"},
        {"total": {"p50_ms": -1.0, "p95_ms": 2.0}},
        {"total": {"p50_ms": 1.0}},
        {"total": [1.0, 2.0, 3.0]},
    ],
)
def test_lies_of_a_vehicle_are_refused(lie: dict[str, object]) -> None:
    """A time of less than nothing would make the fleet look fast."""
    with pytest.raises(MessageError):
        unpack_vehicle_metrics(changed(pack_vehicle_metrics(VEHICLE), lie))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x80", bytes(MAX_METRICS_BYTES + 1), b"[]"])
def test_what_is_no_report_is_refused(payload: bytes) -> None:
    """Of both kinds."""
    for read in (unpack_worker_metrics, unpack_vehicle_metrics):
        with pytest.raises(MessageError):
            read(payload)


def test_escapes_in_texts_reach_no_terminal(url: str) -> None:
    """A reason is free text of a vehicle."""
    red = "\x1b[31mred"
    with reporting(url, lambda bus: vehicle(bus, "car-1", red, answered=10, lost=90)):
        shown, _ = run_status(url)
        state = state_of(url)
    assert "\x1b" not in shown.output
    assert "red" in problems(state, "vehicles")["car-1"][0]


def test_the_names_of_roles_are_no_vehicles() -> None:
    """The access list gives them other rights."""
    for role in ("worker", "operator", "viewer"):
        with pytest.raises(TopicNameError, match="role"):
            VEHICLE_METRICS.of(vehicle=role)
    assert WORKER_METRICS.of(worker="viewer")


def test_top_shows_the_same_and_ends(url: str) -> None:
    """On a pipe it prints the last state."""

    def send(bus: Bus) -> None:
        worker(bus, "gpu-1")
        vehicle(bus, "car-1")

    with reporting(url, send):
        ended = CliRunner().invoke(top, ["--broker", url, "--seconds", "2.5"])
    assert ended.exit_code == 0, ended.output
    assert "gpu-1" in ended.output
    assert "car-1" in ended.output


def test_without_a_broker_the_address_is_named() -> None:
    """And how to start one."""
    ended, _ = run_status("mqtt://127.0.0.1:1", "--connect-timeout", "0.3")
    assert "no broker at mqtt://127.0.0.1:1" in str(ended.exception)


def test_vehicles_that_left_long_ago_displace_none() -> None:
    """The broker keeps the status of each vehicle that was ever there."""
    fleet = FleetMonitor()
    handlers = {}

    class Recorder(NoBus):
        def subscribe(self, topic_filter: str, qos: int, handler: object) -> None:  # noqa: ARG002
            handlers[topic_filter] = handler

    fleet.open(Recorder())
    announce = handlers[VEHICLE_STATUS.filter()]
    offline, online = (pack_status(NodeStatus(state, "s1")) for state in (NodeState.OFFLINE, NodeState.ONLINE))
    for number in range(MAX_NODES + 500):
        announce(Delivery(VEHICLE_STATUS.of(vehicle=f"old-{number}"), offline, 1))  # type: ignore[operator]
    announce(Delivery(VEHICLE_STATUS.of(vehicle="car-1"), online, 1))  # type: ignore[operator]
    assert [row["name"] for row in fleet.state().vehicles] == ["car-1"]


def test_a_thousand_made_up_workers_with_many_models_fill_no_table() -> None:
    """A row shows a few of its models."""
    fleet = FleetMonitor()
    handlers = {}

    class Recorder(NoBus):
        def subscribe(self, topic_filter: str, qos: int, handler: object) -> None:  # noqa: ARG002
            handlers[topic_filter] = handler

    fleet.open(Recorder())
    cards = tuple(replace(CARD, name=f"model-{number}") for number in range(64))
    online = pack_status(NodeStatus(NodeState.ONLINE, "s1", 64, cards))
    for number in range(MAX_NODES):
        handlers[WORKER_STATUS.filter()](Delivery(WORKER_STATUS.of(worker=f"made-{number}"), online, 1))  # type: ignore[operator]
    console = Console(file=StringIO(), width=120)
    console.print(fleet_tables(fleet.state()))
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue()
    assert "61 more" in shown
    assert f"{MAX_NODES - 60} more, see --json" in shown
    assert len(shown.splitlines()) < 400


def test_a_lost_connection_is_said() -> None:
    """The tables would look the same, and be old."""

    class Lost(NoBus):
        is_connected = False

    fleet = FleetMonitor()
    fleet.open(Lost())
    assert fleet.state().problems == ["the connection to the broker is lost: what follows is old"]


def test_certificates_that_expire_are_problems() -> None:
    """After the revocation list has expired, the broker refuses every client: a number in a line is overlooked."""
    now_s, day_s = datetime.now(UTC).timestamp(), 86_400
    days = {"broker": 80.5, "car-1.crt": 3.5, "old.crt": -302.5, "crl.pem": -0.5}
    state = FleetMonitor().state({name: now_s + count * day_s for name, count in days.items()})
    assert state.problems[-3:] == [
        "the certificate car-1.crt expires in 4 days",
        "the certificate old.crt has expired",
        "the revocation list crl.pem has expired",
    ]
    assert state.certificate_days == days
