"""Adds the configurations, the broker's settings and the shipped models to the wheel; setup.cfg has everything else."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# In a checkout shared/package_data.py finds these folders beside the packages, in an installed wheel in `skylane_data`.
FOLDERS = ("configs", "mosquitto", "models/road-objects", "models/road-small", "models/road-weather")


class BuildWithData(build_py):
    """Copies the packages, then the data beside them."""

    def run(self) -> None:
        """Build; an editable install reads the data where it is."""
        super().run()
        if not self.editable_mode:
            for folder in FOLDERS:
                shutil.copytree(ROOT / folder, Path(self.build_lib, "skylane_data", folder), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithData})
