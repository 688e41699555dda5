"""Conversations on a real gRPC server, about what the test decides."""

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.grpc_conversation import MOST_UNDER_WAY, Begun
from cloud.gateway.grpc_service import Conversing, Method
from cloud.gateway.settings import GatewaySettings
from tests.cloud.gateway.grpc_rig import served

WAIT_S = 20.0
MOST_CALLS = 4
VAST = 64 << 20  # Bytes: more than the network holds for a caller that does not read.


@dataclass
class Talk:
    """A service that answers a message with itself when the test has done it."""

    name: str = "test.Talk"
    begun: "queue.SimpleQueue[Future[None]]" = field(default_factory=queue.SimpleQueue)
    act: Callable[[bytes], bytes] = lambda data: data
    over: "queue.SimpleQueue[bytes]" = field(default_factory=queue.SimpleQueue)  # What began a call that is.
    vast: Any = None  # The method of a large answer, once there is a server.
    faults: "queue.SimpleQueue[BaseException]" = field(default_factory=queue.SimpleQueue)
    answer_s: float = WAIT_S  # For which an answer may wait for its caller.
    counts: "queue.SimpleQueue[str]" = field(default_factory=queue.SimpleQueue)

    def methods(self) -> dict[str, Method | Conversing]:
        """See Service."""
        return {"Talk": Conversing(lambda _: self), "Vast": Method(self._vast)}

    def _vast(self, call: GrpcCall) -> tuple[bytes]:
        call.when_over(lambda: self.over.put(bytes(call.data)))
        return (bytes(VAST),)

    def begin(self, call: GrpcCall) -> Begun:
        """See Speaker."""
        assert call.data != b"broken"
        futures: list[Future[None]] = [Future(), Future()]
        for future in futures:
            self.begun.put(future)
        return Begun(futures, lambda: (self.act(bytes(call.data)),))

    def next(self) -> list[Future[None]]:
        """The two futures of the next message that was begun."""
        return [self.begun.get(timeout=WAIT_S) for _ in range(2)]


@contextmanager
def talking(talk: Talk) -> Iterator[Any]:
    """The method of a client at a server of its own."""
    settings = GatewaySettings(grpc="127.0.0.1:0", max_calls=MOST_CALLS, answer_s=talk.answer_s)
    with served(talk, settings) as told, grpc.insecure_channel(f"127.0.0.1:{told.server.port}") as channel:
        talk.counts, talk.faults = told.counts, told.faults
        talk.vast = channel.unary_stream("/test.Talk/Vast")
        yield channel.stream_stream("/test.Talk/Talk")


def test_an_answer_waits_for_every_part_of_its_call() -> None:
    """A call of several pictures is not answered with the first of them."""
    talk = Talk()
    with talking(talk) as method:
        answers = method(iter([b"a", b"b"]), timeout=WAIT_S)
        first, second = talk.next(), talk.next()
        first[1].set_result(None)
        for future in (*second, first[0]):
            future.set_result(None)
        assert list(answers) == [b"b", b"a"]
        assert talk.counts.get(timeout=WAIT_S) == "OK"


def test_no_more_calls_are_begun_than_are_taken_at_a_time() -> None:
    """A client that sends and sends must not fill the memory."""
    talk = Talk()
    with talking(talk) as method:
        answers = method((bytes([number]) for number in range(3 * MOST_UNDER_WAY)), timeout=WAIT_S)
        under_way = [talk.next() for _ in range(MOST_UNDER_WAY)]
        for number in range(2 * MOST_UNDER_WAY):
            assert talk.begun.empty()
            for future in under_way[number]:
                future.set_result(None)
            assert next(answers) == bytes([number])
            under_way.append(talk.next())
        for futures in under_way[2 * MOST_UNDER_WAY :]:
            for future in futures:
                future.set_result(None)
        assert len(list(answers)) == MOST_UNDER_WAY
        assert talk.begun.empty()


def test_what_a_caller_leaves_is_cancelled() -> None:
    """Pictures for which nobody waits any more must not be inferred."""
    talk = Talk()
    with talking(talk) as method:
        answers = method(iter([b"a", b"b"]), timeout=WAIT_S)
        futures = [*talk.next(), *talk.next()]
        answers.cancel()
        for future in futures:
            with pytest.raises(CancelledError):
                future.result(WAIT_S)
        assert talk.counts.get(timeout=WAIT_S) == "CANCELLED"


@pytest.mark.parametrize("message", [b"broken", b"a"])
def test_a_fault_of_ours_is_told(message: bytes) -> None:
    """Swallowed in the thread that reads, it would leave the caller without an answer and nobody would know."""

    def fail(_: bytes) -> bytes:
        raise AssertionError

    talk = Talk(act=fail)
    with talking(talk) as method:
        answers = method(iter([message]), timeout=WAIT_S)
        if message == b"a":
            for future in talk.next():
                future.set_result(None)
        with pytest.raises(grpc.RpcError):
            next(answers)
        assert isinstance(talk.faults.get(timeout=WAIT_S), AssertionError)


def test_an_answer_must_be_taken_within_its_time() -> None:
    """Who asks and reads nothing must not keep a thread for ever."""
    talk = Talk(answer_s=0.2)
    with talking(talk):
        call = talk.vast(b"a", timeout=WAIT_S)
        assert talk.over.get(timeout=WAIT_S / 2) == b"a"
        assert talk.counts.get(timeout=WAIT_S / 2) == "CANCELLED"
        del call
