"""An endpoint: the host and port at which something listens, written HOST:PORT."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Self

from shared.errors import SkylaneError

LAST_PORT = 65_535

_HOST = re.compile(r"[A-Za-z0-9._-]{1,253}")
_IPV6 = re.compile(r"\[([0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9._-]{1,15})?)\]")
_PORT = re.compile(r"[0-9]{1,5}")
_SHOWN = 100  # Characters of what cannot be read.


class EndpointError(SkylaneError):
    """A text is no HOST:PORT."""

    def __init__(self, text: str, problem: str) -> None:
        self.text = text
        super().__init__(f"{text[:_SHOWN]!r}: {problem}: write HOST:PORT, such as 127.0.0.1:8000 or [::1]:8000")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where something listens; the host of an IPv6 address without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, *, listens: bool = False) -> Self:
        """Read HOST:PORT; an IPv6 address stands in brackets.

        `listens`: to be listened at, so that the port may be 0, any that is free, and the host missing, every address.

        Raises:
            EndpointError: it is not that.
        """
        host, colon, port = text.rpartition(":")
        if not colon or text.endswith("]"):
            raise EndpointError(text, "no port follows its host")
        least = 0 if listens else 1
        if not _PORT.fullmatch(port) or not least <= int(port) <= LAST_PORT:
            raise EndpointError(text, f"its port is no number from {least} to {LAST_PORT}")
        return cls("" if listens and not host else _host(text, host), int(port))

    @property
    def is_local(self) -> bool:
        """Whether it is this machine's own, so that what is sent to it does not travel."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether an address or a name is this machine's own, as far as can be told without asking for it."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _host(text: str, host: str) -> str:
    """A host as it was written, without the brackets of an IPv6 address.

    Raises:
        EndpointError: it is neither a name nor an address.
    """
    if bracketed := _IPV6.fullmatch(host):
        try:
            IPv6Address(bracketed[1])
        except ValueError:
            raise EndpointError(text, "what stands in its brackets is no IPv6 address") from None
        return bracketed[1]
    if not host:
        raise EndpointError(text, "it has no host")
    if ":" in host:
        raise EndpointError(text, "its host has a colon, and only an IPv6 address in brackets has those")
    if not _HOST.fullmatch(host):
        raise EndpointError(text, "its host is no name of A-Z a-z 0-9 . _ - and no address")
    return host
