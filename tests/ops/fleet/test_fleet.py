"""`skylane status` and `skylane top` at a real broker, with made nodes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO

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
from shared.messages.topics import (
    VEHICLE_METRICS,
    VEHICLE_STATUS,
    WORKER_METRICS,
    WORKER_STATUS,
    TopicKind,
    TopicNameError,
)
from shared.mqtt.bus import Bus, Delivery, NoBus
from tests.conftest import need_mosquitto
from tests.ops.fleet.made_fleet import CARD, problems, reporting, run_status, state_of, vehicle, worker

pytestmark = pytest.mark.mosquitto
VEHICLE = VehicleMetrics("s1", "road", 60.0, {"answered": 300}, "", Quantiles(1.0, 2.0), 0, 0.5)
ONLINE, OFFLINE = (pack_status(NodeStatus(state, "s1")) for state in (NodeState.ONLINE, NodeState.OFFLINE))
WORKER = WorkerMetrics("s1", 60.0, {"answered": 300}, Quantiles(1.0, 2.0), None, None, None, None, None)


@pytest.fixture
def url() -> Iterator[str]:
    """A broker of its own: the nodes of other tests are not in its tables."""
    need_mosquitto()
    with Broker.start(kind="mosquitto") as broker:
        yield broker.url


class Recorder(NoBus):
    """Gives messages to the handlers that subscribe."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Delivery], None]] = {}

    def subscribe(self, topic_filter: str, qos: int, handler: Callable[[Delivery], None]) -> None:  # noqa: ARG002
        """See Bus."""
        self._handlers[topic_filter] = handler

    def receive(self, kind: TopicKind, payload: bytes, **names: str) -> None:
        """Calls the handler of a topic."""
        self._handlers[kind.filter()](Delivery(kind.of(**names), payload, 1))


def monitored() -> tuple[FleetMonitor, Recorder]:
    """Returns a monitor, and what gives it messages."""
    fleet, bus = FleetMonitor(), Recorder()
    fleet.open(bus)
    return fleet, bus


def test_the_slow_worker_and_the_dropping_vehicle_are_named(url: str) -> None:
    """They come first, with the figure; nobody else is named."""
    size = 12

    def send(bus: Bus) -> None:
        for number in range(size):
            worker(bus, f"gpu-{number}", 95.0 if number == 3 else 20.0)
            if number == 5:
                vehicle(bus, "car-5", "window", answered=200, dropped=100)
            else:
                vehicle(bus, f"car-{number}")

    with reporting(url, send):
        state = state_of(url)
        shown = run_status(url)
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
        for name, metrics in (("ghost", {}), ("liar", {"frames": {"answered": -256}})):
            report = changed(pack_vehicle_metrics(VEHICLE), metrics)
            bus.publish(VEHICLE_METRICS.of(vehicle=name), report, qos=0)
        for name in ("gpu-1", "gpu-2"):
            worker(bus, name)
        worker(bus, "two", session="s2")
        bus.publish(WORKER_STATUS.of(worker="mute"), ONLINE, qos=1, retained=True)
        worker(bus, "full", answered=50, overloaded=50)
        bus.publish(WORKER_STATUS.of(worker="dead"), OFFLINE, qos=1, retained=True)
        bus.publish(VEHICLE_STATUS.of(vehicle="gone"), OFFLINE, qos=1, retained=True)
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
        for number in range(70):
            bus.publish(WORKER_STATUS.of(worker=f"a-pod-{number}"), OFFLINE, qos=1, retained=True)
        for name in ("gpu-1", "gpu-2"):
            worker(bus, name)
        worker(bus, "gpu-3", inference_ms=90.0)

    with reporting(url, send):
        state = state_of(url)
        shown = run_status(url)
    assert [row["name"] for row in state["workers"][:3]] == ["gpu-3", "gpu-1", "gpu-2"]
    text = " ".join(shown.output.split())
    assert "worker gpu-3: slow: inference 90 ms" in text
    assert "offline workers: 70: a-pod-0, a-pod-1, a-pod-10, a-pod-11, a-pod-12, …" in text
    assert text.index("gpu-2") < text.index("a-pod-20")


def test_numbers_that_cannot_be_are_marked_until_others_come() -> None:
    """A report that says nonsense is not shown, and the next one that can be read ends the mark."""
    fleet, bus = monitored()
    good = pack_vehicle_metrics(VEHICLE)
    for message, is_marked in ((changed(good, {"in_flight": -1}), True), (good, False)):
        bus.receive(VEHICLE_METRICS, message, vehicle="car")
        (row,) = fleet.state().vehicles
        assert any("sends what cannot be read" in problem for problem in row["problems"]) is is_marked


