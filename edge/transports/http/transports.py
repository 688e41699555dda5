"""The HTTP doors of a worker, as transports."""

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.credentials import worker_address
from edge.transports.http.channel import HttpAdapter, HttpChannel
from edge.transports.protocols.open_inference import OipRestAdapter
from edge.transports.protocols.tensorflow_serving import TfServingRestAdapter
from edge.transports.rpc_transport import RpcSettings, RpcTransport


def connected(dialect: HttpAdapter, settings: RpcSettings) -> RpcTransport:
    """A transport to workers that take this dialect.

    Raises:
        WorkerAddressError: an address cannot be used.
    """
    addresses = [worker_address(address) for address in settings.addresses]
    lines = {
        str(each): HttpChannel(each, dialect, settings.security, settings.vehicle, most_calls=settings.most_calls)
        for each in addresses
    }
    return RpcTransport(dialect, lines, settings)


def tensorflow_serving(config: EdgeConfig, session: str, hooks: TransportEvents) -> RpcTransport:
    """TensorFlow Serving's predict in the row format. For what is raised see `connected`, here and below."""
    return connected(TfServingRestAdapter(config.model), RpcSettings.of(config, session, hooks.fault))


def open_inference(config: EdgeConfig, session: str, hooks: TransportEvents) -> RpcTransport:
    """The Open Inference Protocol's infer with binary tensors."""
    return connected(OipRestAdapter(config.model), RpcSettings.of(config, session, hooks.fault))
