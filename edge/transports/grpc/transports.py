"""The gRPC doors of a worker, as transports."""

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.credentials import worker_address
from edge.transports.grpc.channel import GrpcAdapter, GrpcChannel
from edge.transports.protocols.open_inference import OipGrpcAdapter
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.protocols.tensorflow_serving import TfServingGrpcAdapter
from edge.transports.rpc_transport import RpcSettings, RpcTransport


def connected(dialect: GrpcAdapter, settings: RpcSettings) -> RpcTransport:
    """A transport to workers that take this dialect.

    Raises:
        WorkerAddressError: an address cannot be used.
    """
    addresses = [worker_address(address) for address in settings.addresses]
    lines = {str(each): GrpcChannel(each, dialect, settings.security, settings.vehicle) for each in addresses}
    return RpcTransport(dialect, lines, settings)


def native(config: EdgeConfig, session: str, hooks: TransportEvents) -> RpcTransport:
    """Skylane's own service. For what is raised see `connected`, here and below."""
    return connected(SkylaneAdapter(), RpcSettings.of(config, session, hooks.fault))


def tensorflow_serving(config: EdgeConfig, session: str, hooks: TransportEvents) -> RpcTransport:
    """TensorFlow Serving's PredictionService."""
    return connected(TfServingGrpcAdapter(), RpcSettings.of(config, session, hooks.fault))


def open_inference(config: EdgeConfig, session: str, hooks: TransportEvents) -> RpcTransport:
    """The Open Inference Protocol's service."""
    return connected(OipGrpcAdapter(), RpcSettings.of(config, session, hooks.fault))
