"""What a face needs of the worker behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloud.frontends.clock_responder import Echoes
from cloud.frontends.control import Control
from cloud.gateway.common.auth import Authenticator
from cloud.gateway.settings import GatewaySettings
from cloud.gateway.submission import Door
from cloud.serving.model_stats import Tally
from cloud.serving.request_errors import RequestErrors
from shared.imaging.image_codecs import ImageLimits
from shared.runtime.threads import Counts


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """A worker as its faces see it."""

    worker: str
    door: Door
    callers: Authenticator
    echoes: Echoes
    control: Control | None  # None: nobody may load or unload.
    settings: GatewaySettings
    limits: ImageLimits
    tally: Tally
    errors: RequestErrors
    refused: Callable[[], Mapping[str, int]]  # What was refused before it was a frame, by reason.
    calls: Counts = field(default_factory=Counts)  # By "PROTOCOL CODE", answered or refused.
