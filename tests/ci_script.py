"""Imports the programs in `.ci`, which are not a package because they run without Skylane."""

import importlib.util
from pathlib import Path
from typing import Any

CI = Path(__file__).parents[1] / ".ci"


def ci_script(name: str) -> Any:
    """Returns `.ci/<name>.py` as a module, without running its main function."""
    spec = importlib.util.spec_from_file_location(name, CI / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
