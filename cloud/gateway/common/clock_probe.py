"""The echo of a probe that came over REST or gRPC."""

from cloud.frontends.clock_responder import ProbeRefusal
from cloud.gateway.common.errors import Kind, RefusedError
from cloud.gateway.context import WorkerContext
from shared.encoding.compression import Buffer
from shared.messages.clock_probes import MAX_PROBE_BYTES


def echo(parts: WorkerContext, vehicle: str, probe: Buffer, received_ns: int) -> bytes:
    """The packed echo of a vehicle's packed probe.

    Raises:
        RefusedError: it gets none.
    """
    if len(probe) > MAX_PROBE_BYTES:
        raise RefusedError(Kind.TOO_LARGE, f"a probe of {len(probe)} bytes: at most {MAX_PROBE_BYTES} are read")
    packed = parts.echoes.echo(vehicle, bytes(probe), received_ns)
    if packed is ProbeRefusal.TOO_OFTEN:
        raise RefusedError(Kind.BUSY, "too many probes: send two a second")
    if isinstance(packed, ProbeRefusal):
        raise RefusedError(Kind.INVALID, "the probe cannot be read")
    return packed
