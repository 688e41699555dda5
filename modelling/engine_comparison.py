"""`model bench`: every way to run a model on this machine, beside each other: speed, and what it does to the labels."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cloud.engines.engine import Images, Outputs, Placement
from cloud.models.agreement import agreement, largest_difference
from cloud.models.engine_benchmark import Candidate, candidates, race, reference
from cloud.models.model import Model
from cloud.models.repository import Repository
from modelling.evaluation.classification import ClassificationEvaluation
from modelling.evaluation.detection import DetectionEvaluation
from modelling.evaluation.dispatch import judged
from modelling.evaluation.segmentation import Evaluation, EvaluationError, prepared
from rosbag_tools.reading.frames import BagSource
from shared.errors import SkylaneError
from shared.imaging.frames import Frame, Layout
from shared.messages.model_card import ModelCard, Task
from shared.runtime.machine import machine

_WARM_UP = 2  # Rounds that are not counted: the first runs allocate and tune.
_DEMOSAIC = "binning"


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    model: str
    bag: Path
    version: str | None = None
    device: str = "auto"
    engines: tuple[str, ...] = ()  # Empty: all that read it.
    threads: tuple[int, ...] = (0,)  # 0: as the engine chooses.
    batches: tuple[int, ...] = (1,)
    rounds: int = 10
    frames: int = 8  # That labels are compared on.
    truth: str | None = None  # Of a classifier: what all frames of the bag are.


@dataclass(frozen=True, slots=True)
class Cell:
    """A way to run the model."""

    candidate: Candidate
    threads: int
    batch: int


@dataclass(frozen=True, slots=True)
class Row:
    """What a cell gave."""

    cell: Cell
    took_ms: tuple[float, ...]  # A run, of the whole batch.
    ratio: float  # Frames a second, over the reference's in the same rounds, by the medians.
    ratio_of_least: float  # The same by the least of each: what a busy machine blurs less.
    agreement: float  # Of labels with the reference.
    difference: float  # The largest of two numbers.
    # By the bag's truth: mean IoU of a segmentation, accuracy of a classification, mean average precision of a detection.
    accuracy: float | None

    @property
    def frame_hz(self) -> float:
        """Frames a second."""
        return 1e3 * self.cell.batch / float(np.median(self.took_ms))


@dataclass(frozen=True, slots=True)
class Result:
    """The table."""

    plan: Plan
    reference: str
    rows: tuple[Row, ...]  # The reference is the first.
    refused: tuple[str, ...]  # What could not be run, with the reason.
    task: Task
    unjudged: str | None  # Why no figure by the bag's truth stands in it.
    machine: dict[str, Any] = field(default_factory=machine)

    def to_json(self) -> dict[str, Any]:
        """Plain types."""
        plan = self.plan
        return {
            "model": plan.model,
            "reference": self.reference,
            "bag": str(plan.bag),
            "rounds": plan.rounds,
            "frames": plan.frames,
            "rows": [_row_json(row, plan.model) for row in self.rows],
            "refused": list(self.refused),
            "unjudged": self.unjudged,
            "machine": self.machine,
        }


def bench(repository: Repository, plan: Plan, on_step: Callable[[int, int, str], None]) -> Result:
    """Measure; `on_step` is told the steps done, of how many, and what is being done.

    Every cell runs once a round, in an order that turns. Labels are held against the reference's, unbatched.

    Raises:
        SkylaneError: there is no such model, its reference cannot be run, or the bag holds no frame.
    """
    held = Cell(reference(repository, plan.model, plan.version), 0, 1)
    asked = _cells(repository, plan)
    cells = [held, *(cell for cell in asked if cell != held)]
    steps = len(cells) + plan.rounds + _WARM_UP
    refused = [
        f"{engine}: reads no file of {plan.model}: see `skylane model convert`"
        for engine in plan.engines
        if engine not in {cell.candidate.engine for cell in asked}
    ]
    answers: dict[Cell, Outputs] = {}
    accuracies: dict[Candidate, float | None] = {}
    unjudged: str | None = None
    with ExitStack() as opened:
        own = opened.enter_context(_load(repository, held, plan))
        shown = _pictures(plan, own.card)
        models = {held: own}
        for number, cell in enumerate(cells):
            on_step(number, steps, f"labels of {_told(cell, plan.model)}")
            try:
                model = own if cell == held else opened.enter_context(_load(repository, cell, plan))
                if cell != held and model.input_shape != own.input_shape:
                    raise SkylaneError("its input is of another size")  # noqa: TRY301
                if model.max_batch_size < cell.batch:
                    raise SkylaneError(f"a batch of {model.max_batch_size} is baked into it")  # noqa: TRY301
                answers[cell] = model.infer(shown)
                agreement(own.manifest, answers[held], answers[cell])  # Or else it is another model's.
            except SkylaneError as error:
                if cell == held:
                    raise
                refused.append(f"{_told(cell, plan.model)}: {error}")
                continue
            models[cell] = model
            if unjudged is None and cell.candidate not in accuracies:
                accuracies[cell.candidate], unjudged = _judged(model, plan)
        runs = {cell: partial(models[cell].infer, _batch(shown, cell.batch)) for cell in models}
        done = len(cells)

        def count() -> None:
            nonlocal done
            done += 1
            on_step(done, steps, f"{len(runs)} ways in turn")

        race(runs, _WARM_UP, count)
        took_ms = race(runs, plan.rounds, count)
        manifest = own.manifest
    whole, least = float(np.median(took_ms[held])), min(took_ms[held])
    rows = tuple(
        Row(
            cell,
            tuple(took_ms[cell]),
            whole * cell.batch / float(np.median(took_ms[cell])),
            least * cell.batch / min(took_ms[cell]),
            agreement(manifest, answers[held], answers[cell]),
            largest_difference(answers[held], answers[cell]),
            accuracies.get(cell.candidate),
        )
        for cell in models
    )
    return Result(plan, held.candidate.beside(plan.model), rows, tuple(refused), manifest.task, unjudged)


def _cells(repository: Repository, plan: Plan) -> list[Cell]:
    found = candidates(repository, plan.model, plan.version)
    chosen = [each for each in found if not plan.engines or each.engine in plan.engines]
    return [Cell(each, threads, batch) for each in chosen for threads in plan.threads for batch in plan.batches]


def _load(repository: Repository, cell: Cell, plan: Plan) -> Model:
    candidate = cell.candidate
    where = Placement(device=plan.device, intra_threads=cell.threads, precision=candidate.precision)
    return repository.load(candidate.model, where, cell.batch, version=candidate.version, engine=candidate.engine)


def _pictures(plan: Plan, card: ModelCard) -> Images:
    """The bag's first frames as the model takes them, uint8 N×H×W×3."""
    source = BagSource(plan.bag)
    try:
        frames = (each for each in source.frames() if isinstance(each, Frame) and each.layout is not Layout.MONO8)
        shown = [prepared(each.pixels, each.layout, card, _DEMOSAIC)[0] for each in islice(frames, plan.frames)]
    finally:
        source.close()
    if not shown:
        raise EvaluationError(f"{plan.bag} holds no frame that can be read: make one with 'skylane bag make'")
    return np.stack(shown)


