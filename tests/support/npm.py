"""Installs the npm packages that a lock file pins, once for all runs."""

import shutil
from pathlib import Path

import pytest

from tests.clients.conftest import build_folder, need, run

_LIBRARIES = ("package.json", "package-lock.json", ".npmrc")


def npm_packages(source: Path, name: str) -> Path:
    """Installs the packages of a folder; returns the folder in `build/` that has them in `node_modules`.

    Skips the test if npm or its registry is missing.
    """
    need("node", "npm")
    lock = source / "package-lock.json"
    with build_folder(name) as folder:
        if not (folder / lock.name).exists() or (folder / lock.name).read_bytes() != lock.read_bytes():
            for file in _LIBRARIES:
                shutil.copy(source / file, folder)
            installed = run("npm", "ci", "--prefix", folder, "--userconfig", folder / ".npmrc", timeout_s=300)
            if installed.returncode:
                (folder / lock.name).unlink()
                pytest.skip(f"npm cannot install {name}: {installed.stderr.strip().splitlines()[-1]}")
    return folder
