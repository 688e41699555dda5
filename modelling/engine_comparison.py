"""`skylane model bench`: measures speed and accuracy of every way to run a model on this machine."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cloud.models.engine_benchmark import Candidate, candidates, race, reference
from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings, prepared_images
from modelling.evaluation.evaluate import evaluate_model
from rosbag_tools.drive.recording import DrivePlan, record
from shared.errors import SkylaneError
from shared.inference.engine import Images, Outputs
from shared.inference.model import Model, agreement, largest_difference
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.runtime.machine import machine
from shared.task import task_named

_WARM_UP_ROUNDS = 2  # Rounds that are not counted, because the first runs allocate and tune.


@dataclass(frozen=True, slots=True)
class ModelBenchPlan:
    """The settings of a comparison."""

    model: str
    bag: Path
    version: str | None = None
    device: str = "auto"
    engines: tuple[str, ...] = ()  # Empty for all engines that read the model.
    threads: tuple[int, ...] = (0,)  # 0 lets the engine choose.
    batches: tuple[int, ...] = (1,)
    rounds: int = 10
    frames: int = 8  # The number of frames to compare labels and measure accuracy on.
    truth: str | None = None  # The class of all frames, for a classifier.


@dataclass(frozen=True, slots=True)
class EngineCombination:
    """One way to run the model."""

    candidate: Candidate
    threads: int
    batch: int

    def describe(self, model: str) -> str:
        """Returns the variant as text."""
        text = self.candidate.label(model)
        text += f", {self.threads} threads" if self.threads else ""
        return text + (f", batches of {self.batch}" if self.batch > 1 else "")


@dataclass(frozen=True, slots=True)
class ModelBenchResult:
    """The results of a comparison."""

    plan: ModelBenchPlan
    reference: str
    rows: tuple[dict[str, Any], ...]  # Rows of `_row`; the first one belongs to the reference.
    refused: tuple[str, ...]  # The variants that could not run, with the reason.
    task: str
    unjudged: str | None  # The reason why there is no accuracy.
    machine: dict[str, Any] = field(default_factory=machine)

    def to_json(self) -> dict[str, Any]:
        """Returns the results as plain types."""
        plan = self.plan
        return {
            "model": plan.model,
            "reference": self.reference,
            "bag": str(plan.bag),
            "rounds": plan.rounds,
            "frames": plan.frames,
            "rows": list(self.rows),
            "refused": list(self.refused),
            "unjudged": self.unjudged,
            "machine": self.machine,
        }


def bench(repository: Repository, plan: ModelBenchPlan, on_step: Callable[[int, int, str], None]) -> ModelBenchResult:
    """Runs the comparison.

    Every variant runs once per round, in rotating order. Labels are compared with those of the reference (the model that it
    was converted from, or the model itself) without batching, and with the bag's true labels if it has them.

    Args:
        repository: The model repository.
        plan: The settings.
        on_step: Called with the number of finished steps, their total, and a description of the current step.

    Raises:
        SkylaneError: the model does not exist, its reference cannot run, or the bag has no frame.
    """
    own = EngineCombination(reference(repository, repository.find(plan.model, plan.version)), 0, 1)
    requested = _variants(repository, plan)
    variants = [own, *(variant for variant in requested if variant != own)]
    steps = len(variants) + plan.rounds + _WARM_UP_ROUNDS
    with ExitStack() as opened:
        truth = opened.enter_context(_load(own, plan))
        frames = _frames(plan, truth.card)
        models: dict[EngineCombination, Model] = {}
        outputs: dict[EngineCombination, Outputs] = {}  # On the test frames.
        accuracies: dict[Candidate, float | None] = {}
        unjudged: str | None = None
        refused = [
            f"{engine}: reads no file of {plan.model}: see `skylane model convert`"
            for engine in plan.engines
            if engine not in {variant.candidate.engine for variant in requested}
        ]
        for number, variant in enumerate(variants):
            on_step(number, steps, f"labels of {variant.describe(plan.model)}")
            try:
                model = truth if variant == own else opened.enter_context(_load(variant, plan))
                _check_comparable(model, truth, variant.batch)
                found = model.infer(frames)
                agreement(truth.manifest, outputs.get(own, found), found)  # Raises if they are not comparable.
            except SkylaneError as error:
                if variant == own:
                    raise
                refused.append(f"{variant.describe(plan.model)}: {error}")
                continue
            models[variant], outputs[variant] = model, found
            if unjudged is None and variant.candidate not in accuracies:
                accuracies[variant.candidate], unjudged = _accuracy(model, plan)
        runs = {variant: partial(model.infer, _batch(frames, variant.batch)) for variant, model in models.items()}
        done = len(variants)

        def count() -> None:
            nonlocal done
            done += 1
            on_step(done, steps, f"{len(runs)} variants in turn")

        race(runs, _WARM_UP_ROUNDS, count)
        took_ms = race(runs, plan.rounds, count)
    rows = tuple(
        _row(plan.model, variant, took_ms[variant], took_ms[own])
        | {
            "agreement": agreement(truth.manifest, outputs[own], outputs[variant]),
            "largest_difference": largest_difference(outputs[own], outputs[variant]),
            "accuracy": accuracies.get(variant.candidate),
        }
        for variant in models
    )
    name = own.candidate.label(plan.model)
    return ModelBenchResult(plan, name, rows, tuple(refused), truth.manifest.task, unjudged)


def _variants(repository: Repository, plan: ModelBenchPlan) -> list[EngineCombination]:
    found = candidates(repository, repository.find(plan.model, plan.version))
    chosen = [each for each in found if not plan.engines or each.engine in plan.engines]
    return [
        EngineCombination(each, threads, batch) for each in chosen for threads in plan.threads for batch in plan.batches
    ]


def _load(variant: EngineCombination, plan: ModelBenchPlan) -> Model:
    return variant.candidate.open(Placement(device=plan.device, intra_threads=variant.threads), variant.batch)


def _check_comparable(model: Model, truth: Model, batch: int) -> None:
    if model.input_shape != truth.input_shape:
        raise SkylaneError("its input has another size")
    if model.max_batch_size < batch:
        raise SkylaneError(f"it has a fixed batch size of {model.max_batch_size}")


def _frames(plan: ModelBenchPlan, card: ModelCard) -> Images:
    """Returns the bag's first frames as uint8 N×H×W×3 in the model's size and channel order."""
    images = prepared_images(plan.bag, card, plan.frames, with_grey=False)
    if not images:
        raise EvaluationError(f"{plan.bag} holds no readable frame: make one with 'skylane bag make'")
    return np.stack(images)


def _batch(frames: Images, size: int) -> Images:
    """Returns a batch of frames, repeating them if necessary."""
    return np.ascontiguousarray(frames[np.arange(size) % len(frames)])


def _accuracy(model: Model, plan: ModelBenchPlan) -> tuple[float | None, str | None]:
    """Returns the accuracy against the bag's ground truth, or None and the reason."""
    truth = plan.truth if "top_k" in task_named(model.card.task).settings else None
    try:
        evaluation = evaluate_model(model, plan.bag, EvaluationSettings(truth, frames=plan.frames))
    except SkylaneError as error:
        return None, str(error)
    accuracy = evaluation.accuracy
    if accuracy is None or np.isnan(accuracy):
        reason = f"these frames of {plan.bag} contain nothing that {model.card.name} can be evaluated on: give --frames"
        return None, reason
    return accuracy, None


