"""Listening: at which address a server of the gateway takes connections."""

import socket

from shared.errors import SkylaneError

_BACKLOG = 512
_LAST_PORT = 65_535


class ListenError(SkylaneError):
    """An address that cannot be listened at."""


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of `HOST:PORT`, of `[::]:PORT` for IPv6; no host means every address.

    Raises:
        ListenError: it is not that.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or len(port) > len(str(_LAST_PORT)) or int(port) > _LAST_PORT:
        raise ListenError(f"cannot listen at {address[:100]!r}: write HOST:PORT, such as 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def listen(kind: str, address: str) -> socket.socket:
    """A socket that listens at `HOST:PORT` (`[::]:PORT` for IPv6; port 0: any that is free). `kind` is for messages.

    Raises:
        ListenError: it is no address, or is another's.
    """
    host, port = host_and_port(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise ListenError(f"{kind} cannot listen at {address}: {error}") from error
    # Its connections inherit it. asyncio sets it only where a socket says that it is TCP, which this one does not; and an
    # answer's body then waited for the peer's delayed acknowledgement of its head, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
