"""What every gRPC service of the gateway is made of: methods from bytes to bytes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from cloud.gateway import grpc_conversation
from cloud.gateway.callers import Callers
from cloud.gateway.grpc_call import GrpcCall
from cloud.gateway.grpc_context import Context
from cloud.gateway.grpc_conversation import Conversation, Speaker
from cloud.gateway.outbox import GoneError
from cloud.gateway.places import Places
from cloud.gateway.refusal import Kind, RefusedError
from shared import clock

Count = Callable[[str], None]  # Told the code of every answer.

REFUSAL_KEY = "skylane-refusal"  # In trailing metadata: this worker's own word, as against its library's.


@dataclass(frozen=True, slots=True)
class Method:
    """Answers one call with the parts that make a message, or with a stream of such; refuses it by `RefusedError`."""

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

    on_error: Callable[[Exception], None]  # Receives unexpected exceptions, which end the call as INTERNAL.
    count: Count
    callers: Callers
    streams: Places  # For those that are answered as long as they like.
    conversations: grpc_conversation.Terms


def handlers(service: Service, terms: Terms) -> "dict[str, MethodCalls]":
    """What answers each method of a service, by its path."""
    return {f"/{service.name}/{name}": MethodCalls(method, terms) for name, method in service.methods().items()}


@dataclass(frozen=True, slots=True)
class MethodCalls:
    """The calls of one method, for their connections; see http2_connection.Handler."""

    method: Method | Conversing
    terms: Terms

    @property
    def needs_message(self) -> bool:
        """See Handler."""
        return isinstance(self.method, Method)

    def admit(self, context: Context) -> None:
        """See Handler: a stranger is refused before its message has come."""
        callers = self.terms.callers
        if callers.need_token and (isinstance(self.method, Conversing) or not self.method.is_open):
            GrpcCall(b"", clock.now_ns(), context).admit(callers)

    def answer(self, context: Context) -> None:
        """See Handler."""
        try:
            self._answer(context)
        except RefusedError as error:
            self.refuse(context, error)
        except GoneError:
            pass
        except Exception as error:  # noqa: BLE001  This call fails, the worker goes on.
            self.terms.on_error(error)
            context.refuse(Kind.FAILED.grpc_code, "internal error: the worker's log has the traceback")

    def refuse(self, context: Context, error: RefusedError) -> None:
        """See Handler."""
        _refuse(context, error)

    def count(self, code: str) -> None:
        """See Handler."""
        self.terms.count(code)

    def _answer(self, context: Context) -> None:
        if isinstance(self.method, Conversing):
            call = GrpcCall(b"", clock.now_ns(), context)
            with self.terms.streams.held(context):
                for message in Conversation(self.method.begin(call), context, self.terms.conversations).answers():
                    context.send(message)
            context.finish()
            return
        asked = context.message()
        answered = self.method.answer(GrpcCall(asked.data, asked.received_ns, context))
        if not self.method.is_stream:
            context.answer(answered)
            return
        with self.terms.streams.held(context):
            for part in answered:
                context.send(part)
        context.finish()


@dataclass(frozen=True, slots=True)
class UnknownCalls:
    """Those of a method that there is not; see http2_connection.Handler."""

    terms: Terms
    needs_message: bool = False

    def admit(self, context: Context) -> None:
        """See Handler."""
        raise RefusedError(Kind.UNIMPLEMENTED, f"there is no {context.path[:200]} here: see the .proto files")

    def answer(self, context: Context) -> None:
        """See Handler: none is let in."""

    def refuse(self, context: Context, error: RefusedError) -> None:
        """See Handler."""
        _refuse(context, error)

    def count(self, code: str) -> None:
        """See Handler."""
        self.terms.count(code)


def _refuse(context: Context, error: RefusedError) -> None:
    context.tell(((REFUSAL_KEY, error.kind.name.lower()),))
    context.refuse(error.kind.grpc_code, str(error))
