import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from shared.resources.sampler import ResourceSampler
from tests.shared.resources.samples import rows, wait_for_samples


class _Engine(BaseHTTPRequestHandler):
    """A fake Docker engine with one container, `skylane-cloud-1`."""

    busy_ns = 1_000_000_000

    def do_GET(self) -> None:
        name = self.path.split("/")[-2]
        if self.path.endswith("/version"):
            self._reply(200, {"ApiVersion": "1.44", "Version": "25.0"})
        elif name != "skylane-cloud-1":
            self._reply(404, {"message": f"No such container: {name}"})
        else:
            _Engine.busy_ns += 500_000_000
            self._reply(
                200,
                {
                    "cpu_stats": {"cpu_usage": {"total_usage": _Engine.busy_ns}},
                    "memory_stats": {"usage": 9_000_000, "stats": {"inactive_file": 2_000_000}},
                    "networks": {"eth0": {"rx_bytes": _Engine.busy_ns // 1000, "tx_bytes": 7}},
                },
            )

    def _reply(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def test_containers_are_sampled_through_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real SDK talks to the fake engine; a missing container is reported."""
    path = tmp_path / "resources.csv"
    with ThreadingHTTPServer(("127.0.0.1", 0), _Engine) as server:
        thread = threading.Thread(target=server.serve_forever, name="engine")
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        try:
            with ResourceSampler(path, {}, containers=("skylane-cloud-1", "skylane-edge-1"), interval_s=0.2) as sampler:
                wait_for_samples(sampler, 3)
        finally:
            server.shutdown()
            thread.join()
    sampled = [row for row in rows(path) if row["node"] == "container/skylane-cloud-1"]
    assert len(sampled) == sampler.samples
    assert sampled[0]["cpu_percent"] == ""
    assert float(sampled[1]["cpu_percent"]) > 0
    assert {row["rss_bytes"] for row in sampled} == {"7000000"}
    assert [row["bytes_in"] for row in sampled[:2]] == ["0", "500000"]
    assert {row["bytes_out"] for row in sampled} == {"0"}
    (remark,) = sampler.remarks
    assert remark.startswith("container/skylane-edge-1 is no longer sampled: ")
    assert "No such container" in remark


def test_a_missing_engine_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on without container samples."""
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr("shared.resources.usage.DOCKER_SOCKET", tmp_path / "docker.sock")
    with ResourceSampler(tmp_path / "a.csv", {}, containers=("x", "y")) as sampler:
        pass
    engine = f"there is no Docker engine at {tmp_path / 'docker.sock'}, and DOCKER_HOST names no other"
    assert sampler.remarks == [f"containers are not sampled: {engine}"]
    monkeypatch.setitem(sys.modules, "docker", None)
    with ResourceSampler(tmp_path / "b.csv", {}, containers=("x",)) as sampler:
        pass
    assert sampler.remarks == ["containers are not sampled: docker is not installed: pip install 'skylane[resources]'"]
