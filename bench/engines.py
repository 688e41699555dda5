"""`python -m bench engines`: compares other engines and lower precisions with TensorFlow, bare and end to end.

Each candidate has its own broker and worker, which are idle during the turns of the others. In every turn it answers the
same frames, one in flight and then several, and is called directly. At the end, each candidate answers every frame once
more, and the masks are compared with those of TensorFlow.
"""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import harness
from bench.harness import TOTAL, BenchRun, Comparison, Samples
from cloud.models.loader import ModelLoader
from edge.transports.transport import MQTT
from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings
from modelling.evaluation.evaluate import evaluate_segmentation
from ops.broker.broker import Broker
from ops.processes.child import cli_flags
from ops.processes.deployment import Deployment
from ops.processes.playback import PlaybackSettings, inference_ms, model_inputs
from shared.errors import MissingExtraError
from shared.imaging.frames import Pixels
from shared.imaging.opencv import cv2
from shared.inference.engine import DeviceError
from shared.inference.model import Model
from shared.models.manifest import Placement, Precision
from shared.models.repository import Repository
from shared.terminal_table import Table, result_table

REFERENCE = "tensorflow fp32"
_BARE, _PERIOD = "bare", "period"
_CALIBRATION_FRAMES = 40
_HOLDOUT_FRAMES = 10


@dataclass(frozen=True, slots=True)
class EnginePlan:
    """Settings of the comparison."""

    bag: Path = harness.bag()
    models: Path = harness.models()
    model: str = harness.model()
    rounds: int = harness.rounds(5)
    frames: int = harness.frames(15, text="Frames per turn.")
    window: int = harness.throughput_window()
    broker_kind: str = harness.broker()


class EngineVariant(NamedTuple):
    """An engine and its precision."""

    engine: str
    precision: Precision

    def __str__(self) -> str:
        return f"{self.engine} {self.precision}"


VARIANTS = (
    EngineVariant("tensorflow", Precision.FP32),
    EngineVariant("openvino", Precision.FP32),
    EngineVariant("openvino", Precision.BF16),
    EngineVariant("openvino", Precision.INT8),
)


class EngineCandidate(NamedTuple):
    """A model loaded in this process, and a broker with a worker that serves it."""

    model: Model
    settings: PlaybackSettings
    deployment: Deployment


def measure(plan: EnginePlan, run: BenchRun) -> dict[str, Any]:
    """Compare OpenVINO in fp32, bf16 and int8 with TensorFlow, bare and end to end, in alternating rounds."""
    ready: dict[str, EngineCandidate] = {}
    skipped: dict[str, str] = {}
    for variant in VARIANTS:
        name = str(variant)
        run.step(f"{name}: starting")
        try:
            ready[name] = _start(run, plan, variant)
        except (DeviceError, MissingExtraError) as error:
            if name == REFERENCE:
                raise
            skipped[name] = str(error)
    images = model_inputs(ready[REFERENCE].settings, ready[REFERENCE].model)

    def turn(name: str, number: int) -> Samples:
        """Returns milliseconds per frame, and seconds between frames with several in flight."""
        model, settings, deployment = ready[name]
        rows, rate_hz = deployment.play_twice(settings, run.folder / name / str(number), plan.window)
        return {
            TOTAL: [float(row["total_ms"]) for row in rows],
            _BARE: inference_ms(model, images, plan.frames),
            _PERIOD: [1 / rate_hz],
        }

    comparison = harness.compare({name: partial(turn, name) for name in ready}, plan.rounds, run.step)
    masks = {}
    for name, each in ready.items():
        run.step(f"{name}: masks")
        masks[name] = _masks(each, run.folder / name / "masks")
    return {
        "engines": {name: summarise(comparison, masks, name) for name in ready},
        "mean_iou": _mean_ious(plan, ready, run),
        "skipped": skipped,
        "model": plan.model,
        "window": plan.window,
        "rounds": plan.rounds,
        "frames": plan.frames,
        "described": {name: each.model.describe() for name, each in ready.items()},
    }


def _masks(candidate: EngineCandidate, folder: Path) -> dict[str, Pixels]:
    """Plays the bag; returns the masks, H×W class ids, by file name."""
    candidate.deployment.play(candidate.settings, MQTT, folder, sinks=("png",))
    files = sorted((folder / "masks").rglob("*.png"))
    return {file.name: np.asarray(cv2.imread(str(file), cv2.IMREAD_GRAYSCALE), np.uint8) for file in files}


