"""A broker and one worker with all its endpoints: MQTT through the broker, gRPC and HTTP directly."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

from edge.config import EdgeConfig
from edge.transports.opening import open_transport
from edge.transports.transport import MQTT, TRANSPORTS, Transport
from ops.broker.broker import Broker
from ops.processes import playback
from ops.processes.environment import free_ports
from ops.processes.playback import PlaybackSettings
from ops.processes.worker_process import Worker

GRPC_TRANSPORTS, HTTP_TRANSPORTS = (
    tuple(name for name, entry in TRANSPORTS.items() if entry.endpoint == endpoint) for endpoint in ("grpc", "http")
)


class GatewayDeployment(AbstractContextManager["GatewayDeployment"]):
    """A Mosquitto and a worker in child processes, which end with the block."""

    def __init__(
        self,
        *,
        models: Path,
        model: str,
        transports: Sequence[str] = tuple(TRANSPORTS),
        flags: Sequence[str] = (),
    ) -> None:
        """Starts both; `transports` besides MQTT decide which endpoints the worker opens.

        `flags`: further flags of `skylane cloud serve`.

        Raises:
            SkylaneError: the broker or the worker did not get ready.
        """
        self.grpc, self.http = (f"127.0.0.1:{port}" for port in free_ports(2))
        endpoints = {"--grpc": (self.grpc, GRPC_TRANSPORTS), "--http": (self.http, HTTP_TRANSPORTS)}
        opened = [
            word for flag, (address, its) in endpoints.items() if set(its) & set(transports) for word in (flag, address)
        ]
        with ExitStack() as stack:
            self.broker = stack.enter_context(Broker.start(kind="mosquitto"))
            self.worker = stack.enter_context(
                Worker(self.broker.url, models=models, model=model, device="cpu", flags=[*opened, *flags])
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, transport: str) -> str:
        """The address of a transport's endpoint; for MQTT, the broker's URL."""
        if transport == MQTT:
            return self.broker.url
        return self.grpc if transport in GRPC_TRANSPORTS else self.http

    def transport(self, transport: str, vehicle: str, session: str, model: str, *, window: int = 1) -> Transport:
        """Opens a transport as a vehicle node with this window does; the caller closes it.

        Raises:
            SkylaneError: the endpoint cannot be reached.
        """
        endpoint = (
            {"broker": self.broker.url} if transport == MQTT else {"worker_addresses": (self.address(transport),)}
        )
        settings = {"vehicle": vehicle, "model": model, "transport": transport, "window": window, **endpoint}
        config = EdgeConfig.model_validate(settings)
        return open_transport(config, session)

    def play(
        self, settings: PlaybackSettings, transport: str, folder: Path, *, sinks: Sequence[str] = ()
    ) -> list[dict[str, str]]:
        """Runs the vehicle node over a transport, one frame in flight, see `ops.processes.playback.play`."""
        if transport == MQTT:
            return playback.play(settings, self.broker.url, folder, sinks=sinks)
        flags = ("--transport", transport, "--worker-address", self.address(transport))
        return playback.play(settings, None, folder, sinks=sinks, flags=flags)
