"""gRPC callers that are slow or greedy, beside one that is served all the while."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from cloud.gateway.settings import GatewaySettings
from tests.cloud.channel import model
from tests.cloud.gateway.rig import WAIT_S, Doors, open_doors

CALLS = 8
READY = "/inference.GRPCInferenceService/ServerReady"
ANSWER = "/skylane.v1.Worker/Answer"
STATUS = "/skylane.v1.Worker/Status"


@pytest.fixture(name="never")
def _never() -> Iterator[Callable[[], Iterator[bytes]]]:
    """Messages that do not come before the test is over."""
    over = threading.Event()

    def messages() -> Iterator[bytes]:
        over.wait(WAIT_S)
        yield from ()

    yield messages
    over.set()


def is_served(doors: Doors) -> bool:
    """Whether a caller with a connection of its own is answered."""
    with grpc.insecure_channel(doors.grpc, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        ask: Any = channel.unary_unary(READY)
        return bool(ask(b"", timeout=WAIT_S))


def ended(stream: Any) -> Any:
    """The error with which a stream of status ends, with nothing more told."""
    with pytest.raises(grpc.RpcError) as raised:
        next(stream)
    return raised.value


def test_messages_that_do_not_come_take_no_more_than_half_of_the_places(never: Callable[[], Iterator[bytes]]) -> None:
    """Else whoever begins calls and sends nothing shuts all others out."""
    settings = GatewaySettings(grpc="127.0.0.1:0", max_calls=CALLS)
    with open_doors(model(), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        over = threading.Semaphore(0)
        for place in range(CALLS):
            begun = begin.future(never())
            begun.add_done_callback(lambda _: over.release())
            if place >= CALLS // 2:
                assert over.acquire(timeout=WAIT_S)  # The oldest has gone, all being of one host.
        assert is_served(doors)


def test_a_message_must_come_within_its_time(never: Callable[[], Iterator[bytes]]) -> None:
    """A caller that hangs must not hold a thread for ever."""
    settings = GatewaySettings(grpc="127.0.0.1:0", body_s=0.2)
    with open_doors(model(), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        call = begin.future(never())
        assert call.exception(WAIT_S).code() is grpc.StatusCode.CANCELLED


def test_of_too_many_streams_of_status_the_oldest_of_a_host_ends() -> None:
    """Each has a thread for as long as it likes: without a bound one listener could take them all."""
    settings = GatewaySettings(grpc="127.0.0.1:0", max_calls=CALLS)
    with open_doors(model(), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:
        listen: Any = channel.unary_stream(STATUS)
        streams = []
        for _ in range(CALLS // 4):  # One behind the other: their threads would begin in any order.
            streams.append(listen(b""))
            assert next(streams[-1])
        for place in range(CALLS):
            streams.append(listen(b""))
            assert next(streams[-1])
            assert ended(streams[place]).code() is grpc.StatusCode.CANCELLED
            assert is_served(doors)


def test_a_stranger_is_refused_before_its_message_is_waited_for(
    never: Callable[[], Iterator[bytes]], tmp_path: Path
) -> None:
    """Whoever has no token must not be able to fill the memory."""
    (tmp_path / "tokens").write_text("van 0123456789abcdef\n")
    settings = GatewaySettings(grpc="127.0.0.1:0", tokens=tmp_path / "tokens")
    with open_doors(model(), gateway=settings) as doors, grpc.insecure_channel(doors.grpc) as channel:
        begin: Any = channel.stream_unary(ANSWER)
        call = begin.future(never())
        assert call.exception(WAIT_S).code() is grpc.StatusCode.UNAUTHENTICATED
        assert is_served(doors)


def test_a_worker_of_one_call_at_a_time_answers_it() -> None:
    """Half of one place is none, for which the first call ended the worker."""
    settings = GatewaySettings(grpc="127.0.0.1:0", max_calls=1)
    with open_doors(model(), gateway=settings) as doors:
        assert is_served(doors)
