"""What another engine and fewer bits bring, bare and end to end, against TensorFlow on the same frozen graph.

Each contender has a broker and a worker of its own, which rest while another's turn it is. In every round each plays the
same frames, one in flight and then several, and is called directly. Last, each answers every frame once more, and the
masks that came back are held against TensorFlow's.
"""

import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.harness.samples import spread
from bench.load.playback import Plan, bare, decoded, played, rate_hz
from bench.load.worker_process import Worker
from cloud.engines.engine import DeviceError, Placement, Precision
from cloud.models.model import Model
from cloud.models.repository import Repository
from modelling.evaluation.segmentation import EvaluationError, evaluate
from shared.broker.broker import Broker
from shared.errors import MissingExtraError
from shared.imaging.frames import Pixels
from shared.imaging.opencv import cv2
from shared.runtime.machine import machine

REFERENCE = "tensorflow fp32"
_CALIBRATION = 40  # Frames, where INT8 has to be made first.
_UNSEEN = 10


class Contender(NamedTuple):
    """An engine with a precision, and the repository and model that it runs."""

    engine: str
    precision: Precision
    models: Path
    model: str

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


@dataclass(slots=True)
class Turns:
    """What a contender's turns gave, a list a round: milliseconds of frames, frames a second."""

    journey_ms: list[list[float]] = field(default_factory=list)  # One frame in flight.
    bare_ms: list[list[float]] = field(default_factory=list)
    journey_hz: list[float] = field(default_factory=list)  # `window` frames in flight.


@dataclass(slots=True)
class Ring:
    """Everyone who can run here, ready to take turns."""

    models: dict[str, Model] = field(default_factory=dict)  # By contender.
    plans: dict[str, Plan] = field(default_factory=dict)
    brokers: dict[str, str] = field(default_factory=dict)  # Their URLs.
    skipped: dict[str, str] = field(default_factory=dict)  # Who cannot run here, and why.


def measure(plan: Plan, on_step: Callable[[str], None]) -> dict[str, Any]:
    """Run the rounds; `on_step` is told before each turn. Returns what `--json` prints.

    Frames travel raw, so that all contenders see the same pixels. INT8 is the repository's `<model>-int8`, else it is
    made first.

    Raises:
        SkylaneError: the bag, the model, a broker or a worker cannot be used, or a frame was not answered.
    """
    plan = replace(plan, codec="raw")
    ring = Ring()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylane-bench-")))
        for contender in _contenders(plan, folder, ring, on_step):
            on_step(f"{contender}: getting ready")
            _enter(stack, ring, plan, contender)
        pictures = decoded(plan, ring.models[REFERENCE])
        turns = {name: Turns() for name in ring.models}
        for number in range(plan.rounds):
            for name in ring.models:
                on_step(f"round {number + 1} of {plan.rounds}: {name}")
                _take_turn(ring, name, turns[name], pictures, folder / f"{number}-{name.replace(' ', '-')}")
        masks = {}
        for name in ring.models:
            on_step(f"{name}: the masks that come back")
            masks[name] = _masks(ring, name, folder / f"masks-{name.replace(' ', '-')}")
        return {
            "engines": {name: figures(turns, masks, name) for name in ring.models},
            "mean_iou": _mean_ious(plan, ring, on_step),
            "skipped": ring.skipped,
            "model": plan.model,
            "window": plan.window,
            "rounds": plan.rounds,
            "frames": plan.frames,
            "described": {name: model.describe() for name, model in ring.models.items()},
            "machine": machine(),
        }


def figures(turns: Mapping[str, Turns], masks: Mapping[str, Mapping[str, Pixels]], name: str) -> dict[str, Any]:
    """A contender's times, and how they compare with the reference's of the same round."""
    own, reference = turns[name], turns[REFERENCE]
    journeys = [value for part in own.journey_ms for value in part]
    calls = [value for part in own.bare_ms for value in part]
    common = masks[name].keys() & masks[REFERENCE].keys()
    return {
        "journey_ms": spread(journeys),
        "bare_ms": spread(calls),
        "journey_hz": own.journey_hz,
        "samples": {"journey": len(journeys), "bare": len(calls)},
        "times_faster": {
            "journey": _ratio(reference.journey_ms, own.journey_ms),
            "bare": _ratio(reference.bare_ms, own.bare_ms),
            "throughput": _ratio([[1 / hz] for hz in reference.journey_hz], [[1 / hz] for hz in own.journey_hz]),
        },
        "agreement": float(np.mean([np.mean(masks[name][file] == masks[REFERENCE][file]) for file in common])),
        "masks_compared": len(common),
    }


