"""Replays recordings: runs both models once on every frame, and simulates which answers a vehicle would present."""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any

from cloud.models.loader import ModelLoader
from modelling.evaluation.bag_images import (
    ComparedWith,
    EvaluationError,
    EvaluationSettings,
    LabelledImage,
    check_given_once,
    prepared,
    truth_of,
)
from modelling.evaluation.comparison import ReferenceComparison
from modelling.reuse.calibration import CalibrationSamples
from modelling.reuse.scoring import FrameOutputs, Scorer, scorer_for
from rosbag_tools.drive.scene import PRESENCE
from shared.imaging.geometry import Geometry
from shared.inference.model import Model, open_local
from shared.messages.model_card import ModelCard
from shared.models.manifest import Placement
from shared.models.repository import Repository
from shared.reuse.gate import DifferenceGate, Form, GateComparison, GateSettings, SmallImage, small_grey
from shared.reuse.tuning import CascadeThresholds, is_sure
from shared.task import CONFIDENCE_HEAD, Confidence, task_named

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class ReplayedFrame:
    """A frame as the gate and the cascade see it."""

    drive: str  # Frames of different drives are never compared.
    form: Form
    small: SmallImage
    time_ns: int
    confidence: Confidence | None = None  # The local model's; None without a local model.

    def is_sure(self, cascade: CascadeThresholds) -> bool:
        """Returns whether a cascade accepts the local model's answer."""
        assert self.confidence is not None, "a cascade needs the confidence of each frame"
        return is_sure(self.confidence, cascade)


@dataclass(frozen=True, slots=True)
class Presented:
    """The answer that a vehicle presents for a frame."""

    answered: int  # Index of the frame whose answer it is: the frame itself, or an earlier one whose answer is reused.
    is_local: bool  # True if it is the local model's answer, False if the reference model's.
    distance: float | None  # The distance that the gate measured; None without a comparison.


@dataclass(slots=True)
class Replay:
    """All that the simulation needs of the frames of some drives."""

    scorer: Scorer
    compared_with: ComparedWith
    note: str  # A remark for readers of the figures; may be empty.
    drives: list[str] = field(default_factory=list)  # The names of the recordings.
    frames: list[ReplayedFrame] = field(default_factory=list)
    truths: list[Any] = field(default_factory=list)  # One for each frame, as the scorer takes them.
    reference_answers: list[Any] = field(default_factory=list)
    local_answers: list[Any] = field(default_factory=list)  # Empty without a local model.
    local_outputs: list[FrameOutputs] = field(default_factory=list)  # The outputs that the confidence needs.
    samples: list[CalibrationSamples] = field(default_factory=list)
    reduced_ms: list[float] = field(default_factory=list)  # Time of making the small image.

    @property
    def metric(self) -> str:
        """The name of the points that are lost: an accuracy, or an agreement with the reference model's results."""
        if self.compared_with == "labels":
            return self.scorer.metric
        return "agreement" if self.scorer.metric == "accuracy" else f"agreement ({self.scorer.metric})"

    def only(self, drive: str) -> "Replay":
        """Returns the frames of one drive."""
        of_drive = [index for index, frame in enumerate(self.frames) if frame.drive == drive]
        lists = ("frames", "truths", "reference_answers", "local_answers", "local_outputs", "samples", "reduced_ms")
        values = {name: getattr(self, name) for name in lists}
        chosen = {name: [each[index] for index in of_drive] for name, each in values.items() if each}
        return Replay(self.scorer, self.compared_with, self.note, [drive], **chosen)

    def samples_by_drive(self) -> list[CalibrationSamples]:
        """Returns the samples that calibrate the local model, by drive."""
        return [
            CalibrationSamples.merged(
                [samples for frame, samples in zip(self.frames, self.samples, strict=True) if frame.drive == drive]
            )
            for drive in self.drives
        ]

    def set_confidences(self, local: Model, temperature: float) -> None:
        """Computes the confidence of each local answer with a temperature."""
        task = task_named(local.card.task)
        self.frames = [
            replace(frame, confidence=task.confidence(outputs, local.manifest, temperature))
            for frame, outputs in zip(self.frames, self.local_outputs, strict=True)
        ]


def replay(recordings: Sequence[Path], reference: Model, local: Model | None, settings: EvaluationSettings) -> Replay:
    """Runs both models on the frames of recordings, those that have a truth if results are compared with it.

    Raises:
        SkylaneError: a recording cannot be read or lacks the truth, or the local model has another task or other labels.
    """
    check_given_once(recordings)
    names = [each.stem for each in recordings]
    if len(set(names)) < len(names):
        raise EvaluationError("two of the recordings have the same name: rename one of them")
    card = reference.card
    _check_local(card, local)
    comparison = ReferenceComparison.of(recordings, card, settings)
    is_presence = comparison.compared_with == "labels" and card.task == "classification"
    if is_presence and card.labels.names != PRESENCE:
        raise EvaluationError(
            f"{card.name} does not answer whether there is a vehicle, and a bag has no truth for its classes frame by frame: "
            f"choose a model with the labels {', '.join(PRESENCE)}, or compare with its own results by --reference results"
        )
    counts = [images.total for images in comparison.images]
    total = sum(filter(None, counts)) if all(counts) else None
    scorer = scorer_for(card, comparison.classes)
    replayed = Replay(scorer, comparison.compared_with, comparison.note(card.name))
    runner = _Runner(replayed, reference, local)
    for name, images in zip(names, comparison.images, strict=True):
        replayed.drives.append(name)
        for image in images:
            if is_presence:
                image = image._replace(truth=truth_of(image.truth, len(image.pixels)))  # noqa: PLW2901  The same image with its truth.
            runner.add(name, image)
            settings.on_frame(len(replayed.frames), total)
    return replayed


