"""Compares Skylane with reproductions of the systems it follows: same frames, model and machine, in alternating rounds.

The overhead is compared: the time from a frame read to its decoded mask, without the inference, which takes the same time in
both. One frame is in flight, because the first system cannot tell to which frame a reply belongs.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.baselines.catalogue import (
    BASELINES,
    MqttBaseline,
    Send,
    TransportCodec,
    detection_baseline,
    scores_baseline,
    serving_baseline,
)
from bench.baselines.child import Child, image_file
from bench.baselines.mqtt.images import fit
from bench.baselines.mqtt.palette import compare_mask
from bench.baselines.serving.clients import SCORES
from bench.engines.tensorflow_variants import VARIANTS, open_variant
from bench.harness import options
from bench.harness.comparison import OVERHEAD, OnStep, Samples, compare, frame_samples, overhead_record
from bench.load.gateway_deployment import GatewayDeployment
from bench.load.playback import WARM_UP_FRAMES, PlaybackSettings, frame_parts, model_inputs
from bench.load.worker_process import engine_flags
from cloud.models.loader import ModelLoader
from cloud.models.model import Model
from cloud.models.repository import Repository
from shared.imaging.opencv import cv2

FOR_ANY_MODEL = tuple(name for name in BASELINES if name != SCORES)
_STOPWATCH_IMAGES = 5


@dataclass(frozen=True, slots=True)
class BaselinePlan:
    """Settings of the comparison."""

    bag: Path = options.bag()
    models: Path = options.models()
    model: str = options.model()
    baselines: tuple[str, ...] = options.choices(
        BASELINES,
        FOR_ANY_MODEL,
        "Baseline to measure (repeatable); scores needs --model street-lite. [all but scores]",
        "--baseline",
    )
    frames: int = options.frames(20, 2)
    rounds: int = options.rounds(3)
    compared_masks: int = 5  # Number of frames whose masks are compared.

    @property
    def transports(self) -> tuple[TransportCodec, ...]:
        """The transports and codecs of Skylane that are measured, each once."""
        return tuple(dict.fromkeys(each for name in self.baselines for each in BASELINES[name].against))

    def playback(self, codec: str = "jpeg") -> PlaybackSettings:
        """The frames of a round of Skylane's vehicle node."""
        return PlaybackSettings(self.bag, self.models, self.model, codec, frames=self.frames)


