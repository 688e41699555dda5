"""What every gRPC service of the gateway is made of: methods from bytes to bytes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

import grpc

from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.refusal import Kind, RefusedError
from shared import clock

OnFault = Callable[[BaseException], None]
Count = Callable[[str], None]  # Told the code of every answer.

_OK = "OK"
REFUSAL_KEY = "skylane-refusal"  # In trailing metadata: this worker's own word, as against its library's.


@dataclass(frozen=True, slots=True)
class Method:
    """Answers one call with the bytes of a message, or with a stream of them; refuses it by `RefusedError`."""

    answer: Callable[[GrpcCall], Any]
    is_stream: bool = False


class Service(Protocol):
    """One gRPC service: a face of the worker."""

    name: str  # As in its .proto, with the package.

    def methods(self) -> Mapping[str, Method]:
        """What answers each method, by its name."""


def handlers(service: Service, on_fault: OnFault, count: Count) -> grpc.GenericRpcHandler:
    """A service as grpc wants it. `on_fault` is told of bugs of ours, which end the call as INTERNAL."""
    return grpc.method_handlers_generic_handler(
        service.name, {name: _handler(method, on_fault, count) for name, method in service.methods().items()}
    )


def _handler(method: Method, on_fault: OnFault, count: Count) -> "grpc.RpcMethodHandler[Any, Any]":
    def answer(request: tuple[int, bytes], context: grpc.ServicerContext) -> bytes:
        received_ns, data = request
        try:
            answered: bytes = method.answer(GrpcCall(data, received_ns, context))
        except RefusedError as error:
            count(error.kind.grpc_code)
            _refuse(context, error)
        except Exception as error:
            count(Kind.FAILED.grpc_code)
            on_fault(error)
            raise
        count(_OK)
        return answered

    def stream(request: tuple[int, bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        received_ns, data = request
        try:
            yield from method.answer(GrpcCall(data, received_ns, context))
        except RefusedError as error:
            count(error.kind.grpc_code)
            _refuse(context, error)
        except Exception as error:
            count(Kind.FAILED.grpc_code)
            on_fault(error)
            raise
        count(_OK)

    if method.is_stream:
        return grpc.unary_stream_rpc_method_handler(stream, request_deserializer=_stamped)
    return grpc.unary_unary_rpc_method_handler(answer, request_deserializer=_stamped)


def _stamped(data: bytes) -> tuple[int, bytes]:
    """When the bytes were here: reading them belongs to the worker's own stages."""
    return clock.now_ns(), data


def _refuse(context: grpc.ServicerContext, error: RefusedError) -> NoReturn:
    context.set_trailing_metadata(((REFUSAL_KEY, error.kind.name.lower()),))
    context.abort(getattr(grpc.StatusCode, error.kind.grpc_code), str(error))
