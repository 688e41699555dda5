"""The check before the first frame: the presenter must fit the task of the model."""

from dataclasses import replace

import pytest

from edge.config import EdgeConfig
from edge.presenting.opening import PresenterError, open_presentation
from tests.edge.samples import CARD


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
