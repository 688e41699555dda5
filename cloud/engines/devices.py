"""Devices by name: "auto", "cpu", "gpu" and "gpu:N", for every engine the same."""

import re

from cloud.engines.engine import DeviceError

_NAME = re.compile(r"auto|cpu|gpu(:[0-9]{1,3})?")


def choose_device(device: str, gpus: int, library: str, remedy: str) -> str:
    """The device to run on, "cpu" or "gpu:N", for one asked for, where `library` sees so many GPUs.

    `remedy`: what to install where it sees none.

    Raises:
        DeviceError: it is no device's name, or this machine has no such GPU.
    """
    if _NAME.fullmatch(device) is None:
        raise DeviceError(device, "is no device: use auto, cpu or gpu:N")
    if device == "cpu":
        return "cpu"
    if device == "auto":
        return "gpu:0" if gpus else "cpu"
    index = int(device.partition(":")[2] or 0)
    if not gpus:
        raise DeviceError(device, f"{library} sees no GPU on this machine: use cpu, or {remedy}")
    if index >= gpus:
        raise DeviceError(device, f"this machine has {gpus} GPU(s), numbered from 0: use gpu:{gpus - 1}")
    return f"gpu:{index}"
