"""Opens the transport of a configuration."""

from edge.config import EdgeConfig
from edge.transports.channel import RpcChannel, WorkerCredentials
from edge.transports.rpc_transport import RpcTransport
from edge.transports.transport import TRANSPORTS, Transport, TransportEvents
from shared.network.endpoint import Endpoint
from shared.registry import Entry, load

_CHANNELS = {
    "grpc": Entry("edge.transports.grpc_channel:GrpcChannel", "transports"),
    "http": Entry("edge.transports.http_channel:HttpChannel", "transports"),
}


def open_transport(config: EdgeConfig, session: str, *, events: TransportEvents | None = None) -> Transport:
    """Connects to the broker or to the workers of a configuration; close the transport after use.

    Raises:
        SkylaneError: an address cannot be used, a library is missing, or the broker cannot be reached.
    """
    endpoint, events = TRANSPORTS[config.transport].endpoint, events or TransportEvents()
    plug_in = load("transport", TRANSPORTS, config.transport)
    if endpoint == "broker":
        transport: Transport = plug_in(config, session, events)
        return transport
    adapter = plug_in(config.model) if endpoint == "http" else plug_in()
    channel = load("channel", _CHANNELS, endpoint)
    credentials = WorkerCredentials.read(config.worker_tls_ca)
    channels: dict[str, RpcChannel] = {
        str(address): channel(address, adapter, credentials, config.vehicle, window=config.window)
        for address in map(Endpoint.parse, config.worker_addresses)
    }
    return RpcTransport(adapter, channels, config, session, events.fault)
