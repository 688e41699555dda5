"""The HTTP doors of a worker, as transports."""

from edge.bus_events import Hooks
from edge.config import EdgeConfig
from edge.transports.credentials import worker_address
from edge.transports.http.channel import HttpDialect, HttpLine
from edge.transports.protocols.open_inference import RestInfer
from edge.transports.protocols.tensorflow_serving import RestPredict
from edge.transports.rpc_transport import DirectSettings, DirectTransport


def connected(dialect: HttpDialect, settings: DirectSettings) -> DirectTransport:
    """A transport to workers that take this dialect.

    Raises:
        WorkerAddressError: an address cannot be used.
    """
    addresses = [worker_address(address) for address in settings.addresses]
    lines = {
        str(each): HttpLine(each, dialect, settings.security, settings.vehicle, most_calls=settings.most_calls)
        for each in addresses
    }
    return DirectTransport(dialect, lines, settings)


def tensorflow_serving(config: EdgeConfig, session: str, hooks: Hooks) -> DirectTransport:
    """TensorFlow Serving's predict in the row format. For what is raised see `connected`, here and below."""
    return connected(RestPredict(config.model), DirectSettings.of(config, session, hooks.fault))


def open_inference(config: EdgeConfig, session: str, hooks: Hooks) -> DirectTransport:
    """The Open Inference Protocol's infer with binary tensors."""
    return connected(RestInfer(config.model), DirectSettings.of(config, session, hooks.fault))
