"""Skylane in Python programs: read runs, play sources, run models and read bags.

The page "Python API" of the documentation has examples. Importing this package imports no other part of Skylane.
"""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shared.errors import SkylaneError
    from skylane.bags import open_bag
    from skylane.models import ImageModel as Model
    from skylane.playback import PlayConfig as EdgeConfig
    from skylane.playback import play
    from skylane.runs import compare, differences, open_run

__all__ = ["EdgeConfig", "Model", "SkylaneError", "compare", "differences", "open_bag", "open_run", "play"]

_PLACES = {  # Import path, and the pip extras that install what it imports.
    "EdgeConfig": ("skylane.playback:PlayConfig", "edge"),
    "Model": ("skylane.models:ImageModel", "cloud,edge"),
    "SkylaneError": ("shared.errors:SkylaneError", ""),
    "compare": ("skylane.runs:compare", "edge,report"),
    "differences": ("skylane.runs:differences", "edge,report"),
    "open_bag": ("skylane.bags:open_bag", "edge"),
    "open_run": ("skylane.runs:open_run", "edge,report"),
    "play": ("skylane.playback:play", "edge"),
}
_PACKAGES = ("analysis", "cloud", "edge", "modelling", "ops", "rosbag_tools", "shared")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  Importing it takes 20 ms.

        return version("skylane")
    if name not in __all__:
        raise AttributeError(f"module 'skylane' has no attribute {name!r}")
    from shared.registry import Entry, load  # noqa: PLC0415  Importing this package imports no other part of Skylane.

    value = globals()[name] = load("skylane", {name: Entry(*_PLACES[name])}, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _check_packages() -> None:
    """Raises an ImportError if a file of the user would be imported in place of a package of Skylane."""
    root = Path(__file__).resolve().parents[1]
    for name in [name for name in _PACKAGES if (root / name).is_dir()]:  # The image of a vehicle has only some of them.
        module = sys.modules.get(name)
        spec = find_spec(name) if module is None else module.__spec__
        origin = getattr(module, "__file__", None) if spec is None else spec.origin
        if origin is not None and not Path(origin).resolve().is_relative_to(root / name):
            raise ImportError(
                f"{origin} is in the way of Skylane's package {name!r}: rename it, or start Python in another folder or with -P",
                name=name,
                path=origin,
            )


_check_packages()
