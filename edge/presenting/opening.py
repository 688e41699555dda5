"""Checks and opens what presents the results of a run, before the first frame."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from edge.config import EdgeConfig
from edge.presenting.presentation import Presentation
from edge.presenting.presenter import PresenterParts
from edge.presenting.table import PRESENTERS
from shared import clock
from shared.errors import SkylaneError
from shared.messages.model_card import ModelCard
from shared.registry import load
from shared.tasks.task import task_named


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
    parts = PresenterParts(card, fusion=config.fusion, clock_ns=clock.now_ns)
    presenter = load("presenter", PRESENTERS, config.present)
    yield Presentation(partial(presenter, parts), card, config, runs_local=entry.needs_local)