def _batch(shown: Images, size: int) -> Images:
    """So many of the pictures, from the first again where they end."""
    return np.ascontiguousarray(shown[np.arange(size) % len(shown)])


def _judged(model: Model, plan: Plan) -> tuple[float | None, str | None]:
    """A figure by the bag's truth, or why there is none."""
    truth = plan.truth if model.card.task is Task.CLASSIFICATION else None
    try:
        found = judged(
            model,
            plan.bag,
            truth=truth,
            camera=None,
            frames=plan.frames,
            demosaic=_DEMOSAIC,
            on_frame=lambda _done, _of: None,
        )
    except SkylaneError as error:
        return None, str(error)
    figure = _figure(found)
    if figure is None or np.isnan(figure):
        return (
            None,
            f"{plan.bag} holds nothing in these frames that {model.card.name} could be judged by: give --frames",
        )
    return figure, None


def _figure(found: Evaluation | DetectionEvaluation | ClassificationEvaluation) -> float | None:
    match found:
        case Evaluation():
            return found.mean_iou
        case DetectionEvaluation():
            return found.mean_average_precision
        case ClassificationEvaluation():
            return found.accuracy


def _told(cell: Cell, name: str) -> str:
    told = cell.candidate.beside(name)
    told += f", {cell.threads} threads" if cell.threads else ""
    return told + (f", batches of {cell.batch}" if cell.batch > 1 else "")


def _row_json(row: Row, name: str) -> dict[str, Any]:
    low, middle, high = (float(value) for value in np.percentile(row.took_ms, (0, 50, 95)))
    candidate = row.cell.candidate
    return {
        "what": candidate.beside(name),
        "model": candidate.model,
        "version": candidate.version,
        "sha256": candidate.sha256,
        "engine": candidate.engine,
        "precision": candidate.precision,
        "threads": row.cell.threads,
        "batch": row.cell.batch,
        "runs": len(row.took_ms),
        "min_ms": low,
        "median_ms": middle,
        "p95_ms": high,
        "frames_per_s": row.frame_hz,
        "ratio": row.ratio,
        "ratio_of_least": row.ratio_of_least,
        "agreement": row.agreement,
        "largest_difference": row.difference,
        "accuracy": row.accuracy,
    }


def columns(result: Result) -> Sequence[tuple[str, ...]]:
    """The table's heading and its lines, as words."""
    labelled = any(row.accuracy is not None for row in result.rows)
    numbered = result.task is not Task.SEGMENTATION  # Of class ids the difference says nothing.
    heading = ("engine", "thr.", "batch", "min", "median", "p95", "Hz", "ratio", "labels %")
    lines: list[tuple[str, ...]] = [(*heading, *(["off by"] * numbered), *(["truth"] * labelled))]
    for row in result.rows:
        facts = _row_json(row, result.plan.model)
        line = (
            facts["what"],
            str(facts["threads"] or "all"),
            str(facts["batch"]),
            *(f"{facts[key]:.1f}" for key in ("min_ms", "median_ms", "p95_ms", "frames_per_s")),
            f"{row.ratio:.2f}",
            f"{100 * row.agreement:.4f}",
        )
        judged_as = "?" if row.accuracy is None else f"{row.accuracy:.4f}"
        lines.append((*line, *([f"{row.difference:.2g}"] * numbered), *([judged_as] * labelled)))
    return lines
