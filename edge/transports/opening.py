"""Opening a transport, whichever a configuration names."""

from collections.abc import Callable

from edge.config import EdgeConfig
from edge.hooks import Hooks
from edge.transports.transport import TRANSPORTS, Transport
from shared.registry import load


def open_transport(
    config: EdgeConfig, session: str, *, hooks: Hooks | None = None, say: Callable[[str], None] = lambda _: None
) -> Transport:
    """Reach for a worker, or a broker, as the vehicle of `config`; close the transport.

    `hooks` hear what goes wrong on its threads, `say` why it takes so long.

    Raises:
        SkylaneError: an address cannot be used, a library is missing, or there is no broker.
    """
    opened: Callable[..., Transport] = load("transport", TRANSPORTS, config.transport)
    return opened(config, session, hooks or Hooks(), say)
