"""The gRPC channel to a remote model server, with errors translated to RemoteError."""

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from shared.errors import SkylaneError, error_reason
from shared.messages.protobuf import ProtobufError, method_types, parse
from shared.messages.tensors import MAX_BYTES
from shared.network import endpoint

grpc: Any = import_module("grpc")  # Any: the package has no type hints.

CA_VARIABLE = "SKYLANE_REMOTE_CA"  # A CA file; if set, the channel uses TLS and the server's certificate must match.
CERT_VARIABLE, KEY_VARIABLE = "SKYLANE_REMOTE_CERT", "SKYLANE_REMOTE_KEY"  # Files of the client certificate.
TOKEN_VARIABLE = endpoint.REMOTE  # Sent as `authorization: Bearer …`.

_ENVELOPE_BYTES = 1 << 20  # Size of a reply's names, shapes and parameters, in addition to the tensors.
_OPTIONS = (
    ("grpc.max_send_message_length", -1),  # The size of a batch is limited where frames are admitted.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),  # The maximum time to notice that a server is back.
    ("grpc.use_local_subchannel_pool", 1),
)
# Status codes that do not depend on the images of a request.
_UNAVAILABLE_CODES = (
    *("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"),
    *("UNAUTHENTICATED", "PERMISSION_DENIED", "NOT_FOUND", "UNIMPLEMENTED"),
)


class RemoteError(SkylaneError):
    """A call to the model server failed.

    `is_unavailable` is true if any other request would have failed too, false if the server refused this one.
    """

    def __init__(self, problem: str, *, is_unavailable: bool) -> None:
        self.is_unavailable = is_unavailable
        super().__init__(problem)


class RemoteChannel:
    """A gRPC channel that reconnects by itself. One thread at a time uses it; close it after use."""

    def __init__(self, address: str) -> None:
        """Opens the channel to HOST:PORT without sending anything.

        Raises:
            RemoteError: a file named by an environment variable cannot be read, or the token would be sent unencrypted.
        """
        target = f"dns:///{address}"  # Otherwise gRPC would take a host named `unix` for a socket file.
        options = (*_OPTIONS, ("grpc.max_receive_message_length", MAX_BYTES + _ENVELOPE_BYTES))
        token = os.environ.get(TOKEN_VARIABLE)
        self._metadata = (("authorization", f"Bearer {token}"),) if token else ()
        if os.environ.get(CA_VARIABLE):
            key, cert = _read_file(KEY_VARIABLE), _read_file(CERT_VARIABLE)
            credentials = grpc.ssl_channel_credentials(_read_file(CA_VARIABLE), key, cert)
            self._channel = grpc.secure_channel(target, credentials, options=options)
            return
        if token:
            raise RemoteError(
                f"{TOKEN_VARIABLE} would be sent unencrypted: set {CA_VARIABLE} to the CA file of the server",
                is_unavailable=True,
            )
        self._channel = grpc.insecure_channel(target, options=options)

    def call(
        self,
        service: str,
        method: str,
        request: Any,
        timeout_s: float,
        *,
        wait_for_ready: bool = False,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> Any:
        """Calls a method of a service defined in `shared/protos` and returns the reply.

        Args:
            service: The full name of the service.
            method: The method's name.
            request: The request message.
            timeout_s: Timeout of the call in seconds.
            wait_for_ready: Wait for a server that is not reachable yet, up to the timeout.
            metadata: Additional metadata for this call.

        Raises:
            RemoteError: no reply in time, an error status, or a reply that cannot be parsed.
        """
        request_type, reply_type = method_types(service)[method]
        rpc = self._channel.unary_unary(f"/{service}/{method}", request_type.SerializeToString)
        all_metadata = (*self._metadata, *metadata)
        try:
            reply = rpc(request, timeout=timeout_s, metadata=all_metadata, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            code = error.code().name
            problem = _describe(code, error, timeout_s)
            raise RemoteError(problem, is_unavailable=code in _UNAVAILABLE_CODES) from error
        return parsed(reply_type, reply)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()


def parsed(message_class: Any, data: bytes) -> Any:
    """Parses a server's reply.

    Raises:
        RemoteError: the bytes are not a valid message.
    """
    try:
        return parse(message_class, data)
    except ProtobufError as error:
        problem = f"the reply of the model's server cannot be read: {error}"
        raise RemoteError(problem, is_unavailable=False) from error


def _describe(code: str, error: Any, timeout_s: float) -> str:
    """Returns the problem without the server's address, because it is sent to vehicles."""
    match code:
        case "DEADLINE_EXCEEDED":
            return f"the model's server did not answer within {timeout_s * 1000:g} ms"
        case "UNAVAILABLE" if "connect" in error.details() or "Socket" in error.details():
            return "the model's server cannot be reached"
    return f"the model's server reports {code}: {_summary(error.details())}"


def _summary(details: str) -> str:
    """Returns the first line of a server's error, or the exception line of a Python traceback."""
    _, traceback, frames = details.rpartition("Traceback (most recent call last):\n")
    lines = (frames if traceback else details).strip("\n").splitlines()
    unindented = [line for line in lines if line and not line[0].isspace()]
    return error_reason(Exception(unindented[0] if unindented else details))


def _read_file(variable: str) -> bytes | None:
    """Returns the content of the file that an environment variable names; None if the variable is unset."""
    name = os.environ.get(variable)
    if not name:
        return None
    try:
        return Path(name).read_bytes()
    except OSError as error:
        problem = f"{variable} is {name}, which cannot be read ({error.strerror})"
        raise RemoteError(problem, is_unavailable=True) from error
