"""The presenter that moves the newest result to now."""

import numpy as np
import pytest

from edge.presenting.flow import FlowSize
from edge.presenting.presenter import ArrivedResult, PresenterParts
from edge.presenting.warp import FineWarpPresenter, WarpPresenter
from shared.runlog.presented_log import OutputOrigin
from tests.edge.samples import CARD
from tests.support.moving_camera import PERIOD_NS, MovingCamera

CAMERA = MovingCamera()


@pytest.fixture
def presenter() -> WarpPresenter:
    """Returns a presenter that has seen nothing."""
    return WarpPresenter(PresenterParts(CARD))


def test_before_the_first_result_there_is_no_output(presenter: WarpPresenter) -> None:
    """The presentation names the reason."""
    assert presenter.present(CAMERA.tick(0, 0), None).origin is OutputOrigin.NONE


@pytest.mark.parametrize("origin", [OutputOrigin.REMOTE, OutputOrigin.LOCAL])
def test_the_result_of_the_tick_itself_is_presented_as_it_is(presenter: WarpPresenter, origin: OutputOrigin) -> None:
    """A link that is faster than the camera needs no flow."""
    mask = CAMERA.mask(0)
    output = presenter.present(CAMERA.tick(1, 0), ArrivedResult(1, PERIOD_NS, mask, origin))
    assert (output.origin, output.flow) == (origin, "")
    assert output.result is mask


@pytest.mark.parametrize(("kind", "size"), [(WarpPresenter, FlowSize.QUARTER), (FineWarpPresenter, FlowSize.FULL)])
def test_an_older_result_is_moved_and_kept_as_it_was(kind: type[WarpPresenter], size: FlowSize) -> None:
    """The next tick starts from the same result again."""
    presenter = kind(PresenterParts(CARD))
    mask = CAMERA.mask(0)
    newest = ArrivedResult(0, 0, mask)
    presenter.present(CAMERA.tick(0, 0), None)
    for number in (1, 2):
        output = presenter.present(CAMERA.tick(number, 8 * number), newest)
        assert (output.origin, output.flow) == (OutputOrigin.WARPED, size)
        assert np.mean(output.result[:, 8:-48] == CAMERA.mask(8 * number)[:, 8:-48]) > 0.99
    np.testing.assert_array_equal(mask, CAMERA.mask(0))


def test_a_result_from_before_the_first_tick_is_held(presenter: WarpPresenter) -> None:
    """The presenter has not seen its frame, so that nothing is known about the motion since."""
    output = presenter.present(CAMERA.tick(5, 0), ArrivedResult(3, 3 * PERIOD_NS, CAMERA.mask(0)))
    assert (output.origin, output.flow) == (OutputOrigin.REMOTE, FlowSize.NONE)
    np.testing.assert_array_equal(output.result, CAMERA.mask(0))


def test_a_mask_of_another_size_is_held(presenter: WarpPresenter) -> None:
    """A model that was swapped may answer in its own size; the mask is not stretched."""
    presenter.present(CAMERA.tick(0, 0), None)
    output = presenter.present(CAMERA.tick(1, 0), ArrivedResult(0, 0, CAMERA.mask(0)[:-2]))
    assert (output.origin, output.flow) == (OutputOrigin.REMOTE, FlowSize.NONE)
