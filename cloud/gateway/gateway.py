"""The gateway: opens the servers that were asked for, and closes them when all is answered."""

from collections.abc import Callable
from typing import Protocol

from cloud.gateway.worker_parts import WorkerParts
from shared.registry import Entry, load

SERVERS = {  # Paths: a worker at the broker alone needs neither library.
    "http": Entry("cloud.gateway.http_server:HttpServer", "gateway"),
    "grpc": Entry("cloud.gateway.grpc_server:GrpcServer", "gateway"),
}


class Server(Protocol):
    """One listening port."""

    port: int

    def start(self) -> None:
        """Take calls from now on."""

    def close(self) -> None:
        """Take no more, and let go of the port; what was asked has been answered."""


class Gateway:
    """Every server of a worker beside the broker."""

    def __init__(self, parts: WorkerParts, on_fault: Callable[[BaseException], None]) -> None:
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
        for server in self._servers.values():
            server.start()

    def close(self) -> None:
        """End all servers."""
        for server in self._servers.values():
            server.close()
