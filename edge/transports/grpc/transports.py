"""The gRPC doors of a worker, as transports."""

from edge.bus_events import Hooks
from edge.config import EdgeConfig
from edge.transports.credentials import worker_address
from edge.transports.grpc.channel import GrpcDialect, GrpcLine
from edge.transports.protocols.open_inference import GrpcInfer
from edge.transports.protocols.skylane import Native
from edge.transports.protocols.tensorflow_serving import GrpcPredict
from edge.transports.rpc_transport import DirectSettings, DirectTransport


def connected(dialect: GrpcDialect, settings: DirectSettings) -> DirectTransport:
    """A transport to workers that take this dialect.

    Raises:
        WorkerAddressError: an address cannot be used.
    """
    addresses = [worker_address(address) for address in settings.addresses]
    lines = {str(each): GrpcLine(each, dialect, settings.security, settings.vehicle) for each in addresses}
    return DirectTransport(dialect, lines, settings)


def native(config: EdgeConfig, session: str, hooks: Hooks) -> DirectTransport:
    """Skylane's own service. For what is raised see `connected`, here and below."""
    return connected(Native(), DirectSettings.of(config, session, hooks.fault))


def tensorflow_serving(config: EdgeConfig, session: str, hooks: Hooks) -> DirectTransport:
    """TensorFlow Serving's PredictionService."""
    return connected(GrpcPredict(), DirectSettings.of(config, session, hooks.fault))


def open_inference(config: EdgeConfig, session: str, hooks: Hooks) -> DirectTransport:
    """The Open Inference Protocol's service."""
    return connected(GrpcInfer(), DirectSettings.of(config, session, hooks.fault))