def test_a_thousand_made_up_names_fill_nothing(url: str) -> None:
    """Names beyond the limit are left out and counted, and the table stays short."""
    fleet, bus = monitored()
    for number in range(3 * MAX_NODES):
        bus.receive(VEHICLE_METRICS, pack_vehicle_metrics(VEHICLE), vehicle=f"made-{number}")
    state = fleet.state()
    assert len(state.vehicles) == MAX_NODES
    assert state.left_out == MAX_NODES
    assert state.problems == [f"{MAX_NODES} or more further names report, and are left out"]

    def send(bus: Bus) -> None:
        for number in range(200):
            vehicle(bus, f"made-{number}")

    with reporting(url, send):
        shown = run_status(url)
    assert shown.output.count("made-") <= 120
    assert "140 more, see --json" in shown.output


def changed(payload: bytes, fields: Mapping[str, object]) -> bytes:
    """Returns a message with other fields."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(payload) | fields)


LIES: list[dict[str, object]] = [
    {"seconds": -1.0},
    {"seconds": 1e9},
    {"seconds": float("nan")},
    {"seconds": True},
    {"frames": {"answered": -1}},
    {"frames": {"answered": 1 << 32}},
    {"frames": {"answered": 0.5}},
    {"frames": {f"o{chr(97 + number)}": 1 for number in range(17)}},
    {"frames": {"x" * 33: 1}},
    {"frames": {"[bold]": 1}},
    {"frames": {"\x1b[31mhi!": 1}},
    {"frames": [1]},
    {"session": "s" * 65},
    {"session": "../x"},
    {"session": "\u202egpu"},
]
LIES_OF_A_VEHICLE: list[dict[str, object]] = [
    {"clock_error_ms": -0.1},
    {"clock_error_ms": float("inf")},
    {"in_flight": -1},
    {"in_flight": 1 << 32},
    {"in_flight": "many"},
    {"reason": "r" * 65},
    {"model": "\x1b]0;x\x07"},
    {"model": "r/ad"},
    {"total": {"p50_ms": -1.0, "p95_ms": 2.0}},
    {"total": {"p50_ms": 90.0, "p95_ms": 1.0}},
    {"total": {"p50_ms": 1.0}},
    {"total": [1.0, 2.0, 3.0]},
]


@pytest.mark.parametrize(
    ("honest", "read", "lies", "needed"),
    [
        (pack_vehicle_metrics(VEHICLE), unpack_vehicle_metrics, LIES + LIES_OF_A_VEHICLE, "total"),
        (pack_worker_metrics(WORKER), unpack_worker_metrics, LIES, "frames"),
    ],
    ids=["vehicle", "worker"],
)
def test_lies_are_refused(
    honest: bytes, read: Callable[[bytes], object], lies: list[dict[str, object]], needed: str
) -> None:
    """Negative, absurd, of other types, or too long. The name of the sender is that of the topic, which the broker checks."""
    assert read(changed(honest, {}))
    rest = {key: value for key, value in msgspec.msgpack.decode(honest).items() if key != needed}
    payloads = [b"", b"\xc1", b"\x80", bytes(MAX_METRICS_BYTES + 1), b"[]", msgspec.msgpack.encode(rest)]
    for payload in (*payloads, *(changed(honest, lie) for lie in lies)):
        with pytest.raises(MessageError):
            read(payload)


def test_escapes_in_texts_reach_no_terminal(url: str) -> None:
    """A reason is free text of a vehicle."""
    red = "\x1b[31mred"
    with reporting(url, lambda bus: vehicle(bus, "car-1", red, answered=10, lost=90)):
        shown = run_status(url)
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
    ended = run_status("mqtt://127.0.0.1:1", "--connect-timeout", "0.3")
    assert "no broker at mqtt://127.0.0.1:1" in str(ended.exception)


def test_vehicles_that_left_long_ago_displace_none() -> None:
    """The broker keeps the status of each vehicle that was ever there."""
    fleet, bus = monitored()
    for number in range(MAX_NODES + 500):
        bus.receive(VEHICLE_STATUS, OFFLINE, vehicle=f"old-{number}")
    bus.receive(VEHICLE_STATUS, ONLINE, vehicle="car-1")
    assert [row["name"] for row in fleet.state().vehicles] == ["car-1"]


def test_a_thousand_made_up_workers_with_many_models_fill_no_table() -> None:
    """A row shows a few of its models."""
    fleet, bus = monitored()
    cards = tuple(replace(CARD, name=f"model-{number}") for number in range(64))
    online = pack_status(NodeStatus(NodeState.ONLINE, "s1", 64, cards))
    for number in range(MAX_NODES):
        bus.receive(WORKER_STATUS, online, worker=f"made-{number}")
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