def _row(
    name: str, variant: EngineCombination, took_ms: Sequence[float], reference_ms: Sequence[float]
) -> dict[str, Any]:
    """Returns the measurements of a variant, of whose runs each was one of a whole batch, as plain types.

    `ratio` are the frames per second relative to the reference in the same rounds, by the medians; `ratio_of_least` by the
    minima, which depend less on other load of the machine.
    """
    low, middle, high = (float(value) for value in np.percentile(took_ms, (0, 50, 95)))
    candidate, batch = variant.candidate, variant.batch
    return {
        "what": candidate.label(name),
        "model": candidate.stored.name,
        "version": candidate.stored.version,
        "sha256": candidate.stored.manifest.sha256,
        "engine": candidate.engine,
        "precision": candidate.precision,
        "threads": variant.threads,
        "batch": batch,
        "runs": len(took_ms),
        "min_ms": low,
        "median_ms": middle,
        "p95_ms": high,
        "frames_per_s": 1e3 * batch / float(np.median(took_ms)),
        "ratio": float(np.median(reference_ms)) * batch / float(np.median(took_ms)),
        "ratio_of_least": min(reference_ms) * batch / min(took_ms),
    }


def table_lines(result: ModelBenchResult) -> Sequence[tuple[str, ...]]:
    """Returns the heading and the rows of the result table as text, with times in milliseconds."""
    has_accuracy = any(row["accuracy"] is not None for row in result.rows)
    has_numbers = not task_named(result.task).has_shape  # The difference of class ids is meaningless.
    heading = ("engine", "thr.", "batch", "min", "median", "p95", "Hz", "ratio", "labels %")
    lines: list[tuple[str, ...]] = [(*heading, *(["off by"] * has_numbers), *(["truth"] * has_accuracy))]
    for row in result.rows:
        line = (
            row["what"],
            str(row["threads"] or "all"),
            str(row["batch"]),
            *(f"{row[key]:.1f}" for key in ("min_ms", "median_ms", "p95_ms", "frames_per_s")),
            f"{row['ratio']:.2f}",
            f"{100 * row['agreement']:.4f}",
        )
        accuracy = "?" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        lines.append((*line, *([f"{row['largest_difference']:.2g}"] * has_numbers), *([accuracy] * has_accuracy)))
    return lines


SEED = 900_301  # Training uses no seeds from 900 000 on.
WEATHER = "clear"  # The true class of its frames for a classifier.
_SPACING_S = 1.0  # Time between two frames, enough to show different places.


def holdout_bag(frames: int, progress: Callable[[], None] = lambda: None) -> Path:
    """Returns a synthetic drive with true labels and boxes, rendered once into `runs/bags`."""
    path = Path("runs") / "bags" / f"unseen-{SEED}-{frames}"
    if not path.exists():
        draft = path.with_name(f"{path.name}.part")
        plan = DrivePlan(seed=SEED, frames=frames, rate_hz=1 / _SPACING_S, weather=WEATHER)
        record(draft, plan, overwrite=True, progress=progress)
        draft.rename(path)
    return path
