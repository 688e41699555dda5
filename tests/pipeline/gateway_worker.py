"""A worker process with gRPC and HTTP endpoints and a model that only waits.

`python -m tests.pipeline.gateway_worker NAME` prints its ports as one line of JSON and serves until it is killed.
"""

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cloud.config import CloudConfig
from cloud.node import CloudNode
from ops.processes.null_worker import NullWorkerSettings, null_model
from tests.support.memory_bus import MemoryBus

HEIGHT, WIDTH, THINK_MS = 64, 96, 20.0


@dataclass(frozen=True, slots=True)
class GatewayWorker:
    """A running worker process."""

    name: str
    grpc: str
    http: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Kills the process without a shutdown."""
        self.process.kill()
        self.process.wait()


@contextmanager
def gateway_worker(name: str) -> Iterator[GatewayWorker]:
    """Starts a worker and kills it at the end of the block."""
    command = [sys.executable, "-m", "tests.pipeline.gateway_worker", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ports = json.loads(process.stdout.readline())
            yield GatewayWorker(name, f"127.0.0.1:{ports['grpc']}", f"127.0.0.1:{ports['http']}", process)
        finally:
            process.kill()


def main() -> None:
    """Serves until killed."""
    model = null_model(NullWorkerSettings(model="tiny", height=HEIGHT, width=WIDTH, think_ms=THINK_MS))
    config = CloudConfig(worker=sys.argv[1], grpc="127.0.0.1:0", http="127.0.0.1:0")
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        node = CloudNode([model], config, session=uuid.uuid4().hex[:12])
        threading.Thread(
            target=lambda: node.serve(bus, lambda: None, lambda: print(json.dumps(dict(node.ports)), flush=True))  # noqa: T201 (read by the parent)
        ).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
