"""Binds the sockets of the gateway's servers."""

import errno
import socket
from typing import Any

from shared.errors import SkylaneError
from shared.network.endpoint import Endpoint, EndpointError

_BACKLOG = 512


class ListenError(SkylaneError):
    """An address at which a server cannot listen."""


class PortTakenError(ListenError):
    """Another program listens at the address of a server; `problem` names the server and the address."""

    def __init__(self, protocol: str, address: str) -> None:
        self.protocol = protocol
        self.problem = f"--{protocol}: cannot listen at {address}"
        super().__init__(
            f"{self.problem}: the port is in use: stop the program that listens there, or choose another port (0: any "
            "free port)"
        )


def parse_bind_address(address: str) -> Endpoint:
    """Parses `HOST:PORT`; an empty host means all interfaces, port 0 any free port.

    Raises:
        ListenError: the address is malformed.
    """
    try:
        return Endpoint.parse(address, listens=True)
    except EndpointError as error:
        raise ListenError(f"cannot listen at {error}") from error


def listen(protocol: str, address: str) -> socket.socket:
    """Opens a listening socket at `HOST:PORT` (`[HOST]:PORT` for IPv6; port 0: any free port).

    `protocol` is "http" or "grpc", which is also the flag that sets the address.

    Raises:
        ListenError: the address is malformed, or is in use.
    """
    bind_address = parse_bind_address(address)
    family = socket.AF_INET6 if ":" in bind_address.host else socket.AF_INET
    try:
        listener = socket.create_server((bind_address.host, bind_address.port), family=family, backlog=_BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTakenError(protocol, address) from error
        problem = str(error.strerror).partition(" (while attempting")[0]  # Python adds the address.
        raise ListenError(
            f"--{protocol}: cannot listen at {address}: {problem}: give an address of this machine and a port that this "
            "user may listen at"
        ) from error
    # Accepted connections inherit the option, which asyncio does not set here. Without it a response body waits up to
    # 40 ms for the peer's delayed acknowledgement of the headers.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


class BoundedListener(socket.socket):
    """A listening socket whose `accept` closes connections beyond a limit of open ones, also during TLS handshakes."""

    def __init__(self, listener: socket.socket, max_connections: int) -> None:
        """Takes over the file of `listener`."""
        super().__init__(fileno=listener.detach())
        self._max_connections = max_connections
        self._accepted: list[socket.socket] = []

    def accept(self) -> tuple[socket.socket, Any]:
        """Accepts a connection; raises BlockingIOError, for which asyncio waits, if it was closed for the limit."""
        connection, address = super().accept()
        if len(self._accepted) >= self._max_connections:
            self._accepted = [each for each in self._accepted if each.fileno() >= 0]
            if len(self._accepted) >= self._max_connections:
                connection.close()
                raise BlockingIOError
        self._accepted.append(connection)
        return connection, address
