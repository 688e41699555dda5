"""Listening: at which address a server of the gateway takes connections."""

import socket

from shared.errors import SkylaneError

_BACKLOG = 512


class ListenError(SkylaneError):
    """An address that cannot be listened at."""


def listen(kind: str, address: str) -> socket.socket:
    """A socket that listens at `HOST:PORT` (`[::]:PORT` for IPv6; port 0: any that is free). `kind` is for messages.

    Raises:
        ListenError: it is no address, or is another's.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ListenError(f"{kind} cannot listen at {address!r}: write HOST:PORT, such as 127.0.0.1:8000")
    host = host.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise ListenError(f"{kind} cannot listen at {address}: {error}") from error
    # Its connections inherit it. asyncio sets it only where a socket says that it is TCP, which this one does not; and an
    # answer's body then waited for the peer's delayed acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
