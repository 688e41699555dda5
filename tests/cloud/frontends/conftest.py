"""The bus in memory of the frontend tests."""

from collections.abc import Iterator

import pytest

from tests.support.gateway import memory_bus
from tests.support.memory_bus import MemoryBus


@pytest.fixture(name="bus")
def _bus() -> Iterator[MemoryBus]:
    """A bus with shared subscriptions."""
    with memory_bus() as bus:
        yield bus
