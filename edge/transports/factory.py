"""Opening a transport, whichever a configuration names."""

from collections.abc import Callable

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.transport import TRANSPORTS, Transport
from shared.registry import load


def open_transport(config: EdgeConfig, session: str, *, hooks: TransportEvents | None = None) -> Transport:
    """Connects to a worker, or to a broker, as the vehicle of `config`; close the transport.

    `hooks` are called with what goes wrong on its threads.

    Raises:
        SkylaneError: an address cannot be used, a library is missing, or there is no broker.
    """
    opened: Callable[..., Transport] = load("transport", TRANSPORTS, config.transport)
    return opened(config, session, hooks or TransportEvents())
