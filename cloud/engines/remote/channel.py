"""A line: the gRPC channel to the server that has a model, and what goes wrong on it in our words."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cloud.engines.pre_postprocess import first_line
from shared.encoding.bounded_protobuf import ProtobufError, parse
from shared.encoding.protobuf import method_types
from shared.errors import SkylaneError
from shared.messages.tensors import MAX_BYTES
from shared.network import env_names

grpc: Any = import_module("grpc")  # Any: it ships no types.

CA_VARIABLE = "SKYLANE_REMOTE_CA"  # A file of certificates: the line is TLS, to a server that one of them vouches for.
CERT_VARIABLE, KEY_VARIABLE = "SKYLANE_REMOTE_CERT", "SKYLANE_REMOTE_KEY"  # Files by which the server knows us.
TOKEN_VARIABLE = env_names.REMOTE  # Sent as `authorization: Bearer …`.

_ENVELOPE_BYTES = 1 << 20  # Beside the numbers of an answer: names, shapes, parameters.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # Batches are bounded where frames are admitted.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # A server that is back is found within this.
    ("grpc.use_local_subchannel_pool", 1),
)
# What says nothing of the pictures that were sent: another batch would have met the same.
_LOST = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "UNIMPLEMENTED")  # fmt: skip


class RemoteError(SkylaneError):
    """A call to the server that has a model failed. `is_lost`: whatever was sent; otherwise the server refused it."""

    def __init__(self, problem: str, *, is_lost: bool) -> None:
        self.is_lost = is_lost
        super().__init__(problem)


class Line:
    """A gRPC channel, which connects anew by itself. Used by one thread at a time; close it."""

    def __init__(self, address: str) -> None:
        """`address`: HOST:PORT. Nothing is sent yet.

        Raises:
            RemoteError: a file that the environment names cannot be read, or a token would travel in the clear.
        """
        target = f"dns:///{address}"  # Without that gRPC would take a host called `unix` for a file.
        options = (*_OPTIONS, ("grpc.max_receive_message_length", MAX_BYTES + _ENVELOPE_BYTES))
        token = os.environ.get(TOKEN_VARIABLE)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if os.environ.get(CA_VARIABLE):
            key, cert = _file(KEY_VARIABLE), _file(CERT_VARIABLE)
            credentials = grpc.ssl_channel_credentials(_file(CA_VARIABLE), key, cert)
            self._channel = grpc.secure_channel(target, credentials, options=options)
            return
        if token:
            raise RemoteError(
                f"{TOKEN_VARIABLE} would travel in the clear: name the server's authority in {CA_VARIABLE}",
                is_lost=True,
            )
        self._channel = grpc.insecure_channel(target, options=options)

    def call(
        self,
        service: str,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        waits: bool = False,
        beside: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Call a method of a service whose messages `shared/protos` has.

        `waits`: for a server that is not there yet, as long as the timeout. `beside`: metadata of this call.

        Raises:
            RemoteError: there was no answer in time, or another one than wanted.
        """
        takes, gives = method_types(service)[method]
        ask = self._channel.unary_unary(f"/{service}/{method}", takes.SerializeToString)
        try:
            answer = ask(request, timeout=timeout_s, metadata=(*self._metadata, *beside), wait_for_ready=waits)
        except grpc.RpcError as error:
            code = error.code().name
            raise RemoteError(_told(code, error, timeout_s), is_lost=code in _LOST) from error
        return parsed(gives, answer)

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def parsed(message_class: Any, data: bytes) -> Any:
    """What a server answers, as a message.

    Raises:
        RemoteError: it is none that can be read.
    """
    try:
        return parse(message_class, data)
    except ProtobufError as error:
        raise RemoteError(f"the model's server answers what cannot be read: {error}", is_lost=False) from error


def _told(code: str, error: Any, timeout_s: float) -> str:
    """What went wrong; of a server that cannot be reached no address, as vehicles are told this."""
    match code:
        case "DEADLINE_EXCEEDED":
            return f"the model's server did not answer within {timeout_s * 1000:g} ms"
        case "UNAVAILABLE" if "connect" in error.details() or "Socket" in error.details():
            return "the model's server cannot be reached"
    return f"the model's server says {code}: {_gist(error.details())}"


def _gist(details: str) -> str:
    """The line that tells what a server's error is: its first, or of a Python traceback the one below the frames."""
    _, traceback, frames = details.rpartition("Traceback (most recent call last):\n")
    lines = (frames if traceback else details).strip("\n").splitlines()
    told = [line for line in lines if line and not line[0].isspace()]
    return first_line(Exception(told[0] if told else details))


def _file(variable: str) -> bytes | None:
    named = os.environ.get(variable)
    if not named:
        return None
    try:
        return Path(named).read_bytes()
    except OSError as error:
        raise RemoteError(f"{variable} is {named}, which cannot be read ({error.strerror})", is_lost=True) from error
