"""What a GPU is doing, by NVIDIA's management library, where there is one."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from shared.resources.usage import ProbeGoneError, Usage


class GpuUsage:
    """One GPU: all that runs on it, whoever's."""

    def __init__(self, nvml: ModuleType, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle

    def look(self, _at_ns: int) -> Usage:
        """See `shared.resources.usage.Watched`. What this GPU cannot tell (many tell no power) is None."""
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
        return Usage(gpu_percent=percent, gpu_memory_bytes=memory_bytes, gpu_power_w=power_w)


@contextmanager
def gpus() -> Iterator[dict[str, GpuUsage]]:
    """All GPUs of this machine by node name; none where there is none, or NVML or its Python library is missing."""
    try:
        import pynvml as nvml  # noqa: PLC0415 (vehicles have none, and no use for it)
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
