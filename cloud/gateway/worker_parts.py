"""What a face needs of the worker behind it."""

from dataclasses import dataclass

from cloud.control import Control
from cloud.echoes import Echoes
from cloud.gateway.callers import Callers
from cloud.gateway.door import Door
from cloud.gateway.settings import GatewaySettings
from shared.images import PictureLimits


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
