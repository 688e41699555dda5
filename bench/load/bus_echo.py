"""Measures the MQTT broker alone: a client that answers every frame with a few bytes, `python -m bench.load.bus_echo`.

The client ends when its standard input is closed.
"""

import queue
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import click

from bench.harness.comparison import BenchError
from shared.messages.topics import FRAMES, MASKS
from shared.mqtt.bus import Bus, Delivery
from shared.network.broker_options import BrokerOptions
from shared.runtime.processes import terminate

MODEL = "bench"
REPLY_BYTES = 6000  # Typical size of a compressed mask of class ids.
_CAMERA = "bus"
_STOP_TIMEOUT_S = 10.0
_REPLY_TIMEOUT_S = 30.0
_SUBSCRIBE_ATTEMPTS, _SUBSCRIBE_TIMEOUT_S = 10, 1.0


class EchoClient:
    """Publishes frames and waits for the echo's replies."""

    def __init__(self, bus: Bus, vehicle: str) -> None:
        self._bus = bus
        self._topic = FRAMES.of(model=MODEL, vehicle=vehicle, camera=_CAMERA)
        self._replies: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        bus.subscribe(MASKS.of(vehicle=vehicle, camera=_CAMERA), MASKS.qos, self._replies.put)
        self._wait_for_echo()

    def send(self, payload: bytes, count: int, in_flight: int) -> float:
        """Sends `count` frames, `in_flight` unanswered at a time; returns the seconds until the last reply.

        Raises:
            BenchError: a reply is missing.
        """
        begin_s = time.perf_counter()
        sent = 0
        for answered in range(count):
            while sent < min(count, answered + in_flight):
                self._bus.publish(self._topic, payload, qos=FRAMES.qos)
                sent += 1
            self._receive(_REPLY_TIMEOUT_S)
        return time.perf_counter() - begin_s

    def _wait_for_echo(self) -> None:
        """Waits until the echo's subscription is in force."""
        for _ in range(_SUBSCRIBE_ATTEMPTS):
            self._bus.publish(self._topic, b"", qos=FRAMES.qos)
            try:
                self._receive(_SUBSCRIBE_TIMEOUT_S)
            except BenchError:
                continue
            return
        raise BenchError(f"the echo did not reply within {_SUBSCRIBE_ATTEMPTS * _SUBSCRIBE_TIMEOUT_S:g} s")

    def _receive(self, timeout_s: float) -> None:
        try:
            self._replies.get(timeout=timeout_s)
        except queue.Empty:
            raise BenchError(f"the echo did not reply to a frame within {timeout_s:g} s") from None


@contextmanager
def open_echo(
    broker: str, *, certs: Path | None = None, vehicle: str = "vehicle", name: str = "worker"
) -> Iterator[EchoClient]:
    """Starts an echo in a child process and yields a client of it.

    `certs`: folder with the certificates of both, `<vehicle>.crt` and `<name>.crt`, for a broker that requires them.
    """
    with (
        _echo_process(broker, certs, name),
        BrokerOptions(broker, certs=certs).open(f"bench-{uuid.uuid4().hex[:12]}", None, name=vehicle) as bus,
    ):
        yield EchoClient(bus, vehicle)


@contextmanager
def _echo_process(broker: str, certs: Path | None, name: str) -> Iterator[None]:
    flags = [] if certs is None else ["--certs", str(certs)]
    with Popen(
        [sys.executable, "-P", "-m", "bench.load.bus_echo", "--broker", broker, "--name", name, *flags],
        stdin=PIPE,
        stdout=PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdout.readline()  # The echo is connected.
            yield
        finally:
            process.stdin.close()
            terminate(process, _STOP_TIMEOUT_S)


@click.command()
@click.option("--broker", required=True)
@click.option("--certs", type=click.Path(path_type=Path))
@click.option("--name", required=True)
def main(broker: str, certs: Path | None, name: str) -> None:
    """Answer frames until the standard input is closed."""
    reply = bytes(REPLY_BYTES)
    with BrokerOptions(broker, certs=certs).open(f"bench-echo-{uuid.uuid4().hex[:12]}", None, name=name) as bus:

        def echo(delivery: Delivery) -> None:
            names = FRAMES.names_in(delivery.topic)
            assert names is not None
            bus.publish(MASKS.of(vehicle=names["vehicle"], camera=names["camera"]), reply, qos=MASKS.qos)

        bus.subscribe(FRAMES.filter(model=MODEL), FRAMES.qos, echo)
        click.echo("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main()
