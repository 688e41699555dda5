"""Transports to workers of this process or of another, and frames for them."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.factory import open_transport
from edge.transports.transport import Transport

DIRECT = ("grpc", "tfs-grpc", "oip-grpc", "oip-rest", "tfs-rest")
WAIT_S = 60.0
NOTHING_SAID = "it said nothing"  # What a transport tells of an address until it knows more.
Open = Callable[..., Transport]


@pytest.fixture(name="reach")
def _reach() -> Iterator[Open]:
    """Opens transports to addresses; a bug on one of their threads fails the test."""
    hooks = TransportEvents()
    with ExitStack() as stack:

        def reach(transport: str, *addresses: str, vehicle: str = "car", model: str = "tiny", **more: Any) -> Transport:
            config = EdgeConfig.model_validate(
                {"transport": transport, "worker_addresses": addresses, "vehicle": vehicle, "model": model, **more}
            )
            return stack.enter_context(closing(open_transport(config, "s1", hooks=hooks)))

        yield reach
    hooks.check()


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    """Each test ends what it started; a library's own threads are not ours to count."""
    before = set(threading.enumerate())
    yield
    ours = ("status", "http-", "grpc-status", "grpc-idle")
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(ours):
            thread.join(WAIT_S)  # It may still be on its way out of its last call.
            assert not thread.is_alive(), thread.name


def await_problem(transport: Transport, address: str) -> None:
    """Return as soon as the transport knows why there is no worker at an address."""
    while transport.unused().get(address) == NOTHING_SAID:
        transport.departed_ns(after_ns=1 << 62, timeout_s=0.01)
