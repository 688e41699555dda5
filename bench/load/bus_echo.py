"""A client that answers every frame with a few bytes, so that the bus alone is measured: `python -m bench.load.bus_echo`.

It ends when its standard input does.
"""

import queue
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Self

import click

from bench.load.playback import BenchError
from shared.messages.topics import FRAMES, MASKS
from shared.mqtt.bus import Bus, Delivery
from shared.network.broker_options import Connection
from shared.runtime.processes import end

MODEL = "bench"
ANSWER_BYTES = 6000  # As a mask of classes takes, packed.
_CAMERA = "bus"
_STOP_S = 10.0
_TRIES, _TRY_S, _ANSWER_S = 10, 1.0, 30.0


class BusEcho(AbstractContextManager["BusEcho"]):
    """The client in a process of its own; connected when the constructor returns."""

    def __init__(self, broker: str, certs: Path | None, name: str) -> None:
        """`certs`: the folder with its certificate, `<name>.crt`, where the broker asks for one."""
        flags = [] if certs is None else ["--certs", str(certs)]
        self._process = Popen(
            [sys.executable, "-P", "-m", "bench.load.bus_echo", "--broker", broker, "--name", name, *flags],
            stdin=PIPE,
            stdout=PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        end(self._process, _STOP_S)


class Wire:
    """The vehicle's end of the bus: frames out, and the echo's answers."""

    def __init__(self, bus: Bus, vehicle: str) -> None:
        self._bus = bus
        self._topic = FRAMES.of(model=MODEL, vehicle=vehicle, camera=_CAMERA)
        self._answers: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        bus.subscribe(MASKS.of(vehicle=vehicle, camera=_CAMERA), MASKS.qos, self._answers.put)
        self._settle()

    def send(self, payload: bytes, count: int, in_flight: int) -> float:
        """Send `count` frames, so many unanswered at a time; seconds until the last is answered.

        Raises:
            BenchError: one was not.
        """
        begun_s = time.perf_counter()
        sent = 0
        for answered in range(count):
            while sent < min(count, answered + in_flight):
                self._bus.publish(self._topic, payload, qos=FRAMES.qos)
                sent += 1
            self._next(_ANSWER_S)
        return time.perf_counter() - begun_s

    def _settle(self) -> None:
        """The echo's subscription may not be in force yet."""
        for _ in range(_TRIES):
            self._bus.publish(self._topic, b"", qos=FRAMES.qos)
            try:
                self._next(_TRY_S)
            except BenchError:
                continue
            return
        raise BenchError(f"nothing came back over the bus in {_TRIES * _TRY_S:g} s")

    def _next(self, timeout_s: float) -> None:
        try:
            self._answers.get(timeout=timeout_s)
        except queue.Empty:
            raise BenchError(f"a frame of the bus alone was not answered within {timeout_s:g} s") from None


@contextmanager
def wire(broker: str, *, certs: Path | None = None, vehicle: str = "vehicle", name: str = "worker") -> Iterator[Wire]:
    """An echo behind a broker, and the vehicle's end; each shows its own certificate of `certs`, where there are any."""
    with (
        BusEcho(broker, certs, name),
        Connection(broker, certs=certs).open(f"bench-{uuid.uuid4().hex[:12]}", None, name=vehicle) as bus,
    ):
        yield Wire(bus, vehicle)


@click.command()
@click.option("--broker", required=True)
@click.option("--certs", type=click.Path(path_type=Path))
@click.option("--name", required=True)
def main(broker: str, certs: Path | None, name: str) -> None:
    """Answer frames until the standard input ends."""
    answer = bytes(ANSWER_BYTES)
    with Connection(broker, certs=certs).open(f"bench-echo-{uuid.uuid4().hex[:12]}", None, name=name) as bus:

        def echo(delivery: Delivery) -> None:
            names = FRAMES.names_in(delivery.topic)
            assert names is not None
            bus.publish(MASKS.of(vehicle=names["vehicle"], camera=names["camera"]), answer, qos=MASKS.qos)

        bus.subscribe(FRAMES.filter(model=MODEL), FRAMES.qos, echo)
        click.echo("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main()
