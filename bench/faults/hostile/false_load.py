"""A worker whose reported load is false: a proxy rule that rewrites everything that it publishes."""

from collections.abc import Sequence

from msgspec.structs import replace

from bench.faults.rig.mqtt_proxy import Packet
from shared.messages.frame import pack_result, unpack_result
from shared.messages.load import LoadReport, WorkerLoad, pack_load, unpack_load
from shared.messages.topics import LOADS, MASKS


class FalseLoad:
    """Replaces the load in the load reports and replies of a worker by the same claim."""

    def __init__(self, claim: WorkerLoad) -> None:
        self._claim = claim
        self.replaced = 0  # Number of false loads that were sent.

    def __call__(self, packet: Packet) -> Sequence[Packet]:
        """Returns the packet to forward."""
        if LOADS.names_in(packet.topic) and packet.payload:
            report = unpack_load(packet.payload)
            false = pack_load(LoadReport(report.session, dict.fromkeys(report.models, self._claim)))
        elif MASKS.names_in(packet.topic):
            false = pack_result(replace(unpack_result(packet.payload), load=self._claim))
        else:
            return (packet,)
        self.replaced += 1
        return (packet.with_payload(false),)
