"""The baselines by name: the reproduced system, the transports of Skylane it is compared with, and the target ratio."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.baselines.child import Child
from bench.baselines.mqtt import plain_client
from bench.baselines.serving.clients import SCORES
from bench.baselines.serving.plain_serving_model import export_scores_model
from bench.harness.environment import free_port
from bench.load.gateway_deployment import GRPC_TRANSPORTS, GatewayDeployment
from bench.load.playback import PlaybackSettings
from shared.broker.broker import Broker

_MAX_SCORES_BYTES = 1 << 28  # More than twenty 32-bit scores for each of 1024×2048 pixels.

# Sends a frame by its number; returns its `total`, `inferred` and other durations in milliseconds.
Send = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TransportCodec:
    """The transport and the codec with which Skylane's vehicle sends the frames."""

    transport: str  # One of `bench.load.gateway_deployment.ALL_TRANSPORTS`.
    codec: str = "jpeg"

    def __str__(self) -> str:
        return f"{self.transport}, {self.codec}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A reproduced system."""

    title: str
    against: tuple[TransportCodec, ...]  # First those that carry the same pixels; JPEG changes them.
    target: float | None  # Skylane's overhead divided by the baseline's; None: no target.

    def verdict(self, ratio: float, by_round: Sequence[float]) -> str:
        """Whether every round meets the target; empty without a target."""
        if self.target is None:
            return ""
        met = sum(each <= self.target for each in by_round)
        if met == len(by_round) and ratio <= self.target:
            return f"≤ {self.target:g}, met"
        return f"≤ {self.target:g}, met in {met} of {len(by_round)} rounds" if met else f"≤ {self.target:g}, NOT met"


BASELINES = {
    "mqtt": Baseline("first system, MQTT", (TransportCodec("mqtt"),), 0.5),
    "grpc": Baseline(
        "first system, TensorFlow Serving's gRPC",
        (TransportCodec("grpc", "raw"), TransportCodec("tfs-grpc", "raw"), TransportCodec("grpc")),
        0.1,
    ),
    "rest": Baseline(
        "first system, TensorFlow Serving's REST",
        (TransportCodec("oip-rest", "raw"), TransportCodec("tfs-rest", "raw"), TransportCodec("tfs-rest")),
        0.1,
    ),
    SCORES: Baseline(
        "first system, TensorFlow Serving's gRPC, a model of scores",
        (TransportCodec("grpc"), TransportCodec("tfs-grpc")),
        0.1,
    ),
    "detect": Baseline("fifth system, upload after upload", (TransportCodec("oip-rest"), TransportCodec("grpc")), None),
}


class MqttBaseline:
    """The first system over MQTT: a broker with default settings, its cloud node and its vehicle."""

    def __init__(self, stack: ExitStack, settings: PlaybackSettings, folder: Path) -> None:
        """Starts all processes, which end with `stack`; `folder` receives the broker's configuration."""
        port = free_port()
        self.broker = stack.enter_context(Broker.start(config=plain_client.write_broker_config(folder, port)))
        self._cloud = stack.enter_context(
            Child("bench.baselines.mqtt.cloud_node", port=port, models=settings.models, model=settings.model)
        ).wait()
        self._vehicle = stack.enter_context(
            Child("bench.baselines.mqtt.vehicle", port=port, bag=settings.bag, count=settings.frames)
        ).wait()

    def send(self, frame: int, keep: Path | None = None) -> Mapping[str, float]:
        """Sends a frame, see `Send`; `keep`: folder for the image sent and the image returned."""
        vehicle = self._vehicle.ask(frame=frame, keep=None if keep is None else str(keep))
        cloud = self._cloud.ask()  # The cloud node keeps the times of its last frame only, which is this one.
        crossing_ms = vehicle.pop("away") - cloud["in_callback"]
        return {**cloud, **vehicle, "crossing": crossing_ms}


def serving_baseline(
    stack: ExitStack, settings: PlaybackSettings, protocol: str, deployment: GatewayDeployment, output: str = "mask"
) -> Send:
    """Starts the first system's client of TensorFlow Serving; `protocol`: rest or grpc, `output`: mask or scores."""
    flags = {
        "way": protocol,
        "address": deployment.http if protocol == "rest" else deployment.grpc,
        "models": settings.models,
        "model": settings.model,
        "output": output,
    }
    child = Child("bench.baselines.serving.vehicle", **flags, bag=settings.bag, count=settings.frames)
    vehicle = stack.enter_context(child).wait()
    return lambda frame: vehicle.ask(frame=frame)


def scores_baseline(stack: ExitStack, settings: PlaybackSettings, folder: Path) -> Send:
    """Starts the gRPC client with a worker that returns the scores of every pixel.

    Raises:
        BenchError: the model has no scores.
    """
    models = export_scores_model(settings.models, settings.model, folder / "scores-model")
    flags = ("--max-message-bytes", str(_MAX_SCORES_BYTES))
    deployment = stack.enter_context(
        GatewayDeployment(models=models, model=settings.model, transports=GRPC_TRANSPORTS, flags=flags)
    )
    return serving_baseline(stack, settings, "grpc", deployment, SCORES)


def detection_baseline(stack: ExitStack, settings: PlaybackSettings, deployment: GatewayDeployment) -> Send:
    """Starts the fifth system's sender, which uses the worker's `/api/detect`."""
    flags = {"address": deployment.http, "model": settings.model, "bag": settings.bag, "count": settings.frames}
    sender = stack.enter_context(Child("bench.baselines.detection_sender", **flags)).wait()
    return lambda frame: sender.ask(frame=frame)
