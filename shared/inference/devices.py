"""Device names, the same for every engine: "auto", "cpu", "gpu" and "gpu:N"."""

import re

from shared.inference.errors import DeviceError

DEVICE_NAME = r"^(auto|cpu|gpu(:[0-9]{1,3})?)$"
DEVICE_RULE = "auto, cpu or gpu:N"


def choose_device(device: str, gpus: int, library: str, remedy: str) -> str:
    """Returns the device to run on, "cpu" or "gpu:N".

    Args:
        device: The requested device.
        gpus: The number of GPUs that the library sees.
        library: The library's name, for messages.
        remedy: What to do if the library sees no GPU, for messages.

    Raises:
        DeviceError: the name is invalid, or this machine has no such GPU.
    """
    if re.fullmatch(DEVICE_NAME, device) is None:
        raise DeviceError(device, f"is not a device: use {DEVICE_RULE}")
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
