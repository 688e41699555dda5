"""Load messages that lie, through a real broker: they are counted, memory is bounded, and no frame is lost."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgpack
import psutil
import pytest
from msgspec.structs import asdict

from edge.config import EdgeConfig
from edge.transports.mqtt_transport import MqttTransport
from edge.workers.worker_stats import WorkerLoads
from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, null_model
from shared.messages.load import LoadReport, WorkerLoad, pack_load
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, WORKER_STATUS
from shared.mqtt.bus import Bus
from shared.runlog.latency_log import Outcome
from tests.pipeline.rig import WAIT_S, connect
from tests.support.faults.rig import HEIGHT, MODEL, WIDTH, Rig

pytestmark = pytest.mark.mosquitto
CLAIM = WorkerLoad(queue=0, free=64, wait_ms=0.0, answer_ms=1.0, spacing_ms=1.0)
IDLE = asdict(CLAIM)
MOST_WORKERS = 256
MOST_GROWTH_BYTES = 64 << 20
FLOOD = 10_000
LIES = 2000


def _packed(session: str, model: str = MODEL, **changes: object) -> bytes:
    packed: bytes = msgpack.packb({"v": 1, "session": session, "models": {model: IDLE | changes}})
    return packed


UNREADABLE: dict[str, Callable[[str], bytes]] = {
    "garbage": lambda _: b"\xc1garbage",
    "no map": lambda _: msgpack.packb([1, 2, 3]),
    "another version": lambda session: msgpack.packb({"v": 9, "session": session, "models": {MODEL: IDLE}}),
    "half": lambda session: _packed(session)[:20],
    "a negative wait": lambda session: _packed(session, wait_ms=-1.0),
    "a wait that is not a number": lambda session: _packed(session, wait_ms=float("nan")),
    "an endless wait": lambda session: _packed(session, wait_ms=float("inf")),
    "a wait of years": lambda session: _packed(session, answer_ms=1e300),
    "a negative queue": lambda session: _packed(session, queue=-1),
    "a queue of billions": lambda session: _packed(session, queue=1 << 62),
    "a text for a number": lambda session: _packed(session, free="many"),
    "a load that is no map": lambda session: msgpack.packb({"v": 1, "session": session, "models": {MODEL: 7}}),
    "no models": lambda session: msgpack.packb({"v": 1, "session": session}),
    "a name with a slash": lambda session: _packed(session, "a/b"),
    "thousands of models": lambda session: msgpack.packb(
        {"v": 1, "session": session, "models": {f"model-{number}": IDLE for number in range(5000)}}
    ),
    "a megabyte": lambda session: _packed(session, padding=bytes(1 << 20)),
}


@pytest.fixture(scope="module")
def bus(mosquitto_url: str) -> Iterator[Bus]:
    """A client that may publish anything."""
    with connect(mosquitto_url) as connected:
        yield connected


@pytest.fixture(scope="module")
def worker(mosquitto_url: str) -> Iterator[NullWorkerProcess]:
    """A worker that reports its true load."""
    with NullWorkerProcess(mosquitto_url, NullWorkerSettings(f"w-{uuid4().hex[:6]}", MODEL, HEIGHT, WIDTH)) as process:
        yield process


@pytest.fixture
def own_bus(mosquitto_broker: Broker) -> Iterator[Bus]:
    """The same on a broker of the test's own."""
    with connect(mosquitto_broker.url) as connected:
        yield connected


@pytest.fixture
def loads(mosquitto_url: str, worker: NullWorkerProcess) -> Iterator[WorkerLoads]:
    """What a vehicle knows about the loads, once it has the first true one."""
    with connect(mosquitto_url) as connected:
        transport = MqttTransport(connected, EdgeConfig(vehicle=f"car-{uuid4().hex[:6]}", model=MODEL), "s1")
        assert transport.wait_for_card(WAIT_S)
        found = transport.workers.loads
        assert found is not None
        _wait_until(lambda: worker.name in found.known())
        yield found
        transport.close()


@pytest.mark.parametrize("case", UNREADABLE)
def test_a_malformed_report_is_counted_and_the_true_one_stays(
    case: str, bus: Bus, worker: NullWorkerProcess, loads: WorkerLoads
) -> None:
    """One invalid number rejects the whole report: a wait that is not a number would win or lose every comparison."""
    bus.publish(LOADS.of(worker=worker.name), UNREADABLE[case](worker.session), qos=1)
    _wait_until(lambda: loads.ignored)
    assert loads.ignored == {"unreadable": 1}
    known = loads.known()[worker.name]
    assert known.session == worker.session
    assert known.load != CLAIM


def test_a_report_of_another_process_is_counted(bus: Bus, worker: NullWorkerProcess, loads: WorkerLoads) -> None:
    """The report of a process that has ended may arrive late."""
    bus.publish(LOADS.of(worker=worker.name), _packed("another"), qos=1)
    _wait_until(lambda: loads.ignored)
    assert loads.ignored == {"other_session": 1}
    assert loads.known()[worker.name].load != CLAIM


def test_reports_of_unknown_workers_are_counted_and_not_kept(
    bus: Bus, worker: NullWorkerProcess, loads: WorkerLoads
) -> None:
    """Otherwise every invented name would take memory."""
    for number in itertools.count():
        bus.publish(LOADS.of(worker=f"ghost-{number}"), _packed("s"), qos=0)
        if number > 4 * MOST_WORKERS and loads.ignored.get("unknown_worker", 0) > MOST_WORKERS:
            break
        time.sleep(0.001)
    assert set(loads.known()) == {worker.name}


