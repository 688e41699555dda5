"""Resource usage of containers, from the Docker engine."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from shared.resources.usage import CpuShare, ProbeGoneError, ResourceUsage

_TIMEOUT_S = 5
DOCKER_SOCKET = Path("/var/run/docker.sock")


class ContainerUsage:
    """All processes of one container, as its control group counts them."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._cpu = CpuShare()
        self._first: tuple[int, int] | None = None

    def sample(self, at_ns: int) -> ResourceUsage:
        """See `UsageProbe`. Memory is what `docker stats` shows: without the page cache that can be dropped."""
        from docker.errors import DockerException  # noqa: PLC0415 (already loaded by `containers`)
        from requests.exceptions import RequestException  # noqa: PLC0415 (docker does not wrap its errors)

        try:
            stats = self._client.api.stats(self._name, stream=False, one_shot=True)
            memory, networks = stats["memory_stats"], stats.get("networks")
            busy_s = stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
            rss_bytes = memory["usage"] - memory.get("stats", {}).get("inactive_file", 0)
        except (DockerException, RequestException) as error:
            raise ProbeGoneError(f"container {self._name}: {error}") from error
        except KeyError as error:
            raise ProbeGoneError(f"container {self._name} is not running") from error
        received, sent = self._bytes(networks)
        return ResourceUsage(
            cpu_percent=self._cpu.percent(busy_s, at_ns), rss_bytes=rss_bytes, bytes_in=received, bytes_out=sent
        )

    def _bytes(self, networks: Mapping[str, Mapping[str, int]] | None) -> tuple[int | None, int | None]:
        """Returns bytes in and out since the first sample; None for a container in the host's network."""
        if networks is None:
            return None, None
        received = sum(network["rx_bytes"] for network in networks.values())
        sent = sum(network["tx_bytes"] for network in networks.values())
        if self._first is None:
            self._first = (received, sent)
        return received - self._first[0], sent - self._first[1]


@contextmanager
def containers(names: Sequence[str]) -> Iterator[dict[str, ContainerUsage]]:
    """Yields a probe for each container, by node name.

    Raises:
        ProbeGoneError: there is no Docker engine, or the Python package `docker` is not installed.
    """
    try:
        import docker  # noqa: PLC0415 (needs an extra)
    except ImportError as error:
        raise ProbeGoneError("docker is not installed: pip install 'skylane[bench]'") from error
    if "DOCKER_HOST" not in os.environ and not DOCKER_SOCKET.exists():
        raise ProbeGoneError(f"there is no Docker engine at {DOCKER_SOCKET}, and DOCKER_HOST names no other")
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
    except docker.errors.DockerException as error:
        raise ProbeGoneError(f"no Docker engine answers: {error}") from error
    with closing(client):
        yield {f"container/{name}": ContainerUsage(client, name) for name in names}
