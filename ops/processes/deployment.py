"""A broker and one worker with all its endpoints: MQTT through the broker, gRPC and HTTP directly."""

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, Self

from edge.transports.transport import MQTT, TRANSPORTS
from ops.broker.broker import Broker
from ops.processes.child import BenchError, cli_flags
from ops.processes.playback import WARM_UP_FRAMES, PlaybackSettings
from ops.processes.vehicle_process import VehicleProcess
from ops.processes.worker_process import Worker
from shared.network.endpoint import free_ports
from shared.runlog.latency_log import WITH_RESULT

GRPC_TRANSPORTS, HTTP_TRANSPORTS = (
    tuple(name for name, entry in TRANSPORTS.items() if entry.endpoint == endpoint) for endpoint in ("grpc", "http")
)


class Deployment(AbstractContextManager["Deployment"]):
    """A broker and a worker in child processes, which end with the block."""

    def __init__(
        self,
        *,
        models: Path,
        model: str,
        transports: Sequence[str] = tuple(TRANSPORTS),
        broker: Broker | None = None,
        name: str = "worker",
        device: str = "cpu",
        flags: Sequence[str] = (),
    ) -> None:
        """Starts the broker and the worker; `transports` besides MQTT decide which endpoints the worker opens.

        `broker`: a broker that was started already; None: a Mosquitto of its own. `flags`: further flags of
        `skylane cloud serve`.

        Raises:
            SkylaneError: the broker or the worker did not get ready.
        """
        self.grpc, self.http = (f"127.0.0.1:{port}" for port in free_ports(2))
        endpoints = {"--grpc": (self.grpc, GRPC_TRANSPORTS), "--http": (self.http, HTTP_TRANSPORTS)}
        opened = [
            word for flag, (address, its) in endpoints.items() if set(its) & set(transports) for word in (flag, address)
        ]
        with ExitStack() as stack:
            self.broker = broker or stack.enter_context(Broker.start(kind="mosquitto"))
            worker = Worker(
                self.broker.url, models=models, model=model, name=name, device=device, flags=[*opened, *flags]
            )
            self.worker = stack.enter_context(worker)
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

    def endpoint(self, transport: str) -> dict[str, Any]:
        """Returns the configuration keys with which a vehicle connects over a transport."""
        address = self.address(transport)
        key = {"broker": address} if transport == MQTT else {"worker_addresses": (address,)}
        return {"transport": transport, **key}

    def play(
        self,
        settings: PlaybackSettings,
        transport: str,
        folder: Path,
        *,
        window: int = 1,
        sinks: Sequence[str] = (),
        vehicle: str = "bench",
        flags: Sequence[str] = (),
    ) -> list[dict[str, str]]:
        """Plays a bag through a vehicle node in a child process; returns the rows of its log, without the warm-up.

        `window`: maximum number of unanswered frames. `flags`: further flags of `skylane edge play`.

        Raises:
            BenchError: a frame was not answered.
            VehicleError: the vehicle node failed.
        """
        address = self.address(transport)
        words = cli_flags(
            **({"broker": address} if transport == MQTT else {"transport": transport, "worker_address": address}),
            model=settings.model,
            codec=settings.codec,
            quality=settings.quality,
            window=window,
            frames=settings.frames + WARM_UP_FRAMES,
            closed_loop=True,
            loop=True,
        )
        words += flags
        words += [word for sink in sinks for word in ("--sink", sink)] or ["--no-sinks"]
        with VehicleProcess(settings.bag, folder, words, vehicle=vehicle) as process:
            process.wait(math.inf)
            process.end()
        rows = process.rows()
        failed = [row for row in rows if row["outcome"] not in WITH_RESULT]
        if failed:
            raise BenchError(f"{len(failed)} of {len(rows)} frames got no result: {failed[0]['reason']}")
        return rows[WARM_UP_FRAMES:]

    def play_twice(
        self,
        settings: PlaybackSettings,
        folder: Path,
        window: int,
        *,
        vehicle: str = "bench",
        flags: Sequence[str] = (),
    ) -> tuple[list[dict[str, str]], float]:
        """Plays over MQTT with one frame in flight, then with `window` frames.

        Returns the rows of the first run, and the frames with a result per second of the second run.

        Raises:
            SkylaneError: as `play`.
        """
        one, many = (folder.with_name(f"{folder.name}-{kind}") for kind in ("latency", "throughput"))
        rows = self.play(settings, MQTT, one, vehicle=vehicle, flags=flags)
        return rows, answered_hz(self.play(settings, MQTT, many, window=window, vehicle=vehicle, flags=flags))


def answered_hz(rows: Sequence[Mapping[str, str]]) -> float:
    """Frames with a result per second, from the first result to the last."""
    arrived_ns = sorted(int(row["t_due_ns"]) + round(float(row["total_ms"]) * 1e6) for row in rows)
    return (len(arrived_ns) - 1) * 1e9 / (arrived_ns[-1] - arrived_ns[0])
