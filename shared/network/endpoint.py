"""Endpoints, written HOST:PORT, free ports, and the environment variables of addresses and passwords."""

import re
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Self

from shared.errors import SkylaneError

LAST_PORT = 65_535

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,15})?)\]")
_PORT = re.compile(r"[0-9]{1,5}")
_SHOWN = 100  # Characters of an invalid text in its error message.


class EndpointError(SkylaneError):
    """A text is not a valid HOST:PORT."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        super().__init__(f"{text[:_SHOWN]!r}: {problem}: write HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host and a port; an IPv6 address is stored without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, listens: bool = False) -> Self:
        """Parses HOST:PORT; an IPv6 address needs brackets.

        If the endpoint is to be listened on (`listens`), the port may be 0 (any free one) and the host empty (all
        addresses).

        Raises:
            EndpointError: the text is not valid.
        """
        if "//" in text:
            raise EndpointError(text, "this is a URL")
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            raise EndpointError(text, "the port is missing")
        least = 0 if listens else 1
        if not _PORT.fullmatch(port) or not least <= int(port) <= LAST_PORT:
            raise EndpointError(text, f"the port must be a number from {least} to {LAST_PORT}")
        return cls("" if listens and not host else _host(text, host), int(port))

    @property
    def is_local(self) -> bool:
        """True if the host is this machine, so that traffic does not leave it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Returns whether an address or a name is this machine; names are not resolved."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(text: str, host: str) -> str:
    """Returns the host without the brackets of an IPv6 address.

    Raises:
        EndpointError: it is neither a name nor an address.
    """
    if bracketed := _IPV6.fullmatch(host):
        try:
            IPv6Address(bracketed[1])
        except ValueError:
            raise EndpointError(text, "the text in brackets is not an IPv6 address") from None
        return bracketed[1]
    if not host:
        raise EndpointError(text, "the host is missing")
    if ":" in host:
        raise EndpointError(text, "the host contains a colon: write an IPv6 address in brackets")
    if not _HOST.fullmatch(host):
        raise EndpointError(text, "the host is neither a name of A-Z a-z 0-9 . _ - nor an address")
    return host


GATEWAY = "SKYLANE_GATEWAY_TOKEN"  # Bearer token that a worker's gateway requires.
WORKER = "SKYLANE_WORKER_TOKEN"  # Bearer token that a vehicle sends to a worker.
REMOTE = "SKYLANE_REMOTE_TOKEN"  # Bearer token that a worker sends to a remote model server.
TOKEN_VARIABLES = (GATEWAY, WORKER, REMOTE)
BROKER_PASSWORD = "SKYLANE_BROKER_PASSWORD"  # noqa: S105 (a name)
BROKER_PASSWORD_FILE = "SKYLANE_BROKER_PASSWORD_FILE"  # noqa: S105 (a name)
BROKER_PASSWORD_VARIABLES = (BROKER_PASSWORD, BROKER_PASSWORD_FILE)


def free_port() -> int:
    """Returns a TCP port of the loopback interface on which nothing listens at the moment."""
    (port,) = free_ports(1)
    return port


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Returns different free TCP ports; repeated calls may return the same port twice.

    Raises:
        OSError: this machine does not have the address.
    """
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server((host, 0))) for _ in range(count)]
        return [probe.getsockname()[1] for probe in probes]
