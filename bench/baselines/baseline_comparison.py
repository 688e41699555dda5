"""Skylane against reproductions of the systems it comes from: the same frames, model and machine, in alternating rounds.

What is compared is the overhead: from a frame read to its mask in hand, without the inference of that frame, which costs
both the same. One frame is in flight, for the first system could not tell whose answer came.
"""

import tempfile
from collections.abc import Callable, Mapping
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
    Way,
    detection_baseline,
    scores_baseline,
    serving_baseline,
)
from bench.baselines.child import Child, file_of
from bench.baselines.mqtt.images import fitted
from bench.baselines.mqtt.palette import kept
from bench.baselines.serving.clients import SCORES
from bench.engines.tensorflow_variants import WAYS, opened
from bench.harness.comparison import Laps, parts_of
from bench.load import playback
from bench.load.gateway_deployment import GatewayDeployment
from cloud.models.model import Model
from cloud.models.repository import Repository
from shared.imaging.opencv import cv2
from shared.runtime.machine import machine

FOR_ANY_MODEL = tuple(name for name in BASELINES if name != SCORES)

_SETTLING = 2  # Frames of a round that are not counted, as at the vehicle node.
_STOPWATCH_PICTURES = 5


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured and how often."""

    bag: Path
    models: Path
    model: str = "road-small"
    baselines: tuple[str, ...] = FOR_ANY_MODEL
    frames: int = 20  # A round.
    rounds: int = 3
    looked_at: int = 5  # Frames whose masks are compared, pixel by pixel.

    @property
    def ways(self) -> tuple[Way, ...]:
        """Those of Skylane that are measured beside, each once."""
        return tuple(dict.fromkeys(way for name in self.baselines for way in BASELINES[name].against))

    def played(self, codec: str = "jpeg") -> playback.Plan:
        """How Skylane's vehicle node plays a round."""
        return playback.Plan(
            bag=self.bag,
            models=self.models,
            model=self.model,
            codec=codec,
            frames=self.frames,
            rounds=self.rounds,
            device="cpu",
        )


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each. Returns what `--json` prints.

    Raises:
        SkylaneError: the bag, the model, a broker or a process cannot be used, or a frame was not answered.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        on_step("starting the worker and the baselines")
        model = stack.enter_context(Repository(plan.models).load(plan.model))
        site = stack.enter_context(
            GatewayDeployment(
                models=plan.models,
                model=plan.model,
                doors=[way.door for way in plan.ways],
                engine=model.engine_name,
            )
        )
        first = MqttBaseline(stack, plan.played(), folder) if "mqtt" in plan.baselines else None
        senders = _senders(stack, plan, site, first, folder)
        theirs = {name: Laps() for name in senders}
        ours = {way: Laps() for way in plan.ways}
        turns: list[tuple[str, Laps, Callable[[int], list[dict[str, float]]]]] = [
            *((BASELINES[name].title, theirs[name], partial(_sent, send, plan)) for name, send in senders.items()),
            *((f"Skylane, {way}", ours[way], partial(_played, site, plan, way, folder)) for way in plan.ways),
        ]
        for number in range(plan.rounds):
            for title, laps, turn in turns if number % 2 == 0 else reversed(turns):
                on_step(f"round {number + 1} of {plan.rounds}: {title}")
                laps.add(turn(number))
        on_step("what is left of the masks")
        same = {str(way): _same(plan, model, site, way, folder / f"masks-{way}") for way in plan.ways}
        left = _left(plan, first, folder) if first is not None else None
        if first is not None:
            on_step("the first system's stopwatch")
        return {
            "baselines": {name: each.figures() for name, each in theirs.items()},
            "skylane": {str(way): each.figures() for way, each in ours.items()},
            "ratios": [ratio for name in senders for ratio in _ratios(name, theirs[name], ours)],
            "masks": {"skylane_same": same, "first_system": left},
            "stopwatch": _stopwatch(plan) if first is not None else {},
            "model": plan.model,
            "frames": plan.frames,
            "rounds": plan.rounds,
            "engine": model.describe(),
            "broker": site.broker.description,
            "machine": machine(),
        }


