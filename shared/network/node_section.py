"""The configuration keys that a vehicle and a worker share."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from shared.config import OneOf, Section
from shared.logs import LEVELS, LogFormat
from shared.mqtt.settings import CONNECT_TIMEOUT_S
from shared.network.broker_options import DEFAULT_BROKER, BrokerOptions

DAY_S = 86_400.0


class NodeSection(Section):
    """Keys of a node: its connection to the broker, its health file and its log lines."""

    broker: str = DEFAULT_BROKER
    connect_timeout_s: float = Field(default=CONNECT_TIMEOUT_S, gt=0, le=DAY_S)
    certs: Path | None = None
    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    qos: int = Field(default=1, ge=0, le=1)
    health_file: Path | None = None  # Touched while the node is online.
    log_level: Annotated[str, OneOf("log level", LEVELS)] | None = None  # None: the default of `shared.logs`.
    log_format: LogFormat | None = None  # None: the default of `shared.logs`.

    @property
    def connection(self) -> BrokerOptions:
        """The settings of the connection to the broker."""
        return BrokerOptions(**self.model_dump(include=set(BrokerOptions.__dataclass_fields__)))
