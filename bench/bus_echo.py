"""Measures the MQTT broker alone, with a client in a child process that answers every frame with a few bytes."""

import queue
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ops.processes.child import BenchError, Child, reply, settings
from shared.messages.topics import FRAMES, MASKS
from shared.mqtt.broker_options import BrokerOptions
from shared.mqtt.bus import Bus, Delivery

MODEL = "bench"
REPLY_BYTES = 6000  # Typical size of a compressed mask of class ids.
_CAMERA = "bus"
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
    with Child(__name__, {"broker": broker, "certs": certs, "name": name}) as echo:
        echo.wait()
        with BrokerOptions(broker, certs=certs).open(f"bench-{uuid.uuid4().hex[:12]}", None, name=vehicle) as bus:
            yield EchoClient(bus, vehicle)


def main(*, broker: str, certs: str | None, name: str) -> None:
    """Answers frames until the standard input is closed."""
    mask = bytes(REPLY_BYTES)
    options = BrokerOptions(broker, certs=None if certs is None else Path(certs))
    with options.open(f"bench-echo-{uuid.uuid4().hex[:12]}", None, name=name) as bus:

        def echo(delivery: Delivery) -> None:
            names = FRAMES.names_in(delivery.topic)
            assert names is not None
            bus.publish(MASKS.of(vehicle=names["vehicle"], camera=names["camera"]), mask, qos=MASKS.qos)

        bus.subscribe(FRAMES.filter(model=MODEL), FRAMES.qos, echo)
        reply("ready")
        sys.stdin.read()


if __name__ == "__main__":
    main(**settings())