def _senders(
    stack: ExitStack, plan: Plan, site: GatewayDeployment, first: MqttBaseline | None, folder: Path
) -> dict[str, Send]:
    senders: dict[str, Send] = {} if first is None else {"mqtt": first.send}
    for way in ("grpc", "rest"):
        if way in plan.baselines:
            senders[way] = serving_baseline(stack, plan.played(), way, site)
    if SCORES in plan.baselines:
        senders[SCORES] = scores_baseline(stack, plan.played(), folder)
    if "detect" in plan.baselines:
        senders["detect"] = detection_baseline(stack, plan.played(), site)
    return senders


def _sent(send: Send, plan: Plan, _round: int) -> list[dict[str, float]]:
    """A baseline's turn."""
    return [dict(send(frame)) for frame in range(plan.frames + _SETTLING)][_SETTLING:]


def _played(site: GatewayDeployment, plan: Plan, way: Way, folder: Path, number: int) -> list[dict[str, float]]:
    """Skylane's turn, by a way."""
    return [parts_of(row) for row in site.played(plan.played(way.codec), way.door, folder / f"{way}-{number}")]


def _ratios(name: str, theirs: Laps, ours: Mapping[Way, Laps]) -> list[dict[str, Any]]:
    """Ours to theirs, by each way that a baseline is set against."""
    baseline = BASELINES[name]
    return [
        {"baseline": name, "way": str(way), "target": baseline.target, **ours[way].against(theirs)}
        for way in baseline.against
    ]


def _same(plan: Plan, model: Model, site: GatewayDeployment, way: Way, folder: Path) -> float:
    """The share of the pixels that came back by a way as the direct call gives them; 1: every one."""
    played = plan.played(way.codec)
    pictures = playback.decoded(played, model)
    site.played(played, way.door, folder, sinks=("png",))
    files = sorted((folder / "masks").rglob("*.png"))[: plan.looked_at]
    shares = []
    for file in files:
        mask = cv2.imread(str(file), cv2.IMREAD_GRAYSCALE)
        truth = model.predict(np.asarray(pictures[int(file.stem) % len(pictures)], np.uint8)[None])[0]
        shares.append(float(np.mean(mask == truth)))
    return float(np.mean(shares))


def _left(plan: Plan, first: MqttBaseline, folder: Path) -> dict[str, float]:
    """What the first system's way back leaves of the classes: the picture returned, held against the mask it was.

    The mask is made again here, by the same call on the same JPEG picture.
    """
    card = Repository(plan.models).card(plan.model)
    run = opened(WAYS["Session.run"], plan.models, plan.model)
    shares = []
    for frame in range(plan.looked_at):
        first.send(frame, folder)
        sent = cv2.imread(str(file_of(folder, "sent", frame)), cv2.IMREAD_COLOR_RGB)
        mask = run(fitted(np.asarray(sent, np.uint8), card.height, card.width)[None])[0]
        shares.append(kept(file_of(folder, "returned", frame).read_bytes(), mask.astype(np.uint8), card.labels))
    return {
        "exact": float(np.mean([share.exact for share in shares])),
        "nearest": float(np.mean([share.nearest for share in shares])),
        "frames": len(shares),
    }


def _stopwatch(plan: Plan) -> dict[str, dict[str, float]]:
    """Prediction and post-processing as the first system's stopwatch saw them, without and with a queue; medians."""
    with Child("bench.baselines.asynchronous", models=plan.models, model=plan.model) as child:
        child.wait()
        found = {}
        for name, is_queued in (("as on a CPU", False), ("queued, as on a GPU", True)):
            times = [child.ask(queued=is_queued) for _ in range(_STOPWATCH_PICTURES)]
            found[name] = {part: median(each[part] for each in times) for part in times[0]}
        return found
