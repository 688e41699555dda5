"""The worker, as its frontends use it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloud.config import CloudConfig
from cloud.frontends.clock_responder import ClockResponder, ProbeRefusal
from cloud.frontends.control import Control
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.common.errors import ApiError, ErrorCode, InvalidError
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import GatewayFrontend
from cloud.request_errors import RequestErrors
from cloud.serving.load_meter import LoadMeter
from cloud.serving.model_stats import ServingStats
from cloud.serving.replies import Replier
from cloud.serving.served_models import ServedModels
from cloud.serving.submission import InFlight
from shared.encoding.compression import Buffer
from shared.errors import SkylaneError
from shared.imaging.image_codecs import ImageLimits
from shared.messages.clock_probes import MAX_PROBE_BYTES
from shared.runtime.threads import Counts, ThreadGroup


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """The parts of a worker that its frontends need."""

    config: CloudConfig
    session: str
    submission: GatewayFrontend
    in_flight: InFlight
    load_meter: LoadMeter
    replier: Replier
    served_models: ServedModels
    threads: ThreadGroup  # Threads that the node waits for; their faults end it.
    drain_s: float  # The longest wait for a thread when the worker stops.
    end: Callable[[SkylaneError], None]  # Drains and ends the node for this reason.
    authenticator: Authenticator
    clock_responder: ClockResponder
    control: Control | None  # None: models cannot be loaded or unloaded.
    settings: GatewaySettings
    image_limits: ImageLimits
    model_stats: ServingStats
    request_errors: RequestErrors
    ignored_messages: Callable[[], Mapping[str, int]]  # Number of messages that were ignored, by reason.
    call_counts: Counts = field(default_factory=Counts)  # Number of calls by "PROTOCOL CODE", failed ones included.

    @property
    def name(self) -> str:
        """The worker's name."""
        assert self.config.worker is not None
        return self.config.worker

    def answer_probe(self, vehicle: str, probe: Buffer, received_ns: int) -> bytes:
        """Answers a packed clock probe of a vehicle with a packed echo.

        Raises:
            ApiError: the probe is too large, malformed, or one of too many.
        """
        if len(probe) > MAX_PROBE_BYTES:
            raise ApiError(ErrorCode.TOO_LARGE, f"a probe of {len(probe)} bytes: send at most {MAX_PROBE_BYTES}")
        echo = self.clock_responder.echo(vehicle, bytes(probe), received_ns)
        if echo is ProbeRefusal.TOO_OFTEN:
            raise ApiError(ErrorCode.BUSY, "too many probes: send at most two per second")
        if isinstance(echo, ProbeRefusal):
            raise InvalidError("the probe is malformed: send a packed Probe message")
        return echo
