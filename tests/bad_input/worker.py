"""A worker with a trivial engine, and the flags of its vehicle, for tests of bad input."""

from contextlib import AbstractContextManager
from pathlib import Path
from uuid import uuid4

from cloud.config import CloudConfig
from cloud.node import CloudNode
from shared.mqtt.bus import Bus, MemoryBus


def working(bus: Bus) -> AbstractContextManager[CloudNode]:
    """Runs a worker of model `tiny` on a bus, alone in its group."""
    if isinstance(bus, MemoryBus):
        bus.supports_shared_subscriptions = True  # Avoids the wait for other workers.
    name = f"worker-{uuid4().hex[:6]}"
    node = CloudNode([_model()], CloudConfig(worker=name, group=f"group-{name}"), session="s1")
    ready = threading.Event()
    thread = threading.Thread(target=node.serve, args=(bus, lambda: None, ready.set), name=name)
    thread.start()
    try:
        assert ready.wait(WAIT_S)
        yield node
    finally:
        node.stop()
        thread.join(WAIT_S)


def bus_of(url: str) -> MqttBus:
    """Connects to a broker with a new client id."""
    return MqttBus(Address.parse(url), f"test-{uuid4().hex[:12]}")


def flags_of(url: str, out: Path) -> tuple[str, ...]:
    """Returns the flags of a new vehicle that sends every frame to model `tiny`."""
    vehicle = f"car-{uuid4().hex[:6]}"
    return ("--broker", url, "--model", "tiny", "--vehicle", vehicle, "--out", str(out), "--closed-loop")
