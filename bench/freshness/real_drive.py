"""Drives of bags with true labels, such as imported data sets, and their replay by the age of the results in frames."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from bench.freshness.recording import ONE_CORE, RecordedDrive
from bench.freshness.replay import (
    CEILING,
    LOCAL,
    NS_PER_MS,
    Scores,
    Sources,
    both_measures,
    open_presenter,
    presented,
    strict,
    undelayed,
)  # fmt: skip
from cloud.models.opening import open_model
from edge.presenting.fuse import LocalOutput
from edge.presenting.presenter import PresenterParts
from modelling.evaluation.bag_images import EvaluationError, label_names, labelled_camera, prepared
from modelling.evaluation.class_map import ClassMap, class_map
from modelling.evaluation.streaming import Mask
from modelling.fusion.recording import local_result
from rosbag_tools.reading.frames import BagSource
from shared.imaging.frames import Frame, Layout, Pixels
from shared.imaging.geometry import UNSEEN, Geometry, Resize, to_source
from shared.imaging.image_files import ImageArray
from shared.imaging.labels import Labels
from shared.imaging.opencv import cv2
from shared.inference.model import Model, open_local
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository
from shared.runlog.presented_log import OutputOrigin

TRUTH: Final = "truth"  # In place of a remote model: its results are the true labels.

_AGES_MS = (67, 133, 200, 333, 533)  # Each is taken as the nearest number of frames.
_UNLABELLED = "(unlabelled)"
_PAUSE_NS = 1_000_000_000  # A bag with longer times between two frames holds several drives; a lost frame ends none.


@dataclass(frozen=True, slots=True)
class RealDrivePlan:
    """A bag, and the models that see it."""

    bag: Path
    models: Path
    remote: str  # The name of a model, or `TRUTH`.
    local: str | None = None
    local_side: int | None = None  # See `RealDrive`.
    map_file: Path | None = None
    frames: int | None = None  # The largest number of frames; None for all.


@dataclass(frozen=True, slots=True)
class RealDrive(RecordedDrive):
    """The frames of a bag, whose times are those of the stamps.

    True labels have the size of the camera's frames, in which results are compared.
    """

    plan: RealDrivePlan
    unreadable: int  # Frames of the bag that could not be read.

    @property
    def period_ns(self) -> float:
        """The median time between two frames."""
        return float(np.median(np.diff(self.due_ns)))

    @property
    def ages(self) -> dict[int, float]:
        """The compared ages by number of frames, in ms."""
        numbers = {max(1, round(age_ms * NS_PER_MS / self.period_ns)) for age_ms in _AGES_MS}
        return {number: number * self.period_ns / NS_PER_MS for number in sorted(numbers)}

    def sources(self, age: int) -> Sources:
        """Returns the frame of the newest result at each tick if every result comes `age` frames late.

        None before the first result, and after a pause of the camera, until the first result of a frame after it.
        """
        limit_ns = (age + 0.5) * self.period_ns
        return [
            tick - age
            if tick >= age and due_ns - self.due_ns[tick - age] <= limit_ns and self.remote[tick - age] is not None
            else None
            for tick, due_ns in enumerate(self.due_ns)
        ]

    def in_truth(self, mask: Mask) -> Mask:
        """See RecordedDrive. Pixels outside of the model's crop are `UNSEEN`."""
        return to_source(mask, self.geometry, UNSEEN)


def replay_real_drive(
    plan: RealDrivePlan, presenters: Sequence[str], fusion: Path | None, on_step: Callable[[str], None]
) -> tuple[RealDrive, dict[str, Scores]]:
    """Returns a drive, and the scores of both measures by age in frames and candidate, over the ticks with result and truth.

    At the tick, only those are scored for whose frame before there is a result, too.

    Raises:
        SkylaneError: the bag cannot be read, has no labels, or too few frames with labels.
    """
    cv2.setNumThreads(1)  # OpenCV divides the flow among threads, which changes it: all machines get the same figures.
    drive = read_real_drive(plan, on_step)
    parts = PresenterParts(drive.card, drive.local_output if drive.local else None, fusion, drive.local_card)
    cases: dict[str, Scores] = {}
    for age in drive.ages:
        sources = drive.sources(age)
        ticks = {tick for tick, source in enumerate(sources) if source is not None and drive.truths[tick] is not None}
        if not ticks:
            raise EvaluationError(
                f"{plan.bag}: no frame with labels has a result {age} frames before it, which is necessary to compare late "
                "results: give a longer drive, or one with more labels"
            )
        made = {CEILING: undelayed(drive.remote, OutputOrigin.REMOTE)}
        if drive.local:
            made[LOCAL] = undelayed([each.result for each in drive.local], OutputOrigin.LOCAL)
        for name in presenters:
            made[name] = presented(drive, open_presenter(name, parts), sources)
        strict_ticks = {tick for tick in ticks if tick and sources[tick - 1] is not None}
        cases[str(age)], at_tick = both_measures(drive, made, ticks, strict_ticks)
        if strict_ticks:
            cases[strict(str(age))] = at_tick
    return drive, cases