def _contenders(plan: Plan, folder: Path, ring: Ring, on_step: Callable[[str], None]) -> list[Contender]:
    found = [
        Contender("tensorflow", Precision.FP32, plan.models, plan.model),
        Contender("openvino", Precision.FP32, plan.models, plan.model),
        Contender("openvino", Precision.BF16, plan.models, plan.model),
    ]
    called = f"{plan.model}-int8"
    if called in Repository(plan.models).names():
        return [*found, Contender("openvino", Precision.INT8, plan.models, called)]
    on_step(f"{called}: quantising, as the repository has none")
    try:
        return [*found, Contender("openvino", Precision.INT8, _quantised(plan, folder, called), called)]
    except MissingExtraError as error:
        ring.skipped["openvino int8"] = str(error)
        return found


def _quantised(plan: Plan, folder: Path, called: str) -> Path:
    """A repository of its own, with the model in 8 bits."""
    # They need OpenVINO, which may be missing.
    from modelling.quantization import calibration_frames, quantization  # noqa: PLC0415

    repository = Repository(folder / "models")
    repository.root.mkdir()
    shutil.copytree(Repository(plan.models).folder(plan.model), repository.root / plan.model)
    frames = calibration_frames.drawn(repository.card(plan.model), _CALIBRATION, _UNSEEN)
    quantization.quantise(repository, plan.model, Precision.INT8, frames, called=called)
    return repository.root


def _enter(stack: ExitStack, ring: Ring, plan: Plan, contender: Contender) -> None:
    """Load the model here, for the direct calls, and in a worker behind a broker of its own."""
    name = str(contender)
    placement = Placement(device="cpu", precision=contender.precision)
    try:
        model = stack.enter_context(
            Repository(contender.models).load(contender.model, placement, engine=contender.engine)
        )
    except (DeviceError, MissingExtraError) as error:
        if name == REFERENCE:
            raise
        ring.skipped[name] = str(error)
        return
    broker = stack.enter_context(Broker.start(kind=plan.broker_kind))
    stack.enter_context(
        Worker(
            broker.url,
            models=contender.models,
            model=contender.model,
            device="cpu",
            engine=contender.engine,
            precision=contender.precision,
        )
    )
    model.warm_up()
    ring.models[name] = model
    ring.plans[name] = replace(plan, model=contender.model, models=contender.models)
    ring.brokers[name] = broker.url


def _take_turn(ring: Ring, name: str, turns: Turns, pictures: list[Pixels], folder: Path) -> None:
    plan, broker = ring.plans[name], ring.brokers[name]
    rows = played(plan, broker, folder.with_name(f"{folder.name}-1"), window=1)
    turns.journey_ms.append([float(row["total_ms"]) for row in rows])
    turns.journey_hz.append(rate_hz(played(plan, broker, folder.with_name(f"{folder.name}-n"), window=plan.window)))
    turns.bare_ms.append(bare(ring.models[name], pictures, plan.frames))


def _masks(ring: Ring, name: str, folder: Path) -> dict[str, Pixels]:
    """The class ids that came back, by the file that the vehicle wrote them to."""
    played(ring.plans[name], ring.brokers[name], folder, window=1, sinks=("png",))
    files = sorted((folder / "masks").rglob("*.png"))
    return {file.name: np.asarray(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE), np.uint8) for file in files}


def _ratio(reference: list[list[float]], own: list[list[float]]) -> dict[str, Any]:
    """How many times faster, by the median of all, by the least of all, and by the median of each round."""
    every = [[value for part in parts for value in part] for parts in (reference, own)]
    return {
        "median": median(every[0]) / median(every[1]),
        "min": min(every[0]) / min(every[1]),
        "by_round": [median(a) / median(b) for a, b in zip(reference, own, strict=True)],
    }


def _mean_ious(plan: Plan, ring: Ring, on_step: Callable[[str], None]) -> dict[str, float] | None:
    """Each contender's mean IoU on the bag; None where the bag does not tell what is true."""
    try:
        found = {}
        for name, model in ring.models.items():
            on_step(f"{name}: mean IoU")
            found[name] = evaluate(model, plan.bag, frames=plan.frames).mean_iou
    except EvaluationError:
        return None
    return found
