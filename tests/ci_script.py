"""The programs in .ci, as modules: they are no package, for they run where Skylane is not installed."""

import importlib.util
from pathlib import Path
from typing import Any

CI = Path(__file__).parents[1] / ".ci"


def ci_script(name: str) -> Any:
    """The program `.ci/<name>.py`, not run."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
