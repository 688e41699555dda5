"""What a face needs of the worker behind it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cloud.control import Control
from cloud.echoes import Echoes
from cloud.gateway.callers import Callers
from cloud.gateway.door import Door
from cloud.gateway.settings import GatewaySettings
from cloud.request_errors import RequestErrors
from cloud.tally import Tally
from shared.images import PictureLimits
from shared.threads import Counts


@dataclass(frozen=True, slots=True)
class WorkerParts:
    """A worker as its faces see it."""

    worker: str
    door: Door
    callers: Callers
    echoes: Echoes
    control: Control | None  # None: nobody may load or unload.
    settings: GatewaySettings
    limits: PictureLimits
    tally: Tally
    errors: RequestErrors
    refused: Callable[[], Mapping[str, int]]  # What was refused before it was a frame, by reason.
    calls: Counts = field(default_factory=Counts)  # By "PROTOCOL CODE", answered or refused.
