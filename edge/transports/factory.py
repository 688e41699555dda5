"""Factories of the transports that call workers directly; the table TRANSPORTS names them.

Each raises WorkerAddressError if an address, the certificate authority or the token cannot be used.
"""

from edge.config import EdgeConfig
from edge.transport_events import TransportEvents
from edge.transports.credentials import WorkerCredentials, worker_address
from edge.transports.grpc.channel import GrpcAdapter, GrpcChannel
from edge.transports.http.channel import HttpAdapter, HttpChannel
from edge.transports.protocols.open_inference import OipGrpcAdapter, OipRestAdapter
from edge.transports.protocols.skylane import SkylaneAdapter
from edge.transports.protocols.tensorflow_serving import TfServingGrpcAdapter, TfServingRestAdapter
from edge.transports.rpc_transport import RpcTransport


def skylane_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over Skylane's own gRPC service."""
    return _grpc(SkylaneAdapter(), config, session, events)


def tensorflow_serving_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over TensorFlow Serving's gRPC PredictionService."""
    return _grpc(TfServingGrpcAdapter(), config, session, events)


def open_inference_grpc(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over the gRPC service of the Open Inference Protocol."""
    return _grpc(OipGrpcAdapter(), config, session, events)


def tensorflow_serving_rest(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over TensorFlow Serving's REST predict call, in the row format."""
    return _http(TfServingRestAdapter(config.model), config, session, events)


def open_inference_rest(config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    """Opens a transport over the REST infer call of the Open Inference Protocol, with binary tensors."""
    return _http(OipRestAdapter(config.model), config, session, events)


def _grpc(adapter: GrpcAdapter, config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    credentials = WorkerCredentials.read(config.worker_tls_ca)
    addresses = [worker_address(address) for address in config.worker_addresses]
    channels = {str(each): GrpcChannel(each, adapter, credentials, config.vehicle) for each in addresses}
    return RpcTransport(adapter, channels, config, session, events.fault)


def _http(adapter: HttpAdapter, config: EdgeConfig, session: str, events: TransportEvents) -> RpcTransport:
    credentials = WorkerCredentials.read(config.worker_tls_ca)
    addresses = [worker_address(address) for address in config.worker_addresses]
    max_calls = 2 * config.window  # A retry runs at the same time as its first attempt.
    channels = {
        str(each): HttpChannel(each, adapter, credentials, config.vehicle, max_calls=max_calls) for each in addresses
    }
    return RpcTransport(adapter, channels, config, session, events.fault)
