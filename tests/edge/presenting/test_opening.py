"""What is opened and checked before the first frame: the presenter, its local model, and the task of the model."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.config import EdgeConfig
from edge.presenting.presented_run import PresenterError, open_presentation
from edge.presenting.presenter import PRESENTERS, ArrivedResult, Output, PresenterEntry, PresenterParts, Tick
from edge.reuse.local_model import LocalModelError
from edge.sinks.sink import PresentedTick
from shared.errors import SkylaneError
from shared.models.repository import Repository
from shared.runlog.presented_log import OutputOrigin
from tests.edge.samples import CARD, make_frame, make_record
from tests.support.local_models import write_segmentation
from tests.support.waiting import beside


class LocalPresenter:
    """Presents the results of the local model."""

    def __init__(self, parts: PresenterParts) -> None:
        if parts.fusion is not None:
            raise SkylaneError(f"{parts.fusion} is no measured reliability")
        assert parts.local is not None
        self._local = parts.local

    def present(self, tick: Tick, newest: ArrivedResult | None) -> Output:
        """See Presenter."""
        del newest
        return Output(OutputOrigin.LOCAL, self._local(tick).result)


@pytest.fixture
def with_local(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> EdgeConfig:
    """Returns a configuration whose presenter runs a local model with two grey levels, of half the reference's size."""
    entry = PresenterEntry(f"{__name__}:LocalPresenter", "local", needs_local=True)
    monkeypatch.setitem(PRESENTERS, "local", entry)
    write_segmentation(tmp_path, "reference", 32, 48, 2)
    write_segmentation(tmp_path, "local", 16, 24, 2)
    write_segmentation(tmp_path, "other", 16, 24, 3)
    return EdgeConfig(present="local", local_model="local", models=tmp_path)


def test_a_run_without_a_presenter_presents_nothing() -> None:
    """Nothing of it runs then."""
    with open_presentation(EdgeConfig(), CARD) as presentation:
        assert presentation is None


@pytest.mark.parametrize("task", ["classification", "tensors"])
def test_results_without_places_can_only_be_held(task: str) -> None:
    """There is nothing that optical flow could move; the message names the presenters that fit."""
    card = replace(CARD, task=task)
    with (
        pytest.raises(PresenterError, match=rf"presenter warp moves .* answers {task}: use --present hold$"),
        open_presentation(EdgeConfig(present="warp"), card),
    ):
        pass
    with open_presentation(EdgeConfig(present="hold"), card) as presentation:
        assert presentation is not None


def test_a_presenter_gets_the_local_model(with_local: EdgeConfig) -> None:
    """Its results have the size of the reference model's; the model is closed with the presentation."""
    assert with_local.models is not None
    card = Repository(with_local.models).find("reference").card()
    presented: list[PresentedTick] = []
    with open_presentation(with_local, card) as presentation:
        assert presentation is not None
        presentation.listeners.append(presented.append)
        pixels = np.zeros((64, 96, 3), np.uint8)
        pixels[:, 48:] = 255
        presentation.offer(make_record(), replace(make_frame(), pixels=pixels))
        with beside(presentation.run):
            presentation.end()
        record = presentation.describe_parts()
    assert record["local_model"]["name"] == with_local.local_model
    assert record["local_model"]["median_ms"] > 0
    (tick,) = presented
    assert (tick.origin, tick.reason) == (OutputOrigin.LOCAL, "")
    np.testing.assert_array_equal(tick.result, np.tile(np.repeat([0, 1], 24), (32, 1)))
    assert "local model" not in {each.name for each in threading.enumerate()}


def test_a_local_model_that_does_not_fit_is_refused(with_local: EdgeConfig) -> None:
    """The error comes before the first frame, as for a local model that answers frames."""
    assert with_local.models is not None
    card = Repository(with_local.models).find("reference").card()
    config = with_local.model_copy(update={"local_model": "other"})
    with pytest.raises(LocalModelError, match="has other labels"), open_presentation(config, card):
        pass


def test_a_file_that_cannot_be_used_is_refused(with_local: EdgeConfig) -> None:
    """The presenter reads it; without an early attempt, each tick would have failed."""
    assert with_local.models is not None
    card = Repository(with_local.models).find("reference").card()
    config = with_local.model_copy(update={"fusion": Path("notes.txt")})
    with pytest.raises(SkylaneError, match=r"notes\.txt is no measured"), open_presentation(config, card):
        pass
    assert "local model" not in {each.name for each in threading.enumerate()}