def read_real_drive(plan: RealDrivePlan, on_step: Callable[[str], None]) -> RealDrive:
    """Reads the frames of a bag and runs the models on them; `on_step` receives what is displayed.

    Raises:
        SkylaneError: the bag cannot be read, or has no labels.
    """
    camera, topic, _ = labelled_camera(plan.bag, None)
    names = label_names(plan.bag, topic)
    if plan.remote == TRUTH and names is None:
        raise EvaluationError(
            f"{plan.bag} does not name the classes of its labels (a topic …/label_info): import it again with `skylane bag "
            f"import`, or give a model with --remote instead of {TRUTH}"
        )
    truths: dict[int, Mask] = {}
    seen: list[_SeenFrame] = []
    unreadable = 0
    with ExitStack() as stack:
        remote, local = _opened(plan, stack)
        card = None if remote is None else remote.card
        source = stack.enter_context(closing(BagSource(plan.bag, topics=[camera, topic])))
        for frame in source.frames():
            if not isinstance(frame, Frame):
                unreadable += frame.camera == camera
            elif frame.camera == camera:
                if len(seen) == plan.frames:
                    break
                card = card or _truth_card(names or (), frame.pixels)
                seen.append(_seen(frame, card, remote, local, plan.local_side))
                if seen[-1].geometry != seen[0].geometry:
                    raise EvaluationError(
                        f"the images of {camera} change their size: give a bag of one camera and size"
                    )
                on_step(f"{plan.bag}: frame {len(seen)}")
            elif frame.layout is not Layout.MONO8:
                raise EvaluationError(f"{topic} has {frame.layout} images: labels must be mono8 images of class ids")
            else:
                truths[frame.stamp_ns] = np.asarray(frame.pixels, np.uint8)
    if len(seen) < 2 or card is None:  # A period needs two.
        raise EvaluationError(f"{plan.bag} has {len(seen)} readable frames: give a drive")
    found = [truths.get(each.stamp_ns) for each in seen]
    _check_sizes(plan.bag, found, seen[0].geometry)
    results = [each.remote for each in seen]
    if remote is None:
        assert names is not None
        classes = ClassMap((*names, _UNLABELLED), tuple(names), {name: name for name in names if name})
        # An unlabelled pixel is a class of its own: where it moves to, it is wrong.
        results = [None if mask is None else np.where(mask < len(names), mask, np.uint8(len(names))) for mask in found]
    else:
        classes = class_map(card.labels.names, names, plan.map_file)
    due_ns = [each.stamp_ns for each in seen]
    pauses = np.cumsum(np.diff(due_ns, prepend=due_ns[0]) > _PAUSE_NS)
    return RealDrive(
        card,
        None if local is None else local.card,
        seen[0].geometry,
        classes,
        due_ns,
        [each.image for each in seen],
        found,
        results,
        [each.local for each in seen if each.local is not None],
        [f"{plan.bag} {number + 1}" for number in pauses],
        plan,
        unreadable,
    )


def _opened(plan: RealDrivePlan, stack: ExitStack) -> tuple[Model | None, Model | None]:
    """Opens the remote and the local model until the stack is closed; None: the true labels, and no local model."""
    repository = Repository(plan.models)
    remote = local = None
    if plan.remote != TRUTH:
        remote = stack.enter_context(open_model(repository.find(plan.remote), placement=ONE_CORE, max_batch=1))
    if plan.local is not None:
        stored = repository.find(plan.local)
        # The scores are a second output, as a presenter opens the model.
        stored = replace(stored, manifest=stored.manifest.with_confidence_head())
        local = stack.enter_context(open_local(stored, ONE_CORE))
    return remote, local


class _SeenFrame(NamedTuple):
    """A frame in the size of the remote model's input, and what the models make of it."""

    stamp_ns: int
    geometry: Geometry
    image: ImageArray  # H×W×3 RGB.
    remote: Mask | None
    local: LocalOutput | None


def _seen(
    frame: Frame, card: ModelCard, remote: Model | None, local: Model | None, local_side: int | None
) -> _SeenFrame:
    image, geometry = prepared(frame.pixels, frame.layout, card)
    rgb = np.ascontiguousarray(image[..., ::-1] if card.layout is Layout.BGR8 else image)
    return _SeenFrame(
        frame.stamp_ns,
        geometry,
        rgb,
        None if remote is None else remote.predict(image[np.newaxis])[0],
        None if local is None else local_result(local, rgb, geometry, local_side),
    )


def _check_sizes(bag: Path, truths: Sequence[Mask | None], geometry: Geometry) -> None:
    size = (geometry.source_height, geometry.source_width)
    other = next((mask.shape for mask in truths if mask is not None and mask.shape != size), None)
    if other is not None:
        raise EvaluationError(
            f"{bag}: labels of {other[::-1]} pixels, images of {size[::-1]}: give labels of each pixel"
        )


def _truth_card(names: Sequence[str], pixels: Pixels) -> ModelCard:
    """Returns the card of a model whose results are the true labels, in the size of the camera's frames."""
    labels = Labels(tuple(name or f"class-{number}" for number, name in enumerate(names)), ((0, 0, 0),) * len(names))
    height, width = pixels.shape[:2]
    return ModelCard(TRUTH, "1", "", "segmentation", height, width, Layout.RGB8, Resize.STRETCH, labels, trained=True)
