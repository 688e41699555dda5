"""A worker process with gRPC and HTTP endpoints and a model that only waits; its first message has the ports."""

import threading
import uuid
from pathlib import Path

from cloud.config import CloudConfig
from cloud.node import CloudNode
from ops.processes.child import Child, reply, settings
from ops.processes.null_worker import NullWorkerSettings, null_model
from tests.support.memory_bus import MemoryBus

HEIGHT, WIDTH, THINK_MS = 64, 96, 20.0
_ROOT = Path(__file__).parents[2]


class GatewayWorkerProcess(Child):
    """A running worker process; killed at the end of the block."""

    def __init__(self, name: str) -> None:
        super().__init__(__name__, {"name": name}, environment={"PYTHONPATH": str(_ROOT)})
        self.name = name
        ports = self.wait()
        self.grpc, self.http = (f"127.0.0.1:{ports[kind]}" for kind in ("grpc", "http"))


def main(*, name: str) -> None:
    """Serves until killed."""
    model = null_model(NullWorkerSettings(model="tiny", height=HEIGHT, width=WIDTH, think_ms=THINK_MS))
    config = CloudConfig(worker=name, grpc="127.0.0.1:0", http="127.0.0.1:0")
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        node = CloudNode([model], config, session=uuid.uuid4().hex[:12])
        threading.Thread(target=lambda: node.serve(bus, lambda: None, lambda: reply(dict(node.ports)))).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(**settings())
