"""Credentials for connections to workers without a broker: a certificate authority and a bearer token."""

import os
import ssl
from dataclasses import dataclass, field
from pathlib import Path

from shared.errors import SkylaneError
from shared.files import read_file
from shared.network import endpoint
from shared.network.endpoint import Endpoint

TOKEN_VARIABLE = endpoint.WORKER


class WorkerAddressError(SkylaneError):
    """A worker's certificate authority or token cannot be used."""


@dataclass(frozen=True, slots=True)
class WorkerCredentials:
    """The certificate authority that signs the workers' certificates, and this vehicle's token."""

    authority: bytes | None = None  # PEM; None: no TLS.
    token: str | None = field(default=None, repr=False)

    @classmethod
    def read(cls, authority: Path | None) -> "WorkerCredentials":
        """Reads the authority from a file, and the token from the environment variable SKYLANE_WORKER_TOKEN.

        Raises:
            WorkerAddressError: the file cannot be read, or has no certificate.
        """
        pem = None
        if authority is not None:
            try:
                pem = read_file(authority)
            except OSError as error:
                raise WorkerAddressError(f"the authority {authority} cannot be read: {error.strerror}") from error
            if b"-----BEGIN CERTIFICATE-----" not in pem:
                raise WorkerAddressError(f"the authority {authority} holds no certificate in PEM")
        return cls(pem, os.environ.get(TOKEN_VARIABLE) or None)

    def context(self, address: Endpoint) -> ssl.SSLContext | None:
        """Returns the TLS settings for a connection, or None without an authority.

        Raises:
            WorkerAddressError: the authority is no valid certificate.
        """
        if self.authority is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # The authority may be an intermediate one, as in gRPC.
        try:
            context.load_verify_locations(cadata=self.authority.decode())
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise WorkerAddressError(f"the authority for {address} holds no certificate in PEM: {error}") from error
        return context

    def headers(self, vehicle: str, address: Endpoint) -> dict[str, str]:
        """Returns the headers that identify this vehicle to a worker.

        Raises:
            WorkerAddressError: the token would travel unencrypted to another machine.
        """
        headers = {"skylane-vehicle": vehicle}
        if self.token is not None:
            if self.authority is None and not address.is_local:
                raise WorkerAddressError(
                    f"{TOKEN_VARIABLE} would travel to {address} in the clear: give the worker's authority with "
                    "--worker-tls-ca"
                )
            headers["authorization"] = f"Bearer {self.token}"
        return headers
