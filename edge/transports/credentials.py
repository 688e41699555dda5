"""What secures the way to a worker without a broker: an authority that vouches for it, a token that tells who we are."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import SkylaneError
from shared.network import env_names
from shared.network.endpoint import Endpoint, EndpointError

TOKEN_VARIABLE = env_names.WORKER


class WorkerAddressError(SkylaneError):
    """A worker's address, or what its worker is to be trusted by, cannot be used."""


def worker_address(text: str) -> Endpoint:
    """Where a worker's door is, from HOST:PORT.

    Raises:
        WorkerAddressError: it is not that.
    """
    try:
        return Endpoint.parse(text)
    except EndpointError as error:
        raise WorkerAddressError(f"worker address {error}") from error


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

    def context(self, address: Endpoint) -> ssl.SSLContext | None:
        """For TLS with a worker whom the authority vouches for; None: no TLS.

        Raises:
            WorkerAddressError: the authority cannot be used.
        """
        if self.authority is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # As gRPC's library: the authority may be no root.
        try:
            context.load_verify_locations(cadata=self.authority.decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise WorkerAddressError(f"the authority for {address} holds no certificate in PEM: {error}") from error
        return context

    def headers(self, vehicle: str, address: Endpoint) -> dict[str, str]:
        """What tells a worker who calls.

        Raises:
            WorkerAddressError: the token would travel in the clear.
        """
        told = {"skylane-vehicle": vehicle}
        if self.token is not None:
            if self.authority is None and not address.is_local:
                raise WorkerAddressError(
                    f"{TOKEN_VARIABLE} would travel to {address} in the clear: give the worker's authority with "
                    "--worker-tls-ca"
                )
            told["authorization"] = f"Bearer {self.token}"
        return told
