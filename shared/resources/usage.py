"""Samples of resource usage, the probes that take them, of processes, the machine, NVIDIA GPUs (NVML) and containers (Docker)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import psutil

from shared.resources.tcp_bytes import TcpCount, TcpTable

_MIN_INTERVAL_NS = 100_000_000  # CPU times have a resolution of 10 ms, too coarse for a shorter interval.


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """One sample of a process, a container, a GPU or the machine; None: unknown or not applicable.

    `cpu_percent` is relative to one core, since the previous sample. `bytes_in` and `bytes_out` are TCP payload since
    the first sample.
    """

    pid: int | None = None
    cpu_percent: float | None = None
    rss_bytes: int | None = None
    bytes_in: int | None = None
    bytes_out: int | None = None
    gpu_percent: float | None = None
    gpu_memory_bytes: int | None = None
    gpu_power_w: float | None = None


USAGE_FIELDS = tuple(field.name for field in fields(ResourceUsage))


class ProbeGoneError(Exception):
    """The target of a probe has ended or cannot be measured; the probe is not used again."""


class UsageProbe(Protocol):
    """Measures one process, container, GPU or machine repeatedly."""

    def sample(self, at_ns: int) -> ResourceUsage:
        """Measures the usage; `at_ns` is the current time.

        Raises:
            ProbeGoneError: the target has ended or cannot be measured.
            OSError: it cannot be measured now.
        """


class CpuShare:
    """Computes CPU usage from successive CPU times."""

    def __init__(self) -> None:
        self._last: tuple[float, int] | None = None

    def percent(self, busy_s: float, at_ns: int) -> float | None:
        """Returns the percentage of one core since the previous call; `busy_s` is the total CPU time so far.

        None for the first call, and if the previous one was too recent for the resolution of CPU times.
        """
        last = self._last
        if last is not None and at_ns - last[1] < _MIN_INTERVAL_NS:
            return None
        self._last = (busy_s, at_ns)
        return None if last is None else max(0.0, (busy_s - last[0]) * 1e11 / (at_ns - last[1]))


class ProcessUsage:
    """One process with all its threads, without its child processes."""

    def __init__(self, pid: int, table: TcpTable) -> None:
        """Raises ProbeGoneError if the process does not exist."""
        try:
            self._process = psutil.Process(pid)  # Detects a reused process id.
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        self._cpu = CpuShare()
        self._tcp = TcpCount(pid, table)

    def sample(self, at_ns: int) -> ResourceUsage:
        """See `UsageProbe`."""
        try:
            if not self._process.is_running():
                raise ProbeGoneError(f"process {self._process.pid} has ended")
            with self._process.oneshot():
                times, rss_bytes = self._process.cpu_times(), self._process.memory_info().rss
        except psutil.Error as error:
            raise ProbeGoneError(str(error)) from error
        if not rss_bytes:
            raise ProbeGoneError(f"process {self._process.pid} has ended and waits to be reaped")
        tcp = self._tcp.sample()
        return ResourceUsage(
            pid=self._process.pid,
            cpu_percent=self._cpu.percent(times.user + times.system, at_ns),
            rss_bytes=rss_bytes,
            bytes_in=tcp.received if tcp else None,
            bytes_out=tcp.sent if tcp else None,
        )


class MachineUsage:
    """All cores of the machine, and the memory that is not available."""

    def __init__(self) -> None:
        self._cpu = CpuShare()

    def sample(self, at_ns: int) -> ResourceUsage:
        """See `UsageProbe`."""
        times, memory = psutil.cpu_times(), psutil.virtual_memory()
        # Guest time is also contained in user time.
        busy_s = sum(times) - times.idle - times.iowait - times.guest - times.guest_nice
        return ResourceUsage(cpu_percent=self._cpu.percent(busy_s, at_ns), rss_bytes=memory.total - memory.available)


class GpuUsage:
    """One GPU, with everything that runs on it."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def sample(self, _at_ns: int) -> ResourceUsage:
        """See `UsageProbe`. Values that the GPU does not report, often the power, are None."""
        nvml = self._nvml
        percent: float | None = None
        memory_bytes: int | None = None
        power_w: float | None = None
        try:
            memory_bytes = nvml.nvmlDeviceGetMemoryInfo(self._handle).used
            with suppress(nvml.NVMLError_NotSupported):
                percent = float(nvml.nvmlDeviceGetUtilizationRates(self._handle).gpu)
            with suppress(nvml.NVMLError_NotSupported):
                power_w = nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000
        except nvml.NVMLError as error:
            raise ProbeGoneError(f"NVML: {error}") from error
        return ResourceUsage(gpu_percent=percent, gpu_memory_bytes=memory_bytes, gpu_power_w=power_w)


@contextmanager
def gpus() -> Iterator[dict[str, GpuUsage]]:
    """Yields a probe for each GPU, by node name; an empty dict without GPUs, NVML or its Python package."""
    try:
        import pynvml as nvml  # noqa: PLC0415 (not installed on vehicles)
    except ImportError:
        yield {}
        return
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        yield {}
        return
    try:
        numbers = range(nvml.nvmlDeviceGetCount())
        yield {f"gpu/{number}": GpuUsage(nvml, nvml.nvmlDeviceGetHandleByIndex(number)) for number in numbers}
    finally:
        nvml.nvmlShutdown()


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
        raise ProbeGoneError("docker is not installed: pip install 'skylane[resources]'") from error
    if "DOCKER_HOST" not in os.environ and not DOCKER_SOCKET.exists():
        raise ProbeGoneError(f"there is no Docker engine at {DOCKER_SOCKET}, and DOCKER_HOST names no other")
    try:
        client = docker.from_env(timeout=_TIMEOUT_S)
    except docker.errors.DockerException as error:
        raise ProbeGoneError(f"no Docker engine answers: {error}") from error
    with closing(client):
        yield {f"container/{name}": ContainerUsage(client, name) for name in names}
