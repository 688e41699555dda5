"""Fixtures of the tests of brokers: a rig of worker and vehicle processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults.rig import Rig

SEED = 26


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Starts workers and vehicles as processes, and checks each mask against its image."""
    with Rig(tmp_path / "runs", SEED) as opened:
        yield opened
