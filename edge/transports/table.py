"""The table of transports."""

from typing import Literal, NamedTuple


class TransportEntry(NamedTuple):
    """A row of the table.

    `path` is "module:attribute": with a broker, a function (EdgeConfig, session, TransportEvents) -> Transport; with an
    endpoint of workers, a ProtocolAdapter of gRPC, or one of HTTP that is built with the name of the model.
    """

    path: str
    extra: str  # The pip extra that installs its dependencies.
    endpoint: Literal["broker", "grpc", "http"]  # What it connects to; the last two are endpoints of workers.

    @property
    def needs_addresses(self) -> bool:
        """Whether the addresses of the workers must be configured: a broker finds them itself."""
        return self.endpoint != "broker"


TRANSPORTS = {
    "mqtt": TransportEntry("edge.transports.mqtt.transport:open_mqtt", "edge", "broker"),
    "grpc": TransportEntry("edge.transports.protocols.skylane:SkylaneAdapter", "transports", "grpc"),
    "tfs-grpc": TransportEntry(
        "edge.transports.protocols.tensorflow_serving:TfServingGrpcAdapter", "transports", "grpc"
    ),
    "oip-grpc": TransportEntry("edge.transports.protocols.open_inference:OipGrpcAdapter", "transports", "grpc"),
    "oip-rest": TransportEntry("edge.transports.protocols.open_inference:OipRestAdapter", "transports", "http"),
    "tfs-rest": TransportEntry(
        "edge.transports.protocols.tensorflow_serving:TfServingRestAdapter", "transports", "http"
    ),
}


MQTT = "mqtt"  # The transport through a broker; the others connect to workers.
