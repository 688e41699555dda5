"""Fixtures of the transport tests."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from edge.config import EdgeConfig
from edge.transports.opening import open_transport
from edge.transports.transport import Transport, TransportEvents

DIRECT = ("grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest")
WAIT_S = 60.0
NO_STATUS = "no status received yet"  # Reason for an unused address before the first reply.
Open = Callable[..., Transport]


@pytest.fixture(name="reach")
def _reach() -> Iterator[Open]:
    """Opens transports to addresses; an exception on one of their threads fails the test."""
    events = TransportEvents()
    with ExitStack() as stack:

        def reach(transport: str, *addresses: str, vehicle: str = "car", model: str = "tiny", **more: Any) -> Transport:
            config = EdgeConfig.model_validate(
                {"transport": transport, "worker_addresses": addresses, "vehicle": vehicle, "model": model, **more}
            )
            return stack.enter_context(closing(open_transport(config, "s1", events=events)))

        yield reach
    events.check()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Checks that each test has ended the threads that Skylane started."""
    before = set(threading.enumerate())
    yield
    ours = ("status", "http_", "grpc-status", "grpc-idle")
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(ours):
            thread.join(WAIT_S)  # It may still be ending its last call.
            assert not thread.is_alive(), thread.name


def await_problem(transport: Transport, address: str) -> None:
    """Waits until the transport knows why there is no worker at an address."""
    while transport.unused().get(address) == NO_STATUS:
        transport.workers.last_failure_ns(after_ns=1 << 62, timeout_s=0.01)
