"""OpenVINO as Skylane wants it: silent. Everything of it is imported from here."""

import sys
from functools import cache
from importlib import import_module
from typing import Any

# Left to itself, `import openvino` tells its makers over the network, and so does every tool of theirs after it. What
# does the telling cannot be imported: they go without it, as where it is not installed.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

ov: Any = import_module("openvino")  # Any: its types do not say what its functions return.
ops: Any = import_module("openvino.opset13")
passes: Any = import_module("openvino.passes")


@cache
def core() -> Any:
    """The one `ov.Core` of this process, which lives as long as it does.

    A core that loads the CPU's plugin gives the thread it is in a signal stack of its own, and unmaps that when it goes. If
    it went in another thread, the first one would keep a stack that is no more: the next signal, such as the SIGTERM that
    asks a worker to drain, would end the process.
    """
    return ov.Core()
