"""Opens the transport of a configuration."""

from collections.abc import Callable

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.table import TRANSPORTS
from edge.transports.transport import Transport
from shared.registry import load


def open_transport(config: EdgeConfig, session: str, *, events: TransportEvents | None = None) -> Transport:
    """Connects to the broker or to the workers of a configuration; close the transport after use.

    Raises:
        SkylaneError: an address cannot be used, a library is missing, or there is no broker.
    """
    factory: Callable[..., Transport] = load("transport", TRANSPORTS, config.transport)
    return factory(config, session, events or TransportEvents())