def measure(plan: BaselinePlan, on_step: OnStep) -> dict[str, Any]:
    """Runs the rounds; returns the JSON output."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        on_step("starting the worker and the baselines")
        model = stack.enter_context(ModelLoader(Repository(plan.models)).open(plan.model))
        deployment = stack.enter_context(
            GatewayDeployment(
                models=plan.models,
                model=plan.model,
                transports=[each.transport for each in plan.transports],
                flags=engine_flags(engine=model.engine_name),
            )
        )
        first = MqttBaseline(stack, plan.playback(), folder) if "mqtt" in plan.baselines else None
        senders = _senders(stack, plan, deployment, first, folder)
        titles = {name: f"reproduction: {BASELINES[name].title}" for name in senders}
        candidates = {titles[name]: partial(_send, send, plan) for name, send in senders.items()}
        candidates |= {str(each): partial(_play, deployment, plan, each, folder) for each in plan.transports}
        comparison = compare(candidates, plan.rounds, on_step)
        on_step("comparing masks")
        return {
            "baselines": {name: overhead_record(comparison, title) for name, title in titles.items()},
            "skylane": {str(each): overhead_record(comparison, str(each)) for each in plan.transports},
            "ratios": [
                {
                    "baseline": name,
                    "transport": str(each),
                    "target": BASELINES[name].target,
                    **comparison.ratio(str(each), title, OVERHEAD).record(),
                }
                for name, title in titles.items()
                for each in BASELINES[name].against
            ],
            "masks": {
                "skylane_same": {
                    str(each): _equal_share(plan, model, deployment, each, folder) for each in plan.transports
                },
                "first_system": _compare_first_system(plan, first, folder) if first is not None else None,
            },
            "stopwatch": _stopwatch(plan) if first is not None else {},
            "model": plan.model,
            "frames": plan.frames,
            "rounds": plan.rounds,
            "engine": model.describe(),
            "broker": deployment.broker.description,
        }


def _senders(
    stack: ExitStack, plan: BaselinePlan, deployment: GatewayDeployment, first: MqttBaseline | None, folder: Path
) -> dict[str, Send]:
    settings = plan.playback()
    senders: dict[str, Send] = {} if first is None else {"mqtt": first.send}
    for protocol in ("grpc", "rest"):
        if protocol in plan.baselines:
            senders[protocol] = serving_baseline(stack, settings, protocol, deployment)
    if SCORES in plan.baselines:
        senders[SCORES] = scores_baseline(stack, settings, folder)
    if "detect" in plan.baselines:
        senders["detect"] = detection_baseline(stack, settings, deployment)
    return senders


def _send(send: Send, plan: BaselinePlan, _round: int) -> Samples:
    """One round of a baseline."""
    return frame_samples([send(frame) for frame in range(plan.frames + WARM_UP_FRAMES)][WARM_UP_FRAMES:])


def _play(
    deployment: GatewayDeployment, plan: BaselinePlan, each: TransportCodec, folder: Path, number: int
) -> Samples:
    """One round of Skylane."""
    rows = deployment.play(plan.playback(each.codec), each.transport, folder / f"{each}-{number}")
    return frame_samples([frame_parts(row) for row in rows])


def _equal_share(
    plan: BaselinePlan, model: Model, deployment: GatewayDeployment, each: TransportCodec, folder: Path
) -> float:
    """The share of the pixels of Skylane's masks that equal those of a direct call, 0 to 1."""
    settings, run = plan.playback(each.codec), folder / f"masks-{each}"
    images = model_inputs(settings, model)
    deployment.play(settings, each.transport, run, sinks=("png",))
    shares = []
    for file in sorted((run / "masks").rglob("*.png"))[: plan.compared_masks]:
        mask = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        expected = model.predict(np.asarray(images[int(file.stem) % len(images)], np.uint8)[None])[0]
        shares.append(float(np.mean(mask == expected)))
    return float(np.mean(shares))


def _compare_first_system(plan: BaselinePlan, first: MqttBaseline, folder: Path) -> dict[str, float]:
    """Compares the images that the first system returns with the masks of the same call on the same JPEG images."""
    card = Repository(plan.models).find(plan.model).card()
    run = open_variant(VARIANTS["Session.run"], plan.models, plan.model)
    shares = []
    for frame in range(plan.compared_masks):
        first.send(frame, folder)
        sent = cv2.imread(str(image_file(folder, "sent", frame)), cv2.IMREAD_COLOR_RGB)
        mask = run(fit(np.asarray(sent, np.uint8), card.height, card.width)[None])[0]
        returned = image_file(folder, "returned", frame).read_bytes()
        shares.append(compare_mask(returned, mask.astype(np.uint8), card.labels))
    return {
        "exact": float(np.mean([share.exact for share in shares])),
        "nearest": float(np.mean([share.nearest for share in shares])),
        "frames": len(shares),
    }


def _stopwatch(plan: BaselinePlan) -> dict[str, dict[str, float]]:
    """Median times of prediction and post-processing as the first system measured them, without and with a queue."""
    with Child("bench.baselines.asynchronous", models=plan.models, model=plan.model) as child:
        child.wait()
        found = {}
        for name, is_queued in (("as on a CPU", False), ("queued, as on a GPU", True)):
            times = [child.ask(queued=is_queued) for _ in range(_STOPWATCH_IMAGES)]
            found[name] = {part: median(each[part] for each in times) for part in times[0]}
        return found
