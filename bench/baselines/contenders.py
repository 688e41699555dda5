"""The baselines by name: what each reproduces, what of Skylane it is set against, and the ratio to reach."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.baselines import bare_mqtt
from bench.baselines.child import Child
from bench.door_site import DoorSite
from bench.overhead import Plan
from bench.ports import free_port
from shared.broker import Broker

Send = Callable[
    [int], Mapping[str, float]
]  # Frame to what took how long: `total`, `inferred` and others, milliseconds.


@dataclass(frozen=True, slots=True)
class Baseline:
    """A way of the originals, reproduced."""

    title: str
    against: tuple[str, ...]  # Doors, as `bench.door_site` names them.
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
    "mqtt": Baseline("first system, MQTT", ("mqtt",), 0.5),
    "grpc": Baseline("first system, TensorFlow Serving's gRPC", ("grpc", "tfs-grpc"), 0.1),
    "rest": Baseline("first system, TensorFlow Serving's REST", ("oip-rest", "tfs-rest"), 0.1),
    "detect": Baseline("fifth system, upload after upload", ("oip-rest", "grpc"), None),
}


class MqttBaseline:
    """The first system over MQTT: its own broker with every default, its cloud node and its vehicle."""

    def __init__(self, stack: ExitStack, plan: Plan, folder: Path) -> None:
        """All processes end with `stack`; `folder` takes the broker's configuration."""
        port = free_port()
        self.broker = stack.enter_context(Broker.start(config=bare_mqtt.broker_config(folder, port)))
        self._cloud = stack.enter_context(
            Child("bench.baselines.mqtt_cloud", port=port, models=plan.models, model=plan.model)
        ).wait()
        self._vehicle = stack.enter_context(
            Child("bench.baselines.mqtt_vehicle", port=port, bag=plan.bag, count=plan.frames)
        ).wait()

    def send(self, frame: int, keep: Path | None = None) -> Mapping[str, float]:
        """See `Send`; `keep`: a folder for the pictures that were sent and returned."""
        vehicle = self._vehicle.ask(frame=frame, keep=None if keep is None else str(keep))
        cloud = self._cloud.ask()  # It knows the times of its last frame alone, which is this one.
        crossing_ms = vehicle.pop("away") - cloud["in_callback"]
        return {**cloud, **vehicle, "crossing": crossing_ms}


def serving_baseline(stack: ExitStack, plan: Plan, way: str, site: DoorSite) -> Send:
    """The first system's client of TensorFlow Serving, `way` rest or grpc, at a worker's doors."""
    address = site.http if way == "rest" else site.grpc
    flags = {"way": way, "address": address, "models": plan.models, "model": plan.model}
    child = Child("bench.baselines.serving_vehicle", **flags, bag=plan.bag, count=plan.frames)
    vehicle = stack.enter_context(child).wait()
    return lambda frame: vehicle.ask(frame=frame)


def detection_baseline(stack: ExitStack, plan: Plan, site: DoorSite) -> Send:
    """The fifth system's sender at a worker's `/api/detect`."""
    flags = {"address": site.http, "model": plan.model, "bag": plan.bag, "count": plan.frames}
    sender = stack.enter_context(Child("bench.baselines.detection_sender", **flags)).wait()
    return lambda frame: sender.ask(frame=frame)