def summarise(comparison: Comparison, masks: Mapping[str, Mapping[str, Pixels]], name: str) -> dict[str, Any]:
    """A candidate's times, how many times faster than the reference it is, and the agreement of their masks."""
    common = masks[name].keys() & masks[REFERENCE].keys()
    measures = {"journey": TOTAL, "bare": _BARE, "throughput": _PERIOD}
    return {
        "journey_ms": comparison.spread(name, TOTAL),
        "bare_ms": comparison.spread(name, _BARE),
        "journey_hz": [1 / period for period in comparison.samples(name, _PERIOD)],
        "samples": {key: len(comparison.samples(name, measures[key])) for key in ("journey", "bare")},
        "times_faster": {key: _times_faster(comparison, name, measure) for key, measure in measures.items()},
        "agreement": float(np.mean([np.mean(masks[name][file] == masks[REFERENCE][file]) for file in common])),
        "masks_compared": len(common),
    }


def _times_faster(comparison: Comparison, name: str, measure: str) -> dict[str, Any]:
    ratio = comparison.ratio(REFERENCE, name, measure)
    least = comparison.ratio(REFERENCE, name, measure, min)
    return {"median": ratio.value, "min": least.value, "by_round": list(ratio.by_round)}


def _start(run: BenchRun, plan: EnginePlan, variant: EngineVariant) -> EngineCandidate:
    """Loads the model in this process, and starts a broker and a worker with it.

    Frames travel raw, so that all candidates get the same pixels. INT8 uses the repository's `<model>-int8`; if it does
    not exist, the model is quantised first.
    """
    models, name = plan.models, plan.model
    if variant.precision is Precision.INT8:
        name = f"{plan.model}-int8"
        if name not in Repository(plan.models).names():
            models = _quantise(plan, run.folder, name)
    placement = Placement(device="cpu", precision=variant.precision)
    model = run.enter_context(ModelLoader(Repository(models), placement, engine=variant.engine).open(name))
    broker = run.enter_context(Broker.start(kind=plan.broker_kind))
    flags = cli_flags(engine=variant.engine, precision=variant.precision)
    deployment = Deployment(models=models, model=name, transports=[MQTT], broker=broker, flags=flags)
    run.enter_context(deployment)
    model.warm_up()
    return EngineCandidate(model, PlaybackSettings(plan.bag, models, name, "raw", frames=plan.frames), deployment)


def _quantise(plan: EnginePlan, folder: Path, int8_name: str) -> Path:
    """Creates a repository with the model in 8 bits; returns its folder."""
    from modelling import quantization  # noqa: PLC0415  It needs OpenVINO, which is optional.

    repository = Repository(folder / "models")
    repository.root.mkdir()
    shutil.copytree(Repository(plan.models).find(plan.model).folder, repository.root / plan.model)
    frames = quantization.synthetic_frames(repository.find(plan.model).card(), _CALIBRATION_FRAMES, _HOLDOUT_FRAMES)
    quantization.quantise(repository, plan.model, Precision.INT8, frames, new_name=int8_name)
    return repository.root


def _mean_ious(plan: EnginePlan, ready: Mapping[str, EngineCandidate], run: BenchRun) -> dict[str, float] | None:
    """Each candidate's mean IoU on the bag; None if the bag has no labels."""
    try:
        found = {}
        for name, each in ready.items():
            run.step(f"{name}: mean IoU")
            found[name] = evaluate_segmentation(each.model, plan.bag, EvaluationSettings(frames=plan.frames)).mean_iou
    except EvaluationError:
        return None
    return found


def _tables(result: Mapping[str, Any]) -> Iterator[Table | str]:
    engines, ious = result["engines"], result["mean_iou"] or {}
    yield result_table(
        f"{result['model']}, {result['rounds']} alternating rounds of {result['frames']} frames",
        {"engine": "<", "bare ms": ".1f", "round trip ms": ".1f", "labels": ".3%", "mean IoU": ".4f"},
        [
            (
                name,
                each["bare_ms"]["median"],
                each["journey_ms"]["median"],
                each["agreement"],
                ious.get(name, "unknown"),
            )
            for name, each in engines.items()
        ],
    )
    kinds = {"bare": "bare", "journey": "round trip", "throughput": f"window {result['window']}"}
    yield result_table(
        "Times faster than TensorFlow: median (by round, least to most)",
        {"engine": "<", **dict.fromkeys(kinds.values(), "<")},
        [(name, *(_ratio_text(each["times_faster"][kind]) for kind in kinds)) for name, each in engines.items()],
    )
    for name, reason in result["skipped"].items():
        yield f"{name} left out: {reason}"


def _ratio_text(ratio: Mapping[str, Any]) -> str:
    return f"{ratio['median']:.2f} ({min(ratio['by_round']):.2f}-{max(ratio['by_round']):.2f})"


engines = harness.bench_command("engines", EnginePlan, measure, _tables)