class _Runner:
    """Runs both models on images and adds what they answer to a replay."""

    def __init__(self, replayed: Replay, reference: Model, local: Model | None) -> None:
        self._replay = replayed
        self._reference = reference
        self._local = local

    def add(self, drive: str, image: LabelledImage) -> None:
        replayed, scorer, card = self._replay, self._replay.scorer, self._reference.card
        prepared_image, geometry = prepared(image.pixels, image.layout, card)
        outputs = self._reference.infer_one(prepared_image)
        if image.truth is None:
            image = image._replace(truth=scorer.result_as_truth(outputs, self._reference.manifest, geometry))
        form = (*image.pixels.shape[:2], str(image.layout))
        start_ns = perf_counter_ns()
        small = small_grey(prepared_image, card.layout)
        replayed.reduced_ms.append((perf_counter_ns() - start_ns) / _NS_PER_MS)
        replayed.frames.append(ReplayedFrame(drive, form, small, image.stamp_ns))
        replayed.truths.append(scorer.true_answer(image.truth, geometry))
        replayed.reference_answers.append(scorer.answer(outputs, self._reference.manifest, geometry, geometry))
        if self._local is not None:
            self._add_local(self._local, image, geometry)

    def _add_local(self, local: Model, image: LabelledImage, geometry: Geometry) -> None:
        replayed, scorer = self._replay, self._replay.scorer
        same_view = replace(local.card, resize=self._reference.card.resize)
        prepared_image, own = prepared(image.pixels, image.layout, same_view)
        outputs = local.infer_one(prepared_image)
        replayed.local_answers.append(scorer.answer(outputs, local.manifest, geometry, own))
        replayed.local_outputs.append(scorer.confidence_outputs(outputs, local.manifest))
        replayed.samples.append(scorer.samples(outputs, image.truth, local.manifest, geometry, own))


def _check_local(reference: ModelCard, local: Model | None) -> None:
    if local is None:
        return
    for what, ours, theirs in (
        ("task", reference.task, local.card.task),
        ("labels", ", ".join(reference.labels.names), ", ".join(local.card.labels.names)),
    ):
        if ours != theirs:
            raise EvaluationError(
                f"the {what} of the local model {local.card.name} ({theirs}) must be those of {reference.name} ({ours}): "
                f"choose another local model"
            )
    if local.card.task == "segmentation" and CONFIDENCE_HEAD not in local.manifest.heads:
        raise EvaluationError(
            f"{local.card.name} does not name an output of scores, so its masks have no confidence: add the key confidence "
            f"to its model.yaml, or choose another local model"
        )


@contextmanager
def opened_models(
    repository: Repository, reference: str, local: str | None, device: str
) -> Iterator[tuple[Model, Model | None]]:
    """Opens both models, the local one with its output for the confidence.

    Raises:
        SkylaneError: a model does not exist or cannot be opened.
    """
    with ExitStack() as stack:
        found = None
        if local is not None:
            stored = repository.find(local)
            stored = replace(stored, manifest=stored.manifest.with_confidence_head())
            found = stack.enter_context(open_local(stored, Placement()))
        model = stack.enter_context(ModelLoader(repository, Placement(device=device)).open(reference))
        yield model, found


def simulate(
    frames: Sequence[ReplayedFrame],
    gate: GateSettings | None = None,
    cascade: CascadeThresholds | None = None,
    delay_ms: float = 0.0,
) -> list[Presented]:
    """Returns the presented answer for each frame, if no frame has to wait or is lost.

    As on the vehicle, an answer can be reused from its arrival on, and a frame that resembles one in flight is sent too.

    Args:
        frames: The frames, by drive and time.
        gate: None for no gate.
        cascade: None for no cascade; otherwise every frame needs a confidence. A local answer is present at once.
        delay_ms: Time from a frame to the arrival of the reference model's answer.
    """
    detector: DifferenceGate[Presented] | None = None if gate is None else DifferenceGate(gate)
    in_flight: deque[tuple[GateComparison[Presented], Presented]] = deque()
    presented = []
    for index, frame in enumerate(frames):
        if index and frame.drive != frames[index - 1].drive:
            in_flight.clear()
        while detector and in_flight and in_flight[0][0].time_ns + delay_ms * _NS_PER_MS <= frame.time_ns:
            detector.keep(*in_flight.popleft())
        compared = detector and detector.compare(
            frame.drive, frame.form, frame.small, sequence=index, time_ns=frame.time_ns
        )
        if compared and compared.reused:
            earlier = compared.reused.result
            presented.append(Presented(earlier.answered, earlier.is_local, compared.distance))
            continue
        is_local = cascade is not None and frame.is_sure(cascade)
        answer = Presented(index, is_local, compared.distance if compared else None)
        presented.append(answer)
        if detector and compared and is_local:
            detector.keep(compared, answer)
        elif compared:
            in_flight.append((compared, answer))
    return presented
