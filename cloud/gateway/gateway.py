"""The gateway: opens the servers that were asked for, and closes them when all is answered."""

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

SERVERS = {  # Paths: a worker at the broker alone needs neither library.
    "http": Entry("cloud.gateway.http.server:HttpServer", "gateway"),
    "grpc": Entry("cloud.gateway.grpc.server:GrpcServer", "gateway"),
}


_OPEN_FILES = 16_384  # The usual limit of 1,024 is less than the connections of one gRPC server.


class GatewayError(SkylaneError):
    """The gateway cannot be opened as it is set."""


class Server(Protocol):
    """One listening port."""

    port: int

    def start(self) -> None:
        """Take calls from now on."""

    def close(self) -> None:
        """Take no more, and let go of the port; what was asked has been answered."""


def check(settings: GatewaySettings) -> None:
    """Checks what the servers need before their libraries and the models are loaded, which takes longer.

    Raises:
        SkylaneError: a port is taken, a file cannot be used, or a library is missing.
    """
    for kind, address in {"http": settings.http, "grpc": settings.grpc}.items():
        if address is not None:
            listen(kind, address).close()
    Authenticator.read(settings.tokens)
    if settings.tls_cert is not None and settings.tls_key is not None:
        key = settings.tls_key

        def ask() -> bytes:  # In the place of the library, which asks the terminal and waits.
            raise GatewayError(f"the key {key} is locked by a password: give one that is not")

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(settings.tls_cert, key, ask)
        except OSError as error:
            raise GatewayError(f"{settings.tls_cert} and {settings.tls_key} cannot be used for TLS: {error}") from error
        check_not_expired(settings.tls_cert, "renew it, callers do not believe it")
    for name, address in {"http": settings.http, "grpc": settings.grpc}.items():
        if address is not None:
            load("server", SERVERS, name)


class Gateway:
    """Every server of a worker beside the broker."""

    def __init__(self, parts: WorkerContext, on_fault: Callable[[BaseException], None]) -> None:
        """Binds the ports; nobody is answered before `start`.

        Raises:
            SkylaneError: an address cannot be listened at, or a library is missing.
        """
        addresses = {"http": parts.settings.http, "grpc": parts.settings.grpc}
        self._servers: dict[str, Server] = {}
        try:
            for name, address in addresses.items():
                if address is not None:
                    self._servers[name] = load("server", SERVERS, name)(parts, on_fault)
        except BaseException:
            self.close()
            raise

    @property
    def ports(self) -> dict[str, int]:
        """Where each server listens."""
        return {name: server.port for name, server in self._servers.items()}

    def start(self) -> None:
        """Take calls from now on."""
        _raise_file_limit()
        for server in self._servers.values():
            server.start()

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.close()


def _raise_file_limit() -> None:
    """Allows as many open connections as the servers admit, as far as the system lets this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
