"""Load messages that lie, through a real broker: they are counted, memory is bounded, and no frame is lost."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgpack
import psutil
import pytest
from msgspec.structs import asdict

from ops.broker.broker import Broker
from ops.processes.null_worker import NullWorkerProcess, NullWorkerSettings, null_model
from shared.messages.load import WorkerLoad
from shared.messages.node_status import NodeState, NodeStatus, pack_status
from shared.messages.topics import LOADS, WORKER_STATUS
from shared.mqtt.bus import Bus
from tests.pipeline.rig import connect
from tests.support.faults.rig import HEIGHT, MODEL, WIDTH, Rig

IDLE = asdict(WorkerLoad(queue=0, free=64, wait_ms=0.0, answer_ms=1.0, spacing_ms=1.0))
MOST_WORKERS = 256
MOST_GROWTH_BYTES = 64 << 20
LIES = 2000


def _packed(session: str, **changes: object) -> bytes:
    packed: bytes = msgpack.packb({"v": 1, "session": session, "models": {MODEL: IDLE | changes}})
    return packed


UNREADABLE: list[Callable[[str], bytes]] = [
    lambda _: b"\xc1garbage",
    lambda session: _packed(session)[:20],
    lambda session: _packed(session, wait_ms=float("nan")),
    lambda session: _packed(session, queue=-1),
    lambda session: _packed(session, padding=bytes(1 << 20)),
]


@pytest.mark.mosquitto
def test_lies_about_every_worker_cost_no_frame(mosquitto_broker: Broker, tmp_path: Path) -> None:
    """Reports of dead, invented and real workers, as fast as the broker takes them.

    The invented workers are online, serve the model and claim to be idle, but nobody listens on their topics.
    """
    card = null_model(NullWorkerSettings(model=MODEL, height=HEIGHT, width=WIDTH)).card
    with Rig(tmp_path, 1) as rig, connect(mosquitto_broker.url) as bus:
        for number in range(200):  # The broker keeps the last report of a killed worker.
            bus.publish(LOADS.of(worker=f"dead-{number}"), _packed("s"), qos=1, retained=True)
        workers = [rig.worker(mosquitto_broker.url, f"worker-{number}", think_ms=20.0 * number) for number in (1, 2)]
        vehicle = rig.vehicle(mosquitto_broker.url, flags=("--loop",))
        rig.wait_for_frames([vehicle], 20)
        before_bytes = psutil.Process(vehicle.pid).memory_info().rss
        for number in range(2 * MOST_WORKERS):
            status = NodeStatus(NodeState.ONLINE, "s", 64, (card,))
            bus.publish(WORKER_STATUS.of(worker=f"ghost-{number}"), pack_status(status), qos=1)
            bus.publish(LOADS.of(worker=f"ghost-{number}"), _packed("s"), qos=1)
        with _publishing(bus, workers) as published:
            rig.wait(lambda: published[0] >= LIES, f"{LIES} lies")
            rig.wait_for_frames([vehicle], 50)
        grown_bytes = psutil.Process(vehicle.pid).memory_info().rss - before_bytes
        accounts = rig.end_vehicles()
    assert not accounts.failures
    assert accounts.unanswered == accounts.reasons["lost(the run ended)"]  # On a busy machine.
    assert accounts.ignored["load_too_many"] > 0
    assert accounts.ignored["load_unknown_worker"] > 0
    assert grown_bytes < MOST_GROWTH_BYTES


@contextmanager
def _publishing(bus: Bus, workers: list[NullWorkerProcess]) -> Iterator[list[int]]:
    """Publishes lies until the end of the block; yields a list with their number so far."""
    stop, published = threading.Event(), [0]
    busy = {"queue": 1000, "free": 0, "wait_ms": 1e6}
    targets: list[tuple[str, str, dict[str, Any]]] = [("unknown", "s", {})]
    targets += [(worker.name, worker.session, changes) for worker in workers for changes in ({}, busy)]

    def publish() -> None:
        for (name, session, changes), make in itertools.cycle(itertools.product(targets, UNREADABLE)):
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
