"""One worker with all its doors open: MQTT through a broker, gRPC and HTTP beside it; and vehicles that come in by any."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

from bench.harness.environment import free_ports
from bench.load import playback
from bench.load.worker_process import Worker
from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.transport import TRANSPORTS, Transport
from shared.broker.broker import Broker
from shared.registry import load

MQTT = "mqtt"
GRPC_TRANSPORTS = ("grpc", "tfs-grpc", "oip-grpc")
HTTP_TRANSPORTS = ("oip-rest", "tfs-rest")
ALL_TRANSPORTS = (MQTT, *GRPC_TRANSPORTS, *HTTP_TRANSPORTS)  # As `skylane edge play --transport` names them.


class GatewayDeployment(AbstractContextManager["GatewayDeployment"]):
    """A Mosquitto and a worker in processes of their own, ended when the block ends."""

    def __init__(
        self,
        *,
        models: Path,
        model: str,
        doors: Sequence[str] = ALL_TRANSPORTS,
        device: str = "cpu",
        engine: str | None = None,
        instances: int | None = None,
        flags: Sequence[str] = (),
    ) -> None:
        """`doors`: those that are wanted, beside MQTT. `engine`: as the model's manifest says where it is None.

        `instances`: batches that the worker infers at a time, None: as the engine chooses. `flags`: more of `skylane cloud serve`.

        Raises:
            SkylaneError: the broker or the worker did not get ready.
        """
        self.grpc, self.http = (f"127.0.0.1:{port}" for port in free_ports(2))
        faces = {"--grpc": (self.grpc, GRPC_TRANSPORTS), "--http": (self.http, HTTP_TRANSPORTS)}
        opened = [word for flag, (at, its) in faces.items() if set(its) & set(doors) for word in (flag, at)]
        with ExitStack() as stack:
            self.broker = stack.enter_context(Broker.start(kind="mosquitto"))
            self.worker = stack.enter_context(
                Worker(
                    self.broker.url,
                    models=models,
                    model=model,
                    device=device,
                    engine=engine,
                    flags=[*opened, *([] if instances is None else ["--instances", str(instances)]), *flags],
                )
            )
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, door: str) -> str:
        """Where a door of `ALL_TRANSPORTS` is; of MQTT the broker's URL."""
        if door == MQTT:
            return self.broker.url
        return self.grpc if door in GRPC_TRANSPORTS else self.http

    def transport(self, door: str, vehicle: str, session: str, model: str) -> Transport:
        """A vehicle's end of a door of `ALL_TRANSPORTS`, opened as the vehicle node opens it; close it.

        Raises:
            SkylaneError: it cannot be reached.
        """
        where = {"broker": self.broker.url} if door == MQTT else {"worker_addresses": (self.address(door),)}
        config = EdgeConfig.model_validate({"vehicle": vehicle, "model": model, "transport": door, **where})
        opened: Transport = load("transport", TRANSPORTS, door)(config, session, TransportEvents())
        return opened

    def played(
        self, plan: playback.Plan, door: str, folder: Path, *, window: int = 1, sinks: Sequence[str] = ()
    ) -> list[dict[str, str]]:
        """As `overhead.played`, by a door of `ALL_TRANSPORTS`."""
        if door == MQTT:
            return playback.played(plan, self.broker.url, folder, window=window, sinks=sinks)
        flags = ("--transport", door, "--worker-address", self.address(door))
        return playback.played(plan, None, folder, window=window, sinks=sinks, flags=flags)
