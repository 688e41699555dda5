"""Fixtures of the vehicle's tests."""

import logging
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture
def log_lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Returns the fields of each line that Skylane has logged; the message is `event`."""
    caplog.set_level(logging.INFO, logger="skylane")
    return lambda: [
        {**record.msg, "level": record.levelname.lower()} for record in caplog.records if isinstance(record.msg, dict)
    ]
