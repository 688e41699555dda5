"""Checks and opens what presents the results of a run, before the first frame."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from edge.config import EdgeConfig
from edge.presenting.fusion_table import shipped_fusion
from edge.presenting.local import LocalResults
from edge.presenting.presentation import Presentation
from edge.presenting.presenter import PRESENTERS, PresenterParts
from edge.reuse.local_model import LocalModel
from edge.reuse.opening import check_local_model, open_local_model
from shared import clock
from shared.errors import SkylaneError
from shared.files import file_sha256
from shared.messages.model_card import ModelCard
from shared.models.repository import Repository, default_root
from shared.registry import load
from shared.task import task_named


class PresenterError(SkylaneError):
    """A presenter does not support the model's task."""


@contextmanager
def open_presentation(config: EdgeConfig, card: ModelCard) -> Iterator[Presentation | None]:
    """Yields what the configuration asks for; None if nothing is to be presented.

    Raises:
        SkylaneError: the presenter, the local model or the measured reliability cannot be used for this model.
    """
    if config.present is None:
        yield None
        return
    entry = PRESENTERS[config.present]
    if not entry.holds(task_named(card.task)):
        others = " or ".join(name for name, other in PRESENTERS.items() if other.holds(task_named(card.task)))
        raise PresenterError(
            f"presenter {config.present} moves results with the image, and model {card.name} answers {card.task}: use "
            f"--present {others}"
        )
    presenter = load("presenter", PRESENTERS, config.present)
    with _local_results(config, card) if entry.needs_local else nullcontext() as local:
        local_card = None if local is None else local.model.model.card
        fusion = config.fusion
        if fusion is None and local_card is not None:
            fusion = shipped_fusion(card.name, local_card.name)
        problem = str if local is None else local.problem
        parts = PresenterParts(card, local, fusion, local_card, problem, clock.now_ns)
        presenter(parts)  # Raises the error of a file that cannot be used, before the first frame.
        presentation = Presentation(partial(presenter, parts), card, config, runs_local=entry.needs_local)
        if local is not None:
            presentation.describe_parts = partial(_parts_record, local.model, _file_record(parts.fusion))
        yield presentation


@contextmanager
def _local_results(config: EdgeConfig, card: ModelCard) -> Iterator[LocalResults]:
    """Yields what runs the local model on ticks. The pipeline has a model of its own, as each model serves one thread."""
    assert config.local_model is not None
    stored = Repository(config.models or default_root()).find(config.local_model)
    check_local_model(stored, card)
    local = LocalModel(partial(open_local_model, stored, config), config.local_timeout_ms / 1e3)
    try:
        yield LocalResults(local)
    finally:
        local.close()


def _file_record(path: Path | None) -> dict[str, str] | None:
    return None if path is None else {"file": path.name, "sha256": file_sha256(path)}


def _parts_record(local: LocalModel, fusion: Mapping[str, str] | None) -> dict[str, Any]:
    """Returns what the manifest says about the local model, with what was counted so far, and about the fusion file."""
    card = local.model.card
    return {
        "local_model": {
            "name": card.name,
            "version": card.version,
            "sha256": card.sha256,
            **local.counts(),
        },
        "fusion": fusion,
    }
