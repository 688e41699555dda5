"""Provides the reference for results of recordings: their true labels, or the results of the reference model."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from edge.sources.source import kind_of, open_source
from modelling.evaluation.bag_images import (
    BOXES,
    LABELS,
    ComparedWith,
    EvaluationError,
    EvaluationSettings,
    LabelledImage,
    LabelledImages,
)
from modelling.evaluation.class_map import ClassMap, class_map
from rosbag_tools.reading.bag import Bag
from shared.imaging.frames import Frame
from shared.messages.model_card import ModelCard


class UnlabelledImages:
    """The images of the first camera of a bag, a video or a folder of images, at most `frames` of them, without truth."""

    def __init__(self, path: Path, frames: int | None = None) -> None:
        """Raises a SkylaneError if the recording cannot be opened."""
        with closing(open_source(str(path))) as source:
            count = source.frame_count
        self.total = frames if count is None else min(count, frames or count)
        self._path, self._frames = path, frames

    def __iter__(self) -> Iterator[LabelledImage]:
        """Yields the readable images in their order.

        Raises:
            SkylaneError: the recording cannot be read, or holds no readable image.
        """
        with closing(open_source(str(self._path))) as source:
            readable = (each for each in source.frames() if isinstance(each, Frame))
            first = next(readable, None)
            if first is None:
                raise EvaluationError(f"{self._path} holds no readable image: give another recording")
            of_camera = (each for each in chain([first], readable) if each.camera == first.camera)
            for frame in islice(of_camera, self._frames):
                yield LabelledImage(frame.pixels, frame.layout, frame.stamp_ns, None)


@dataclass(frozen=True, slots=True)
class ReferenceComparison:
    """The images of some recordings, and what the results for them are compared with."""

    compared_with: ComparedWith
    images: Sequence[LabelledImages | UnlabelledImages]  # One for each recording.
    classes: ClassMap | None  # The classes of masks; None for other tasks.

    @classmethod
    def of(cls, recordings: Sequence[Path], card: ModelCard, settings: EvaluationSettings) -> "ReferenceComparison":
        """Returns the comparison that the settings ask for.

        By default results are compared with the truth if all recordings have one, and with the reference model's results if
        none has.

        Raises:
            SkylaneError: a recording cannot be read, only some of them have a truth, or its classes do not fit.
        """
        suffix = BOXES if card.task in ("classification", "detection") else LABELS
        compared_with = settings.compared_with or _found(recordings, suffix)
        if compared_with == "results":
            if settings.map_file is not None:
                raise EvaluationError(
                    f"--map is for true labels, and {card.name} is compared with its results: leave it out"
                )
            return cls(
                "results", [UnlabelledImages(path, settings.frames) for path in recordings], _classes(card, None, None)
            )
        labelled = [LabelledImages(path, None, suffix, settings.frames) for path in recordings]
        maps = [_classes(card, each.names, settings.map_file) for each in labelled]
        other = next((index for index, each in enumerate(maps) if each != maps[0]), None)
        if other is not None:
            raise EvaluationError(
                f"{recordings[0]} and {recordings[other]} have labels of different classes: give recordings with the same ones"
            )
        return cls("labels", labelled, maps[0])

    def note(self, reference: str) -> str:
        """Returns what a reader must know about the figures, as a sentence; empty if nothing."""
        if self.compared_with == "results":
            return agreement_note(reference)
        return "" if self.classes is None else self.classes.describe()


def agreement_note(reference: str) -> str:
    """Returns what figures mean that compare with the results of a reference model."""
    return f"Agreement with the results of {reference}, whose errors count as right: this is no accuracy."


def _classes(card: ModelCard, names: Sequence[str] | None, file: Path | None) -> ClassMap | None:
    if card.task == "segmentation":
        return class_map(card.labels.names, names, file)
    if file is not None:
        raise EvaluationError(f"--map is for true masks, and {card.name} answers {card.task}: leave it out")
    return None


def _found(recordings: Sequence[Path], suffix: str) -> ComparedWith:
    """Returns "labels" if all recordings have a truth, "results" if none has."""
    labelled = [_has_truth(path, suffix) for path in recordings]
    if any(labelled) and not all(labelled):
        raise EvaluationError(
            f"{recordings[labelled.index(True)]} holds true {suffix.strip('/')}, {recordings[labelled.index(False)]} does not: "
            "give recordings of one kind, or compare all of them with the reference model's results by --reference results"
        )
    return "labels" if all(labelled) else "results"


def _has_truth(path: Path, suffix: str) -> bool:
    if kind_of(str(path)) != "bag":
        return False
    with Bag(path) as bag:
        return any(topic.name.endswith(suffix) for topic in bag.topics)
