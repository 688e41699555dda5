"""Helpers for tests that run the services of docker-compose.yml in a container engine."""

import csv
import io
import tarfile
import threading
import time
from collections.abc import Callable, Mapping

import docker
from docker.errors import DockerException
from docker.models.containers import Container

from tests.compose_file import SERVICES

FRAMES = 6
READY_S = 180.0


def connect_to_engine() -> docker.DockerClient | None:
    """Returns a client of the container engine; None if it cannot be reached."""
    try:
        return docker.from_env(timeout=900)
    except DockerException:
        return None


def run_in(container: Container, command: list[str]) -> tuple[int, str]:
    """Runs an idempotent command in a running container; returns its exit code and output."""
    for _ in range(3):  # Podman 4 may lose the output of a short command.
        code, output = container.exec_run(command)
        if output or code:
            break
    assert isinstance(output, bytes)
    return code or 0, output.decode()


def check_health(name: str, container: Container) -> tuple[int, str]:
    """Runs a service's health check like an engine; returns its exit code and output."""
    kind, *words = SERVICES[name]["healthcheck"]["test"]
    return run_in(container, ["/bin/sh", "-c", *words] if kind == "CMD-SHELL" else words)


def await_success(container: Container) -> None:
    """Waits until a container has ended with exit code 0."""
    assert container.wait(timeout=READY_S)["StatusCode"] == 0, container.logs().decode()


def render_drive(start: Callable[..., Container], folder: str) -> None:
    """Renders a bag of `FRAMES` frames into the volume of runs."""
    await_success(start("drive", entrypoint=["skylane", "bag", "make", folder, "--frames", str(FRAMES)]))


def await_healthy(name: str, container: Container) -> None:
    """Runs a service's health check until it passes, as engines without systemd do not run it themselves."""
    pause = threading.Event()
    deadline = time.monotonic() + READY_S
    while True:
        container.reload()
        assert container.status == "running", container.logs().decode()
        code, output = check_health(name, container)
        if code == 0:
            return
        pause.wait(0.5)
        assert time.monotonic() < deadline, f"{name} is not healthy: {output}\n{container.logs().decode()}"


def read_log(edge: Container, run: str) -> list[dict[str, str]]:
    """Returns the rows of a run from the volume of a stopped vehicle, copied like by `docker compose cp`."""
    chunks, _ = edge.get_archive(f"{run}/latency.csv")
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        log = archive.extractfile("latency.csv")
        assert log is not None
        return list(csv.DictReader(io.StringIO(log.read().decode())))


def await_rows(edge: Container, log: str, text: str) -> None:
    """Waits until the log of a running vehicle contains `text`."""
    deadline = time.monotonic() + READY_S
    while run_in(edge, ["grep", "-q", text, log])[0]:
        edge.reload()
        assert edge.status == "running", edge.logs().decode()
        assert time.monotonic() < deadline, edge.logs().decode()


def host_of(row: Mapping[str, str]) -> str:
    """Returns the host of a worker with a default name."""
    return row["worker"].rpartition("-")[0]


def host_name(container: Container) -> str:
    """Returns the host name of a container."""
    name: str = container.attrs["Config"]["Hostname"]
    return name
