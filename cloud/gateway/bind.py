"""Listening: at which address a server of the gateway takes connections."""

import errno
import socket

from shared.errors import SkylaneError
from shared.network.endpoint import Endpoint, EndpointError

_BACKLOG = 512


class ListenError(SkylaneError):
    """An address that cannot be listened at."""


def endpoint(address: str) -> Endpoint:
    """Where to listen, from HOST:PORT; no host means every address, port 0 any that is free.

    Raises:
        ListenError: it is not that.
    """
    try:
        return Endpoint.parse(address, listens=True)
    except EndpointError as error:
        raise ListenError(f"cannot listen at {error}") from error


def listen(kind: str, address: str) -> socket.socket:
    """A socket that listens at `HOST:PORT` (`[::]:PORT` for IPv6; port 0: any that is free).

    `kind` is "http" or "grpc", the flag that the address was given by.

    Raises:
        ListenError: it is no address, or is another's.
    """
    where = endpoint(address)
    family = socket.AF_INET6 if ":" in where.host else socket.AF_INET
    try:
        listener = socket.create_server((where.host, where.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"--{kind}: cannot listen at {address}: {_problem(error)}") from error
    # Its connections inherit it. asyncio sets it only where a socket says that it is TCP, which this one does not; and an
    # answer's body then waited for the peer's delayed acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def _problem(error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return "the port is in use: stop the program that listens there, or choose another port (0: any free one)"
    return f"{error.strerror}: give an address of this machine and a port that this user may listen at"
