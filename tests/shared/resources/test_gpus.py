"""Sampling real processes, and what stands in for a GPU and a Docker engine where there is none."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from shared.resources.sampler import MACHINE, ResourceSampler
from tests.shared.resources.samples import rows


class _NvmlError(Exception):
    """As NVML's."""


class _NotSupportedError(_NvmlError):
    """As NVML's."""


def _nvml(**functions: Any) -> ModuleType:
    """What `import pynvml` gives on a machine with two GPUs, the second of which tells no power."""
    nvml = ModuleType("pynvml")
    percent, used = [37, 0], [5 << 30, 1 << 20]

    def power(number: int) -> int:
        if number:
            raise _NotSupportedError
        return 251_500

    nvml.__dict__.update(
        NVMLError=_NvmlError,
        NVMLError_NotSupported=_NotSupportedError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda number: SimpleNamespace(gpu=percent[number]),
        nvmlDeviceGetMemoryInfo=lambda number: SimpleNamespace(used=used[number]),
        nvmlDeviceGetPowerUsage=power,
    )
    nvml.__dict__.update(functions)
    return nvml


def test_gpus_are_sampled_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Utilisation, memory and power; what one cannot tell stays empty."""
    ended: list[bool] = []
    monkeypatch.setitem(sys.modules, "pynvml", _nvml(nvmlShutdown=lambda: ended.append(True)))
    path = tmp_path / "resources.csv"
    with ResourceSampler(path, {}, interval_s=3600):
        pass
    figures = {
        row["node"]: (row["gpu_percent"], row["gpu_memory_bytes"], row["gpu_power_w"], row["rss_bytes"])
        for row in rows(path)
        if row["node"] != MACHINE
    }
    assert figures == {"gpu/0": ("37.00", str(5 << 30), "251.50", ""), "gpu/1": ("0.00", str(1 << 20), "", "")}
    assert ended == [True]


@pytest.mark.parametrize("missing", ["library", "driver"])
def test_a_machine_without_a_gpu_samples_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """Most machines: no row, no word, no failure."""

    def no_driver() -> None:
        raise _NvmlError

    monkeypatch.setitem(sys.modules, "pynvml", None if missing == "library" else _nvml(nvmlInit=no_driver))
    path = tmp_path / "resources.csv"
    with ResourceSampler(path, {}) as sampler:
        pass
    assert {row["node"] for row in rows(path)} == {MACHINE}
    assert not sampler.remarks
