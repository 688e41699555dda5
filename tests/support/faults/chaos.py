"""Random faults for the soak test, one after the other."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from ops.processes.null_worker import NullWorkerSettings, null_model
from shared.messages.topics import FrameId
from shared.mqtt.paho_bus import MqttBus
from shared.network.address import Address
from shared.network.link_spec import LinkSpec
from tests.support.faults.hostile.messages import answers_to, for_vehicle, for_worker
from tests.support.faults.rig import HEIGHT, MODEL, WIDTH, freeze, resume
from tests.support.faults.site import Site

_AWAY_S = (0.0, 3.0)  # Time in seconds until a killed node is started again.
_FROZEN_S = (
    1.0,
    12.0,
)  # Time in seconds for which a node is frozen or a link is bad. Connections survive 1.5 keepalives.
_DARK_S = (2.0, 20.0)
_JUNK = 100  # Number of broken messages to the worker, and to the vehicle.
_SLOW = LinkSpec(delay_ms=100, jitter_ms=30, bandwidth_mbps=0.5)
_FLAPPING = LinkSpec(reset_after_s=1.0)
_LOSSY = LinkSpec(delay_ms=40, loss_percent=5)
_DARK = LinkSpec(half_open_after_s=0.0)


@dataclass(frozen=True, slots=True)
class Deed:
    """A fault that was caused."""

    at_s: float  # Time since the first fault.
    fault: str
    to: str
    seconds: float  # Duration, until a killed node was started again.


class Chaos:
    """Selects random faults and causes them; the random numbers come from `site.rig.chance`.

    The first worker, the first vehicle and, outside of `may_kill_broker`, the broker are never ended, so that their
    memory can be observed for the whole time.
    """

    def __init__(self, site: Site) -> None:
        self.deeds: list[Deed] = []
        self._site = site
        self._chance = site.rig.chance
        self._began_s = time.monotonic()

    def strike(self, *, most_s: float, may_kill_broker: bool) -> None:
        """Causes one fault of at most `most_s` seconds and waits until it is over.

        Raises:
            SkylaneError: a node did not come back.
        """
        draw = self._chance.choices(list(FAULTS), [fault.weight for fault in FAULTS.values()])[0]
        name = "freeze broker" if draw == "kill broker" and not may_kill_broker else draw
        fault = FAULTS[name]
        to = self._chance.choice(_TARGETS[fault.among](self._site))
        seconds = min(most_s, self._chance.uniform(*fault.between_s))
        self._site.rig.say(f"{name}: {to}")
        began_s = time.monotonic()
        fault.do(self._site, to, seconds)
        self.deeds.append(Deed(began_s - self._began_s, name, to, time.monotonic() - began_s))


@dataclass(frozen=True, slots=True)
class Fault:
    """A kind of fault: how to cause it, its possible targets, and the range of its duration."""

    do: Callable[[Site, str, float], None]
    among: str  # A key of `_TARGETS`.
    between_s: tuple[float, float]
    weight: int = 1


def _freeze(site: Site, pid: int, seconds: float) -> None:
    freeze(pid)
    try:
        site.wait(seconds)
    finally:
        resume(pid)


def _spoil(spec: LinkSpec) -> Callable[[Site, str, float], None]:
    def spoil(site: Site, vehicle: str, seconds: float) -> None:
        link = site.links[vehicle]
        link.set(spec)
        try:
            site.wait(seconds)
        finally:
            link.set(LinkSpec())

    return spoil


def _junk(site: Site, vehicle: str, _: float) -> None:
    """Sends damaged messages to a worker and to a vehicle, from a client that the broker accepts."""
    chance = site.rig.chance
    worker = chance.choice(site.worker_names)
    size = {"height": HEIGHT, "width": WIDTH}
    answers = answers_to(
        FrameId(vehicle, "left", "s1", 7), (), null_model(NullWorkerSettings(height=HEIGHT, width=WIDTH)).card
    )
    streams = (
        for_worker(chance.getrandbits(32), worker=worker, model=MODEL, vehicle="stranger", **size),
        for_vehicle(chance.getrandbits(32), vehicle=vehicle, worker=worker, answers=answers),
    )
    with MqttBus(Address.parse(site.broker.url), "stranger") as bus:
        for stream in streams:
            for message in islice(stream, _JUNK):
                bus.publish(message.topic, message.payload, qos=0, properties=message.properties)
        site.wait(1.0)


_TARGETS: dict[str, Callable[[Site], Sequence[str]]] = {
    "broker": lambda _: ("broker",),
    "worker": lambda site: site.worker_names,
    "vehicle": lambda site: site.vehicle_names,
    "mortal worker": lambda site: site.worker_names[1:],  # The first one is never ended.
    "mortal vehicle": lambda site: site.vehicle_names[1:],
}
FAULTS = {
    "kill worker": Fault(Site.kill_worker, "mortal worker", _AWAY_S, 3),
    "freeze worker": Fault(lambda site, to, s: _freeze(site, site.workers[to].pid, s), "worker", _FROZEN_S, 2),
    "drain worker": Fault(Site.drain_worker, "mortal worker", _AWAY_S, 2),
    "kill broker": Fault(lambda site, _, s: site.kill_broker(s), "broker", _AWAY_S, 2),
    "freeze broker": Fault(lambda site, _, s: _freeze(site, site.broker.pid, s), "broker", _FROZEN_S),
    "kill vehicle": Fault(Site.kill_vehicle, "mortal vehicle", _AWAY_S, 3),
    "freeze vehicle": Fault(lambda site, to, s: _freeze(site, site.vehicles[to].pid, s), "vehicle", _FROZEN_S),
    "dark link": Fault(_spoil(_DARK), "vehicle", _DARK_S, 2),
    "slow link": Fault(_spoil(_SLOW), "vehicle", _FROZEN_S),
    "flapping link": Fault(_spoil(_FLAPPING), "vehicle", _FROZEN_S),
    "lossy link": Fault(_spoil(_LOSSY), "vehicle", _FROZEN_S),
    "junk": Fault(_junk, "vehicle", (1.0, 1.0), 2),
}
