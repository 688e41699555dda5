"""The only module that imports OpenVINO; it disables OpenVINO's telemetry first."""

import sys
from functools import cache
from importlib import import_module
from typing import Any

# `import openvino` and its tools send usage data if they can import this package.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

ov: Any = import_module("openvino")  # Any: the type hints lack the return types.
ops: Any = import_module("openvino.opset13")
passes: Any = import_module("openvino.passes")


@cache
def core() -> Any:
    """Returns the one `ov.Core` of this process, which is never released.

    Loading the CPU plugin gives the calling thread its own signal stack, which releasing the core unmaps. If another thread
    released it, the first thread would keep an invalid stack, and the next signal, such as SIGTERM, would end the process.
    """
    return ov.Core()
