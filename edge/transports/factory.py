"""Factories of the transports that call workers directly; the table TRANSPORTS names them."""

from collections.abc import Callable

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.channel import ProtocolAdapter, RpcChannel
from edge.transports.credentials import worker_address
from edge.transports.grpc.channel import GrpcAdapter, GrpcChannel
from edge.transports.http.channel import HttpAdapter, HttpChannel
from edge.transports.protocols.open_inference import OipGrpcAdapter, OipRestAdapter
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.protocols.tensorflow_serving import TfServingGrpcAdapter, TfServingRestAdapter
from edge.transports.rpc_transport import RpcSettings, RpcTransport
from shared.network.endpoint import Endpoint

# Each factory raises WorkerAddressError if an address, the certificate authority or the token cannot be used.


def skylane_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over Skylane's own gRPC service."""
    return _grpc(SkylaneAdapter(), RpcSettings.of(config, session, events.fault))


def tensorflow_serving_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over TensorFlow Serving's gRPC PredictionService."""
    return _grpc(TfServingGrpcAdapter(), RpcSettings.of(config, session, events.fault))


def open_inference_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over the gRPC service of the Open Inference Protocol."""
    return _grpc(OipGrpcAdapter(), RpcSettings.of(config, session, events.fault))


def tensorflow_serving_rest(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over TensorFlow Serving's REST predict call, in the row format."""
    return _http(TfServingRestAdapter(config.model), RpcSettings.of(config, session, events.fault))


def open_inference_rest(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over the REST infer call of the Open Inference Protocol, with binary tensors."""
    return _http(OipRestAdapter(config.model), RpcSettings.of(config, session, events.fault))


def _grpc(adapter: GrpcAdapter, settings: RpcSettings) -> RpcTransport:
    return _connect(adapter, settings, lambda each: GrpcChannel(each, adapter, settings.credentials, settings.vehicle))


def _http(adapter: HttpAdapter, settings: RpcSettings) -> RpcTransport:
    def connect(address: Endpoint) -> HttpChannel:
        return HttpChannel(address, adapter, settings.credentials, settings.vehicle, max_calls=settings.max_calls)

    return _connect(adapter, settings, connect)


def _connect(
    adapter: ProtocolAdapter, settings: RpcSettings, connect: Callable[[Endpoint], RpcChannel]
) -> RpcTransport:
    addresses = [worker_address(address) for address in settings.addresses]
    return RpcTransport(adapter, {str(address): connect(address) for address in addresses}, settings)
