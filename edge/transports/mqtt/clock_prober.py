"""Clock probes over MQTT."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from edge.reliability.clock_sync import ClockProber
from edge.reliability.worker_clocks import WorkerClocks
from shared.messages import topics
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.mqtt.bus import Bus, Delivery


class MqttClockProber:
    """Publishes clock probes on the workers' probe topics and receives echoes on the vehicle's echo topic."""

    def __init__(
        self, bus: Bus, *, vehicle: str, session: str, online: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """`online`: returns name and session of each worker that serves the model."""
        self._bus = bus
        self._vehicle = vehicle
        self._prober = ClockProber(session, online=online, probe=self._publish)
        self.reconnected = self._prober.reconnected

    def run(self, clocks: WorkerClocks, stop: threading.Event) -> None:
        """Probes until stopped; the body of a thread."""
        echoes = topics.ECHOES.filter(vehicle=self._vehicle)
        self._bus.subscribe(echoes, topics.ECHOES.qos, partial(self.on_echo, clocks))
        self._prober.run(clocks, stop)
        self._bus.unsubscribe(echoes)

    def on_echo(self, clocks: WorkerClocks, delivery: Delivery) -> None:
        """Processes a message on the echo topic; runs on the network thread."""
        names = topics.ECHOES.names_in(delivery.topic)
        if names is None:
            clocks.ignore("topic")
        elif len(delivery.payload) > MAX_PROBE_BYTES:  # A queue of large echoes would fill the memory.
            clocks.ignore("unreadable")
        elif not self._prober.echoed(names["worker"], delivery.payload, delivery.received_ns):
            clocks.ignore("too_many")

    def _publish(self, worker: str, payload: bytes) -> None:
        self._bus.publish(topics.PROBES.of(worker=worker, vehicle=self._vehicle), payload, qos=topics.PROBES.qos)
