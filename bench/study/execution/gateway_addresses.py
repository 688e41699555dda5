"""The workers' own doors, by which the vehicles of a run come in where they take no broker."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from bench.harness.environment import free_ports
from bench.load.gateway_deployment import HTTP_TRANSPORTS, MQTT
from bench.study.plan.cell import Cell, WorkerSetup

HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Doors:
    """The ports of this machine at which a worker answers beside its broker."""

    grpc: int
    http: int

    @classmethod
    def free(cls, workers: int) -> list[Self]:
        """Of so many workers, each at ports that nobody listens on."""
        ports = free_ports(2 * workers)
        return [cls(*pair) for pair in zip(ports[::2], ports[1::2], strict=True)]

    @property
    def flags(self) -> tuple[str, ...]:
        """Of `skylane cloud serve`."""
        return ("--grpc", f"{HOST}:{self.grpc}", "--http", f"{HOST}:{self.http}")

    def port(self, transport: str) -> int:
        """Where a transport other than MQTT comes in."""
        return self.http if transport in HTTP_TRANSPORTS else self.grpc


def are_wanted(setup: WorkerSetup, cells: Iterable[Cell]) -> bool:
    """Whether a cell of a setup comes in by another way than the broker."""
    return any(cell.transport != MQTT for cell in cells if cell.setup == setup)
