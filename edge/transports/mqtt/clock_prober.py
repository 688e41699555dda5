"""Probes over MQTT, on topics of their own."""

import threading
from collections.abc import Callable, Iterable
from functools import partial

from edge.reliability.clock_sync import ClockProber
from edge.reliability.worker_clocks import Clocks
from shared.messages import topics
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.mqtt.bus import Bus, Delivery


class MqttClockProber:
    """Asks the workers on their probes topics, and hears their echoes on the vehicle's own."""

    def __init__(
        self, bus: Bus, *, vehicle: str, session: str, online: Callable[[], Iterable[tuple[str, str]]]
    ) -> None:
        """`online`: the workers that serve the model just now, each with its session."""
        self._bus = bus
        self._vehicle = vehicle
        self._prober = ClockProber(session, online=online, ask=self._ask)
        self.reconnected = self._prober.reconnected

    def run(self, clocks: Clocks, stop: threading.Event) -> None:
        """Probe until stopped; the body of the probing thread."""
        echoes = topics.ECHOES.filter(vehicle=self._vehicle)
        self._bus.subscribe(echoes, topics.ECHOES.qos, partial(self._returned, clocks))
        self._prober.run(clocks, stop)
        self._bus.unsubscribe(echoes)

    def _ask(self, worker: str, payload: bytes) -> None:
        self._bus.publish(topics.PROBES.of(worker=worker, vehicle=self._vehicle), payload, qos=topics.PROBES.qos)

    def _returned(self, clocks: Clocks, delivery: Delivery) -> None:
        names = topics.ECHOES.names_in(delivery.topic)
        if names is None:
            clocks.ignore("topic")
        elif len(delivery.payload) > MAX_PROBE_BYTES:  # Not to be held: a queue of such would fill the memory.
            clocks.ignore("unreadable")
        elif not self._prober.echoed(names["worker"], delivery.payload, delivery.received_ns):
            clocks.ignore("too_many")
