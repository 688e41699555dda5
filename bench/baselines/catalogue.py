"""The baselines by name: the reproduced system, the transports of Skylane it is compared with, and the target ratio."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.baselines.mqtt import plain_client
from bench.baselines.serving.clients import SCORES
from bench.harness.output import rounds_text
from ops.broker.broker import Broker
from ops.processes.child import BenchError, Child
from ops.processes.environment import BenchRun, free_port
from ops.processes.gateway_deployment import GRPC_TRANSPORTS, GatewayDeployment
from ops.processes.playback import PlaybackSettings
from shared.models.manifest import MANIFEST_NAME, OutputKind, OutputSection
from shared.models.repository import Repository

_MAX_SCORES_BYTES = 1 << 28  # More than twenty 32-bit scores for each of 1024×2048 pixels.

# Sends a frame by its number; returns its `total`, `inferred` and other durations in milliseconds.
Send = Callable[[int], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TransportCodec:
    """The transport and the codec with which Skylane's vehicle sends the frames."""

    transport: str  # One of `edge.transports.transport.TRANSPORTS`.
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
        """The verdict on the target; empty without one."""
        if self.target is None:
            return ""
        return f"≤ {self.target:g}, {rounds_text(ratio <= self.target, self.target, by_round)}"


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

    def __init__(self, run: BenchRun, settings: PlaybackSettings) -> None:
        """Starts all processes, which end with `run`."""
        port = free_port()
        self.broker = run.enter_context(Broker.start(config=plain_client.write_broker_config(run.folder, port)))
        node = {"port": port, "models": settings.models, "model": settings.model}
        self._cloud = _start(run, "mqtt.cloud_node", **node)
        self._vehicle = _start(run, "mqtt.vehicle", port=port, bag=settings.bag, count=settings.frames)

    def send(self, frame: int, keep: Path | None = None) -> Mapping[str, float]:
        """Sends a frame, see `Send`; `keep`: folder for the image sent and the image returned."""
        vehicle = self._vehicle.ask({"frame": frame, "keep": None if keep is None else str(keep)})
        cloud = self._cloud.ask(None)  # The cloud node keeps the times of its last frame only, which is this one.
        crossing_ms = vehicle.pop("away") - cloud["in_callback"]
        return {**cloud, **vehicle, "crossing": crossing_ms}


def open_sender(run: BenchRun, name: str, settings: PlaybackSettings, deployment: GatewayDeployment) -> Send:
    """Starts a baseline other than `mqtt`; its processes end with `run`.

    Raises:
        BenchError: the baseline is `scores`, and the model has no scores.
    """
    frames = {"model": settings.model, "bag": settings.bag, "count": settings.frames}
    if name == "detect":
        child = _start(run, "detection_sender", address=deployment.http, **frames)
    else:
        models = settings.models
        if name == SCORES:
            models = export_scores_model(models, settings.model, run.folder / "scores-model")
            flags = ("--max-message-bytes", str(_MAX_SCORES_BYTES))
            deployment = run.enter_context(
                GatewayDeployment(models=models, model=settings.model, transports=GRPC_TRANSPORTS, flags=flags)
            )
        protocol, address = ("rest", deployment.http) if name == "rest" else ("grpc", deployment.grpc)
        output = SCORES if name == SCORES else "mask"
        client = {"protocol": protocol, "address": address, "models": models, "output": output}
        child = _start(run, "serving.vehicle", **client, **frames)
    return lambda frame: child.ask({"frame": frame})


def export_scores_model(models: Path, model: str, folder: Path) -> Path:
    """Writes a repository to `folder` in which the model has the output `scores`, N×H×W×C float32; returns `folder`.

    Skylane converts the scores of a segmentation to class ids next to the model, one byte per pixel. The first system's two
    larger models returned twenty 32-bit scores for every pixel, which its clients converted to Python lists.

    Raises:
        BenchError: the model has no scores.
    """
    stored = Repository(models).find(model)
    manifest = stored.manifest
    if manifest.output is None or manifest.output.kind is not OutputKind.SCORES:
        raise BenchError(f"{model} has no scores of pixels: choose a model that has, such as street-lite")
    served = manifest.model_copy(
        update={
            "task": "tensors",
            "output": None,
            "outputs": {"scores": OutputSection(tensor=manifest.output.tensor, kind=OutputKind.TENSOR)},
        }
    )
    source = stored.file()
    model_folder = folder / model
    model_folder.mkdir(parents=True)
    copy = shutil.copytree if source.is_dir() else shutil.copyfile
    copy(source, model_folder / manifest.file)
    (model_folder / MANIFEST_NAME).write_text(served.to_yaml(), encoding="utf-8")
    return folder


def _start(run: BenchRun, module: str, **settings: object) -> Child:
    child = run.enter_context(Child(f"bench.baselines.{module}", settings))
    child.wait()
    return child
