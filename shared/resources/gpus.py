"""Resource usage of NVIDIA GPUs, from NVML."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any

from shared.resources.usage import ProbeGoneError, ResourceUsage


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
