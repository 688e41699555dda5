"""Prometheus and promtool: Debian's, which `.ci/install-real-parts` unpacks, or installed ones."""

import os
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = ROOT / "configs" / "prometheus" / "rules.yml"


def program(name: str) -> str:
    """Returns the path of a program; skips the test where it is missing."""
    unpacked = ROOT / "build" / "debian" / "usr" / "bin" / name
    found = str(unpacked) if unpacked.exists() else shutil.which(name)
    if found is None:
        reason = f"{name} is missing: .ci/install-real-parts unpacks Debian's prometheus"
        if os.environ.get("SKYLANE_REQUIRE_KUBECTL") == "1":  # Set by .ci/run, which installs both.
            pytest.fail(reason)
        pytest.skip(reason)
    return found
