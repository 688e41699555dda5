"""The gateway: starts the HTTP and gRPC servers of a worker, and stops them."""

import resource
import ssl
from collections.abc import Callable
from typing import Protocol

from cloud.gateway.bind import listen
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.context import WorkerContext
from cloud.gateway.settings import GatewaySettings
from shared.errors import SkylaneError
from shared.network.certificate_expiry import check_not_expired
from shared.registry import Entry, load

SERVERS = {  # Import paths: a worker without a gateway needs neither library.
    "http": Entry("cloud.gateway.http.server:HttpServer", "gateway"),
    "grpc": Entry("cloud.gateway.grpc.server:GrpcServer", "gateway"),
}

_OPEN_FILES = 16_384  # The usual limit of 1,024 is less than the connections of one gRPC server.


class GatewayError(SkylaneError):
    """Settings with which the gateway cannot start."""


class GatewayServer(Protocol):
    """A server on one port, which is bound when the server is created."""

    port: int

    def start(self) -> None:
        """Starts to accept calls."""

    def close(self) -> None:
        """Stops accepting calls, lets active ones end, and closes the port."""


def check_settings(settings: GatewaySettings) -> None:
    """Checks ports, files and libraries of the servers before models are loaded, which takes longer.

    Raises:
        SkylaneError: a port is in use, a file cannot be used, or a library is missing.
    """
    addresses = _addresses(settings)
    for protocol, address in addresses.items():
        listen(protocol, address).close()
    Authenticator.from_file(settings.tokens)
    if settings.tls_cert is not None and settings.tls_key is not None:
        key = settings.tls_key

        def refuse_password() -> bytes:  # Without this callback OpenSSL prompts at the terminal and waits.
            raise GatewayError(f"the key {key} is protected by a password: give a key without one")

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, key, refuse_password)
        except OSError as error:
            raise GatewayError(f"{settings.tls_cert} and {settings.tls_key} cannot be used for TLS: {error}") from error
        check_not_expired(settings.tls_cert, "renew it, callers do not trust it")
    for protocol in addresses:
        load("server", SERVERS, protocol)


class Gateway:
    """The HTTP and gRPC servers of a worker."""

    def __init__(self, worker: WorkerContext, on_fault: Callable[[BaseException], None]) -> None:
        """Binds the ports; calls are answered from `start` on.

        `on_fault` receives the exception that ends a server.

        Raises:
            SkylaneError: a server cannot listen at its address, or a library is missing.
        """
        self._servers: dict[str, GatewayServer] = {}
        try:
            for protocol in _addresses(worker.settings):
                self._servers[protocol] = load("server", SERVERS, protocol)(worker, on_fault)
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> dict[str, int]:
        """The port of each server, by "http" and "grpc"."""
        return {protocol: server.port for protocol, server in self._servers.items()}

    def start(self) -> None:
        """Starts all servers."""
        _raise_file_limit()
        for server in self._servers.values():
            server.start()

    def close(self) -> None:
        """Closes all servers."""
        for server in self._servers.values():
            server.close()


def _addresses(settings: GatewaySettings) -> dict[str, str]:
    """The addresses of the servers that are enabled, by protocol."""
    return {
        name: address for name, address in (("http", settings.http), ("grpc", settings.grpc)) if address is not None
    }


def _raise_file_limit() -> None:
    """Allows as many open connections as the servers admit, within the hard limit of the process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
