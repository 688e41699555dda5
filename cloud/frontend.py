"""The contract of a frontend, through which frames reach the worker, and the table of all frontends."""

from collections.abc import Collection

from shared.messages.model_card import ModelCard
from shared.registry import Entry


class Frontend:
    """Base class: accepts frames in one protocol. Built as `Frontend(worker, endpoint)`; a listener binds its port then.

    `worker` is a `cloud.node.CloudNode`, whose `submission` takes the frames. `endpoint` is the address to
    listen at, `HOST:PORT`, or for MQTT the connection to the broker. A subclass inherits what it does not need.
    """

    port: int | None = None  # The port of a listener.

    @property
    def is_online(self) -> bool:
        """True if frames can reach the worker through it."""
        return True

    def start(self) -> None:
        """Starts to accept frames."""

    def check_cards(self, cards: Collection[ModelCard]) -> None:
        """Raises a SkylaneError if these models cannot be announced together."""

    def add_model(self, model: str) -> None:
        """Accepts frames for a model from now on."""

    def remove_model(self, model: str) -> None:
        """Accepts no more frames for a model."""

    def announce(self) -> None:
        """Announces the models that are served now."""

    def stop(self) -> None:
        """Accepts no more frames; those accepted before still get their replies."""

    def close(self) -> None:
        """Closes all connections, after the last reply."""


FRONTENDS = {  # Import paths: a worker without a gateway needs none of its libraries.
    "mqtt": Entry("cloud.frontends.mqtt:MqttFrontend", "cloud"),
    "http": Entry("cloud.gateway.http.server:HttpServer", "gateway"),
    "grpc": Entry("cloud.gateway.grpc.server:GrpcServer", "gateway"),
}
