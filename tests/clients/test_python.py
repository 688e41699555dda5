"""The ten lines of Python, clients/python/send.py, run as they are against a worker's gRPC door."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud.models.model import Model
from tests.clients.conftest import CLIENTS, Picture, read_pgm, run
from tests.support.gateway import Doors, open_gateway

SEND = CLIENTS / "python" / "send.py"


@pytest.fixture
def doors(model: Model) -> Iterator[Doors]:
    """A worker of the tiny model."""
    with open_gateway(model) as doors:
        yield doors


def test_the_mask_is_the_direct_calls(doors: Doors, picture: Callable[..., Picture], tmp_path: Path) -> None:
    """The first thing that somebody copies must work."""
    shown = picture(101, 333)
    sent = run(sys.executable, SEND, doors.grpc, "tiny", shown.path, tmp_path / "mask.png")
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.png"), shown.mask)
    statements = [line for line in SEND.read_text().splitlines()[1:] if line and "import" not in line]
    assert len(statements) <= 10


def test_a_refusal_is_told_in_one_line(doors: Doors, picture: Callable[..., Picture], tmp_path: Path) -> None:
    """And no traceback."""
    sent = run(sys.executable, SEND, doors.grpc, "absent", picture(4, 4).path, tmp_path / "mask.png")
    assert sent.returncode == 1
    assert sent.stderr.startswith("[StatusCode.NOT_FOUND] ")
    assert "Traceback" not in sent.stderr
