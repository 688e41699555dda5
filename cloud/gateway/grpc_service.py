"""What every gRPC service of the gateway is made of: methods from bytes to bytes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc

from cloud.gateway import grpc_conversation
from cloud.gateway.callers import Callers
from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.grpc_conversation import Conversation, Speaker
from cloud.gateway.places import Places
from cloud.gateway.refusal import Kind, RefusedError
from shared import clock
from shared.call_threads import afterwards

OnFault = Callable[[BaseException], None]
Count = Callable[[str], None]  # Told the code of every answer.

_OK, _GONE = "OK", "CANCELLED"
REFUSAL_KEY = "skylane-refusal"  # In trailing metadata: this worker's own word, as against its library's.


@dataclass(frozen=True, slots=True)
class Method:
    """Answers one call with the bytes of a message, or with a stream of them; refuses it by `RefusedError`."""

    answer: Callable[[GrpcCall], Any]
    is_stream: bool = False
    is_open: bool = False  # Whoever watches a worker needs no token.


@dataclass(frozen=True, slots=True)
class Conversing:
    """Answers a stream of messages with another; `begin` is given the call that opens it, which has no message."""

    begin: Callable[[GrpcCall], Speaker]


class Service(Protocol):
    """One gRPC service: a face of the worker."""

    name: str  # As in its .proto, with the package.

    def methods(self) -> Mapping[str, Method | Conversing]:
        """What answers each method, by its name."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What all methods have in common."""

    on_fault: OnFault  # Told of bugs of ours, which end the call as INTERNAL.
    count: Count
    callers: Callers
    awaited: Places  # For calls whose message has not come whole.
    untaken: Places  # For those whose answer its caller has not taken: it waits in memory.
    streams: Places  # For those that are answered as long as they like.
    conversations: grpc_conversation.Terms


def handlers(service: Service, terms: Terms) -> grpc.GenericRpcHandler:
    """A service as grpc wants it."""
    return grpc.method_handlers_generic_handler(
        service.name, {name: _handler(method, terms) for name, method in service.methods().items()}
    )


def _handler(method: Method | Conversing, terms: Terms) -> "grpc.RpcMethodHandler[Any, Any]":
    return _conversing(method, terms) if isinstance(method, Conversing) else _answering(method, terms)


def _conversing(method: Conversing, terms: Terms) -> "grpc.RpcMethodHandler[Any, Any]":
    def converse(messages: Iterator[tuple[int, bytes]], context: grpc.ServicerContext) -> Iterator[bytes]:
        with _told(terms, context):
            call = GrpcCall(b"", clock.now_ns(), context)
            call.admit(terms.callers)
            with terms.streams.held(context):
                yield from Conversation(method.begin(call), messages, context, terms.conversations).answers()

    return grpc.stream_stream_rpc_method_handler(converse, request_deserializer=_stamped)


def _answering(method: Method, terms: Terms) -> "grpc.RpcMethodHandler[Any, Any]":
    """Takes a stream of one message, which is the same on the wire: only so can it be said how long one waits for it."""

    def read(requests: Iterator[tuple[int, bytes]], context: grpc.ServicerContext) -> GrpcCall:
        if not method.is_open:
            GrpcCall(b"", 0, context).admit(terms.callers)
        with terms.awaited.held(context):
            request = next(requests, None)
        if request is None:
            raise RefusedError(Kind.INVALID, "no message came: send one")
        received_ns, data = request
        return GrpcCall(data, received_ns, context)

    def answer(requests: Iterator[tuple[int, bytes]], context: grpc.ServicerContext) -> bytes:
        with _told(terms, context):
            answered: bytes = method.answer(read(requests, context))
            afterwards(partial(terms.untaken.keep, context))
        return answered

    def stream(requests: Iterator[tuple[int, bytes]], context: grpc.ServicerContext) -> Iterator[bytes]:
        with _told(terms, context):
            call = read(requests, context)
            with terms.streams.held(context):
                yield from method.answer(call)

    if method.is_stream:
        return grpc.stream_stream_rpc_method_handler(stream, request_deserializer=_stamped)
    return grpc.stream_unary_rpc_method_handler(answer, request_deserializer=_stamped)


@contextmanager
def _told(terms: Terms, context: grpc.ServicerContext) -> Iterator[None]:
    """Answers a refusal, and tells of what becomes of a call."""
    try:
        yield
    except RefusedError as error:
        terms.count(error.kind.grpc_code)
        _refuse(context, error)
    except grpc.RpcError:  # The caller has gone before its message had come.
        terms.count(_GONE)
        raise
    except Exception as error:
        terms.count(Kind.FAILED.grpc_code)
        terms.on_fault(error)
        raise
    afterwards(partial(terms.count, _OK))


def _stamped(data: bytes) -> tuple[int, bytes]:
    """When the bytes were here: reading them belongs to the worker's own stages."""
    return clock.now_ns(), data


def _refuse(context: grpc.ServicerContext, error: RefusedError) -> NoReturn:
    context.set_trailing_metadata(((REFUSAL_KEY, error.kind.name.lower()),))
    context.abort(getattr(grpc.StatusCode, error.kind.grpc_code), str(error))
