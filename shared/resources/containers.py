"""What a container used, by the Docker engine's own figures."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from shared.resources.usage import CpuShare, ProbeGoneError, Usage

_TIMEOUT_S = 5
_SOCKET = Path("/var/run/docker.sock")


class ContainerUsage:
    """One container: all its processes, as its control group counts them."""

    def __init__(self, client: Any, name: str) -> None:
        self._client = client
        self._name = name
        self._cpu = CpuShare()
        self._begun: tuple[int, int] | None = None

    def look(self, at_ns: int) -> Usage:
        """See `shared.resources.usage.Watched`. Memory is what `docker stats` shows: without the files it could drop."""
        from docker.errors import DockerException  # noqa: PLC0415 (loaded already, where there is a client)
        from requests.exceptions import RequestException  # noqa: PLC0415 (comes with docker, which lets it through)

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
        return Usage(cpu_percent=self._cpu.of(busy_s, at_ns), rss_bytes=rss_bytes, bytes_in=received, bytes_out=sent)

    def _bytes(self, networks: Mapping[str, Mapping[str, int]] | None) -> tuple[int | None, int | None]:
        """Bytes in and out since the first look; None for a container on the host's own network."""
        if networks is None:
            return None, None
        received = sum(network["rx_bytes"] for network in networks.values())
        sent = sum(network["tx_bytes"] for network in networks.values())
        if self._begun is None:
            self._begun = (received, sent)
        return received - self._begun[0], sent - self._begun[1]


@contextmanager
def containers(names: Sequence[str]) -> Iterator[dict[str, ContainerUsage]]:
    """The named containers by node name.

    Raises:
        ProbeGoneError: there is no engine, or the library that asks it is not installed.
    """
    try:
        import docker  # noqa: PLC0415 (only who names containers needs it)
    except ImportError as error:
        raise ProbeGoneError("docker is not installed: pip install 'skylane[bench]'") from error
    if "DOCKER_HOST" not in os.environ and not _SOCKET.exists():
        raise ProbeGoneError(f"there is no Docker engine at {_SOCKET}, and DOCKER_HOST names no other")
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
    except docker.errors.DockerException as error:
        raise ProbeGoneError(f"no Docker engine answers: {error}") from error
    with closing(client):
        yield {f"container/{name}": ContainerUsage(client, name) for name in names}
