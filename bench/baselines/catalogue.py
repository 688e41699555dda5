"""The baselines by name: what each reproduces, what of Skylane it is set against, and the ratio to reach."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.baselines.child import Child
from bench.baselines.mqtt import plain_client
from bench.baselines.serving.clients import SCORES
from bench.baselines.serving.plain_serving_model import as_it_lies
from bench.harness.environment import free_port
from bench.load.gateway_deployment import GRPC_TRANSPORTS, GatewayDeployment
from bench.load.playback import Plan
from shared.broker.broker import Broker

_SCORES_BYTES = 1 << 28  # Twenty 32-bit scores for each of 1024×2048 pixels, and some more.

Send = Callable[
    [int], Mapping[str, float]
]  # Frame to what took how long: `total`, `inferred` and others, milliseconds.


@dataclass(frozen=True, slots=True)
class Way:
    """How Skylane's vehicle sends the frames that a baseline is set against."""

    door: str  # As `bench.load.gateway_deployment` names it.
    codec: str = "jpeg"

    def __str__(self) -> str:
        return f"{self.door}, {self.codec}"


@dataclass(frozen=True, slots=True)
class Baseline:
    """A way of the originals, reproduced."""

    title: str
    against: tuple[Way, ...]  # Such as carry the same pixels first: an array arrives as it was, a JPEG does not.
    target: float | None  # Of ours to theirs, overhead; None: none was set.

    def verdict(self, ratio: float, by_round: Sequence[float]) -> str:
        """Whether the target is reached, which it is where no round misses it; empty without one."""
        if self.target is None:
            return ""
        met = sum(each <= self.target for each in by_round)
        if met == len(by_round) and ratio <= self.target:
            return f"≤ {self.target:g}, met"
        return f"≤ {self.target:g}, met in {met} of {len(by_round)} rounds" if met else f"≤ {self.target:g}, NOT met"


BASELINES = {
    "mqtt": Baseline("first system, MQTT", (Way("mqtt"),), 0.5),
    "grpc": Baseline(
        "first system, TensorFlow Serving's gRPC", (Way("grpc", "raw"), Way("tfs-grpc", "raw"), Way("grpc")), 0.1
    ),
    "rest": Baseline(
        "first system, TensorFlow Serving's REST",
        (Way("oip-rest", "raw"), Way("tfs-rest", "raw"), Way("tfs-rest")),
        0.1,
    ),
    SCORES: Baseline("first system, TensorFlow Serving's gRPC, a model of scores", (Way("grpc"), Way("tfs-grpc")), 0.1),
    "detect": Baseline("fifth system, upload after upload", (Way("oip-rest"), Way("grpc")), None),
}


class MqttBaseline:
    """The first system over MQTT: its own broker with every default, its cloud node and its vehicle."""

    def __init__(self, stack: ExitStack, plan: Plan, folder: Path) -> None:
        """All processes end with `stack`; `folder` takes the broker's configuration."""
        port = free_port()
        self.broker = stack.enter_context(Broker.start(config=plain_client.broker_config(folder, port)))
        self._cloud = stack.enter_context(
            Child("bench.baselines.mqtt.cloud_node", port=port, models=plan.models, model=plan.model)
        ).wait()
        self._vehicle = stack.enter_context(
            Child("bench.baselines.mqtt.vehicle", port=port, bag=plan.bag, count=plan.frames)
        ).wait()

    def send(self, frame: int, keep: Path | None = None) -> Mapping[str, float]:
        """See `Send`; `keep`: a folder for the pictures that were sent and returned."""
        vehicle = self._vehicle.ask(frame=frame, keep=None if keep is None else str(keep))
        cloud = self._cloud.ask()  # It knows the times of its last frame alone, which is this one.
        crossing_ms = vehicle.pop("away") - cloud["in_callback"]
        return {**cloud, **vehicle, "crossing": crossing_ms}


def serving_baseline(stack: ExitStack, plan: Plan, way: str, site: GatewayDeployment, output: str = "mask") -> Send:
    """The first system's client of TensorFlow Serving, `way` rest or grpc, at a worker's doors; `output`: what it asks for."""
    address = site.http if way == "rest" else site.grpc
    flags = {"way": way, "address": address, "models": plan.models, "model": plan.model, "output": output}
    child = Child("bench.baselines.serving.vehicle", **flags, bag=plan.bag, count=plan.frames)
    vehicle = stack.enter_context(child).wait()
    return lambda frame: vehicle.ask(frame=frame)


def scores_baseline(stack: ExitStack, plan: Plan, folder: Path) -> Send:
    """The same over gRPC with a worker of its own, which serves the graph as it lies: every pixel's scores come back.

    Raises:
        BenchError: the model gives no scores.
    """
    models = as_it_lies(plan.models, plan.model, folder / "as-it-lies")
    flags = ("--max-message-bytes", str(_SCORES_BYTES))
    site = stack.enter_context(
        GatewayDeployment(models=models, model=plan.model, doors=GRPC_TRANSPORTS, device=plan.device, flags=flags)
    )
    return serving_baseline(stack, plan, "grpc", site, SCORES)


def detection_baseline(stack: ExitStack, plan: Plan, site: GatewayDeployment) -> Send:
    """The fifth system's sender at a worker's `/api/detect`."""
    flags = {"address": site.http, "model": plan.model, "bag": plan.bag, "count": plan.frames}
    sender = stack.enter_context(Child("bench.baselines.detection_sender", **flags)).wait()
    return lambda frame: sender.ask(frame=frame)
