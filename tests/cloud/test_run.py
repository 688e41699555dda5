"""A worker and the processes of its engines."""

import threading
import time
from pathlib import Path

import psutil

from ops.processes.worker_process import Worker
from shared.logs import read_line

WAIT_S = 120.0


def test_isolated_engines_are_sampled_and_limited(mosquitto_url: str, repository: Path, tmp_path: Path) -> None:
    """Their CPU time and memory belong to the worker; what they print becomes lines of its log, or is suppressed."""
    resources, log, pause = tmp_path / "resources.csv", tmp_path / "worker.log", threading.Event()
    config = tmp_path / "cloud.yaml"
    config.write_text("isolate: true\nisolate_hang_s: 20\nisolate_memory_mb: 8192\n")
    flags = ["--config", str(config), "--resources", str(resources)]

    def sampled() -> list[str]:
        rows = [line.split(",") for line in resources.read_text().splitlines()]
        return list(dict.fromkeys(pid for _, node, pid, *_ in rows if node == "worker/apart/tiny-1"))

    with Worker(mosquitto_url, models=repository, model="tiny", name="apart", flags=flags, log=log) as worker:
        deadline_s = time.monotonic() + WAIT_S
        while not sampled() and time.monotonic() < deadline_s:
            pause.wait(0.1)
        (pid,) = sampled()
        engine = psutil.Process(int(pid))
        assert engine.ppid() == worker.pid
        assert engine.rlimit(psutil.RLIMIT_DATA) == (8192 << 20, 8192 << 20)
    entries = [read_line(line) for line in log.read_text(encoding="utf-8").splitlines()]
    # The limit of a container that runs the tests may be too low.
    assert not [each for each in entries if each is None or (each.level != "info" and "pids_limit" not in each.event)]
