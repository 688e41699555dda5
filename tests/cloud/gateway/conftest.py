"""The worker of the gateway tests."""

from collections.abc import Iterator

import pytest

from tests.support.gateway import GatewayWorker, open_gateway
from tests.support.tiny_model import model


@pytest.fixture(name="worker", scope="module")
def _worker() -> Iterator[GatewayWorker]:
    """A worker of the model `tiny` with an HTTP and a gRPC server, shared by the tests of a file."""
    with open_gateway(model()) as worker:
        yield worker
