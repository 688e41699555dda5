"""The Python client, clients/python/send.py, with a worker's gRPC endpoint."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from cloud.models.model import Model
from tests.clients.conftest import CLIENTS, SampleImage, read_pgm, run
from tests.support.gateway import GatewayWorker, open_gateway

SEND = CLIENTS / "python" / "send.py"


@pytest.fixture
def worker(model: Model) -> Iterator[GatewayWorker]:
    """A worker that serves the tiny model."""
    with open_gateway(model) as worker:
        yield worker


def test_the_mask_is_that_of_the_direct_call(
    worker: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path
) -> None:
    """The example must work, and must stay short."""
    image = make_image(101, 333)
    sent = run(sys.executable, SEND, worker.grpc, "tiny", image.path, tmp_path / "mask.png")
    assert sent.returncode == 0, sent.stderr
    assert np.array_equal(read_pgm(tmp_path / "mask.png"), image.mask)
    statements = [line for line in SEND.read_text().splitlines()[1:] if line and "import" not in line]
    assert len(statements) <= 10


def test_an_error_is_one_line(worker: GatewayWorker, make_image: Callable[..., SampleImage], tmp_path: Path) -> None:
    """The message of the worker is shown without a traceback."""
    sent = run(sys.executable, SEND, worker.grpc, "absent", make_image(4, 4).path, tmp_path / "mask.png")
    assert sent.returncode == 1
    assert sent.stderr.startswith("[StatusCode.NOT_FOUND] ")
    assert "Traceback" not in sent.stderr
