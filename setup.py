"""Adds configurations, broker settings and models to the wheel; all other settings are in setup.cfg."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# shared/package_data.py finds these folders in the checkout, or in `skylane_data` of an installed wheel.
FOLDERS = (
    "configs",
    "mosquitto",
    "models/car-tiny",
    "models/road-objects",
    "models/road-small",
    "models/road-tiny",
    "models/road-weather",
)


class BuildWithData(build_py):
    """Copies the packages and the data folders."""

    def run(self) -> None:
        """Builds; an editable install uses the data in the checkout."""
        super().run()
        if not self.editable_mode:
            for folder in FOLDERS:
                shutil.copytree(ROOT / folder, Path(self.build_lib, "skylane_data", folder), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithData})
