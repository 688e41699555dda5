"""OpenVINO as Skylane wants it: silent. Everything of it is imported from here."""

import sys
from importlib import import_module
from typing import Any

# Left to itself, `import openvino` tells its makers over the network, and so does every tool of theirs after it. What
# does the telling cannot be imported: they go without it, as where it is not installed.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

ov: Any = import_module("openvino")  # Any: its types do not say what its functions return.
ops: Any = import_module("openvino.opset13")
passes: Any = import_module("openvino.passes")
