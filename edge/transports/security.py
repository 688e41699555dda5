"""What secures the way to a worker without a broker: an authority that vouches for it, a token that tells who we are."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import SkylaneError

TOKEN_VARIABLE = "SKYLANE_WORKER_TOKEN"  # noqa: S105  The variable's name.

_LAST_PORT = 65_535


class WorkerAddressError(SkylaneError):
    """A worker's address, or what its worker is to be trusted by, cannot be used."""


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """Where a worker's door is."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> "WorkerAddress":
        """Read HOST:PORT; an IPv6 address stands in brackets.

        Raises:
            WorkerAddressError: it is not that.
        """
        host, _, port = text.rpartition(":")
        bare = host.removeprefix("[").removesuffix("]")
        if not bare or "/" in text or "@" in text or not port.isdecimal() or not 0 < int(port) <= _LAST_PORT:
            raise WorkerAddressError(f"worker address {text[:100]!r} cannot be read: write HOST:PORT")
        if ":" in bare and bare == host:
            raise WorkerAddressError(f"worker address {text[:100]!r} cannot be read: write [{host}]:{port}")
        return cls(bare, int(port))

    @property
    def is_here(self) -> bool:
        """Whether it is this machine's own, so that nothing of it travels."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


@dataclass(frozen=True, slots=True)
class Security:
    """Whom we trust, and who we are."""

    authority: bytes | None = None  # PEM; None: no TLS.
    token: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, authority: Path | None) -> "Security":
        """The authority of a file, and the token of the environment's SKYLANE_WORKER_TOKEN.

        Raises:
            WorkerAddressError: the file cannot be read, or holds no certificate.
        """
        pem = None
        if authority is not None:
            try:
                pem = authority.read_bytes()
            except OSError as error:
                raise WorkerAddressError(f"the authority {authority} cannot be read: {error.strerror}") from error
            if b"-----BEGIN CERTIFICATE-----" not in pem:
                raise WorkerAddressError(f"the authority {authority} holds no certificate in PEM")
        return cls(pem, os.environ.get(TOKEN_VARIABLE) or None)

    def headers(self, vehicle: str, address: WorkerAddress) -> dict[str, str]:
        """What tells a worker who calls.

        Raises:
            WorkerAddressError: the token would travel in the clear.
        """
        told = {"skylane-vehicle": vehicle}
        if self.token is not None:
            if self.authority is None and not address.is_here:
                raise WorkerAddressError(
                    f"{TOKEN_VARIABLE} would travel to {address} in the clear: give the worker's authority with "
                    "--worker-tls-ca"
                )
            told["authorization"] = f"Bearer {self.token}"
        return told