def test_other_models_of_a_report_are_not_kept(bus: Bus, worker: NullWorkerProcess, loads: WorkerLoads) -> None:
    """A vehicle keeps one load for each worker, however many models the worker claims to serve."""
    models = {f"model-{number}": CLAIM for number in range(255)} | {MODEL: CLAIM}
    bus.publish(LOADS.of(worker=worker.name), pack_load(LoadReport(worker.session, models)), qos=1)
    _wait_until(lambda: loads.known()[worker.name].load == CLAIM)
    _wait_until(lambda: loads.known()[worker.name].load != CLAIM)  # The worker's next report.
    assert set(loads.known()) == {worker.name}
    assert not loads.ignored


def test_a_flood_is_counted_and_true_reports_are_read_afterwards(
    bus: Bus, worker: NullWorkerProcess, loads: WorkerLoads
) -> None:
    """Reading ten reports in a second is enough; the rest costs no more than its arrival."""
    payload = _packed(worker.session)
    for _ in range(FLOOD):
        bus.publish(LOADS.of(worker=worker.name), payload, qos=0)
    _wait_until(lambda: loads.ignored.get("too_many"))
    _wait_until(lambda: loads.known()[worker.name].load != CLAIM)
    assert set(loads.ignored) == {"too_many"}


def test_retained_leftovers_of_workers_that_are_gone_are_not_used(
    own_bus: Bus, mosquitto_broker: Broker, tmp_path: Path
) -> None:
    """The broker keeps the last report of a killed worker for ever; a new vehicle receives all of them."""
    for number in range(200):
        own_bus.publish(LOADS.of(worker=f"ghost-{number}"), _packed("s"), qos=1, retained=True)
    with Rig(tmp_path, 1) as rig:
        rig.worker(mosquitto_broker.url)
        vehicle = rig.vehicle(mosquitto_broker.url, pictures=50)
        assert vehicle.wait() == 0
        accounts = rig.accounts(vehicle)
        assert not accounts.failures
        assert accounts.outcomes == {Outcome.ANSWERED: 50}
        assert {row["worker"] for row in rig.rows()} == {"worker-1"}


def test_invented_workers_cost_no_frame(own_bus: Bus, mosquitto_broker: Broker, tmp_path: Path) -> None:
    """They are online, serve the model and claim to be idle, but nobody listens on their topics."""
    card = null_model(NullWorkerSettings(model=MODEL, height=HEIGHT, width=WIDTH)).card
    with Rig(tmp_path, 1) as rig:
        rig.worker(mosquitto_broker.url)
        vehicle = rig.vehicle(mosquitto_broker.url, flags=("--loop",))
        rig.wait_for_frames([vehicle], 20)
        for number in range(2 * MOST_WORKERS):
            name = f"ghost-{number}"
            status = NodeStatus(NodeState.ONLINE, "s", 64, (card,))
            own_bus.publish(WORKER_STATUS.of(worker=name), pack_status(status), qos=1)
            own_bus.publish(LOADS.of(worker=name), _packed("s"), qos=1)
        rig.wait_for_frames([vehicle], 50)
        accounts = rig.end_vehicles()
        assert not accounts.failures
        assert accounts.unanswered == accounts.reasons["lost(the run ended)"]  # On a busy machine.


def test_lies_about_every_worker_cost_no_frame(own_bus: Bus, mosquitto_broker: Broker, tmp_path: Path) -> None:
    """All lies in turn, as fast as the broker takes them, some with the sessions of the real workers."""
    with Rig(tmp_path, 1) as rig:
        workers = [rig.worker(mosquitto_broker.url, f"worker-{number}", think_ms=20.0 * number) for number in (1, 2)]
        vehicle = rig.vehicle(mosquitto_broker.url, flags=("--loop",))
        rig.wait_for_frames([vehicle], 20)
        before_bytes = psutil.Process(vehicle.pid).memory_info().rss
        with _publishing(own_bus, workers) as published:
            rig.wait(lambda: published[0] >= LIES, f"{LIES} lies")
            rig.wait_for_frames([vehicle], 50)
        grown_bytes = psutil.Process(vehicle.pid).memory_info().rss - before_bytes
        accounts = rig.end_vehicles()
    assert not accounts.failures
    assert accounts.unanswered == 0
    assert accounts.ignored["load_too_many"] > 0
    assert accounts.ignored["load_unknown_worker"] > 0
    assert grown_bytes < MOST_GROWTH_BYTES


@contextmanager
def _publishing(bus: Bus, workers: list[NullWorkerProcess]) -> Iterator[list[int]]:
    """Publishes lies until the end of the block; yields a list with their number so far."""
    stop, published = threading.Event(), [0]
    busy = {"queue": 1000, "free": 0, "wait_ms": 1e6}
    targets: list[tuple[str, str, dict[str, Any]]] = [("ghost", "s", {})]
    targets += [(worker.name, worker.session, changes) for worker in workers for changes in ({}, busy)]

    def publish() -> None:
        for (name, session, changes), make in itertools.cycle(itertools.product(targets, UNREADABLE.values())):
            payloads = (_packed(session, **changes), make(session)) if published[0] % 50 == 0 else (_packed(session),)
            for payload in payloads:
                bus.publish(LOADS.of(worker=name), payload, qos=0)
            published[0] += len(payloads)
            if stop.wait(0.0005):  # About 2,000 a second.
                return

    thread = threading.Thread(target=publish, name="liar")
    thread.start()
    try:
        yield published
    finally:
        stop.set()
        thread.join()


def _wait_until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.01)
