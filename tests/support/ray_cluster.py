"""A Ray cluster of two nodes on this machine, in a process of its own: `python -m tests.support.ray_cluster`.

The process prints the address, then obeys the lines of its standard input: "kill" kills the second node with all its
processes, "end" the cluster; it ends the cluster too when its standard input is closed.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

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


class RayCluster:
    """The cluster, as seen by a test."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._process = process
        self.address = process.stdout.readline().strip()
        assert self.address, "the cluster did not start"

    def kill_second_node(self) -> None:
        """Kills the second node with all its processes."""
        self._command("kill")

    def end(self) -> None:
        """Kills the cluster."""
        self._command("end")

    def processes(self) -> list[psutil.Process]:
        """Returns the processes of the cluster."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def _command(self, word: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline().strip() == word


@contextmanager
def ray_cluster() -> Iterator[RayCluster]:
    """Starts a cluster, and ends it."""
    folder = tempfile.mkdtemp(prefix="ray-")  # The paths of its sockets must be short.
    with subprocess.Popen(
        [sys.executable, "-m", "tests.support.ray_cluster"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env=os.environ | ENVIRONMENT | {"RAY_TMPDIR": folder, "PYTHONPATH": str(_ROOT)},
    ) as process:
        try:
            yield RayCluster(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()
            shutil.rmtree(folder, ignore_errors=True)


def _serve() -> None:
    """The body of the process."""
    from ray.cluster_utils import Cluster  # noqa: PLC0415 - Tests import this module without Ray.

    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # What Ray prints is no answer.
    node = {"num_cpus": 1, "object_store_memory": _STORE_BYTES}
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    second = cluster.add_node(**node)
    cluster.wait_for_nodes()
    print(cluster.address, file=answers)
    try:
        for word in map(str.strip, sys.stdin):
            if word == "kill":
                cluster.remove_node(second, allow_graceful=False)
            else:
                cluster.shutdown()
            print(word, file=answers)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    _serve()
