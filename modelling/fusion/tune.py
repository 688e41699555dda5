"""Makes the table of a fusion file (see `edge.presenting.fusion_table`) from drives, and judges it on others."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from edge.presenting.fusion_table import FusionHeader, FusionTable
from modelling.evaluation.bag_images import EvaluationError, EvaluationSettings, LabelledImage, check_given_once
from modelling.evaluation.class_map import NoCounterpartError
from modelling.evaluation.comparison import ReferenceComparison, agreement_note
from modelling.fusion.counts import BoxCounts, FusionJudge, MaskCounts
from modelling.fusion.recording import AgedResult, RecordedFrame, aged_results, confirmed, recorded_frames
from shared.inference.model import Model
from shared.messages.model_card import ModelCard
from shared.reuse.tuning import TunedModelSection
from shared.terminal_table import Table

_AGES_MS = (33.0, 67.0, 100.0, 133.0, 200.0, 300.0, 400.0, 500.0, 700.0, 1000.0)

_MAX_LABELS = 40  # The counts of a segmentation grow with the cube of the number of labels.
_SLOWER = 3  # A drive is also seen as a camera of a third of its rate sees it.


@dataclass(frozen=True, slots=True)
class TuneFusionSettings:
    """The settings of a measurement."""

    every: int = 3  # One tick in so many is counted.
    local_side: int | None = None  # See `modelling.fusion.recording.coarse`.
    recording: EvaluationSettings = field(default_factory=EvaluationSettings)


def tune_fusion(
    recordings: Sequence[Path], judged_on: Sequence[Path], reference: Model, local: Model, settings: TuneFusionSettings
) -> FusionTable:
    """Makes a table from recordings, and judges it on other ones if any are given.

    Recordings are bags with true labels or boxes, or without them for a comparison with the results of `reference`. Ages that
    the camera's rate does not have are left out.

    Raises:
        SkylaneError: a recording cannot be read, is given twice, or lacks the truth, or the models do not fit.
    """
    _check(recordings, judged_on, reference.card)
    has_own_classes = False
    with suppress(NoCounterpartError):
        comparison = ReferenceComparison.of((*recordings, *judged_on), reference.card, settings.recording)
        has_own_classes = comparison.classes is None or comparison.classes.is_identity
    if not has_own_classes:
        raise EvaluationError(
            f"the true labels have other classes than {reference.card.name}, and a fusion file is made for its own: compare "
            "with its results by --reference results"
        )
    names = reference.card.labels.names
    is_masks = reference.card.task == "segmentation"
    ages = len(_AGES_MS)
    counts = MaskCounts(ages, names, comparison.compared_with) if is_masks else BoxCounts(ages, names)
    for drive, frames in enumerate(_drives(comparison.images[: len(recordings)], reference, local, settings)):
        known = confirmed(frames) if is_masks and comparison.compared_with == "results" else frames
        for aged in _results(known, settings, _AGES_MS):
            counts.add(drive, aged)
    met = [index for index in range(len(_AGES_MS)) if counts.ticks[index]]
    if not met:
        raise EvaluationError(
            f"no counted frame of these recordings (one in {settings.every}, see --every) has another about "
            f"{', '.join(f'{age_ms:g}' for age_ms in _AGES_MS)} ms before it: give recordings of more frames"
        )
    header = FusionHeader(
        task="segmentation" if is_masks else "detection",
        reference=_section(reference.card),
        local=_section(local.card),
        labels=len(names),
        ages_ms=tuple(_AGES_MS[index] for index in met),
        drives=tuple(each.stem for each in recordings),
        compared_with=comparison.compared_with,
        ticks=int(min(counts.ticks[index] for index in met)),
    )
    table = FusionTable(header, counts.arrays(met))
    if not judged_on:
        return table
    judge = FusionJudge(table, names)
    for frames in _drives(comparison.images[len(recordings) :], reference, local, settings):
        for aged in _results(frames, settings, header.ages_ms):
            judge.add(aged)
    found = {"judged_on": tuple(each.stem for each in judged_on), "judged": judge.judged()}
    return replace(table, header=header.model_copy(update=found))


def moves_only(table: FusionTable) -> bool:
    """Returns whether a table for masks never chooses another class than that of the moved result."""
    classes = table.arrays.get("classes")
    return classes is not None and bool((classes == np.arange(classes.shape[-1])[:, np.newaxis]).all())


def judged_table(table: FusionTable) -> Table:
    """Returns the accuracy, or the agreement, at each age on the drives that the table was judged on."""
    header = table.header
    metric = "mean IoU" if header.task == "segmentation" else "mean average precision"
    caption = "ceiling: the reference model's result of the same frame; margin: fuse over the better of local and warp"
    if header.compared_with == "results":
        metric = f"agreement ({metric})"
        caption += f" · {agreement_note(header.reference.name)} The local model may share them"
    title = f"{header.reference.name} with {header.local.name}: {metric} on {len(header.judged_on)} drives"
    shown = Table(title=title, caption=caption)
    for name in ("age", "local", "hold", "warp", "fuse", "margin", "ceiling"):
        shown.add_column(name, justify="right")
    for judged in header.judged:
        margin = judged.fuse - max(judged.local, judged.warp)
        values = [f"{getattr(judged, name):.3f}" for name in ("local", "hold", "warp", "fuse")]
        shown.add_row(f"{judged.age_ms:g} ms", *values, f"{margin:+.3f}", f"{judged.ceiling:.3f}")
    return shown


def _drives(
    drives: Sequence[Iterable[LabelledImage]], reference: Model, local: Model, settings: TuneFusionSettings
) -> Iterator[list[RecordedFrame]]:
    for images in drives:
        yield list(recorded_frames(images, reference, local, settings.recording, settings.local_side))


def _results(
    frames: Sequence[RecordedFrame], settings: TuneFusionSettings, ages_ms: Sequence[float]
) -> Iterator[AgedResult]:
    for step in (1, _SLOWER):
        yield from aged_results(frames[::step], ages_ms, max(1, settings.every // step))


def _check(recordings: Sequence[Path], judged_on: Sequence[Path], card: ModelCard) -> None:
    if card.task not in ("segmentation", "detection"):
        raise EvaluationError(
            f"{card.name} answers {card.task}, and only masks and boxes are fused: choose another --model"
        )
    check_given_once((*recordings, *judged_on))
    if card.task == "segmentation" and len(card.labels.names) > _MAX_LABELS:
        raise EvaluationError(
            f"{card.name} has {len(card.labels.names)} labels, and tables are made for at most {_MAX_LABELS}: choose "
            "another --model"
        )


def _section(card: ModelCard) -> TunedModelSection:
    return TunedModelSection(name=card.name, sha256=card.sha256)
