"""A worker that thinks nothing, with its doors open, as a process of its own: `python -m tests.pipeline.doors_worker NAME`.

It prints one line of JSON, its ports, and serves until it is killed.
"""

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from bench.load.null_worker import NullWorkerSettings, null_model
from cloud.gateway.settings import GatewaySettings
from cloud.node import CloudNode, WorkerSettings
from shared.mqtt.bus import MemoryBus

HEIGHT, WIDTH, THINK_MS = 64, 96, 20.0


@dataclass(frozen=True, slots=True)
class DoorsWorker:
    """A running one."""

    name: str
    grpc: str
    http: str
    process: subprocess.Popen[str]

    def kill(self) -> None:
        """Without a word."""
        self.process.kill()
        self.process.wait()


@contextmanager
def doors_worker(name: str) -> Iterator[DoorsWorker]:
    """One, killed when the block ends."""
    command = [sys.executable, "-m", "tests.pipeline.doors_worker", name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ports = json.loads(process.stdout.readline())
            yield DoorsWorker(name, f"127.0.0.1:{ports['grpc']}", f"127.0.0.1:{ports['http']}", process)
        finally:
            process.kill()


def main() -> None:
    """Serve."""
    model = null_model(NullWorkerSettings(model="tiny", height=HEIGHT, width=WIDTH, think_ms=THINK_MS))
    gateway = GatewaySettings(grpc="127.0.0.1:0", http="127.0.0.1:0")
    with MemoryBus() as bus:
        bus.supports_shared_subscriptions = True
        node = CloudNode([model], WorkerSettings(worker=sys.argv[1], session=uuid.uuid4().hex[:12], gateway=gateway))
        threading.Thread(
            target=lambda: node.serve(bus, lambda: None, lambda: print(json.dumps(dict(node.ports)), flush=True))  # noqa: T201 - to the parent.
        ).start()
        threading.Event().wait()


if __name__ == "__main__":
    main()
