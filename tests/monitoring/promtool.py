"""Prometheus and promtool: Debian's, which `.ci/install-real-parts` unpacks, or installed ones."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support.mqtt_bus import free_port

ROOT = Path(__file__).parents[2]
WAIT_S = 180.0
RULES = ROOT / "configs" / "prometheus" / "rules.yml"


def program(name: str) -> str:
    """Returns the path of a program; skips the test where it is missing."""
    unpacked = ROOT / "build" / "debian" / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        reason = f"{name} is missing: .ci/install-real-parts unpacks Debian's prometheus"
        if os.environ.get("SKYLANE_REQUIRE_KUBECTL") == "1":  # Set by .ci/run, which installs both.
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextmanager
def prometheus(folder: Path, settings: Mapping[str, Any]) -> Iterator[httpx.Client]:
    """Runs Prometheus; yields a client of its API, which is ready."""
    address, config = f"127.0.0.1:{free_port()}", folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(dict(settings)), encoding="utf-8")
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    command += [f"--web.listen-address={address}", f"--web.console.templates={folder}"]
    with (
        (folder / "prometheus.log").open("wb") as log,
        subprocess.Popen(command, stderr=log) as process,
        httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False, timeout=WAIT_S) as client,
    ):
        try:
            wait_for(lambda: client.get(f"http://{address}/-/ready").is_success)
            yield client
        finally:
            process.kill()


def query(client: httpx.Client, expression: str) -> list[Any]:
    """Evaluates an expression now; returns its series."""
    reply = client.get("/query", params={"query": expression}).json()
    assert reply["status"] == "success", (expression, reply)
    found: list[Any] = reply["data"]["result"]
    return found


def wait_for(holds: Callable[[], object]) -> None:
    """Waits until a condition holds; a server that does not answer yet is waited for."""
    end_s = time.monotonic() + WAIT_S
    while time.monotonic() < end_s:
        try:
            if holds():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    raise AssertionError("it never held")


def samples(url: str) -> dict[str, float]:
    """Returns what a node exports, by name with labels."""
    lines = httpx.get(url, timeout=WAIT_S).text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}
