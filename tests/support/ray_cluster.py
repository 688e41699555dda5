"""A Ray cluster of two nodes on this machine, in a child process that ends it when its standard input is closed."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from ops.processes.child import Child, serve

ENVIRONMENT = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # The nodes use the loopback interface only.
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # Its tasks would starve on a loaded machine.
    "RAY_health_check_initial_delay_ms": "1000",  # A dead node is noticed at once, or within four seconds.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",  # Time after which a driver gives up a dead cluster.
}
_STORE_BYTES = 160 << 20
_ROOT = Path(__file__).parents[2]


class RayCluster(Child):
    """The cluster, as seen by a test."""

    def __init__(self, folder: str) -> None:
        """Starts it. `folder`: for its sockets."""
        environment = {**ENVIRONMENT, "RAY_TMPDIR": folder, "PYTHONPATH": str(_ROOT)}
        super().__init__(__name__, {}, title="the Ray cluster", environment=environment)
        self.wait()
        self.address: str = self.ask("address")

    def kill_second_node(self) -> None:
        """Kills the second node with all its processes."""
        self.ask("kill")

    def end(self) -> None:
        """Kills the cluster."""
        self.ask("end")

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the cluster."""
        return psutil.Process(self.pid).children(recursive=True)

    def kill(self) -> None:
        """Ends the cluster, then its process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        super().kill()


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Starts a cluster, and ends it."""
    folder = tempfile.mkdtemp(prefix="ray-")  # The paths of its sockets must be short.
    try:
        with RayCluster(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve() -> None:
    """The body of the process."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - Tests import this module without Ray.

    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What Ray prints is no reply.
    sys.stdout = replies
    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()

    def handle(request: str) -> object:
        if request == "kill":
            cluster.remove_node(second, allow_graceful=False)
        elif request == "end":
            cluster.shutdown()
        return cluster.address

    try:
        serve(lambda: handle)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve()
